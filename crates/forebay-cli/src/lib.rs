//! The `forebay` command as a library function.
//!
//! [`main_with`] takes a command line and writes to the given streams. The same command serves under the names of
//! NVIDIA's tools: called as `gdsio`, `gdscheck`, `gdsio_verify` or `gds_stats`, it takes their flags.
//!
//! # Exit codes
//! | code | meaning |
//! |---|---|
//! | 0 | done (`check`: all usable; `doctor`: nothing, or notes) |
//! | 1 | failed: the reason and hints are on stderr (`check`: degraded; `doctor`: slower; `verify`: the bytes differ) |
//! | 2 | the command line or the job file is wrong; nothing was touched (`check`: cannot run; `doctor`: something does not work) |
//! | 3 | `doctor`: nothing was looked at, also for a wrong argument; `report`: rows are left; `bench --hosts`: some hosts failed |
//! | 130, 143, 129 | ended by Ctrl-C, SIGTERM or SIGHUP: 128 and the signal's number |
//!
//! `run` has the exit code of the program that it runs.
//!
//! ```
//! let (mut out, mut err) = (Vec::new(), Vec::new());
//! let code = forebay_cli::main_with(vec!["forebay".into(), "--version".into()], &mut out, &mut err);
//! assert_eq!(code, 0);
//! assert!(out.starts_with(b"forebay "));
//! ```

mod bench;
mod check;
mod check_gateway;
mod command_line;
mod console;
mod cp;
mod demo;
mod doctor;
mod hosts;
mod interrupt;
mod json_file;
mod load;
mod names;
mod nfs;
mod output;
mod pages;
mod replay;
mod report;
mod report_objects;
mod report_rdma;
mod run;
mod s3;
mod serve;
mod silence;
mod ssh;
mod stats;
mod top;
mod trace;
mod verify;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use clap::{Parser, Subcommand};

use console::{Console, Failure};
use output::Output;

/// Moves bytes between storage and GPU memory on the shortest path the machine allows, and tells which it was.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, disable_version_flag = true, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed (the reason and hints are on stderr); 2 wrong command line or \
job file; 130 interrupted; 143 terminated.\nAs gdsio, gdscheck (or gdscheck.py), gdsio_verify or gds_stats (by a link of that name) it takes those \
tools' flags.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure: gdsio's flags and job files, honest peers, ceilings
    Bench(Box<load::Load>),
    Check(check::CheckArgs),
    Doctor(doctor::DoctorArgs),
    /// Copy a file or an object through device memory
    Cp(cp::Copy),
    /// Read a range to device memory and compare it with a plain read
    Verify(verify::Verify),
    /// Show the main job on a temporary file: every engine of this machine, warm and cold
    Demo(demo::Demo),
    Report(Box<report::Report>),
    Run(run::Run),
    Trace(trace::Trace),
    Replay(replay::Replay),
    Nfs(nfs::NfsArgs),
    S3(Box<s3::S3Args>),
    Serve(serve::ServeArgs),
    /// Show what a running process moves, from outside: gds_stats's text, Prometheus, JSON
    Stats(stats::Stats),
    Top(top::Top),
    #[command(skip)]
    Pages(pages::Pages),
    #[command(skip)]
    GdsStats(stats::OneProcess),
}

impl Command {
    /// Fails on environment variables that a command would not understand: these count as a wrong command line.
    fn check_environment(&self) -> forebay_error::Result<()> {
        match self {
            Self::Bench(_)
            | Self::Cp(_)
            | Self::Verify(_)
            | Self::Demo(_)
            | Self::Report(_)
            | Self::Replay(_)
            | Self::Nfs(_)
            | Self::S3(_) => forebay_config::Config::from_env().map(drop),
            _ => Ok(()),
        }
    }
}

/// NVIDIA's gdsio, by forebay.
#[derive(Debug, Parser)]
#[command(name = "gdsio", version, disable_version_flag = true, arg_required_else_help = true)]
struct Gdsio {
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    #[command(flatten)]
    load: load::Load,
}

/// NVIDIA's gdscheck, by forebay. Writes probes of 8 MiB in the places that it looks at, and removes them.
#[derive(Debug, Parser)]
#[command(name = "gdscheck")]
struct Gdscheck {
    #[command(flatten)]
    check: check::CheckArgs,
}

/// NVIDIA's gdsio_verify, by forebay.
#[derive(Debug, Parser)]
#[command(name = "gdsio_verify", version, disable_version_flag = true)]
struct GdsioVerify {
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    #[command(flatten)]
    verify: verify::Verify,
}

