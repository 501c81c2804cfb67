//! Where output goes: result lines to one stream, everything else to the other.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, plain};
use indicatif::{ProgressBar, ProgressStyle};

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Why.
    pub(crate) error: Error,
    /// The exit code.
    pub(crate) code: i32,
}

impl Failure {
    /// The command line is wrong.
    pub(crate) fn usage(error: Error) -> Self {
        Self { error, code: 2 }
    }

    /// A signal stopped it.
    pub(crate) fn interrupted(signal: libc::c_int, what: &str) -> Self {
        let error = Error::new(ErrorKind::Cancelled, format!("interrupted: {what}"));
        Self { error, code: crate::interrupt::exit_code(signal) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, code: 1 }
    }
}

/// The two streams of a command.
pub(crate) struct Console<'a> {
    /// Whether writing a line of the result failed: further ones would fail, too.
    is_lost: AtomicBool,
    /// Whether standard output is kept for one document: lines of result go to standard error.
    is_document: AtomicBool,
    out: Mutex<&'a mut (dyn Write + Send)>,
    err: Mutex<&'a mut (dyn Write + Send)>,
}

impl<'a> Console<'a> {
    pub(crate) fn new(out: &'a mut (dyn Write + Send), err: &'a mut (dyn Write + Send)) -> Self {
        let (is_lost, is_document) = Default::default();
        Self { is_lost, is_document, out: Mutex::new(out), err: Mutex::new(err) }
    }

    /// Writes a line of result.
    pub(crate) fn line(&self, text: impl Display) {
        if self.is_document.load(Ordering::Relaxed) {
            return self.say(format!("{text}\n"));
        }
        self.document(&format!("{text}\n"));
    }

    /// From now on standard output has what [`document`](Self::document) writes, and nothing else.
    pub(crate) fn keep_for_document(&self) {
        self.is_document.store(true, Ordering::Relaxed);
    }

    /// Writes to standard output.
    pub(crate) fn document(&self, text: &str) {
        if write_to(&self.out, text).is_err() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether results can no more be written.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Writes text of the report, with its line breaks.
    pub(crate) fn say(&self, text: impl Display) {
        // There is no stream left to report this on.
        let _ = write_to(&self.err, &text.to_string());
    }

    /// Writes an error with its hints.
    pub(crate) fn error(&self, error: &Error) {
        // It contains paths and messages of other programs.
        let mut text = format!("error: {}\n", plain(&error.to_string()));
        for hint in error.hints() {
            text.push_str("hint: ");
            text.push_str(&plain(hint));
            text.push('\n');
        }
        let _ = write_to(&self.err, &text);
    }
}

fn write_to(stream: &Mutex<&mut (dyn Write + Send)>, text: &str) -> std::io::Result<()> {
    let mut stream: MutexGuard<'_, _> = stream.lock().unwrap_or_else(PoisonError::into_inner);
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// A live line on a terminal for what takes longer than a second; nothing elsewhere.
pub(crate) struct ProgressLine {
    bar: Option<ProgressBar>,
}

impl ProgressLine {
    pub(crate) fn new(what: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {bar:20} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            // Setting its prefix would show it.
            let hidden = indicatif::ProgressDrawTarget::hidden();
            let bar = ProgressBar::with_draw_target(Some(1000), hidden).with_style(style);
            bar.set_prefix(what.to_owned());
            bar
        });
        Self { bar }
    }

    /// One that shows nothing.
    pub(crate) fn hidden() -> Self {
        Self { bar: None }
    }

    /// Names the current step.
    pub(crate) fn say(&self, what: &str) {
        if let Some(bar) = &self.bar
            && bar.prefix() != what
        {
            bar.set_prefix(what.to_owned());
        }
    }

    /// Shows that `part` (0 to 1, where it is known) is done after `elapsed`.
    pub(crate) fn show(&self, bytes: u64, part: Option<f64>, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        if elapsed < Duration::from_secs(1) {
            return;
        }
        if bar.is_hidden() {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        let rate = bytes as f64 / 1e9 / elapsed.as_secs_f64();
        bar.set_position((part.unwrap_or(0.0).min(1.0) * 1000.0) as u64);
        bar.set_message(format!("{}  {rate:.2} GB/s", forebay_bench::text::bytes(bytes)));
    }

    /// Shows the current step, and the part that is done.
    pub(crate) fn step(&self, part: f64, text: String) {
        let Some(bar) = &self.bar else { return };
        bar.set_position((part.min(1.0) * 1000.0) as u64);
        bar.set_message(text);
        if bar.is_hidden() {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        bar.tick();
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            // A hidden bar clears nothing.
            bar.finish_and_clear();
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            bar.reset();
        }
    }
}
