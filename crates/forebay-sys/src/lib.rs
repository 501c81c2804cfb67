//! What a library needs in somebody else's process: threads that run no handlers of the program's, a count of forks,
//! room for descriptors, and files whose descriptors the program may close.

pub mod descriptor_table;
pub mod forks;
mod held_file;
pub mod threads;

pub use held_file::HeldFile;