/// NVIDIA's gds_stats, by forebay.
#[derive(Debug, Parser)]
#[command(name = "gds_stats", version, disable_version_flag = true, arg_required_else_help = true)]
struct GdsStats {
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    #[command(flatten)]
    stats: stats::OneProcess,
}

// `forebay pages`, for `make install`: no command of `Cli`, so that neither help nor completions have it. Its help is that of
// its flags.
#[derive(Debug, Parser)]
#[command(name = "forebay pages", arg_required_else_help = true)]
struct PagesLine {
    #[command(flatten)]
    pages: pages::Pages,
}

/// Runs a command line (`args[0]` is the name it was called by) and returns its exit code.
pub fn main_with(args: Vec<OsString>, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> i32 {
    let mut out = Output::new(out);
    let code = run_line(args, &mut out, err);
    match out.lost() {
        None => code,
        Some(error) => {
            Console::new(&mut out, err).error(&error);
            if code == 0 { 1 } else { code }
        }
    }
}

fn run_line(mut args: Vec<OsString>, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> i32 {
    forebay_libcufile::register();
    forebay_nfs::register();
    forebay_objects::register();
    let line = args.clone();
    let is_doctor = args.get(1).is_some_and(|word| word == "doctor");
    let name =
        args.first().map_or(OsStr::new("forebay"), |first| Path::new(first).file_name().unwrap_or(first));
    let command = match name.to_str() {
        Some("gdsio") => {
            command_line::parse::<Gdsio>(args).map(|cli| Command::Bench(Box::new(cli.load.named_gdsio())))
        }
        Some("gdscheck" | "gdscheck.py") => {
            command_line::parse::<Gdscheck>(args).map(|cli| Command::Check(cli.check))
        }
        Some("gdsio_verify") => {
            command_line::parse::<GdsioVerify>(args).map(|cli| Command::Verify(cli.verify))
        }
        Some("gds_stats") => command_line::parse::<GdsStats>(args).map(|cli| Command::GdsStats(cli.stats)),
        _ if args.get(1).is_some_and(|word| word == "pages") => {
            args.remove(1);
            command_line::parse::<PagesLine>(args).map(|cli| Command::Pages(cli.pages))
        }
        _ => command_line::parse::<Cli>(args).map(|cli| cli.command),
    };
    let command = match command {
        Ok(command) => command,
        Err(error) => {
            let stream: &mut dyn Write = if error.use_stderr() { err } else { out };
            let code = match error.exit_code() {
                // Monitoring takes 2 for something that does not work.
                2 if is_doctor => doctor::UNKNOWN,
                code => code,
            };
            // `Output` remembers the first failed write.
            let _ = write!(stream, "{}", command_line::words(error));
            return code;
        }
    };
    for unknown in forebay_config::env::unknown() {
        let _ = writeln!(err, "note: {}", forebay_error::plain(&unknown.to_string()));
    }
    if let Command::Check(args) = &command
        && args.gateway.is_none()
    {
        return check::run(args, out, err);
    }
    if let Command::Doctor(args) = &command {
        return doctor::run(args, out, err);
    }
    let console = Console::new(out, err);
    if let Err(error) = command.check_environment() {
        console.error(&error);
        return 2;
    }
    let result = match &command {
        Command::Bench(load) if load.hosts.is_empty() => bench::run(load, &console),
        Command::Bench(load) => hosts::run(load, &line, &console),
        Command::Cp(copy) => cp::run(copy, &console).map(|_| 0),
        Command::Verify(args) => verify::run(args, &console),
        Command::Demo(args) => demo::run(args, &console),
        Command::Report(args) => report::run(args, &console),
        Command::Run(args) => run::run(args, &console),
        Command::Trace(args) => trace::run(args, &console),
        Command::Replay(args) => replay::run(args, &console),
        Command::Nfs(args) => nfs::run(args, &console),
        Command::S3(args) => s3::run(args, &console),
        Command::Serve(args) => serve::run(args, &console),
        Command::Stats(args) => stats::run(args, &console),
        Command::Top(args) => top::run(args, &console),
        Command::Pages(args) => pages::run(args, &console),
        Command::GdsStats(args) => stats::run_gds_stats(args, &console),
        Command::Check(args) => check_gateway::run(args, &console),
        Command::Doctor(_) => Ok(0),
    };
    result.unwrap_or_else(|Failure { error, code }| {
        console.error(&error);
        code
    })
}
