//! Files of servers and of mounts below the engine: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../forebay-engine/tests/common/mod.rs"]
mod common;
#[path = "../mounts/mod.rs"]
mod mounts;

mod by_url;
mod placed;
mod placed_mounts;
mod placed_nics;
mod tcp_mounts;
