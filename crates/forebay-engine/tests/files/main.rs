//! Files and their descriptors: which are refused, how long they are held, where they end or have no room.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/pages.rs"]
mod pages;

mod bytes_ahead;
mod caller_descriptors;
mod descriptors_closed_under_us;
mod full_file_systems;
mod good_prefix;
mod neighbours_are_one_run;
mod reads_past_end;
mod refused_input;
mod released_when_resolved;
mod reused_descriptor_numbers;
