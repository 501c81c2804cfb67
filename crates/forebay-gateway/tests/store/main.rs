//! What the gateway keeps on the disk: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;

mod records;
mod replaced;
mod store;
mod uploads;
