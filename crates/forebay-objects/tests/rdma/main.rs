//! Objects by RDMA: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "helpers of tests")]

#[path = "../../../forebay-engine/tests/common/mod.rs"]
mod common;
#[path = "../rdma_server/mod.rs"]
mod rdma_server;

mod rdma;
mod rdma_cost;
mod rdma_faults;
mod rdma_hipobj;
mod rdma_seen;
mod rdma_writes;
