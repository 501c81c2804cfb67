//! Computes the build id: what must be the same in two shared objects before they may share a session.
//!
//! It stands for the layout of all types that sessions are made of: compiler, target, features and cfgs, the versions of
//! dependencies, and the sources. `src/runtime/process.rs` says why that is enough.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The crates whose types are part of a session, beside this one.
const CRATES: [&str; 11] = [
    "forebay-error",
    "forebay-config",
    "forebay-gpu",
    "forebay-libcufile",
    "forebay-nfs",
    "forebay-remote",
    "forebay-source",
    "forebay-stats",
    "forebay-sys",
    "forebay-verbs",
    "forebay-ways",
];

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let mut facts = vec![variable("TARGET"), compiler()];
    facts.extend(cfgs());
    // Unstable flags can change layouts.
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    if flags.split('\x1f').any(|flag| flag.starts_with("-Z")) {
        facts.push(flags);
    }
    facts.extend(sources(&manifest).unwrap_or_else(|| vec![unique()]));
    println!("cargo::rustc-env=FOREBAY_BUILD_ID={}", digest(&facts));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

fn compiler() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Command::new(rustc)
        .arg("-vV")
        .output()
        .map_or_else(|_| unique(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Features, target features, panic strategy, debug assertions and so on.
fn cfgs() -> Vec<String> {
    let is_cfg = |name: &str| name.starts_with("CARGO_CFG_") || name.starts_with("CARGO_FEATURE_");
    let all: BTreeMap<_, _> = env::vars().filter(|(name, _)| is_cfg(name)).collect();
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Names and texts of all sources, and the versions of dependencies. `None` where the crates do not lie beside each
/// other, as they do in the repository: then nothing is known of them.
fn sources(manifest: &Path) -> Option<Vec<String>> {
    let crates = manifest.parent()?;
    let lock = manifest.ancestors().map(|folder| folder.join("Cargo.lock")).find(|path| path.exists())?;
    let mut paths = vec![lock, manifest.join("src"), manifest.join("Cargo.toml"), manifest.join("build.rs")];
    for name in CRATES {
        paths.extend([crates.join(name).join("src"), crates.join(name).join("Cargo.toml")]);
    }
    let mut texts = Vec::new();
    for path in paths {
        println!("cargo::rerun-if-changed={}", path.display());
        collect(&path, &mut texts)?;
    }
    Some(texts)
}

fn collect(path: &Path, texts: &mut Vec<String>) -> Option<()> {
    if path.is_dir() {
        let mut inner: Vec<_> = fs::read_dir(path).ok()?.flatten().map(|entry| entry.path()).collect();
        inner.sort();
        return inner.iter().try_for_each(|path| collect(path, texts));
    }
    texts.push(path.file_name()?.to_string_lossy().into_owned());
    texts.push(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned());
    Some(())
}

/// Equal to no other build's.
fn unique() -> String {
    format!("{:?} {}", SystemTime::now(), std::process::id())
}

/// 32 bytes, as hexadecimal digits. Against accidents, not against forgers: who can load code needs no collision.
fn digest(facts: &[String]) -> String {
    let mut digits = String::new();
    for part in 0..4u64 {
        // Its keys are fixed, and its algorithm is that of this compiler, which is among the facts.
        let mut hasher = DefaultHasher::new();
        (part, facts).hash(&mut hasher);
        let _ = write!(digits, "{:016x}", hasher.finish());
    }
    digits
}
