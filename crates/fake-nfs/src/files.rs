//! Files in memory. Written bytes are durable after a COMMIT, or at once where the client asks for that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

#[derive(Default)]
pub(crate) struct Files {
    by_path: BTreeMap<String, File>,
    next: u64,
    boot: u64,
    pub(crate) handle_len: usize,
    /// The access list of files from now on.
    pub(crate) inherited: Option<Vec<u8>>,
}

pub(crate) struct File {
    pub(crate) id: u64,
    handle_len: usize,
    now: Vec<u8>,
    durable: Vec<u8>,
    changes: u64,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    /// The access list, as attribute 12 of version 4.
    pub(crate) acl: Option<Vec<u8>>,
    /// A file of this host has its bytes, in place of these.
    on_disk: Option<std::fs::File>,
}

/// Names in a reply at most.
const MOST_NAMES: usize = 100;

/// The result of creating a file.
pub(crate) enum Made {
    New,
    There,
}

/// Ids of directories are these and more: a hash of their path.
const DIRECTORY: u64 = 1 << 63;

impl Files {
    pub(crate) fn put(&mut self, path: &str, bytes: Vec<u8>) {
        self.next += 1;
        let handle_len = self.handle_len.max(20);
        let (durable, on_disk) = (bytes.clone(), None);
        let file = File {
            id: self.next,
            handle_len,
            durable,
            now: bytes,
            changes: 1,
            mode: 0o644,
            owner: 0,
            group: 0,
            acl: self.inherited.clone(),
            on_disk,
        };
        self.by_path.insert(path.to_owned(), file);
    }

    pub(crate) fn put_on_disk(&mut self, path: &str, file: std::fs::File) {
        self.put(path, Vec::new());
        if let Some(put) = self.by_path.get_mut(path) {
            put.on_disk = Some(file);
        }
    }

    pub(crate) fn remove(&mut self, path: &str) -> bool {
        self.by_path.remove(path).is_some()
    }

    pub(crate) fn make(&mut self, path: &str, mode: u32, owner: u32) -> Made {
        if self.by_path.contains_key(path) {
            return Made::There;
        }
        self.put(path, Vec::new());
        self.set_rights(path, mode, (owner, 0));
        Made::New
    }

    pub(crate) fn set_rights(&mut self, path: &str, mode: u32, (owner, group): (u32, u32)) {
        if let Some(file) = self.by_path.get_mut(path) {
            (file.mode, file.owner, file.group) = (mode, owner, group);
        }
    }

    pub(crate) fn mode(&self, path: &str) -> Option<u32> {
        self.by_path.get(path).map(|file| file.mode)
    }

    pub(crate) fn acl(&mut self, path: &str) -> Option<&mut Option<Vec<u8>>> {
        self.by_path.get_mut(path).map(|file| &mut file.acl)
    }

    pub(crate) fn rename(&mut self, old: &str, new: &str) -> bool {
        let file = self.by_path.remove(old);
        file.map(|file| self.by_path.insert(new.to_owned(), file)).is_some()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.by_path.keys().cloned().collect()
    }

    pub(crate) fn durable(&self, path: &str) -> Vec<u8> {
        self.by_path.get(path).map(|file| file.durable.clone()).unwrap_or_default()
    }

    pub(crate) fn restart(&mut self) {
        self.boot += 1;
        for file in self.by_path.values_mut() {
            file.now.clone_from(&file.durable);
        }
    }

    pub(crate) fn verifier(&self) -> [u8; 8] {
        (0xB007 + self.boot).to_be_bytes()
    }

    /// The handle of a path: of a file, or of a directory that files are in.
    pub(crate) fn handle(&self, path: &str) -> Option<Vec<u8>> {
        let path = if path == "/" { "" } else { path.trim_end_matches('/') };
        if let Some(file) = self.by_path.get(path) {
            let mut handle = [file.id.to_be_bytes().as_slice(), b"file-handle!"].concat();
            handle.resize(file.handle_len, 0x5A);
            return Some(handle);
        }
        let inside = format!("{path}/");
        let is_directory = self.by_path.keys().any(|file| file.starts_with(&inside));
        is_directory.then(|| [DIRECTORY.to_be_bytes().as_slice(), path.as_bytes()].concat())
    }

    /// The names in a directory, each with its handle, from one on.
    pub(crate) fn names(&self, directory: &str, from: u64) -> Vec<(String, Vec<u8>)> {
        let inside = format!("{directory}/");
        let below = self.by_path.keys().filter_map(|path| path.strip_prefix(&inside));
        let names: BTreeSet<_> = below.map(|path| path.split('/').next().unwrap_or(path)).collect();
        let handle = |name: &str| self.handle(&format!("{inside}{name}")).unwrap_or_default();
        let names = names.into_iter().skip(from as usize);
        names.take(MOST_NAMES).map(|name| (name.to_owned(), handle(name))).collect()
    }

    /// The path of a directory's handle.
    pub(crate) fn directory(handle: &[u8]) -> Option<&str> {
        let (id, path) = handle.split_first_chunk()?;
        (u64::from_be_bytes(*id) == DIRECTORY).then(|| std::str::from_utf8(path).ok()).flatten()
    }

    pub(crate) fn file(&mut self, handle: &[u8]) -> Option<&mut File> {
        let id = u64::from_be_bytes(*handle.first_chunk()?);
        self.by_path.values_mut().find(|file| file.id == id && file.handle_len == handle.len())
    }
}

impl File {
    pub(crate) fn len(&self) -> usize {
        let on_disk = self.on_disk.as_ref().and_then(|file| file.metadata().ok());
        on_disk.map_or(self.now.len(), |found| found.len() as usize)
    }

    /// What tells its states apart.
    pub(crate) fn changes(&self) -> u64 {
        let on_disk = self.on_disk.as_ref().and_then(|file| file.metadata().ok());
        on_disk
            .map_or(self.changes, |found| (found.ctime() as u64 * 1_000_000_007) ^ found.ctime_nsec() as u64)
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let Some(file) = &self.on_disk else { return self.now[range].to_vec() };
        let mut bytes = vec![0; range.len()];
        let _ = file.read_exact_at(&mut bytes, range.start as u64);
        // A server has a page cache of its own.
        // SAFETY: no pointers are passed.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        bytes
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], is_durable: bool) {
        let end = offset as usize + bytes.len();
        self.changes += 1;
        put(&mut self.now, offset as usize, bytes, end);
        if is_durable {
            put(&mut self.durable, offset as usize, bytes, end);
        }
    }

    pub(crate) fn cut(&mut self, len: usize) {
        self.changes += 1;
        self.now.truncate(len);
        self.durable.truncate(len);
    }

    pub(crate) fn commit(&mut self) {
        self.durable.clone_from(&self.now);
    }
}

fn put(place: &mut Vec<u8>, start: usize, bytes: &[u8], end: usize) {
    if place.len() < end {
        place.resize(end, 0);
    }
    place[start..end].copy_from_slice(bytes);
}
