//! The nine kinds of writers.

use std::fs::File as Plain;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Duration;

use forebay::Session;

use super::{BLOCK, Inode, Subject};
use crate::block::{self, Kind, SIZE};
use crate::bytes::{errno, open};
use crate::random::Random;
use crate::trial::Trial;

/// By their order below; those of one file come one by one.
const KINDS: [&str; 9] = [
    "buffered writes",
    "O_DIRECT writes",
    "stores and msync",
    "truncations and rewrites",
    "renames over",
    "appends",
    "holes and zeros",
    "copies by the kernel",
    "writes by forebay",
];

pub fn write(trial: &Trial, session: &Session, subjects: &[Subject], mut random: Random) {
    while !trial.is_over() {
        // Readers need times in which a file is left alone, or nothing is ever pinned.
        std::thread::sleep(Duration::from_millis(random.one_of(&[0, 1, 20, 60, 150])));
        let subject = &subjects[random.below(subjects.len() as u64) as usize];
        let inode = subject.now();
        let alone = inode.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&inode, &subject.now()) {
            continue;
        }
        let kind = random.below(KINDS.len() as u64) as usize;
        let first = random.below(subject.blocks);
        let count = random.one_of(&[1, 3, 64, 700]).min(subject.blocks - first);
        let writer = Writer { inode: &inode, part: first..first + count };
        match kind {
            0 => writer.buffered(),
            1 => writer.direct(),
            2 => writer.stores(),
            3 => writer.truncated(subject),
            4 => replace(subject, &inode),
            5 => writer.append(subject, &mut random),
            6 => writer.holes(&mut random),
            7 => writer.copied(subject, &mut random),
            _ => writer.by_session(session),
        }
        trial.add(KINDS[kind], 1);
        drop(alone);
    }
}

/// A file that takes the name of another; the other lives on without one.
fn replace(subject: &Subject, inode: &Inode) {
    let fresh = subject.path.with_extension("new");
    let more = inode.cells.len() as u64 - subject.blocks;
    let next = Inode::make(&fresh, inode.id + 1, subject.blocks, more);
    // A thread that opens the new file by its name then reads `subject.now`, and waits at this lock.
    let mut now = subject.now.write().unwrap_or_else(PoisonError::into_inner);
    std::fs::rename(&fresh, &subject.path).expect("both names are in one folder");
    *now = next;
}

/// Someone who writes a part of a file.
struct Writer<'a> {
    inode: &'a Inode,
    part: Range<u64>,
}

