//! The gateway over HTTP: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../served/mod.rs"]
mod served;

mod bad_input;
mod full;
mod large_reads;
mod s3;
mod two;
