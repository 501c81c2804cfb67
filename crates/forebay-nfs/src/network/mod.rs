//! The way to a server: connections, calls under way on them, and what waits for an answer.

pub(crate) mod addresses;
pub(crate) mod connect;
pub(crate) mod exchange;
pub(crate) mod job;
mod looks;
mod nics;
mod opened;
pub(crate) mod options;
mod same;
pub(crate) mod session;
pub(crate) mod wire;
