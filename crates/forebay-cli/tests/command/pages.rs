//! Manual pages and completions, as `make install` has the command write them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::{run, sample};

/// The commands that the help lists.
fn commands(help: &str) -> Vec<&str> {
    let list = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").collect()
}

#[test]
fn every_command_has_a_page_and_every_name_its_completions() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        run(folder.path(), "pages share").ok();
    }
    let help = run(folder.path(), "pages --help").ok().out;
    assert!(help.starts_with("Write manual pages, and completions for bash, zsh and fish"), "{help}");
    let share = folder.path().join("share");
    let help = run(folder.path(), "--help").ok().out;
    let listed = commands(&help);
    assert!(listed.contains(&"bench") && !listed.contains(&"pages"), "{listed:?}");
    let mut expected: BTreeSet<_> = listed.iter().map(|name| format!("forebay-{name}.1")).collect();
    let tools = ["forebay", "gdsio", "gdscheck", "gdsio_verify", "gds_stats"];
    expected.extend(tools.map(|name| format!("{name}.1")));
    let found: BTreeSet<_> = std::fs::read_dir(share.join("man/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(found.is_superset(&expected), "{found:?}");
    assert!(found.contains("forebay-nfs-probe.1") && !found.contains("forebay-pages.1"), "{found:?}");
    let page = std::fs::read_to_string(share.join("man/man1/forebay-bench.1")).unwrap();
    assert!(page.contains(".TH forebay-bench 1") && page.contains("\\fB\\-f\\fR"), "{page}");

    for name in tools {
        let bash = share.join("bash-completion/completions").join(name);
        assert!(Command::new("bash").arg("-n").arg(bash).status().unwrap().success());
        assert!(share.join(format!("zsh/site-functions/_{name}")).exists());
        assert!(share.join(format!("fish/vendor_completions.d/{name}.fish")).exists());
    }
    let completions = std::fs::read_to_string(share.join("bash-completion/completions/forebay")).unwrap();
    assert!(!completions.contains("forebay,pages)"), "a command that no help lists is offered");
}

#[test]
fn a_file_in_the_way_is_told() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path(), "file", 1);
    let done = run(folder.path(), "pages file");
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    assert!(done.err.starts_with("error: cannot write the file: "), "{}", done.err);
    assert!(done.err.contains("(path=file/"), "{}", done.err);
}
