//! The fabric in memory: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod memory;
mod paired;
