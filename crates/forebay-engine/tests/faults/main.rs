//! What fails or is given up in the middle.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/pages.rs"]
mod pages;

mod cancel;
mod dying_lanes;
mod storage_and_device;
