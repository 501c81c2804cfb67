//! A drop-in `libcufile.so.0`: NVIDIA's cuFile interface, version 1.15, over the forebay engine.
//!
//! Programs that were built for NVIDIA's library run on this one unmodified. It needs no kernel module, no udev and no
//! configuration. `docs/guides/drop-in.md` is for its users, `include/cufile.h` describes each function.
//!
//! | file | holds |
//! |---|---|
//! | `abi`, `status` | types, numbers and codes of the interface |
//! | `calls/` | its functions: those that move no bytes, and `transfer`, `vector`, `batch`, `stream` |
//! | `library` | what the process has: open or not, options, tables |
//! | `handles/`, `batch`, `target` | registered files, memory and streams; batches; pointers |
//! | `meter`, `log`, `usdt` | what calls leave behind |
//!
//! Every call checks its handles against a table, ends panics, and refuses to run in a child of fork.

#![allow(non_snake_case, reason = "the names are the interface's")]
#![allow(clippy::missing_safety_doc, reason = "each has one; extern functions without pointers need none")]
#![allow(unreachable_pub, reason = "exported functions are found by name, not by path")]

mod abi;
mod batch;
mod calls;
mod handles;
mod library;
mod log;
mod meter;
mod status;
mod target;
mod usdt;

use forebay_sys::lock;

forebay_engine::publish_session!();
