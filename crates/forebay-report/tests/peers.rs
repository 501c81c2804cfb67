//! The script that loads by libraries of Python, over stand-ins for these.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SCRIPT: &str = include_str!("../src/peers.py");

/// Modules: forebay and kvikio count operations; torch is not installed.
const MODULES: [(&str, &str); 4] = [
    ("forebay", "def load_file(path, framework, device=None):\n    return {framework: 1}\n"),
    ("torch", "raise ImportError('no torch here')\n"),
    (
        "cupy",
        "import types\nuint8 = 1\ndef empty(size, kind):\n    return bytearray(size)\n\
         class Device:\n    def __init__(self, number): pass\n    def use(self): pass\n\
         cuda = types.SimpleNamespace(Device=Device, runtime=types.SimpleNamespace(deviceSynchronize=lambda: None))\n",
    ),
    (
        "kvikio",
        "import os, time, types\n\
         defaults = types.SimpleNamespace(is_compat_mode_preferred=lambda: os.environ.get('COMPAT') == 'ON')\nclass CuFile:\n    def __init__(self, path, flags):\n        time.sleep(0.5)\n        self.file = open(path, 'rb')\n\
         \x20   def read(self, buffer):\n        return self.file.readinto(buffer)\n",
    ),
];

/// Runs it on a file; `None` where there is no Python.
fn load(name: &str, file: &Path, device: &str, cache: &str) -> Option<Output> {
    load_with(name, file, device, cache, "OFF")
}

fn load_with(name: &str, file: &Path, device: &str, cache: &str, compat: &str) -> Option<Output> {
    let modules = tempfile::tempdir().unwrap();
    for (name, text) in MODULES {
        fs::write(modules.path().join(format!("{name}.py")), text).unwrap();
    }
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, name]).arg(file).args([device, cache, "1"]);
    match command.env("PYTHONPATH", modules.path()).env("COMPAT", compat).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: cannot run python3: {error}");
            None
        }
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(folder: &Path) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(folder).unwrap();
    fs::write(file.path(), vec![1; 1 << 20]).unwrap();
    file
}

#[test]
fn the_page_cache_is_looked_at() {
    let own = file(&std::env::temp_dir());
    let Some(warm) = load("forebay", own.path(), "cpu", "warm") else { return };
    let warm = json(&warm);
    assert_eq!((warm["cache"].as_str(), warm["bytes"].as_u64()), (Some("warm"), Some(1 << 20)));
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("skipped in part: there is no /dev/shm");
        return;
    }
    // Files of a tmpfs are never cold, whatever is asked for.
    let memory = file(memory);
    assert_eq!(json(&load("forebay", memory.path(), "cpu", "cold").unwrap())["cache"], "warm");
}

#[test]
fn without_torch_a_load_to_a_gpu_is_absent() {
    let file = file(&std::env::temp_dir());
    let Some(output) = load("forebay", file.path(), "cuda:0", "warm") else { return };
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "torch cannot be imported: no torch here\n");
}

#[test]
fn kvikio_is_timed_with_the_file_open() {
    let file = file(&std::env::temp_dir());
    let Some(output) = load("kvikio", file.path(), "cuda:0", "warm") else { return };
    // Opening takes half a second.
    let seconds = json(&output)["seconds"].as_f64().unwrap();
    assert!(seconds < 0.4, "{seconds}");
}

/// POSIX calls are not what a reader takes a cuFile program's figures for.
#[test]
fn the_compatibility_mode_is_named() {
    let file = file(&std::env::temp_dir());
    for (compat, engine) in [("ON", "kvikio, compatibility mode"), ("OFF", "kvikio")] {
        let Some(output) = load_with("kvikio", file.path(), "cuda:0", "warm", compat) else { return };
        assert_eq!(json(&output)["engine"], engine);
    }
}
