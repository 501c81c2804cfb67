//! Shared by these tests: the built library under the names that programs look for, and the C compiler.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// A folder of this test run inside the build folder, on a disk file system as a rule.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build folder can be written")
}

/// Names another build of the library for the tests: `make asan` has one under the address sanitizer.
const OTHER: &str = "FOREBAY_TEST_LIBCUFILE";

/// The library as cargo built it with these tests, or the one that [`OTHER`] names.
pub fn library() -> PathBuf {
    if let Some(other) = std::env::var_os(OTHER) {
        return other.into();
    }
    let executable = std::env::current_exe().expect("a test executable has a path");
    let folders = executable.ancestors().skip(1).take(3);
    let mut places =
        folders.flat_map(|folder| [folder.join("deps/libcufile.so"), folder.join("libcufile.so")]);
    let found = places.find(|path| path.exists());
    found.expect("cargo builds libcufile.so with its integration tests")
}

/// A folder with the library as `libcufile.so.0` and `libcufile.so`: for `-L` and `LD_LIBRARY_PATH`.
pub fn library_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let library = library();
        // One for each profile: they share the folder for tests.
        let profile =
            library.parent().and_then(Path::parent).and_then(Path::file_name).expect("target/PROFILE/deps");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcufile").join(profile);
        std::fs::create_dir_all(&folder).expect("the build folder can be written");
        link(&library, &folder.join("libcufile.so.0"));
        link(Path::new("libcufile.so.0"), &folder.join("libcufile.so"));
        folder
    })
}

/// Makes a link, unless it is there: test processes run side by side.
fn link(to: &Path, at: &Path) {
    if std::fs::read_link(at).is_ok_and(|found| found == to) {
        return;
    }
    let new = at.with_extension(format!("new{}", std::process::id()));
    symlink(to, &new).expect("a link can be made");
    std::fs::rename(&new, at).expect("a link can take the other's place");
}

/// Runs a command to its end and answers its standard output; fails the test if the command fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text_of(&output));
    String::from_utf8(output.stdout).expect("text")
}

pub fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits for a child, but not for ever: a hang is a failure with the output so far.
pub fn wait(mut child: Child, limit: Duration) -> Output {
    let start = Instant::now();
    let mut late = false;
    while child.try_wait().expect("a child can be waited for").is_none() {
        if start.elapsed() > limit && !late {
            late = true;
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("the child has ended");
    assert!(!late, "hangs: no end after {limit:?}\n{}", text_of(&output));
    output
}

/// The C compiler with our header.
pub fn cc() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g"]).arg(format!("-I{MANIFEST}/include"));
    command.stdin(Stdio::null());
    command
}

/// A command whose environment has none of the variables that steer the library, the driver or the linker.
pub fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CUFILE_", "FOREBAY_", "FAKE_CUDA_", "LD_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env("LD_LIBRARY_PATH", library_folder()).stdin(Stdio::null());
    command
}
