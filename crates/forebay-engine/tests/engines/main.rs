//! Engines beside the lanes, and checksums.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/made_place.rs"]
mod made_place;

mod checksums;
mod checksums_without_kernels;
mod elected_engine;
mod handed_on;
mod p2p;
mod placed_made_up;
