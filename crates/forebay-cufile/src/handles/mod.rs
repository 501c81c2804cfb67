//! What programs register, and the handles that they get.

mod buffers;
mod files;
mod streams;
mod table;

pub(crate) use buffers::{RegisteredBuffers, RegisteredRange};
pub(crate) use files::{RegisteredFile, RegisteredFiles};
pub(crate) use streams::{RegisteredStream, RegisteredStreams};
pub(crate) use table::{HandleKind, HandleTable};
