//! The `forebay` command inside the interpreter.

use std::ffi::OsString;
use std::io::{self, Write};

use pyo3::prelude::*;

/// Runs a command line (`argv[0]` is the name it was called by) on the process's own streams and returns its exit code.
///
/// Other Python threads go on meanwhile. Signals are as the caller set them: `forebay.__main__` sets SIGINT's default,
/// because Python's handler would be heard only after the command.
#[pyfunction]
#[pyo3(signature = (argv, /))]
pub(crate) fn cli(py: Python<'_>, argv: Vec<OsString>) -> i32 {
    py.detach(|| {
        let code = forebay_cli::main_with(argv, &mut io::stdout(), &mut io::stderr());
        // Rust flushes at the end of its own `main`, which is not here. Nobody is left to tell of a failure.
        let _ = io::stdout().flush();
        code
    })
}
