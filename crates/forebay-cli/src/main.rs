//! The `forebay` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    let code =
        forebay_cli::main_with(std::env::args_os().collect(), &mut std::io::stdout(), &mut std::io::stderr());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
