//! The client by itself: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../forebay-gpu/tests/common/alone.rs"]
mod alone;

mod addresses;
mod both_ways;
mod connections;
mod faults;
mod folders;
mod kept;
mod lively_servers;
mod local_port;
mod new_files;
mod rdma;
mod reads_and_writes;
mod sessions;
mod silence;
mod states;
mod stopped;
