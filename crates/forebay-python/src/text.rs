//! Texts and paths of the caller's: Python's may hold what no file can.

use std::path::PathBuf;

use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;

use crate::error::invalid;

/// A text that a file can hold.
pub(crate) struct Text(pub(crate) String);

/// The path of a file.
pub(crate) struct FilePath(pub(crate) PathBuf);

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|error: PyErr| explain(given, error))
    }
}

impl<'py> FromPyObject<'_, 'py> for FilePath {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|error: PyErr| explain(given, error))
    }
}

/// Half of a character, as `errors="surrogateescape"` and JSON's `\ud800` leave it, has no bytes.
fn explain(given: Borrowed<'_, '_, PyAny>, error: PyErr) -> PyErr {
    let py = given.py();
    if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
        return error;
    }
    let shown = given.repr().map_or_else(|_| "a text".to_owned(), |text| text.to_string_lossy().into_owned());
    invalid(
        format!("{shown} cannot be stored: it holds a lone surrogate, which is no character"),
        "name.encode(\"utf-8\", \"replace\").decode() is a text that can be",
    )
}
