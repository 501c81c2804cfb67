//! Calls to a server of the test, which does what its script says.

mod lost;
mod names;
mod plain;
mod server;
mod threads;
mod tls;
mod uploads;
