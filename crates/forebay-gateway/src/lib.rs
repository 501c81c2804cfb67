//! An S3 server over a directory: buckets are directories, keys are paths, and all state lies in the file system, so that any number
//! of gateways over one mount serve the same objects.
//!
//! - `store`: what the server needs of the place where objects lie; `posix` is the one over a directory.

pub mod posix;
pub mod store;
