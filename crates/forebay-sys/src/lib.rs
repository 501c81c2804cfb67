//! What a library needs in somebody else's process: threads that run no handlers of the program's, a count of forks,
//! room for descriptors, files whose descriptors the program may close, and values that many threads write.

pub mod descriptor_table;
pub mod forks;
mod held_file;
mod striped;
pub mod threads;

pub use held_file::HeldFile;
pub use striped::{OwnLine, STRIPES, Striped};
