//! A thread that finds a transfer resolved finds its file released: a program that closes its file then, and counts its
//! descriptors, finds as many as before.

use std::path::Path;

use crate::common::{Scratch, disk, session, turn};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{File, ReadPiece};

const LEN: usize = 3 << 20;

/// How many descriptors this process has of a file.
fn held(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path)).count()
}

#[test]
fn a_resolved_transfer_holds_no_file() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), 5, LEN);
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let session = session(io, CachePolicy::Auto);
        for round in 0..300 {
            let file = File::open(scratch.path()).unwrap();
            assert!(held(scratch.path()) > 0);
            let len = if round % 2 == 0 { LEN } else { 4096 };
            let buffer =
                if round % 3 == 0 { session.host_buffer(LEN) } else { session.buffer(0, LEN) }.unwrap();
            let ticket =
                session.read_batch(&file, &[ReadPiece { offset: 0, range: 0..len }], buffer).unwrap();
            drop(file);
            ticket.wait().into_result().unwrap();
            assert_eq!(held(scratch.path()), 0, "round {round} with {io:?}: somebody still holds the file");
        }
    }
}
