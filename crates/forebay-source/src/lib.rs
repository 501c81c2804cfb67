//! What a source of stored bytes offers to engines. A crate that implements [`Source`] needs this one and no engine.

mod request;
mod source;
mod state;

pub use request::{Answer, Direction, Request, RequestShape, Requests};
pub use source::{Facts, Fill, HeldUp, Source};
pub use state::StateToken;
