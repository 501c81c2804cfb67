//! What a server bears.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::warn::warn;

/// What a connection reads at a time, at most: bodies come in pieces of this.
pub(super) const READ_BYTES: usize = 512 << 10;

/// What the server bears.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of a request's line and headers.
    pub head_bytes: usize,
    /// Bytes of a body in XML.
    pub xml_bytes: usize,
    /// A head has to be whole after it.
    pub head_time: Duration,
    /// A connection may wait this long for its next request.
    pub idle_time: Duration,
    /// A client may take no byte, or send none of a body, for this long.
    pub stall_time: Duration,
    /// A new object's file that a program of this machine has may stay as it is for this long.
    pub draft_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            head_bytes: 32 << 10,
            xml_bytes: 4 << 20,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(120),
            stall_time: Duration::from_secs(60),
            draft_time: Duration::from_secs(3600),
        }
    }
}

impl Limits {
    /// Lets the process open the files that its connections need, as far as the machine allows.
    pub(super) fn raise_open_files(&self) {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        // A request opens a file, its directory and a lock at once.
        let wanted = 2 * self.connections as u64 + 1024;
        if let Some(most) = maximum.filter(|most| *most < wanted || raised.is_err()) {
            warn(&format!(
                "{} connections need {wanted} open files, and {most} are allowed\nhint: ulimit -Hn {wanted}",
                self.connections
            ));
        }
    }
}
