//! Transfers in the order of a user's stream.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/user.rs"]
mod user;

mod capture_and_default_order;
mod ends;
mod late_binding;
mod order;
