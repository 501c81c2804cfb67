//! Requests, their state in flight, and their results.
pub(crate) mod buffer;
pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod copy_order;
pub(crate) mod file;
pub(crate) mod metrics;
pub(crate) mod receipt;
pub(crate) mod strided;
pub(crate) mod ticket;
pub(crate) mod totals;
pub(crate) mod transfer;
