//! Tools for a library in a foreign process: threads that run no handlers of the program's, a count of forks,
//! room for descriptors, files whose descriptors the program may close, values that many threads write, locks whose
//! holders may panic, ranges of memory, the size of pages and how memory gets them, dates, and forms of text that the kernel has.

mod calendar;
pub mod descriptor_table;
pub mod file_systems;
pub mod forks;
mod fresh;
mod held_file;
pub mod kernel_text;
mod lock;
mod page;
mod ranges;
mod striped;
pub mod threads;

pub use calendar::UtcTime;
pub use fresh::populate;
pub use held_file::HeldFile;
pub use lock::lock;
pub use page::{assume_page_size, kernel_page, page_size};
pub use ranges::{DeviceRange, HostRange};
pub use striped::{OwnLine, STRIPES, Striped};
