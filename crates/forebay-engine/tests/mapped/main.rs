//! The engine `mapped`: what it promises, what it pins, and what changes below it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/held.rs"]
mod held;
#[path = "../common/pages.rs"]
mod pages;
#[path = "../common/user.rs"]
mod user;

mod announced;
mod batches;
mod budget;
mod contract;
mod races;
mod reads;
mod writers;
