//! The one table from errors by meaning to Python's exceptions: the classes stand in `forebay/errors.py`.

use forebay_error::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception for an error.
pub(crate) fn raise(error: &Error) -> PyErr {
    Python::attach(|py| build(py, error).map_or_else(|failed| failed, |made| PyErr::from_value(made)))
}

fn build<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let context = PyDict::new(py);
    for (key, value) in error.context() {
        // Keywords of the exceptions themselves.
        let key = match *key {
            "hints" | "errno" => continue,
            other => other,
        };
        context.set_item(key, value)?;
    }
    let kind = format!("{:?}", error.kind());
    py.import("forebay.errors")?.getattr("from_native")?.call1((
        kind,
        error.message(),
        error.errno(),
        context,
        error.hints().to_vec(),
    ))
}

/// A shorthand for a wrong argument.
pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> PyErr {
    raise(&Error::new(ErrorKind::InvalidInput, message).hint(hint))
}

/// Turns the engine's results into Python's.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error))
    }
}
