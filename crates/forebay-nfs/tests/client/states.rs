//! Reads of a file in one state: bytes of another one are refused, call by call.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use fake_nfs::{Asked, Fault, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::handle::{FileState, NfsVersion};
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};
use forebay_source::HostRange;

const LEN: usize = 3_500_001;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn each(test: impl Fn(&Server, &NfsFile, &[u8])) {
    let bytes = pattern(LEN);
    for version in ["3", "4.0", "4.1", "4.2"] {
        let server = Server::start();
        server.put("/export/file", bytes.clone());
        let options = NfsOptions { connections: 2, depth: 3, ..NfsOptions::default() };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        println!("{version}");
        test(&server, &file, &bytes);
    }
}

fn read_in(file: &NfsFile, state: FileState, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 64];
    let (tell, told) = sync_channel(1);
    let memory = HostRange::of_mut(&mut place[32..32 + len]);
    // SAFETY: the place stays until the answer, and nobody else uses it.
    unsafe { file.start_in(state, offset as u64, memory, Box::new(move |result| drop(tell.send(result)))) };
    let got = told.recv().unwrap();
    assert!(place[..32].iter().chain(&place[32 + len..]).all(|byte| *byte == 0xAA), "bytes beside the range");
    Ok(place[32..32 + got?].to_vec())
}

#[test]
fn bytes_of_the_state_come_at_any_offset() {
    each(|server, file, bytes| {
        let state = file.attributes().unwrap().state();
        for (offset, len) in [(0, LEN), (1, 1), (3, 777), (999_999, 1_048_577), (LEN - 5, 500)] {
            let end = (offset + len).min(LEN);
            assert!(read_in(file, state, offset, len).unwrap() == bytes[offset..end], "{offset}+{len}");
        }
        // Whatever the reply comes in.
        for fault in [Fault::Short(100_001), Fault::Fragments(1000), Fault::CloseAfter(500), Fault::Twice] {
            let again = fault.clone();
            let mut is_first = true;
            server.faults(move |seen| {
                let is_it = seen.asked == Asked::Read && std::mem::take(&mut is_first);
                is_it.then(|| again.clone())
            });
            assert!(read_in(file, state, 0, LEN).unwrap() == bytes, "{fault:?}");
        }
    });
}

#[test]
fn bytes_of_another_state_are_refused() {
    each(|server, file, bytes| {
        let state = file.attributes().unwrap().state();
        let other = FileState { change: state.change + 1, ..state };
        assert_eq!(read_in(file, other, 0, 100).unwrap_err().kind(), ErrorKind::Busy);
        // Changed before the third call, by as many bytes.
        let mut calls = 0;
        server.faults(move |seen| {
            calls += u32::from(seen.asked == Asked::Read);
            (seen.asked == Asked::Read && calls == 3).then_some(Fault::Cut(LEN as u64))
        });
        let error = read_in(file, state, 0, LEN).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Busy, "the file changed while it was read"));
        let state = file.attributes().unwrap().state();
        assert!(read_in(file, state, 0, LEN).unwrap() == bytes);
    });
}

#[test]
fn a_server_that_does_not_tell_the_state_is_refused() {
    each(|server, file, _| {
        let state = file.attributes().unwrap().state();
        server.hide_states(true);
        assert_eq!(read_in(file, state, 0, 100).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(read_in(file, state, 3, LEN).unwrap_err().kind(), ErrorKind::Unsupported);
        server.hide_states(false);
        assert_eq!(read_in(file, state, 0, 100).unwrap().len(), 100);
    });
}

#[test]
fn a_server_that_asks_to_wait_for_the_state_is_asked_again() {
    each(|server, file, bytes| {
        if file.client().version() == NfsVersion::V3 {
            return;
        }
        let state = file.attributes().unwrap().state();
        server.delay_states(3);
        assert!(read_in(file, state, 3, LEN - 3).unwrap() == bytes[3..]);
        assert_eq!(file.client().traffic().waited, 3);
        // Not for ever.
        let options = NfsOptions { deadline: Duration::from_millis(300), ..NfsOptions::default() };
        let url =
            NfsUrl::parse(&server.url("/export/file", &file.client().version().to_string()[1..])).unwrap();
        server.delay_states(u64::MAX);
        let error = read_in(&open(&url, &options).unwrap(), state, 0, 100).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Busy, "cannot read: the server asks to wait")
        );
    });
}
