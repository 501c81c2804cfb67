//! Why a program did not use the drop-in, and what to type.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forebay_config::{env, files};

use super::elf;

/// The longest script that is searched for a name.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;

/// The reasons, with hints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) text: String,
    pub(super) hint: String,
}

fn obstacle(text: impl Into<String>, hint: impl Into<String>) -> Obstacle {
    Obstacle { text: text.into(), hint: hint.into() }
}

/// Reasons that the program's file shows.
pub(super) fn by_program(name: &OsStr) -> Vec<Obstacle> {
    let shown = name.to_string_lossy();
    let Some(path) = which(name) else { return Vec::new() };
    let mut found = Vec::new();
    if is_privileged(&path) {
        found.push(obstacle(
            "the program is setuid, setgid or has capabilities: the loader then ignores LD_PRELOAD and LD_LIBRARY_PATH",
            format!("run a copy of your own: cp {} /tmp && forebay run -- /tmp/…", path.display()),
        ));
    }
    match elf::read(&path) {
        Ok(Some(elf)) if !elf.wide => found.push(obstacle(
            "the program is not a 64-bit one: no library of forebay's fits it",
            "use the 64-bit program",
        )),
        Ok(Some(elf)) if !elf.has_loader => found.push(obstacle(
            "the program is linked statically: no library can take the place of its own",
            format!("link it with the shared library (-lcufile); check: ldd {shown}"),
        )),
        _ => {}
    }
    if found.is_empty() {
        found.push(obstacle(
            "the program did not open libcufile, or opened another copy by its path (a wheel's, or one named by an RPATH)",
            format!("LD_DEBUG=libs forebay run -- {shown} … 2>&1 | grep cufile"),
        ));
    }
    found
}

/// Conditions under which libraries of the command line use cuFile at all.
pub(super) fn by_gates(command: &[OsString]) -> Vec<Obstacle> {
    let exists = |path: &str| Path::new(path).exists();
    let names = |name: &str| names(command, name);
    gates(env::text("KVIKIO_COMPAT_MODE").as_deref(), names, exists)
}

/// Whether a word of the command line, or a script that it names, has this name.
fn names(command: &[OsString], name: &str) -> bool {
    let has = |bytes: &[u8]| bytes.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name.as_bytes()));
    command.iter().any(|word| {
        // Programs are not searched: they may contain the names of libraries that they never use.
        let is_script = |text: &String| !text.contains('\0');
        has(word.as_bytes())
            || files::read_plain(Path::new(word), MAX_SCRIPT_BYTES)
                .is_ok_and(|text| is_script(&text) && has(text.as_bytes()))
    })
}

fn gates(kvikio: Option<&str>, names: impl Fn(&str) -> bool, exists: impl Fn(&str) -> bool) -> Vec<Obstacle> {
    let mut found = Vec::new();
    match kvikio.map(str::to_ascii_uppercase).as_deref() {
        Some("ON" | "TRUE" | "YES" | "1") => found.push(obstacle(
            "KvikIO does not use cuFile with the KVIKIO_COMPAT_MODE that is set",
            "unset KVIKIO_COMPAT_MODE",
        )),
        Some("AUTO") if !exists("/run/udev") => found.push(obstacle(
            "KvikIO with KVIKIO_COMPAT_MODE=AUTO does not use cuFile where there is no /run/udev",
            "unset KVIKIO_COMPAT_MODE, or as root: mkdir /run/udev",
        )),
        _ => {}
    }
    if names("fastsafetensors") && !exists("/dev/nvidia-fs0") {
        found.push(obstacle(
            "fastsafetensors 0.5 and later does not use cuFile where there is no /dev/nvidia-fs0",
            "as root: touch /dev/nvidia-fs0",
        ));
    }
    found
}

/// The file of a command.
fn which(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env::value("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether the loader will not let the user change what the program loads.
fn is_privileged(path: &Path) -> bool {
    const SETUID_SETGID: u32 = 0o6000;
    let has_bits = fs::metadata(path).is_ok_and(|found| found.permissions().mode() & SETUID_SETGID != 0);
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return has_bits };
    // SAFETY: two strings that end in zero; no room for an answer, only its size is asked for.
    let capabilities =
        unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    has_bits || capabilities > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_that_are_open_are_not_told() {
        let (all, none) = (|_: &str| true, |_: &str| false);
        assert_eq!(gates(None, all, all), []);
        assert_eq!(gates(Some("off"), all, |path| path != "/run/udev"), []);
        assert_eq!(gates(Some("auto"), all, |path| path != "/run/udev").len(), 1);
        assert_eq!(gates(Some("on"), all, all)[0].hint, "unset KVIKIO_COMPAT_MODE");
        assert_eq!(gates(None, all, none)[0].hint, "as root: touch /dev/nvidia-fs0");
        assert_eq!(gates(None, none, none), [], "another program's habit");
    }

    #[test]
    fn a_habit_is_told_of_its_program_only() {
        let folder = tempfile::tempdir().unwrap();
        let (script, other) = (folder.path().join("load.py"), folder.path().join("other.py"));
        fs::write(&script, "from fastsafetensors import SafeTensorsFileLoader\n").unwrap();
        fs::write(&other, "import torch\n").unwrap();
        let is_named = |words: &[&OsStr]| {
            let command: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            names(&command, "fastsafetensors")
        };
        let word = OsStr::new;
        assert!(is_named(&[word("python3"), script.as_os_str()]));
        assert!(is_named(&[word("vllm"), word("serve"), word("--load-format=fastsafetensors")]));
        assert!(!is_named(&[word("python3"), other.as_os_str(), word("/dev/zero")]));
    }

    #[test]
    fn setuid_and_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(by_program(path.as_os_str())[0].text.contains("did not open libcufile"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(by_program(path.as_os_str())[0].text.contains("setuid"));
        assert_eq!(by_program(OsStr::new("no-such-program-anywhere")), []);
    }
}
