//! `forebay run --patch`: what forebay's Python package replaces in the programs of the run, by variables that it reads
//! when an interpreter starts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that forebay's Python package stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Patch {
    Safetensors,
}

impl Patch {
    fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
        }
    }

    /// Has the program's processes patched; each says so in a file of the run's folder.
    pub(super) fn ask(self, command: &mut Command, folder: &Path) {
        command.env("FOREBAY_PATCH", self.name()).env("FOREBAY_PATCH_SEEN", seen(folder));
    }

    /// The result.
    pub(super) fn outcome(self, folder: &Path) -> String {
        let lines = std::fs::read_to_string(seen(folder)).unwrap_or_default();
        let name = self.name();
        match lines.lines().count() {
            0 => format!(
                "note: no process of this run was patched: none imported {name}, or forebay is not installed in its Python\n  \
                 hint: PYTHON -c 'import forebay, {name}', with the program's interpreter, says which\n"
            ),
            1 => format!("{name}: patched in 1 process\n"),
            count => format!("{name}: patched in {count} processes\n"),
        }
    }
}

fn seen(folder: &Path) -> PathBuf {
    folder.join("patched")
}
