//! Where NVIDIA's libcufile may lie.

use std::ffi::{CStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_config::{env, files};
use forebay_error::{Error, ErrorKind, Result};

use crate::library::own_object;

/// Names the library, and no other is tried then.
pub(crate) const VARIABLE: &str = "FOREBAY_VENDOR_LIBCUFILE";
const FILE: &str = "libcufile.so.0";

/// Absolute paths of files that exist, best first.
pub(super) fn candidates() -> Result<Vec<PathBuf>> {
    if let Some(named) = env::filled(VARIABLE) {
        return named_one(&PathBuf::from(named)).map(|path| vec![path]);
    }
    let mut found: Vec<PathBuf> = Vec::new();
    let folders = folders();
    let paths = loaded().into_iter().chain(folders.iter().map(|folder| folder.join(FILE)));
    for path in paths.filter_map(|path| std::fs::canonicalize(path).ok()) {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

fn named_one(path: &Path) -> Result<PathBuf> {
    let wrong = |kind, what: &str| {
        Error::new(kind, what)
            .with("variable", VARIABLE)
            .with("path", path.display())
            .hint(format!("find it with: find / -name '{FILE}*', and give the whole path"))
    };
    if !path.is_absolute() {
        return Err(wrong(ErrorKind::InvalidInput, "the path of NVIDIA's libcufile is not absolute"));
    }
    let path = std::fs::canonicalize(path)
        .map_err(|_| wrong(ErrorKind::NotFound, "NVIDIA's libcufile is not at the given path"))?;
    match files::obstacle(&path) {
        Some(why) => Err(wrong(ErrorKind::InvalidInput, &format!("cannot load NVIDIA's libcufile: {why}"))),
        None => Ok(path),
    }
}

/// One that the program has loaded already: two in one process would fight.
fn loaded() -> Vec<PathBuf> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: `loaded` passes its vector.
        let found = unsafe { &mut *found.cast::<Vec<PathBuf>>() };
        // SAFETY: the loader passes a valid entry for the length of the call.
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: the name of a loaded object, copied at once.
            let name = unsafe { CStr::from_ptr(name) };
            let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let is_one = path.file_name().is_some_and(|file| file.as_bytes().starts_with(b"libcufile.so"));
            if is_one && path.is_absolute() {
                found.push(path.to_owned());
            }
        }
        0
    }
    let mut found: Vec<PathBuf> = Vec::new();
    // SAFETY: `each` gets the vector, which outlives the call, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

/// Folders, best first.
fn folders() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut toolkits: Vec<PathBuf> = children(Path::new("/usr/local"), "cuda-");
    // The newest first; the one that the administrator chose before all.
    toolkits.sort_by_key(|path| std::cmp::Reverse(numbers(path)));
    toolkits.insert(0, PathBuf::from("/usr/local/cuda"));
    toolkits.splice(0..0, ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::value).map(PathBuf::from));
    for toolkit in toolkits {
        let targets = ["lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
        all.extend(targets.map(|target| toolkit.join(target)));
    }
    for packages in python_packages() {
        // Wheels of CUDA 13 share a folder, those of CUDA 12 have one each.
        all.extend(["nvidia/cu13/lib", "nvidia/cufile/lib"].map(|lib| packages.join(lib)));
    }
    let prefixes = ["CONDA_PREFIX"].into_iter().filter_map(env::value).map(PathBuf::from);
    all.extend(prefixes.map(|prefix| prefix.join("lib")));
    let listed = env::value("LD_LIBRARY_PATH").unwrap_or_default();
    all.extend(std::env::split_paths(&listed).filter(|path| path.is_absolute()));
    let system = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    all.extend(system.map(PathBuf::from));
    all
}

/// Folders of Python packages: the one that this code lies in, the virtual environment's, the system's.
fn python_packages() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    if let Some(own) = own_object() {
        let is_packages = |path: &&Path| {
            path.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
        };
        all.extend(own.ancestors().find(is_packages).map(Path::to_owned));
    }
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::value).map(PathBuf::from);
    for prefix in environments.chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        for python in children(&prefix.join("lib"), "python3") {
            all.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    all
}

/// Entries of a folder whose names begin so, in order.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let begins = |name: &std::ffi::OsStr| name.as_bytes().starts_with(prefix.as_bytes());
    let mut found: Vec<_> =
        entries.filter(|entry| begins(&entry.file_name())).map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// The numbers in a name such as `cuda-13.0`.
fn numbers(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_toolkits_come_first() {
        assert!(numbers(Path::new("/usr/local/cuda-13.0")) > numbers(Path::new("/usr/local/cuda-12.9")));
        assert!(numbers(Path::new("/x/cuda-12.10")) > numbers(Path::new("/x/cuda-12.9")));
    }

    #[test]
    fn a_named_library_must_be_there() {
        assert_eq!(named_one(Path::new("libcufile.so.0")).unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = named_one(Path::new("/nowhere/libcufile.so.0")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("/nowhere/libcufile.so.0") && !error.hints().is_empty());
        assert!(named_one(Path::new("/proc/self/exe")).unwrap().is_absolute());
    }

    #[test]
    fn usual_places_are_searched() {
        let folders = folders();
        let has = |path: &str| folders.iter().any(|folder| folder == Path::new(path));
        assert!(has("/usr/local/cuda/lib64") && has("/usr/lib/x86_64-linux-gnu"));
    }
}
