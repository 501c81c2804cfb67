//! Small transfers of callers: one or few pieces at a time, by the resident kernel, by the driver's copies, on the caller's thread.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/crowd.rs"]
mod crowd;
#[path = "../common/pages.rs"]
mod pages;

mod cold_reads;
mod few_pieces;
mod long_reads;
mod many_callers;
mod polled_batches;
mod resident;
