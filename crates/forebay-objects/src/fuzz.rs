//! What fuzz targets call. Not part of the library's interface.

pub use crate::account::fuzz::{Signed, path, place};
pub use crate::calls::fuzz::documents;
pub use crate::wire::fuzz::reply;
