//! The ways that bytes take, and the engines that move them: one row of a table for each.
//!
//! Receipts, statistics, traces, the bench and Python read these tables. No other place lists ways or engines.

mod engine;
mod moved;
mod way;

pub use engine::EngineKind;
pub use moved::{Moved, serialize_ways};
pub use way::Way;
