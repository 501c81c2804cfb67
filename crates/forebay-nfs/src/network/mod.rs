//! The way to a server: connections, calls under way on them, and what waits for an answer.

pub(crate) mod addresses;
pub(crate) mod connect;
pub(crate) mod exchange;
mod identity;
pub(crate) mod job;
mod looks;
mod nics;
mod opened;
pub(crate) mod options;
mod same;
pub(crate) mod server;
mod session;
mod turns;
pub(crate) mod wire;
