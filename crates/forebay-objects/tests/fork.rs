//! A program that forks with an object open: the child opens it anew, and the parent reads on.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod servers;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fake_s3::Asked;
use forebay_error::ErrorKind;
use servers::{LEN, opened, pattern, read, started};

#[test]
fn a_forked_child_opens_objects_anew_and_leaves_the_parents_open() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    let connections = server.connections();
    // SAFETY: the child has this thread alone, whose locks are its own, and ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointers. A child that waits for ever is killed.
        unsafe { libc::alarm(30) };
        let done = catch_unwind(AssertUnwindSafe(|| {
            let error = read(&file, 0, 1000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert_eq!(file.facts().way, None);
            assert!(file.late_note().is_none());
            let anew = opened(&server);
            assert!(read(&anew, 0, LEN).unwrap() == bytes);
            drop(anew);
        }));
        // SAFETY: it ends the child, and runs no handlers of the parent's.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child was made above; the status is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(server.connections() > connections, "the child has connections of its own");
    server.forget_counts();
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert_eq!(
        (server.connections(), server.requests(Asked::Get)),
        (0, 3),
        "the parent's connections serve on"
    );
}
