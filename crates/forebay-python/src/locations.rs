//! States and folders of URLs: for paths the Python half asks the kernel itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use forebay_engine::{File as Engine, StateToken};
use forebay_error::{ErrorKind, Result};
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Whether it is a folder; bytes of a file, and a number that is another one for another state of it, if its source tells states
/// apart.
type State = (bool, u64, Option<i64>);

/// What a URL names now.
#[pyfunction]
pub(crate) fn state(py: Python<'_>, location: PathBuf) -> PyResult<State> {
    py.detach(|| state_of(&location)).or_raise()
}

/// What is in a folder at a URL: names, and whether each is a folder (`None`: ask).
#[pyfunction]
pub(crate) fn entries(py: Python<'_>, location: PathBuf) -> PyResult<Vec<(OsString, Option<bool>)>> {
    let entries = py.detach(|| forebay_source::list(&location)).or_raise()?;
    Ok(entries.into_iter().map(|entry| (entry.name, entry.is_folder)).collect())
}

/// Whether a file needs its folder to be there before. Paths of this machine do.
#[pyfunction]
pub(crate) fn has_folders(location: PathBuf) -> bool {
    forebay_source::opener_of(&location).is_none_or(|opener| opener.has_folders())
}

/// Removes the file that a URL names. One that is not there is no error.
#[pyfunction]
pub(crate) fn remove(py: Python<'_>, location: PathBuf) -> PyResult<()> {
    py.detach(|| forebay_source::remove(&location)).or_raise()
}

pub(crate) fn state_of(location: &Path) -> Result<State> {
    match Engine::options().read(false).open(location) {
        Ok(file) => Ok((false, file.len()?, file.state()?.as_ref().map(number_of))),
        Err(error) if error.kind() == ErrorKind::IsDirectory => Ok((true, 0, None)),
        Err(error) => Err(error),
    }
}

/// The number of a state: FNV-1a, which is the same in every process.
pub(crate) fn number_of(state: &StateToken) -> i64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    state.to_bytes().iter().fold(0xCBF2_9CE4_8422_2325, mix) as i64
}
