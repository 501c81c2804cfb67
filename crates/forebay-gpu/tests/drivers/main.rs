//! What holds for a process from its start, each test in one of its own: one program, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;

mod broken_driver;
mod discovery;
mod images_other_gpu;
mod missing_library;
mod missing_symbols;
mod reset;
mod two_gpus;
