//! Uploads: new files at URLs.

use std::fmt;
use std::sync::Arc;

use forebay_error::Result;

use crate::Source;

/// A new file that a URL is to name. Until it is finished, the URL names what it named before. Dropped unfinished, nothing of it
/// remains.
pub trait Upload: Send + Sync + fmt::Debug {
    /// The file that its bytes are written to. Written bytes can be read there, too, where its [`Source::access`] says so; an
    /// object is read only when it is whole, and each byte of it is written once.
    fn source(&self) -> Arc<dyn Source>;

    /// Gives it the URL, in place of the file that has it, in one step: all writes have been answered. If `durable`, bytes and
    /// name survive a crash of what keeps them. On an error the old file is as it was, or a hint says that it
    /// may be the new one. Returns, in words, what the replaced file had and this one could not be given.
    fn finish(self: Box<Self>, durable: bool) -> Result<Vec<String>>;
}
