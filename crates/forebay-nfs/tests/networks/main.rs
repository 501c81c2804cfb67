//! Ports below 1024, and network namespaces.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod low_ports;
mod network;
mod of_mounts;
