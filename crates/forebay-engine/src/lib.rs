//! How forebay moves bytes: sources, engines, election, lanes, tickets and receipts.
//!
//! Programs depend on the crate `forebay`, which re-exports this one and teaches it.

mod beyond;
mod buffer;
mod caller;
mod cancel;
mod checksum;
mod courier;
mod default_order;
mod election;
mod fan;
mod file;
mod fork;
mod hub;
mod lane;
mod lock;
mod mapped;
mod owned;
mod p2p;
mod pinned;
mod plan;
mod poll;
mod process;
mod receipt;
mod segment;
mod session;
pub mod source;
mod stage;
mod sys;
mod tally;
pub mod threads;
mod ticket;
mod traffic;
mod transfer;
mod vendor;
mod wait;

pub use buffer::Buffer;
pub use courier::{Bound, Late};
pub use file::File;
pub use forebay_gpu::Checksum;
pub use lane::LaneReport;
pub use mapped::{Budget, FileVersion, Gathering, Limiter, Map, Offsets, PinReport, RawGather};
pub use process::Slot;
pub use receipt::{Election, EngineKind, Moved, Note, Receipt, Refusal};
pub use session::{EngineStats, ReadPiece, Session};
pub use source::{DirectAlignment, OpenOptions, Residency, Source};
pub use tally::counters;
pub use ticket::{Outcome, Ticket};
pub use transfer::{Batch, Direction, Memory, Piece, Transfer};
