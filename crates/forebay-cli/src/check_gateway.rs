//! `forebay check DIR --gateway`: what a directory can do for `forebay serve s3`.

use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind};
use forebay_gateway::posix::{MountReport, MountState, examine};
use forebay_gateway::store::StoreError;

use crate::check::CheckArgs;
use crate::console::{Console, Failure};

/// Tries the directory, prints the report and returns the exit code.
pub(crate) fn run(args: &CheckArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let [directory] = &args.paths[..] else {
        let error = Error::new(ErrorKind::InvalidInput, "--gateway looks at one directory");
        return Err(Failure::usage(error.hint("forebay check DIR --gateway [OTHER_MOUNT]")));
    };
    let other_mount = args.gateway.as_ref().and_then(|mounts| mounts.first());
    if let Some(other) = other_mount {
        let found = std::fs::read_dir(other);
        found.map_err(|error| Failure {
            error: Error::from_io(&error, "cannot open the other mount").with("path", other.display()),
            code: 2,
        })?;
    }
    let report = examine(Path::new(directory), other_mount.map(PathBuf::as_path))
        .map_err(|error| Failure { error: told(error, directory), code: 2 })?;
    if args.json {
        console.line(json(&report)?);
    } else {
        console.line(report.to_string().trim_end());
    }
    let code = match report.state() {
        MountState::Ok => 0,
        MountState::Degraded => 1,
        MountState::Broken => 2,
    };
    Ok(args.fail_on.code(code))
}

fn told(error: StoreError, directory: &str) -> Error {
    let error = match error {
        StoreError::Other(error) | StoreError::Later(error) => error,
        StoreError::Denied => Error::new(ErrorKind::PermissionDenied, "cannot write to the directory")
            .hint("a gateway writes there: name another directory, or run this as its user"),
        other => Error::new(ErrorKind::Io, format!("cannot try the directory: {other}")),
    };
    error.with("path", directory)
}

fn json(report: &MountReport) -> Result<String, Failure> {
    serde_json::to_string_pretty(report)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the report: {error}")).into())
}
