//! Fifteen seconds of everything at once: see `soak/mod.rs`. `cargo run --release --example soak` runs it for longer.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod soak;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{disk, turn};
use soak::Options;

#[test]
fn everything_at_once_gives_no_wrong_byte() {
    let turn = turn();
    // What the first session of a process leaves for good is no leak of the load.
    let session = forebay_engine::Session::with_config(forebay_config::Config::default()).unwrap();
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        let scratch = common::Scratch::with_pattern(&directory, 1, 4096);
        let file = forebay_engine::File::open(scratch.path()).unwrap();
        session.probe_mapped(&file, &session.device(0).unwrap()).unwrap();
    }
    drop(session);
    let before = turn.fake.leaks();
    // So that copies take a while, and changes come in between.
    turn.fake.set_delay_us(1500);
    let options = Options {
        report: Some(Duration::from_secs(5)),
        ..Options::new(15, vec![disk(), PathBuf::from("/dev/shm")])
    };
    let summary = soak::run(options);
    println!("{}; held at first and at last: {:?}", summary.counts, summary.held);
    assert!(
        summary.violations.is_empty(),
        "{} violations, the first: {}",
        summary.violations.len(),
        summary.violations[0]
    );
    assert_eq!(turn.fake.hazards(), 0);
    // It shows nothing unless both engines had their share, and files changed below them.
    for (name, count) in [
        ("reads in place", &summary.counts.mapped),
        ("staged reads", &summary.counts.staged),
        ("gathers", &summary.counts.gathers),
        ("changes", &summary.counts.steps),
    ] {
        assert!(count.load(Ordering::Relaxed) > 10, "hardly any {name}: {}", summary.counts);
    }
    let tidy = || {
        let mut now = turn.fake.leaks();
        now.contexts = before.contexts;
        // What a test before this one had may have been on its way out.
        now.registrations = now.registrations.max(before.registrations);
        now == before
    };
    assert!(common::soon(tidy), "left behind: {:?}, before: {before:?}", turn.fake.leaks());
}
