//! Objects of a server with faults: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../servers/mod.rs"]
mod servers;

mod calls;
mod listed;
mod opening;
mod reads;
mod regions;
mod secrets;
mod silence;
mod uploads;
