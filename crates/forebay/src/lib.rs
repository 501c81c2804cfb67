//! forebay.
pub use forebay_config as config;
pub use forebay_engine::*;
pub use forebay_error::{Error, ErrorKind, Result};
pub use forebay_gpu as gpu;
