//! That the program runs an attack, sums up, and tells what goes wrong. How long it attacks in earnest: `make torture`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_forebay-torture");
    let Output { status, stdout, stderr } = Command::new(program).args(arguments).output().unwrap();
    (status.code(), [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

/// Attacks that are not in the list, for this: each goes wrong in one way.
#[test]
fn what_goes_wrong_is_told() {
    for (name, told) in [
        ("test-fails", "FAILED test-fails: as it should"),
        ("test-panics", "FAILED test-panics: exit status: 101: "),
        ("test-crashes", "signal 6"),
        ("test-hangs", "FAILED test-hangs: hangs: a call that does not come back"),
    ] {
        let (code, text) = run(&["--only", name, "--seed", "5", "--seconds", "1", "--patience", "2"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(told) && text.contains("1 failures"), "{text}");
        assert!(text.contains(&format!("--only {name} --seed 5 --seconds 1\n")), "{text}");
    }
}

#[test]
fn what_cannot_run_is_told() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("skips-{}", std::process::id()));
    let (code, text) = run(&["--only", "test-skips", "--seconds", "1", "--skips", path.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("skipped: there is no reason"), "{text}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "torture test-skips: there is no reason\n");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_unknown_attack_is_a_mistake() {
    assert_eq!(run(&["--only", "nothing"]).0, Some(2));
}

#[test]
fn a_seed_is_printed_and_figures_are_summed_up() {
    let (code, text) = run(&["--only", "mixed", "--seconds", "2", "--seed", "11"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("TORTURE_SEED=11") && text.contains(" bytes compared"), "{text}");
    assert!(text.contains("seed 11, 2 s: 0 failures"), "{text}");
}
