//! The gateway by RDMA: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "helpers of tests")]

#[path = "../served/mod.rs"]
mod served;

mod client;
mod rdma;
mod rdma_client;
mod rdma_faults;
mod rdma_hipobj;
