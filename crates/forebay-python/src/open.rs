//! Opening files by path and mode.

use forebay_config::CachePolicy;
use forebay_engine::{File as Engine, OpenOptions};
use pyo3::prelude::*;

use crate::error::{OrRaise, invalid};
use crate::file::File;
use crate::text::FilePath;

/// Opens a file: mode "r" (read), "r+" (read and write), "w" (made empty, read and write), "x" (as "w", must be new).
///
/// `cache` says what happens to the page cache: "auto" (warm bytes come from it, cold ones pass it by), "keep" (bytes
/// read stay there for the next reader), "bypass" (never used for aligned parts).
#[pyfunction]
#[pyo3(signature = (path, mode="r", *, cache=None))]
pub(crate) fn open(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    mode: &str,
    cache: Option<&str>,
) -> PyResult<File> {
    let FilePath(path) = FilePath::of(path.as_borrowed(), mode.starts_with(['w', 'x']))?;
    let options = Engine::options();
    // Files hold bytes: "rb" is what "r" says.
    let (mode, options) = match mode.replacen('b', "", 1).as_str() {
        "r" => ("r", options),
        "r+" => ("r+", options.write(true)),
        "w" | "w+" => ("w", options.write(true).create(true).truncate(true)),
        "x" | "x+" => ("x", options.write(true).create_new(true)),
        other => {
            return Err(invalid(format!("unknown mode: {other:?}"), "use \"r\", \"r+\", \"w\" or \"x\""));
        }
    };
    let options = with_cache(options, cache_policy(cache)?);
    let file = py.detach(|| options.open(&path)).or_raise()?;
    Ok(File::new(file, path.to_string_lossy().into_owned(), mode))
}

/// The policy that a name says.
pub(crate) fn cache_policy(name: Option<&str>) -> PyResult<Option<CachePolicy>> {
    name.map(|name| name.parse().or_raise()).transpose()
}

/// Options with a policy for the page cache, or the session's.
pub(crate) fn with_cache(options: OpenOptions, policy: Option<CachePolicy>) -> OpenOptions {
    match policy {
        Some(policy) => options.cache(policy),
        None => options,
    }
}
