//! How forebay moves bytes: sources, engines, election, lanes, tickets and receipts.
//!
//! Programs depend on the crate `forebay`, which re-exports this one and teaches it.

mod device;
mod engines;
mod io;
mod request;
mod runtime;
mod session;
pub mod source;
mod stream_order;
mod tuning;

pub use engines::mapped::{Budget, Gathering, Limiter, Map, Offsets, PinReport, RawGather};
pub use engines::staged::workers::{LaneReport, LaneWidth};
pub use engines::{
    AskedBatch, Claim, DeviceOptions, Done, Engine, EngineCandidate, EngineFacts, EngineParts,
};
pub use engines::{Known, Onward, Permission, Ran, Taken, Work, register, register_candidate};
pub use forebay_gpu::Checksum;
pub use forebay_sys::threads;
pub use io::plan::Part;
pub use request::buffer::{Buffer, keep_memory};
pub use request::completion::Completion;
pub use request::file::File;
pub use request::metrics::{EngineStats, counters};
pub use request::receipt::{Election, EngineKind, Moved, Note, Receipt, ReceiptPart, Refusal, Way};
pub use request::strided::{Axis, StridedPiece};
pub use request::ticket::{CallerPolled, Outcome, Ticket};
pub use request::transfer::{Batch, BorrowedTransfer, Memory, Transfer};
pub use runtime::fork::Native;
pub use runtime::process::{PerProcess, Slot};
pub use session::small_files::SmallFile;
pub use session::{ReadPiece, Session};
pub use source::piece::{Direction, Piece};
pub use source::version::FileVersion;
pub use source::{DirectAlignment, OpenOptions, Residency, Source, StateToken};
pub use stream_order::{Bound, Late};
