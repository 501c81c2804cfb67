//! The process around the engine: its memory, CPUs, limits, signals, forks, libraries and counters.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/pages.rs"]
mod pages;

mod bounded_memory;
mod counters;
mod fork;
mod lanes_follow;
mod locked_memory;
mod one_session_many_libraries;
mod restricted_machine;
mod signals;
