//! States and folders of URLs: for paths the Python half asks the kernel itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay_engine::{File as Engine, StateToken};
use forebay_error::{ErrorKind, Result};
use forebay_source::ListedState;
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Threads that ask servers.
const ASKERS: usize = 32;

/// Whether it is a folder; bytes of a file, and a number that is another one for another state of it, if its source tells states
/// apart.
pub(crate) type State = (bool, u64, Option<i64>);

/// What a URL names now.
#[pyfunction]
pub(crate) fn state(py: Python<'_>, location: PathBuf) -> PyResult<State> {
    py.detach(|| state_of(&location)).or_raise()
}

/// What each of several URLs names now.
#[pyfunction]
pub(crate) fn states(py: Python<'_>, locations: Vec<PathBuf>) -> PyResult<Vec<State>> {
    let locations: Vec<_> = locations.iter().map(PathBuf::as_path).collect();
    let found = py.detach(|| states_of(&locations));
    found.into_iter().flatten().collect::<Result<Vec<_>>>().or_raise()
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

/// The same of several: servers say it of many at once, or are asked by several threads, since an answer takes milliseconds. `None` for
/// some where another one has an error.
pub(crate) fn states_of(locations: &[&Path]) -> Vec<Option<Result<State>>> {
    let listed = forebay_source::states(locations);
    let mut found: Vec<_> = listed
        .into_iter()
        .map(|one| one.map(|ListedState { len, state }| Ok((false, len, Some(number_of(&state))))))
        .collect();
    let left: Vec<_> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
    let has_failed = AtomicBool::new(false);
    let ask = |at: &usize| {
        let state = (!has_failed.load(Ordering::Relaxed)).then(|| state_of(locations[*at]));
        has_failed.fetch_or(matches!(state, Some(Err(_))), Ordering::Relaxed);
        (*at, state)
    };
    let ask_all = |part: &[usize]| part.iter().map(ask).collect::<Vec<_>>();
    thread::scope(|scope| {
        let parts = left.chunks(left.len().div_ceil(ASKERS).max(1));
        let begin = |part| (part, thread::Builder::new().spawn_scoped(scope, move || ask_all(part)).ok());
        for (part, thread) in parts.map(begin).collect::<Vec<_>>() {
            // Without a thread, or where it panicked.
            let told = thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| ask_all(part));
            for (at, state) in told {
                found[at] = state;
            }
        }
    });
    found
}

/// The number of a state: FNV-1a of what tells bytes apart, which is the same in every process.
pub(crate) fn number_of(state: &StateToken) -> i64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    state.content().iter().fold(0xCBF2_9CE4_8422_2325, mix) as i64
}
