//! A terminal that is redrawn, and its keys.

use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

use forebay_error::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::console::Console;
use crate::interrupt::Guard;

/// The screen that is put away when a program ends, without a cursor.
const OPEN: &str = "\x1b[?1049h\x1b[?25l";
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";
/// Size where the terminal tells none.
const SIZE: (usize, usize) = (80, 24);

/// A terminal that gives keys as they are typed, until it is dropped.
pub(super) struct Screen<'a, 'b> {
    console: &'a Console<'b>,
    /// As it was; `None` where standard input is no terminal, and there are no keys.
    before: Option<Termios>,
}

impl<'a, 'b> Screen<'a, 'b> {
    pub(super) fn open(console: &'a Console<'b>) -> Result<Self> {
        let before = stdin().is_terminal().then(|| tcgetattr(stdin())).transpose().map_err(failed)?;
        if let Some(before) = &before {
            let mut raw = before.clone();
            // Ctrl-C stays a signal; Ctrl-Z would leave the shell on this screen.
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        }
        console.document(OPEN);
        Ok(Self { console, before })
    }

    /// Draws the lines, as many and as much of each as there is room for.
    pub(super) fn draw(&self, lines: &[String]) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, rows) = size.map_or(SIZE, |size| (size.ws_col.into(), size.ws_row.into()));
        self.console.document(&frame(lines, columns, rows));
    }

    /// The key that is typed until then, if one is.
    pub(super) fn key(&self, until: Instant) -> Option<u8> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || Guard::caught().is_some() {
                return None;
            }
            if self.before.is_none() {
                std::thread::sleep(left.min(Duration::from_millis(50)));
                continue;
            }
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let stdin = stdin();
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            // A signal ends the wait.
            if !matches!(poll(&mut ready, Some(&wait)), Ok(count) if count > 0) {
                continue;
            }
            let mut key = [0];
            match rustix::io::read(&stdin, &mut key) {
                Ok(1) => return Some(key[0]),
                // The terminal is gone.
                _ => return Some(b'q'),
            }
        }
    }
}

impl Drop for Screen<'_, '_> {
    fn drop(&mut self) {
        self.console.document(CLOSE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

fn failed(errno: rustix::io::Errno) -> forebay_error::Error {
    forebay_error::Error::from_errno(errno.raw_os_error(), "cannot use the terminal")
        .hint("print the table once: forebay top --once")
}

/// The bytes of one picture.
fn frame(lines: &[String], columns: usize, rows: usize) -> String {
    let mut text = "\x1b[H".to_owned();
    let shown = lines.len().min(rows);
    for (index, line) in lines.iter().take(rows).enumerate() {
        text.extend(line.chars().take(columns));
        // To the end of the line; the last line must not scroll the screen.
        text.push_str(if index + 1 == shown { "\x1b[K" } else { "\x1b[K\r\n" });
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_terminal() {
        let lines = ["long line".to_owned(), "ü".repeat(9), "left out".to_owned()];
        assert_eq!(frame(&lines, 4, 2), "\x1b[Hlong\x1b[K\r\nüüüü\x1b[K\x1b[J");
        assert_eq!(frame(&lines[..1], 80, 24), "\x1b[Hlong line\x1b[K\x1b[J");
    }
}
