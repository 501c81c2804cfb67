//! Parses a command line, and words its errors.

use std::ffi::OsString;

use clap::error::ContextKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

/// The standard library's messages about numbers, and forebay's.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "not a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
];

/// Parses it. `-s -1` is a wrong size, not an unknown flag.
pub(crate) fn parse<T: CommandFactory + FromArgMatches>(args: Vec<OsString>) -> Result<T, clap::Error> {
    let mut command = with_negative_numbers(T::command());
    let matches = command.try_get_matches_from_mut(args)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn with_negative_numbers(command: Command) -> Command {
    command.mut_args(taking_negative_numbers).mut_subcommands(with_negative_numbers)
}

fn taking_negative_numbers(arg: Arg) -> Arg {
    if arg.is_positional() || !arg.get_action().takes_values() {
        return arg;
    }
    arg.allow_negative_numbers(true)
}

/// Help, or the error.
pub(crate) fn words(mut error: clap::Error) -> String {
    // That a flag may be meant as the name of a file (`-- --flag`) is a guess, and a wrong one.
    error.remove(ContextKind::Suggested);
    let mut text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::ValueValidation {
        for (said, told) in NUMBERS {
            text = text.replace(said, told);
        }
    }
    text
}
