//! Texts and paths of the caller's: Python's may hold what no file can.

use std::path::PathBuf;

use forebay_engine::File as Engine;
use forebay_source::{Location, hint_for_missing};
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;

use crate::error::{OrRaise, invalid};

/// A text that a file can hold.
pub(crate) struct Text(pub(crate) String);

/// The path of a file, absolute: the program may change its folder before it is used again. Or a URL that can be opened.
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
        Self::of(given, false)
    }
}

impl FilePath {
    /// `writes`: for a file that is made or changed.
    pub(crate) fn of(given: Borrowed<'_, '_, PyAny>, writes: bool) -> PyResult<Self> {
        match given.extract::<PathBuf>() {
            Ok(path) if path.is_absolute() || Engine::is_url(&path) => return Ok(Self(path)),
            Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(given.py()) => {
                return Err(explain(given, error));
            }
            _ => {}
        }
        // A relative one, bytes, or what is no path: the package's Python half knows what to make of it.
        let text = given.py().import("forebay._paths")?.call_method1("path_text", (given, writes))?;
        text.extract().map(Self)
    }
}

/// Fails for URLs that nothing opens: `s3://…`, `hf://…`, `https://…`; `writes`: for a file that is made.
#[pyfunction]
pub(crate) fn check_place(path: PathBuf, writes: bool) -> PyResult<()> {
    if writes { Location::of_new(path) } else { Location::of(path) }.map(drop).or_raise()
}

/// Whether it is a URL that can be opened.
#[pyfunction]
pub(crate) fn is_url(path: PathBuf) -> bool {
    Engine::is_url(path)
}

/// What to say of a path that is not there, but may be meant for a file of a server, or for a repository of models.
#[pyfunction]
pub(crate) fn missing_hint(path: PathBuf) -> Option<String> {
    hint_for_missing(path)
}

/// The name of a dtype: a text, or what numpy, torch and jax have for one.
pub(crate) struct DtypeName(pub(crate) String);

impl<'py> FromPyObject<'_, 'py> for DtypeName {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = given.extract() {
            return Ok(Self(text));
        }
        let text = given.py().import("forebay._npy_types")?.call_method1("dtype_text", (given,))?;
        text.extract().map(Self)
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
