//! Whether bytes come into host memory. A reply proves nothing: where something leads a NIC's writes astray, or a server lies, operations
//! end well and their bytes are elsewhere.
//!
//! A trial reads the same bytes twice, into memory that held other bytes each time. The two are the same where they came, and no byte
//! needs another way.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_source::HostRange;
use forebay_sys::threads;

use super::read::{Reading, SAMPLE};
use crate::pace::deadline;
use crate::rdma::MemoryOf;

/// What memory holds before.
const FILLS: [u8; 2] = [0x5A, 0xA5];
/// How often the end of another thread's trial is looked for.
const LOOK: Duration = Duration::from_millis(5);

impl Reading {
    /// Finds out now, unless that was done.
    pub(super) fn try_now(&self) -> Result<()> {
        let until = Instant::now() + deadline();
        loop {
            match self.peer.begin_trial(true) {
                Some(true) => return Ok(()),
                None => return self.run(),
                Some(false) if Instant::now() >= until => {
                    return Err(Error::new(ErrorKind::Timeout, "a trial of the server's RDMA does not end"));
                }
                Some(false) => stop::sleep(LOOK)?,
            }
        }
    }

    /// Whether it is known to work; where it is not known, a thread asks the server, and finds out.
    pub(super) fn try_beside(&self) -> bool {
        let known = self.peer.begin_trial(false);
        if known.is_none() {
            let object = self.clone();
            let begun = threads::spawn("forebay-s3-rdma", move || match object.peer.ask(&object.wanted()) {
                // The refusal is the peer's to keep.
                Ok(_) => drop(object.run()),
                Err(_) => object.peer.tried(None),
            });
            if begun.is_err() {
                self.peer.tried(None);
            }
        }
        known == Some(true)
    }

    fn run(&self) -> Result<()> {
        let len = self.target.len.min(SAMPLE) as usize;
        let both = self.sample(len, FILLS[0]).and_then(|one| Ok((one, self.sample(len, FILLS[1])?)));
        let result = both.map(|(one, other)| one == other);
        self.peer.tried(result.as_ref().ok().copied());
        match result {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.peer.refusal().unwrap_or_else(unclear)),
            Err(error) => Err(error),
        }
    }

    /// The first bytes of the object by RDMA.
    pub(super) fn first_bytes(&self) -> Result<Vec<u8>> {
        self.sample(self.target.len.min(SAMPLE) as usize, FILLS[0])
    }

    /// The same, read over others.
    fn sample(&self, len: usize, fill: u8) -> Result<Vec<u8>> {
        let mut bytes = vec![fill; len];
        let (tell, told) = sync_channel(1);
        let memory = HostRange::of_mut(&mut bytes);
        let part = |at, len| MemoryOf::Host(memory.after(at).first(len));
        // SAFETY: the bytes are this function's, and the answer is waited for.
        unsafe { self.start(0, len, part, Box::new(move |result| drop(tell.send(result)))) };
        told.recv().unwrap_or_else(|_| Err(unclear()))?;
        Ok(bytes)
    }
}

fn unclear() -> Error {
    Error::new(ErrorKind::Internal, "a trial of the server's RDMA has no end")
}
