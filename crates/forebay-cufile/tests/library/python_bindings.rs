//! Python programs on the library, over the software GPU: NVIDIA's bindings and the wheel `cufile-python`.
//!
//! The scripts are those of `tests/consumers`, which run on a machine with a GPU too. What they need comes from the
//! package index once and stays below the build folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{MANIFEST, clean, library_folder, scratch, wait};

/// The last bindings that have the statistics of 1.15, and what they and the scripts need.
const PACKAGES: [&str; 4] = ["cuda-bindings==13.3.1", "cufile-python==0.2.0", "numpy", "pytest"];

const IMPORTS: &str =
    "import cuda.bindings.cufile, numpy, pytest, importlib.util; assert importlib.util.find_spec('cufile')";

/// How long the packages may take to come, and a script to run.
const LIMIT: Duration = Duration::from_mins(5);

/// A Python with the packages; says why there is none.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| match environment() {
        Ok(python) => Some(python),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    });
    found.as_deref()
}

/// The environment of an earlier run, or a new one.
fn environment() -> Result<PathBuf, String> {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", PACKAGES[0].replace("==", "-")));
    let python = folder.join("bin/python3");
    if works(&python) {
        return Ok(python);
    }
    // It takes its place when it is whole: test processes run side by side. An environment works under another name.
    let new = folder.with_extension(format!("new{}", std::process::id()));
    let made = make(&new);
    if made.is_ok() {
        // Where it did not work it is an old one, of a Python that is gone.
        if folder.exists() && !works(&python) {
            let _ = fs::remove_dir_all(&folder);
        }
        let _ = fs::rename(&new, &folder);
    }
    let _ = fs::remove_dir_all(&new);
    made?;
    if works(&python) { Ok(python) } else { Err("the Python packages do not work here".to_owned()) }
}

fn works(python: &Path) -> bool {
    python.exists() && finish(outside(python).args(["-c", IMPORTS]), LIMIT).is_ok()
}

fn make(folder: &Path) -> Result<(), String> {
    finish(outside(Path::new("python3")).args(["-m", "venv"]).arg(folder), LIMIT)
        .map_err(|text| format!("no Python environment can be made: {text}"))?;
    let mut pip = outside(&folder.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]);
    pip.arg("--only-binary=:all:");
    finish(pip.args(PACKAGES), LIMIT)
        .map(drop)
        .map_err(|text| format!("pip cannot install the packages: {text}"))
}

/// A command that has nothing to do with the library.
fn outside(program: &Path) -> Command {
    let mut command = clean(program);
    command.env_remove("LD_LIBRARY_PATH").env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

/// Runs a command to its end: what it printed, or that as an error with how it ended.
fn finish(command: &mut Command, limit: Duration) -> Result<String, String> {
    let folder = scratch();
    let path = folder.path().join("output");
    let output = File::create(&path).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let status = wait(child, limit).status;
    let text = fs::read_to_string(path).unwrap();
    if status.success() { Ok(text) } else { Err(format!("{status}\n{text}")) }
}

/// Runs a script of `tests/consumers`; whatever it found is the test's failure.
fn check(script: &str, prepare: impl FnOnce(&mut Command)) {
    let Some(python) = python() else { return };
    let folder = scratch();
    let mut command = outside(python);
    command.arg(Path::new(MANIFEST).join("../../tests/consumers").join(script)).current_dir(folder.path());
    command.env(
        "FOREBAY_LIBCUDA",
        fake_cuda::library_path().expect("the software GPU was built with these tests"),
    );
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("LD_LIBRARY_PATH", library_folder());
    prepare(&mut command);
    let text = finish(&mut command, LIMIT).unwrap_or_else(|text| panic!("{script}: {text}"));
    print!("{text}");
    let stray: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(stray.is_empty(), "{script} left {stray:?}");
}

/// As `forebay run` starts programs.
#[test]
fn every_function_of_nvidias_bindings() {
    check("cuda_bindings.py", |command| {
        command.env("LD_PRELOAD", library_folder().join("libcufile.so.0"));
    });
}

/// By its name without version, found in `LD_LIBRARY_PATH` alone.
#[test]
fn the_tests_inside_cufile_python() {
    check("cufile_python.py", |_| {});
}
