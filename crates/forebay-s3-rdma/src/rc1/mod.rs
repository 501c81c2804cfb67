//! forebay's dialect: a queue pair is connected once by a signed request, then each transfer is one request.
//!
//! | request | what it does |
//! |---|---|
//! | `POST` [`CONNECT`] | pairs two queue ends: [`ConnectAsk`], [`ConnectAnswer`] |
//! | GET, PUT, UploadPart with [`crate::headers::TOKEN`] | moves the object: [`Token`], [`crate::Reply`] |
//! | `POST` [`DISCONNECT`] | ends the session |

mod connect;
mod request;
mod token;

pub use connect::{ConnectAnswer, ConnectAsk, ConnectRefused};
pub use request::Ask;
pub use token::{SessionId, Token};

/// The path that connects.
pub const CONNECT: &str = "/.forebay/rdma/v1/connect";
/// The path that ends a session, whose name is in [`SESSION`].
pub const DISCONNECT: &str = "/.forebay/rdma/v1/disconnect";
/// The session to end.
pub const SESSION: &str = "x-amz-rdma-session";
/// The version of the dialect.
pub const VERSION: u32 = 1;
