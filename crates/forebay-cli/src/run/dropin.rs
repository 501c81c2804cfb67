//! Where forebay's libcufile is, and a folder that puts it before all others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use forebay_config::env;
use forebay_error::{Error, ErrorKind, Result};
use tempfile::TempDir;

use super::elf;

/// The name that programs ask the loader for.
pub(super) const SONAME: &str = "libcufile.so.0";
/// The name without version, which some open.
const UNVERSIONED: &str = "libcufile.so";
/// Opened by programs that look for NVIDIA's whole set.
const RDMA: &str = "libcufile_rdma.so.1";

/// The drop-in's file: in the folder asked for, else as `FOREBAY_LIBCUFILE` says, else beside the executable.
pub(crate) fn find(asked: Option<&Path>) -> Result<PathBuf> {
    let variable = env::filled("FOREBAY_LIBCUFILE");
    let (named, by) = match (asked, &variable) {
        (Some(folder), _) => (Some(folder), "--lib"),
        (None, Some(value)) => (Some(Path::new(value)), "FOREBAY_LIBCUFILE"),
        (None, None) => (None, ""),
    };
    if let Some(place) = named {
        return in_place(place).map_err(|why| {
            Error::new(ErrorKind::NotFound, format!("cannot use forebay's libcufile: {why}"))
                .with("path", place.display())
                .with("named_by", by)
                .hint(format!("name the folder that has forebay's {SONAME}"))
        });
    }
    let places = beside_executable();
    places.iter().find_map(|place| in_place(place).ok()).ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        if let (true, Some((why, hint))) = (looked.is_empty(), forebay_stats::hidden_processes()) {
            let text = format!("cannot find forebay's {SONAME}: {why}");
            return Error::new(ErrorKind::NotFound, text)
                .hint(hint)
                .hint("name its folder: forebay run --lib DIR -- CMD");
        }
        Error::new(ErrorKind::NotFound, format!("cannot find forebay's {SONAME}"))
            .with("looked_in", looked.join(":"))
            .hint("name its folder: forebay run --lib DIR -- CMD")
            .hint("build it: cargo build --release -p forebay-cufile")
    })
}

/// Folders where an installation has its libraries.
fn beside_executable() -> Vec<PathBuf> {
    let Some(folder) = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned())) else {
        return Vec::new();
    };
    let above = folder.parent().unwrap_or(&folder);
    vec![above.join("lib/forebay"), above.join("lib"), folder]
}

/// The drop-in in a folder (or the file itself), or why there is none.
fn in_place(place: &Path) -> Result<PathBuf, String> {
    let files = if place.is_dir() {
        vec![place.join(SONAME), place.join(UNVERSIONED)]
    } else {
        vec![place.to_owned()]
    };
    let Some(file) = files.iter().find(|file| file.exists()) else {
        return Err(if place.exists() { format!("no {SONAME} there") } else { "no such folder".into() });
    };
    let elf = elf::read(file).map_err(|error| format!("cannot read it: {error}"))?;
    match elf.as_ref().and_then(|elf| elf.soname.as_deref()) {
        Some(SONAME) => fs::canonicalize(file).map_err(|error| format!("cannot read it: {error}")),
        Some(other) => Err(format!("its SONAME is {other}, not {SONAME}")),
        None => Err(format!("it is no library with the SONAME {SONAME}")),
    }
}

/// A folder of links that the child's loader looks into first. It goes with this value.
#[derive(Debug)]
pub(super) struct Folder(TempDir);

impl Folder {
    /// Makes it for this drop-in.
    pub(super) fn of(library: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::from_io(&error, "cannot make a temporary folder")
                .hint("set TMPDIR to a folder that you may write to")
        };
        // The loader's lists are split at these.
        let splits = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| b": ;\t".contains(byte));
        let temporary = Some(std::env::temp_dir()).filter(|path| path.is_absolute() && !splits(path));
        let temporary = temporary.unwrap_or_else(|| "/tmp".into());
        let folder = tempfile::Builder::new().prefix("forebay-run-").tempdir_in(temporary).map_err(failed)?;
        for name in [SONAME, UNVERSIONED] {
            symlink(library, folder.path().join(name)).map_err(failed)?;
        }
        let rdma = library.with_file_name(RDMA);
        if rdma.exists() {
            symlink(rdma, folder.path().join(RDMA)).map_err(failed)?;
        }
        fs::create_dir(folder.path().join("counters")).map_err(failed)?;
        Ok(Self(folder))
    }

    /// The folder itself.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where children leave their counters.
    pub(super) fn counters(&self) -> PathBuf {
        self.0.path().join("counters")
    }

    /// Variables that put the drop-in before every other libcufile.
    pub(super) fn loader_variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_LIBRARY_PATH", before(self.0.path(), env::value("LD_LIBRARY_PATH"))),
            ("LD_PRELOAD", before(&self.0.path().join(SONAME), env::value("LD_PRELOAD"))),
        ]
    }

    /// An empty `cufile.json`, for programs that want one to exist.
    pub(super) fn config(&self) -> Result<PathBuf> {
        let path = self.0.path().join("cufile.json");
        fs::write(&path, "{}\n").map_err(|error| {
            Error::from_io(&error, "cannot write cufile.json").with("path", path.display())
        })?;
        Ok(path)
    }
}

/// A path in front of a list of the loader.
fn before(path: &Path, list: Option<OsString>) -> OsString {
    let mut joined = path.as_os_str().to_owned();
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        joined.push(OsStr::new(":"));
        joined.push(list);
    }
    joined
}
