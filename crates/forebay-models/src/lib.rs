//! Files that hold models and arrays: where in them the bytes of each tensor lie, and how to lay out new ones.
//!
//! Nothing here moves tensor data: readers take the few bytes of a header, check all that it claims before they
//! believe it, and return byte ranges; plans return the bytes around the data and the places for it. What moves the
//! data is the engine's business. [`Pending`] gives a file its name once it is whole.
//!
//! Headers come from anywhere, so a reader never allocates more than the file really holds, and a refusal names the
//! tensor or entry and the figures that do not fit.

mod dtype;
mod load_plan;
pub mod npy;
mod pending;
mod read_at;
pub mod safetensors;
pub mod shards;
pub mod slice;
mod text;
pub mod zip;

pub use dtype::Dtype;
pub use load_plan::{Extent, LoadLimits, LoadPlan};
pub use pending::Pending;
pub use read_at::ReadAt;
