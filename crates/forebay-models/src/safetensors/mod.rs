//! The safetensors format: eight bytes of length, a JSON header, the tensors' bytes.
//!
//! [`read`] accepts what the format's own reader accepts, and refuses besides what that one resolves silently: a name
//! that appears twice. [`plan`] lays out a file whose data section begins where O_DIRECT likes it.

mod header;
mod plan;

pub use header::{Header, TensorInfo, read};
pub use plan::{Layout, TensorSpec, plan};

/// The longest header that readers of the format accept, in bytes.
pub const MAX_HEADER: u64 = 100_000_000;
/// The name that stands for the file's own texts instead of a tensor.
const METADATA: &str = "__metadata__";
/// More dimensions than any framework has.
const MAX_RANK: usize = 256;
