//! What lies at a URL: the Python half asks the kernel itself about paths.

use std::path::{Path, PathBuf};

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::handle::FileKind;
use forebay_nfs::{NfsOptions, NfsUrl};
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Whether it is a folder, and a regular file; bytes; nanoseconds of their last change; the file's number; what changes with
/// anything of it; its device.
type State = (bool, bool, u64, i64, u64, i64, u64);

/// What a URL names now.
#[pyfunction]
pub(crate) fn state(py: Python<'_>, location: PathBuf) -> PyResult<State> {
    py.detach(|| state_of(&location)).or_raise()
}

/// The names in a folder.
#[pyfunction]
pub(crate) fn names(location: PathBuf) -> PyResult<Vec<String>> {
    let error = Error::new(ErrorKind::Unsupported, "folders of a server are not listed");
    Err(error.with("url", location.display()).hint("name its files, or an index of them")).or_raise()
}

pub(crate) fn state_of(location: &Path) -> Result<State> {
    let url = NfsUrl::parse(location)?;
    let config = Config::from_env()?;
    let further = config.nfs_servers.of(&[&url.server]);
    let options = NfsOptions { connections: config.nfs_connections, further, ..NfsOptions::default() };
    let found = forebay_nfs::open::find(&url, &options)?.attributes;
    let changed = crate::data_files::nanoseconds((found.modified.0 as i64, i64::from(found.modified.1)));
    let is_folder = found.kind == FileKind::Directory;
    let is_file = found.kind == FileKind::Regular;
    Ok((is_folder, is_file, found.size, changed, found.file_id, found.change as i64, found.file_system.1))
}
