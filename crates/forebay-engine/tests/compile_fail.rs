//! Programs that the compiler must refuse: memory under a transfer can be neither freed nor touched by safe code. Each program in
//! `ui/` has the compiler's words beside it.
//!
//! After a change of wording: `UPDATE_UI=1 cargo test -p forebay-engine --test compile_fail`, with the toolchain of
//! `rust-toolchain.toml`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The engine's library that these tests were built with. Cargo, asked for it, would compile it again with fewer features. Where
/// several were built, the last one is of the sources that are here.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let entries = fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_engine = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libforebay_engine-") && path.extension().is_some_and(|end| end == "rlib")
    };
    let newest = entries.filter(is_engine).max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    newest.expect("Cargo builds the library before its tests")
}

/// What the compiler says of a program, less its closing lines. Nothing is written.
fn refusal(library: &Path, program: &Path) -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "-o", "/dev/null"])
        .arg("--diagnostic-width=140")
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--extern")
        .arg(format!("forebay_engine={}", library.display()))
        .arg(program)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(!output.status.success(), "{} is compiled", program.display());
    let words = String::from_utf8(output.stderr).unwrap();
    let closing = ["error: aborting due to", "For more information about", "Some errors have detailed"];
    let kept = words.lines().filter(|line| !closing.iter().any(|words| line.starts_with(words)));
    kept.collect::<Vec<_>>().join("\n").trim().to_owned() + "\n"
}

#[test]
fn memory_in_flight_is_out_of_reach() {
    let library = library();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let programs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ext| ext == "rs")).collect();
    assert!(!programs.is_empty());
    for program in programs {
        let relative = Path::new("tests/ui").join(program.file_name().unwrap());
        let (said, wanted) = (refusal(&library, &relative), program.with_extension("stderr"));
        if std::env::var_os("UPDATE_UI").is_some() {
            fs::write(wanted, said).unwrap();
            continue;
        }
        let wanted = fs::read_to_string(wanted).unwrap();
        assert!(said == wanted, "{}:\n{said}\ninstead of\n{wanted}", relative.display());
    }
}
