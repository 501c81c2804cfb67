//! The exported functions. Their names, arguments and meaning are the CUDA driver API's.

// Exported to C by name, not to Rust by path; documented by the driver API's own pages.
#![allow(missing_docs, unreachable_pub, non_snake_case)]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

mod context;
mod control;
mod device;
mod memory;
mod module;
mod stream;
mod unified;
mod virtual_memory;

pub use control::Leaks;
