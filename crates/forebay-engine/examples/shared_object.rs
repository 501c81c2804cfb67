//! A shared object with the engine in it, as `libcufile.so.0` and the Python module are: for `tests/process/one_session_many_libraries.rs`.
//!
//! Numbers below zero are errors. The prefix keeps its names apart from those of libc.

use std::os::fd::{AsRawFd, BorrowedFd};

use forebay_engine::{File, Session};
use forebay_error::Result;

forebay_engine::publish_session!();

fn told(what: &str, number: Result<usize>) -> i64 {
    number.map_or_else(
        |error| {
            eprintln!("{what}: {error}");
            -1
        },
        |number| number as i64,
    )
}

/// Opens the process's session, and tells where it is.
#[unsafe(no_mangle)]
pub extern "C" fn shared_open_session() -> i64 {
    told("open_session", Session::open().map(|session| std::ptr::from_ref(session.devices()) as usize))
}

/// Adopts a descriptor and releases it; the number of the second one.
#[unsafe(no_mangle)]
pub extern "C" fn shared_second_descriptor(fd: BorrowedFd<'_>) -> i64 {
    // SAFETY: the descriptor is open during the call.
    let file = unsafe { File::adopt(fd.as_raw_fd()) };
    told("second_descriptor", file.map(|file| file.direct_fd().unwrap_or(0) as usize))
}

/// Reads a file into memory of the first device by the lanes; the sum of its bytes.
#[unsafe(no_mangle)]
pub extern "C" fn shared_read(fd: BorrowedFd<'_>) -> i64 {
    let read = || {
        let session = Session::open()?;
        // SAFETY: the descriptor is open during the call.
        let file = unsafe { File::adopt(fd.as_raw_fd()) }?;
        let buffer = session.buffer(0, file.len()? as usize)?;
        let (_, buffer) = session.submit_read(&file, 0, buffer)?.wait().into_result()?;
        Ok(buffer.to_vec()?.into_iter().map(usize::from).sum())
    };
    told("read", read())
}

/// Pins a file's pages for good; how many bytes this is.
#[unsafe(no_mangle)]
pub extern "C" fn shared_pin(fd: BorrowedFd<'_>) -> i64 {
    let pin = || {
        let session = Session::open()?;
        // SAFETY: the descriptor is open during the call.
        let file = unsafe { File::adopt(fd.as_raw_fd()) }?;
        let map = session.map(&file, &session.device(0)?)?;
        let before = file.len()? as usize;
        std::mem::forget(map);
        Ok(before)
    };
    told("pin", pin())
}

/// Bytes that the process has pinned.
#[unsafe(no_mangle)]
pub extern "C" fn shared_pinned() -> i64 {
    let pinned = || {
        let session = Session::open()?;
        Ok(session.pins(&session.device(0)?)?.process_bytes as usize)
    };
    told("pinned", pinned())
}

/// Transfers so far.
#[unsafe(no_mangle)]
pub extern "C" fn shared_requests() -> i64 {
    let sum = |session: Session| session.stats().iter().map(|stats| stats.requests as usize).sum();
    told("requests", Session::open().map(sum))
}

/// How many notes the session has.
#[unsafe(no_mangle)]
pub extern "C" fn shared_notes() -> i64 {
    told("notes", Session::open().map(|session| session.notes().len()))
}
