//! The native half of the Python package `forebay`.
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _forebay {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
