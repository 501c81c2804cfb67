//! Writers: every change that a file system has.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::history::{BLOCK, Inode, blocks, make};
use super::readers::Random;
use super::{Load, Subject};

/// Blocks of one write: one system call, over soon.
const PART: u64 = 64;
/// Inodes of one name have steps of their own.
const STEPS: u64 = 1_000_000;

pub fn write(load: &Load, seed: u64) {
    let mut random = Random(seed * 77 + 5);
    while !load.is_over() {
        let subject = &load.subjects[random.below(load.subjects.len() as u64) as usize];
        let inode = subject.now();
        if inode.history().is_long() {
            replace(load, subject, false);
            continue;
        }
        match random.below(40) {
            0 => replace(load, subject, false),
            1 => replace(load, subject, true),
            2 => drop(load.session.trim()),
            3 => drop(load.session.trim_file(&inode.file)),
            // Readers need times in which a file is left alone, or nothing is ever pinned.
            4..=24 => std::thread::sleep(Duration::from_millis(20 + random.below(150))),
            _ => in_place(load, subject, &inode, &mut random),
        }
    }
}

fn raw(path: &Path, flags: i32) -> Option<std::fs::File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()
}

/// Another descriptor of the inode, whatever its name is by now.
fn descriptor(inode: &Inode, flags: i32) -> Option<std::fs::File> {
    raw(Path::new(&format!("/proc/self/fd/{}", inode.file.raw_fd()?)), flags)
}

/// A file that takes the name of another, with bytes of its own.
fn replace(load: &Load, subject: &Subject, unlink: bool) {
    let mut number = subject.naming.lock().unwrap_or_else(PoisonError::into_inner);
    *number += 1;
    load.counts.steps.fetch_add(1, Ordering::Relaxed);
    let first = *number * STEPS;
    if unlink {
        let _ = std::fs::remove_file(&subject.path);
        subject.is_now(make(&subject.path, first, subject.size));
    } else {
        let fresh = subject.path.with_extension("new");
        let inode = make(&fresh, first, subject.size);
        std::fs::rename(&fresh, &subject.path).expect("both names are in one folder");
        subject.is_now(inode);
    }
}

/// A burst of changes of the inode's bytes or length, here and there: who reads meanwhile meets some of them.
fn in_place(load: &Load, subject: &Subject, inode: &Inode, random: &mut Random) {
    let _alone = inode.still.write().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..=random.below(11) {
        change(load, subject, inode, random);
        load.counts.steps.fetch_add(1, Ordering::Relaxed);
    }
}

fn change(load: &Load, subject: &Subject, inode: &Inode, random: &mut Random) {
    let len = inode.history().len();
    let count = len / BLOCK as u64;
    let first = random.below(count) / PART * PART;
    let part = first..(first + 1 + random.below(PART)).min(count);
    match random.below(9) {
        0..=2 => by_session(load, inode, part, len),
        3 | 4 => by_descriptor(inode, part, len, 0),
        5 | 6 => by_descriptor(inode, part, len, libc::O_DIRECT),
        7 => punch(inode, part, len),
        _ => change_length(subject, inode, random, len),
    }
}

/// Makes a step known before it is made, and over when it is.
fn step(inode: &Inode, part: Range<u64>, is_hole: bool, len: u64, make: impl FnOnce(u64)) {
    let number = inode.history().begin(part, is_hole, len);
    make(number);
    inode.history().end(number);
}

fn bytes_of(number: u64, part: &Range<u64>) -> Vec<u8> {
    blocks(number, part.start, (part.end - part.start) as usize * BLOCK)
}

fn by_session(load: &Load, inode: &Inode, part: Range<u64>, len: u64) {
    let Ok(mut buffer) = load.session.buffer(0, (part.end - part.start) as usize * BLOCK) else { return };
    step(inode, part.clone(), false, len, |number| {
        let written = buffer
            .copy_from_slice(&bytes_of(number, &part))
            .and_then(|()| load.session.write(&inode.file, part.start * BLOCK as u64, &buffer));
        if let Err(error) = written {
            load.violation(format!("a write failed: {error:?}"));
        }
    });
}

fn by_descriptor(inode: &Inode, part: Range<u64>, len: u64, flags: i32) {
    let Some(file) = descriptor(inode, flags) else { return };
    step(inode, part.clone(), false, len, |number| {
        let bytes = bytes_of(number, &part);
        // O_DIRECT wants an aligned place.
        let mut room = vec![0u8; bytes.len() + BLOCK];
        let skip = room.as_ptr().align_offset(BLOCK);
        room[skip..skip + bytes.len()].copy_from_slice(&bytes);
        let written = file.write_at(&room[skip..skip + bytes.len()], part.start * BLOCK as u64);
        assert_eq!(written.expect("room for what was there before"), bytes.len());
    });
}

fn punch(inode: &Inode, part: Range<u64>, len: u64) {
    let Some(file) = descriptor(inode, 0) else { return };
    step(inode, part.clone(), true, len, |_| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, end) = (part.start * BLOCK as u64, part.end * BLOCK as u64);
        // SAFETY: no pointers are passed.
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, start as i64, (end - start) as i64) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    });
}

/// Cuts a file short, or brings a short one back to its length: by a hole, or by bytes.
fn change_length(subject: &Subject, inode: &Inode, random: &mut Random, len: u64) {
    let Some(file) = descriptor(inode, 0) else { return };
    let block = BLOCK as u64;
    if len == subject.size {
        let shorter = len - (1 + random.below(PART)) * block;
        step(inode, shorter / block..len / block, true, shorter, |_| {
            file.set_len(shorter).expect("a shorter file");
        });
    } else if random.below(2) == 0 {
        step(inode, 0..0, false, subject.size, |_| {
            file.set_len(subject.size).expect("a longer file");
        });
    } else {
        let part = len / block..subject.size / block;
        step(inode, part.clone(), false, subject.size, |number| {
            file.write_all_at(&bytes_of(number, &part), len).expect("room on the disk");
        });
    }
}
