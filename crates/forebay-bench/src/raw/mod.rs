//! Raw calls without engine code: files and mappings.

mod file;
mod map;

pub(crate) use file::RawFile;
pub(crate) use map::{RawMap, WINDOW};
