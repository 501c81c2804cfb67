//! What a source of stored bytes offers to engines. A crate that implements [`Source`] needs this one and no engine.

mod request;
mod source;

pub use request::{Answer, Direction, Request, Requests};
pub use source::{Fill, HeldUp, Source};