impl Writer<'_> {
    /// Makes new versions known, has them made, makes known that they are over.
    fn step(&self, part: Range<u64>, kind: Kind, make: impl FnOnce(&[u8], u64)) {
        let cells = &self.inode.cells[part.start as usize..part.end as usize];
        for cell in cells {
            cell.begin(kind);
        }
        let mut bytes = Vec::new();
        if kind == Kind::Data {
            bytes.reserve(cells.len() * SIZE);
            for (cell, index) in cells.iter().zip(part.clone()) {
                block::append(&mut bytes, self.inode.id, index, cell.begun().version);
            }
        }
        make(&bytes, part.start * BLOCK);
        for cell in cells {
            cell.end();
        }
    }

    fn open(&self, flags: i32) -> std::io::Result<Plain> {
        let fd = self.inode.file.raw_fd().expect("a file has a descriptor");
        open(Path::new(&format!("/proc/self/fd/{fd}")), flags)
    }

    fn plain(&self) -> Plain {
        self.open(0).expect("another descriptor of the file")
    }

    fn buffered(&self) {
        let file = self.plain();
        self.step(self.part.clone(), Kind::Data, |bytes, at| file.write_all_at(bytes, at).expect("a write"));
    }

    fn direct(&self) {
        let file = self.open(libc::O_DIRECT).unwrap_or_else(|_| self.plain());
        self.step(self.part.clone(), Kind::Data, |bytes, at| {
            let mut room = vec![0; bytes.len() + SIZE];
            let skip = room.as_ptr().align_offset(SIZE);
            room[skip..skip + bytes.len()].copy_from_slice(bytes);
            file.write_all_at(&room[skip..skip + bytes.len()], at).expect("a write by O_DIRECT");
        });
    }

    fn stores(&self) {
        let file = self.plain();
        self.step(self.part.clone(), Kind::Data, |bytes, at| {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping of blocks that the file has, written once and taken away again.
            unsafe {
                let to =
                    libc::mmap(std::ptr::null_mut(), bytes.len(), access, flags, file.as_raw_fd(), at as i64);
                assert_ne!(to, libc::MAP_FAILED, "mmap: {}", errno());
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
                assert_eq!(libc::msync(to, bytes.len(), libc::MS_SYNC), 0, "msync: {}", errno());
                libc::munmap(to, bytes.len());
            }
        });
    }

    /// Cuts the file here, and writes what was behind it again.
    fn truncated(&self, subject: &Subject) {
        let file = self.plain();
        let (first, all) = (self.part.start, self.inode.cells.len() as u64);
        self.step(first..all, Kind::Gone, |_, at| file.set_len(at).expect("a shorter file"));
        self.step(first..subject.blocks, Kind::Data, |bytes, at| {
            file.write_all_at(bytes, at).expect("a write");
        });
    }

    /// Blocks at the end, up to as many as there may be; then they go again.
    fn append(&self, subject: &Subject, random: &mut Random) {
        let file = self.plain();
        let end = file.metadata().expect("a file").len() / BLOCK;
        let all = self.inode.cells.len() as u64;
        if end == all {
            self.step(subject.blocks..all, Kind::Gone, |_, at| file.set_len(at).expect("a shorter file"));
        } else {
            let part = end..end + random.between(1, all - end);
            self.step(part, Kind::Data, |bytes, at| file.write_all_at(bytes, at).expect("a write"));
        }
    }

    fn holes(&self, random: &mut Random) {
        let file = self.plain();
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let mode = random.one_of(&[hole, libc::FALLOC_FL_ZERO_RANGE]);
        let len = (self.part.end - self.part.start) * BLOCK;
        self.step(self.part.clone(), Kind::Zeros, |_, at| {
            // SAFETY: no pointers are passed.
            let call = |mode| unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) };
            // tmpfs knows holes only.
            let rc = if call(mode) == 0 { 0 } else { call(hole) };
            assert_eq!(rc, 0, "fallocate: {}", errno());
        });
    }

    /// By copy_file_range or sendfile, from a file that nobody reads.
    fn copied(&self, subject: &Subject, random: &mut Random) {
        let (file, by_range) = (self.plain(), random.once_in(2));
        let name = subject.path.with_extension("source");
        self.step(self.part.clone(), Kind::Data, |bytes, at| {
            std::fs::write(&name, bytes).expect("room for a file");
            let source = Plain::open(&name).expect("the new file");
            let (mut from, mut to) = (0i64, at as i64);
            while (from as usize) < bytes.len() {
                let left = bytes.len() - from as usize;
                // SAFETY: the places are valid.
                let count = unsafe {
                    if by_range {
                        let (from, to) = (&raw mut from, &raw mut to);
                        libc::copy_file_range(source.as_raw_fd(), from, file.as_raw_fd(), to, left, 0)
                    } else {
                        libc::lseek(file.as_raw_fd(), at as i64 + from, libc::SEEK_SET);
                        libc::sendfile(file.as_raw_fd(), source.as_raw_fd(), &raw mut from, left)
                    }
                };
                assert!(count > 0, "a copy by the kernel: {count}, {}", errno());
            }
        });
        let _ = std::fs::remove_file(&name);
    }

    fn by_session(&self, session: &Session) {
        self.step(self.part.clone(), Kind::Data, |bytes, at| {
            let mut buffer = session.buffer(0, bytes.len()).expect("memory of the GPU");
            buffer.copy_from_slice(bytes).expect("memory of the GPU");
            session.write(&self.inode.file, at, &buffer).expect("a write by forebay");
        });
    }
}
