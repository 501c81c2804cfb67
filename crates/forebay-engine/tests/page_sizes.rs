//! The contract, and reads in place, as on machines with pages of 16 and 64 KiB (aarch64). The size is the process's: one test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/pages.rs"]
mod pages;

use std::path::Path;

use common::{Scratch, chill, disk, install_gpu, pattern};
use forebay_contract::{KEY, LEN, Subject};
use forebay_engine::File;
use pages::{MIB, memory, only, open, pin, pins, subject};

/// A file with the contract's bytes.
fn file(directory: &Path, name: &'static str) -> Subject {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    chill(&file);
    let outside = Box::new(move || std::fs::read(scratch.path()).unwrap());
    Subject { name, file, outside, is_slow: false }
}

/// What the kernel counts in its own pages, in a file whose last page is a part of one.
fn check_residency(directory: &Path) {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let found = file.residency(0, u64::MAX / 2).unwrap();
    assert_eq!((found.cached, found.total), (LEN as u64, LEN as u64), "{found:?}");
    let found = file.residency(LEN as u64 - 5000, 5000).unwrap();
    assert_eq!((found.cached, found.total), (5000, 5000), "{found:?}");
}

/// A file that ends with a large page: behind another one's end this machine has no page to register.
fn check_reads_in_place(directory: &Path) {
    let len = 3 * MIB + (64 << 10);
    let (_scratch, file) = subject(directory, KEY, len);
    let session = open(only());
    assert!(pin(&session, &file, len) == pattern(KEY, 0, len), "wrong bytes");
    assert_eq!(pins(&session).bytes, len as u64);
    assert!(pin(&session, &file, len - 4321) == pattern(KEY, 0, len - 4321), "wrong bytes of a part");
}

#[test]
fn larger_pages_change_no_promise() {
    install_gpu();
    for bytes in [16 << 10, 64 << 10] {
        forebay_sys::assume_page_size(bytes);
        println!("pages of {bytes} bytes");
        forebay_contract::run(|| file(&disk(), "cold file"));
        forebay_contract::run(|| file(&memory(), "tmpfs file"));
        check_residency(&disk());
        check_reads_in_place(&disk());
        check_reads_in_place(&memory());
    }
}
