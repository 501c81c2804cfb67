//! Calls to a server of the test, which does what its script says.

mod plain;
mod server;
