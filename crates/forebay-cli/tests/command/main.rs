//! The command as a program, on small files: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod check;
mod cp;
mod doctor;
mod elsewhere;
mod help_and_errors;
mod hosts;
mod nfs;
mod pages;
mod replay;
mod report;
mod restricted_machine;
mod run;
mod s3;
mod s3_sites;
mod s3_trees;
mod stats;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod unwritten_output;
