//! `forebay pages`: manual pages and completions of shells, for `make install` and packages.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use forebay_error::{Error, Result};

use crate::console::{Console, Failure};
use crate::{Cli, GdsStats, Gdscheck, Gdsio, GdsioVerify};

/// Write manual pages, and completions for bash, zsh and fish, below a folder as below /usr/share
#[derive(Args, Clone, Debug)]
pub(crate) struct Pages {
    /// It is made if it is missing; pages there are written over
    #[arg(value_name = "DIR", value_parser = crate::names::target())]
    folder: PathBuf,
}

/// Where each shell looks below `/usr/share`.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Runs the command.
pub(crate) fn run(args: &Pages, console: &Console<'_>) -> std::result::Result<i32, Failure> {
    let mut count = 0;
    for command in
        [Cli::command(), Gdsio::command(), Gdscheck::command(), GdsioVerify::command(), GdsStats::command()]
    {
        count += write(command, &args.folder)?;
    }
    console.line(format!("{count} files below {}", args.folder.display()));
    Ok(0)
}

/// Writes what one command has; the number of files.
fn write(mut command: Command, folder: &Path) -> Result<usize> {
    let name = command.get_name().to_owned();
    let mut count = 0;
    for (shell, place) in SHELLS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        put(&folder.join(place), &file, &text)?;
        count += 1;
    }
    command.build();
    Ok(count + manual(&command, &folder.join("man/man1"))?)
}

/// Writes the manual page of a command, and those of its subcommands: `forebay-nfs-probe.1`.
fn manual(command: &Command, folder: &Path) -> Result<usize> {
    let man = clap_mangen::Man::new(command.clone());
    let (file, mut text) = (man.get_filename(), Vec::new());
    man.render(&mut text).map_err(|error| Error::from_io(&error, "cannot write a manual page"))?;
    put(folder, &file, &text)?;
    let subcommands = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    subcommands.map(|sub| manual(sub, folder)).try_fold(1, |count, more| Ok(count + more?))
}

fn put(folder: &Path, name: &str, text: &[u8]) -> Result<()> {
    let path = folder.join(name);
    fs::create_dir_all(folder)
        .and_then(|()| fs::File::create(&path)?.write_all(text))
        .map_err(|error| Error::from_io(&error, "cannot write the file").with("path", path.display()))
}
