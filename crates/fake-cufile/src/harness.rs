//! For tests: finding the shared library, having the engine load it, and controlling it.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const FILE: &str = "libfake_cufile.so";

/// Where the shared library is. Cargo builds it with every crate that depends on this one, and puts it beside the test
/// executables; where it is not there, it is built.
pub fn library_path() -> Result<PathBuf, String> {
    let executable =
        std::env::current_exe().map_err(|error| format!("cannot find the test executable: {error}"))?;
    if let Some(found) = beside(&executable) {
        return Ok(found);
    }
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--manifest-path", manifest, "--target-dir"]);
    // A folder of its own: the one in use may be locked by the cargo that runs this test.
    let target = std::env::temp_dir().join("fake-cufile-target");
    let status = command.arg(&target).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let built = target.join("debug").join(FILE);
    if status.success() && built.exists() {
        Ok(built)
    } else {
        Err(format!("cargo build gave no {FILE}: {status}"))
    }
}

fn beside(executable: &Path) -> Option<PathBuf> {
    let folders = executable.ancestors().skip(1).take(3);
    folders.flat_map(|folder| [folder.join("deps").join(FILE), folder.join(FILE)]).find(|path| path.exists())
}

/// Has this process's engine load the fake: sets `FOREBAY_VENDOR_LIBCUFILE`. To be called before the engine is used and
/// before other threads read the environment. The first call does it; later ones answer the same.
pub fn install() -> Result<&'static Fake, String> {
    static FAKE: OnceLock<Result<Fake, String>> = OnceLock::new();
    let make = || {
        let path = library_path()?;
        // SAFETY: the documentation requires this before other threads use the environment.
        unsafe { std::env::set_var("FOREBAY_VENDOR_LIBCUFILE", &path) };
        // SAFETY: the library is this crate's own; loading it runs nothing.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| format!("cannot load {}: {error}", path.display()))?;
        Ok(Fake { library })
    };
    FAKE.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// The loaded fake: the same instance that the engine uses.
#[derive(Debug)]
pub struct Fake {
    library: Library,
}

#[allow(clippy::expect_used, clippy::missing_panics_doc, reason = "the functions are this crate's own")]
impl Fake {
    /// Sets the words that say how it behaves, and forgets counts.
    pub fn set(&self, words: &str) {
        let words = CString::new(words).unwrap_or_default();
        // SAFETY: the function is this crate's own and has this type; the text outlives the call.
        unsafe {
            let set = self.library.get::<unsafe extern "C" fn(*const c_char)>(b"fake_cufile_set\0");
            set.expect("exported")(words.as_ptr());
        }
    }

    /// Lets all calls that hang go on.
    pub fn release(&self) {
        // SAFETY: as above.
        unsafe {
            self.library.get::<extern "C" fn()>(b"fake_cufile_release\0").expect("exported")();
        }
    }

    /// How often a function was called since [`Fake::set`]; or how many are `hanging`, were made `without-context`, or
    /// how many `files` are registered.
    pub fn count(&self, what: &str) -> u64 {
        let what = CString::new(what).unwrap_or_default();
        // SAFETY: as above.
        unsafe {
            let count =
                self.library.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"fake_cufile_count\0");
            count.expect("exported")(what.as_ptr())
        }
    }
}
