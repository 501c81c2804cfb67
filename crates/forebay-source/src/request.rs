//! Requests: how a source without a descriptor is asked for bytes.

use std::fmt;

use forebay_error::Result;
use forebay_sys::HostRange;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the source to memory.
    Read,
    /// From memory to the source.
    Write,
}

/// One piece of work for a source without a descriptor.
#[derive(Debug)]
pub struct Request {
    /// Read fills the memory, Write takes it.
    pub direction: Direction,
    /// Offset in the source.
    pub offset: u64,
    /// Host memory. The maker of the request keeps it valid and untouched until `done` is called.
    pub memory: HostRange,
    /// Bytes that directly follow this request's in the source, and that the same transfer will ask for soon, in order; 0: not known.
    /// Only a hint: the transfer may be cancelled.
    pub ahead: u64,
}

/// Answers a [`Request`]: bytes moved (fewer at the end of the source) or an error. Called once, from any thread.
pub type Answer = Box<dyn FnOnce(Result<usize>) + Send>;

/// Which requests a source likes. Lanes keep to it where they can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestShape {
    /// Bytes that it likes to be asked for at a time, where they go straight into a program's memory; 0: as many as a lane has
    /// memory for. [`RequestShape::ANY`]: it cuts a long request into calls of its own, many of which are under way at a time.
    pub preferred: usize,
}

impl RequestShape {
    /// As many bytes as possible.
    pub const ANY: usize = usize::MAX;
}

/// A source that completes requests from its own threads.
pub trait Requests: Send + Sync + fmt::Debug {
    /// Starts a request; `done` is called exactly once, from any thread, perhaps before this returns.
    fn start(&self, request: Request, done: Answer);

    /// Which requests it likes.
    fn shape(&self) -> RequestShape {
        RequestShape::default()
    }
}
