//! Files in memory. What was written is durable after a COMMIT, or at once where that is asked for.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Files {
    by_path: BTreeMap<String, File>,
    next: u64,
    boot: u64,
    pub(crate) handle_len: usize,
}

pub(crate) struct File {
    pub(crate) id: u64,
    handle_len: usize,
    pub(crate) now: Vec<u8>,
    durable: Vec<u8>,
    pub(crate) changes: u64,
}

/// Ids of directories are these and more: a hash of their path.
const DIRECTORY: u64 = 1 << 63;

impl Files {
    pub(crate) fn put(&mut self, path: &str, bytes: Vec<u8>) {
        self.next += 1;
        let handle_len = self.handle_len.max(20);
        let file = File { id: self.next, handle_len, durable: bytes.clone(), now: bytes, changes: 1 };
        self.by_path.insert(path.to_owned(), file);
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.by_path.remove(path);
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
