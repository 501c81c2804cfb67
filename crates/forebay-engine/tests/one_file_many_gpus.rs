//! One file for several devices.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "../examples/toy_source.rs"]
mod toy_source;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use common::{Scratch, Turn, context, disk, pattern, turn};
use forebay_config::Config;
use forebay_engine::source::{Fill, StateToken};
use forebay_engine::{Buffer, File, Session, Source, Way};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 11;
const DEVICES: usize = 3;

/// Three software GPUs, for one test alone.
fn three_gpus() -> Turn {
    static ONCE: Once = Once::new();
    // SAFETY: no test of this file reads the environment before it has come through here.
    ONCE.call_once(|| unsafe { std::env::set_var("FAKE_CUDA_DEVICES", DEVICES.to_string()) });
    turn()
}

fn session() -> Session {
    let config = Config { lanes: 1, pin_settle: Duration::from_millis(20), pin_pace: 0, ..Config::default() };
    Session::with_config(config).unwrap()
}

fn buffers(session: &Session, len: usize) -> Vec<Buffer> {
    (0..DEVICES).map(|index| session.buffer(index, len).unwrap()).collect()
}

fn warm_file(len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(&disk(), KEY, len);
    let file = File::open(scratch.path()).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    (scratch, file)
}

#[test]
fn every_device_gets_the_whole_and_storage_is_read_once() {
    let _turn = three_gpus();
    let session = session();
    let len = (150 << 20) + 77;
    let (_scratch, file) = warm_file(len);
    let mut all = buffers(&session, len - 5);
    let receipt = session.read_to_all(&file, 5, &mut all).unwrap();
    for buffer in &all {
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 5, len - 5), "wrong bytes");
    }
    println!("{receipt}");
    let delivered = (DEVICES * (len - 5)) as u64;
    assert_eq!(receipt.bytes(), delivered);
    assert_eq!(receipt.moved[Way::Peer], delivered / DEVICES as u64 * (DEVICES as u64 - 1));
    assert!(receipt.moved[Way::Mapped] > 0, "{receipt}");
}

#[test]
fn devices_that_cannot_reach_each_other_read_for_themselves() {
    let turn = three_gpus();
    // Access that is enabled once stays so: refuse the query itself.
    turn.fake.fail_next("cuCtxEnablePeerAccess", 217, 0, 0);
    turn.fake.fail_next("cuDeviceCanAccessPeer", 101, 0, 0);
    let session = session();
    let len = 1 << 20;
    let (_scratch, file) = warm_file(len);
    let mut all = buffers(&session, len);
    let receipt = session.read_to_all(&file, 0, &mut all).unwrap();
    assert_eq!((receipt.moved[Way::Peer], receipt.bytes()), (0, (DEVICES * len) as u64), "{receipt}");
    for buffer in &all {
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len), "wrong bytes");
    }
}

#[test]
fn a_source_that_cannot_notice_a_change_says_so() {
    let _turn = three_gpus();
    let session = session();
    let (scratch, file) = warm_file(1 << 20);
    let parts = toy_source::Parts::open(&[scratch.path()]).unwrap();
    for (file, expected) in [(file, false), (File::from_source(Arc::new(parts)).unwrap(), true)] {
        let receipt = session.read_to_all(&file, 0, &mut buffers(&session, 1 << 20)).unwrap();
        let is_noted =
            receipt.election.notes.iter().any(|note| note.text.contains("has no version of its bytes"));
        assert_eq!(is_noted, expected, "{receipt}");
    }
}

/// A file that is known by a descriptor, and has a state of its own.
#[derive(Debug)]
struct Numbered {
    file: std::fs::File,
    number: AtomicU64,
    is_changing: bool,
}

impl Source for Numbered {
    fn name(&self) -> String {
        "numbered".to_owned()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().unwrap().len())
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Descriptor(self.file.as_fd())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn state(&self) -> Result<Option<StateToken>> {
        let number = self.number.fetch_add(u64::from(self.is_changing), Ordering::Relaxed);
        Ok(Some(StateToken::new(&number.to_le_bytes())))
    }
}

#[test]
fn a_source_with_a_descriptor_says_itself_whether_it_has_changed() {
    let _turn = three_gpus();
    let session = session();
    let (scratch, _file) = warm_file(1 << 20);
    for is_changing in [false, true] {
        let source =
            Numbered { file: std::fs::File::open(scratch.path()).unwrap(), number: 0.into(), is_changing };
        let file = File::from_source(Arc::new(source)).unwrap();
        let read = session.read_to_all(&file, 0, &mut buffers(&session, 1 << 20));
        assert_eq!(read.err().map(|error| error.kind()), is_changing.then_some(ErrorKind::Busy));
    }
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let _turn = three_gpus();
    let session = session();
    let (_scratch, file) = warm_file(1 << 20);
    let error = session.read_to_all(&file, 0, &mut []).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let mut unequal = vec![session.buffer(0, 10).unwrap(), session.buffer(1, 11).unwrap()];
    assert_eq!(session.read_to_all(&file, 0, &mut unequal).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut twice = vec![session.buffer(0, 10).unwrap(), session.buffer(0, 10).unwrap()];
    assert_eq!(session.read_to_all(&file, 0, &mut twice).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut long = buffers(&session, 2 << 20);
    let error = session.read_to_all(&file, 0, &mut long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShortRead);
    assert!(context(&error, "got").is_some());
}
