//! The log: lines as NVIDIA's library writes them, and only where a log is configured.

use std::ffi::c_int;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::cufile::{Log as Options, LogLevel, LogPlace};
use forebay_config::{env, files};
use forebay_error::{Error, Result};
use forebay_sys::{HeldFile, UtcTime};

use crate::lock;
use crate::meter::meter;

/// Where forebay's own variable wants the log: a path, or `stderr`.
const VARIABLE: &str = "FOREBAY_CUFILE_LOG";

/// The variable that asks for more than errors.
const LEVEL: &str = "CUFILE_LOGGING_LEVEL";

/// Whether calls are logged: there is a log, and its level is TRACE.
static LOGS_CALLS: AtomicBool = AtomicBool::new(false);

/// Standard error by its path.
const STDERR: &str = "/dev/stderr";

/// Where lines go.
#[derive(Default)]
enum LogTarget {
    #[default]
    Nowhere,
    Stderr,
    File {
        file: HeldFile,
        written: u64,
        most: Option<u64>,
    },
}

/// A log.
#[derive(Default)]
pub(crate) struct CallLog {
    place: LogTarget,
    level: LogLevel,
    configured: Option<Options>,
}

/// The log of this process.
pub(crate) fn log() -> MutexGuard<'static, CallLog> {
    static LOG: LazyLock<Mutex<CallLog>> = LazyLock::new(Mutex::default);
    lock(&LOG)
}

/// Whether calls are logged.
pub(crate) fn logs_calls() -> bool {
    LOGS_CALLS.load(Ordering::Relaxed)
}

/// The errno of a transfer that failed.
pub(crate) fn logged_errno(error: &Error) -> c_int {
    log_error("io", error);
    error.errno()
}

/// Tells an error in the log, if there is one, and in the live counters, so that receipts have it.
pub(crate) fn log_error(module: &str, error: &Error) {
    log().error(module, error);
    meter().failed(error);
}

impl CallLog {
    /// Opens the log that the options ask for. Without one that cannot be opened the program goes on.
    pub(crate) fn configure(&mut self, options: &Options) -> Result<()> {
        if self.configured.as_ref() == Some(options) {
            return Ok(());
        }
        self.configured = Some(options.clone());
        self.level = options.level;
        self.place = LogTarget::Nowhere;
        LOGS_CALLS.store(false, Ordering::Relaxed);
        let Some(path) = path(options) else { return Ok(()) };
        self.place = open(&path, options)?;
        LOGS_CALLS.store(self.level == LogLevel::Trace, Ordering::Relaxed);
        Ok(())
    }

    /// Writes a line, if the level asks for it.
    pub(crate) fn line(&mut self, level: LogLevel, module: &str, text: &str) {
        if level > self.level || matches!(self.place, LogTarget::Nowhere) {
            return;
        }
        let line = format!(
            " {} [pid={} tid={}] {:<6} {module}: {text}\n",
            stamp(SystemTime::now()),
            std::process::id(),
            forebay_trace::thread_id(),
            level.name(),
        );
        match &mut self.place {
            LogTarget::Nowhere => {}
            LogTarget::Stderr => {
                // As below; `eprint` would panic.
                let _ = io::stderr().write_all(line.as_bytes());
            }
            LogTarget::File { file, written, most } => {
                *written += line.len() as u64;
                match file.get() {
                    Some(mut file) if most.is_none_or(|most| *written <= most) => {
                        // A log that cannot be written must not stop the program.
                        let _ = file.write_all(line.as_bytes());
                    }
                    Some(_) => {}
                    None => self.place = LogTarget::Nowhere,
                }
            }
        }
    }

    /// Writes an error with its hints.
    pub(crate) fn error(&mut self, module: &str, error: &Error) {
        self.line(LogLevel::Error, module, &error.to_string());
        for hint in error.hints() {
            self.line(LogLevel::Error, module, &format!("hint: {hint}"));
        }
    }
}

/// The log's path. A user who sets the variable of its level above ERROR, without a path, reads
/// standard error.
fn path(options: &Options) -> Option<PathBuf> {
    match (env::filled(VARIABLE), options.place()) {
        (Some(value), _) if value == "stderr" => Some(STDERR.into()),
        (Some(path), _) => Some(path.into()),
        (None, Some(LogPlace::File(path))) => Some(path),
        (None, Some(LogPlace::Folder(folder))) => Some(folder.join(file_name())),
        (None, None) if options.level > LogLevel::Error && env::filled(LEVEL).is_some() => {
            Some(STDERR.into())
        }
        (None, None) => None,
    }
}

fn open(path: &Path, options: &Options) -> Result<LogTarget> {
    if path == Path::new(STDERR) {
        // It may be a pipe, which is not opened again.
        return Ok(LogTarget::Stderr);
    }
    let file = files::open_log(path)
        .map_err(|error| Error::from_io(&error, "cannot open the log").with("path", path.display()))?;
    let most = options.max_file_size_mb.map(|most| most << 20);
    let written = file.metadata().map_or(0, |about| about.len());
    Ok(LogTarget::File { file: HeldFile::new(file), written, most })
}

/// As NVIDIA names the files in a folder: with the process and the time.
fn file_name() -> String {
    let time = utc(SystemTime::now()).to_string().replace(' ', "_").replace(':', "-");
    format!("cufile_{}_{time}.log", std::process::id())
}

/// `DD-MM-YYYY HH:MM:SS:mmm`, UTC.
fn stamp(now: SystemTime) -> String {
    let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    let UtcTime { year, month, day, hour, minute, second } = utc(now);
    format!("{day:02}-{month:02}-{year:04} {hour:02}:{minute:02}:{second:02}:{millis:03}")
}

/// A time as a second of the calendar.
fn utc(time: SystemTime) -> UtcTime {
    UtcTime::from_unix(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let at = |seconds, millis| stamp(UNIX_EPOCH + Duration::new(seconds, millis * 1_000_000u32));
        assert_eq!(at(0, 0), "01-01-1970 00:00:00:000");
        assert_eq!(at(951_782_399, 7), "28-02-2000 23:59:59:007");
        assert_eq!(at(951_782_400, 0), "29-02-2000 00:00:00:000");
        assert_eq!(at(1_795_219_200, 999), "21-11-2026 00:00:00:999");
    }

    #[test]
    fn only_what_was_asked_for_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let options =
            Options { file: Some(path.display().to_string()), level: LogLevel::Warn, ..Options::default() };
        let mut log = CallLog::default();
        log.configure(&options).expect("it can be made");
        log.line(LogLevel::Warn, "config", "something");
        log.line(LogLevel::Info, "config", "too much");
        let text = std::fs::read_to_string(&path).expect("the log");
        assert!(text.contains("] WARN   config: something\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
