//! The environment, as far as it is to be believed. Nothing else in forebay reads it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Whether this process has rights that its caller lacks (setuid, setgid, file capabilities: `AT_SECURE`). Then variables
/// are the caller's wishes with somebody else's rights, and there are none.
pub fn is_elevated() -> bool {
    static ELEVATED: OnceLock<bool> = OnceLock::new();
    // SAFETY: looks a number up.
    *ELEVATED.get_or_init(|| unsafe { libc::getauxval(libc::AT_SECURE) } != 0)
}

/// A variable, empty or not.
pub fn value(name: &str) -> Option<OsString> {
    if is_elevated() { None } else { std::env::var_os(name) }
}

/// A variable that says something.
pub fn filled(name: &str) -> Option<OsString> {
    value(name).filter(|value| !value.is_empty())
}

/// The names of all variables that are text.
pub fn names() -> Vec<String> {
    let all = if is_elevated() { None } else { Some(std::env::vars_os()) };
    all.into_iter().flatten().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// A variable as text; `None` too if it is none.
pub fn text(name: &str) -> Option<String> {
    value(name)?.into_string().ok()
}

/// The user's folder for what may be lost: `$XDG_CACHE_HOME`, or `~/.cache`. `None` where neither is an absolute path.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| filled(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}
