//! The first 4096 bytes of a trace: what the records are and who wrote them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::record::{RECORD, take};
use crate::time;

/// How a trace begins.
pub(crate) const MAGIC: &[u8; 8] = b"FBYTRACE";
/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the header.
pub(crate) const HEADER: usize = 4096;
/// Where the number of lost records stands.
pub(crate) const LOST_AT: usize = 48;
/// Where the time of the end stands.
pub(crate) const END_AT: usize = 56;
/// Where the list of texts begins, and the texts themselves.
const TEXTS_AT: usize = 72;
const TEXT_AT: usize = 128;

/// The writer of a trace, and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// Version of the format.
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// When the trace began, in nanoseconds since 1970.
    pub wall_start: u64,
    /// The same moment on CLOCK_MONOTONIC, which puts traces of one machine on one axis.
    pub clock_start: u64,
    /// What started the process: the number that `forebay run` gave its children; 0 without it.
    pub run: u64,
    /// Records that were lost after the file could not grow.
    pub lost: u64,
    /// When the trace was closed, in nanoseconds since its start; 0 if the process ended without closing it.
    pub end: u64,
    /// The host's name.
    pub host: String,
    /// The release of forebay.
    pub release: String,
    /// The executable.
    pub executable: PathBuf,
    /// The working directory.
    pub directory: PathBuf,
    /// The command line; cut if it is long.
    pub command: Vec<OsString>,
}

impl TraceHeader {
    /// The header of this process's trace.
    pub(crate) fn here(run: u64) -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
            parent: std::os::unix::process::parent_id(),
            wall_start: time::wall(),
            clock_start: time::monotonic(),
            run,
            host: std::fs::read_to_string("/proc/sys/kernel/hostname")
                .map(|name| name.trim_end().to_owned())
                .unwrap_or_default(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            executable: std::env::current_exe().unwrap_or_default(),
            directory: std::env::current_dir().unwrap_or_default(),
            // From the kernel: a library's process may not have told Rust its arguments.
            command: split(&std::fs::read("/proc/self/cmdline").unwrap_or_default()),
            ..Self::default()
        }
    }

    /// The bytes of the header. Texts that do not fit are cut.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        let words = [self.version, HEADER as u32, RECORD as u32, self.pid, self.parent];
        for (index, word) in words.into_iter().enumerate() {
            bytes[8 + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let longs = [(32, self.wall_start), (40, self.clock_start), (64, self.run)];
        for (at, long) in longs.into_iter().chain([(LOST_AT, self.lost), (END_AT, self.end)]) {
            bytes[at..at + 8].copy_from_slice(&long.to_le_bytes());
        }
        let command: Vec<_> = self.command.iter().map(|arg| arg.as_bytes()).collect();
        let texts = [
            self.host.as_bytes(),
            self.release.as_bytes(),
            self.executable.as_os_str().as_bytes(),
            self.directory.as_os_str().as_bytes(),
            // Last: it takes the remaining room.
            &command.join(&0),
        ];
        let mut at = TEXT_AT;
        for (index, text) in texts.into_iter().enumerate() {
            let room = if index == 4 { HEADER - at } else { 1024.min(HEADER - at) };
            let len = text.len().min(room);
            bytes[at..at + len].copy_from_slice(&text[..len]);
            bytes[TEXTS_AT + index * 8..][..4].copy_from_slice(&(at as u32).to_le_bytes());
            bytes[TEXTS_AT + index * 8 + 4..][..4].copy_from_slice(&(len as u32).to_le_bytes());
            at += len;
        }
        bytes
    }

    /// The header of these bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        if !is_trace(bytes) {
            return Err(Error::new(ErrorKind::InvalidInput, "not a trace of forebay")
                .hint("make one with: forebay run --trace FILE -- CMD"));
        }
        let word = |at| u32::from_le_bytes(take(bytes, at));
        let long = |at| u64::from_le_bytes(take(bytes, at));
        let sizes = (word(12), word(16));
        if word(8) != VERSION || sizes != (HEADER as u32, RECORD as u32) {
            return Err(Error::new(ErrorKind::Unsupported, "a trace of another version of the format")
                .with("version", word(8))
                .with("header_bytes", sizes.0)
                .with("record_bytes", sizes.1)
                .hint("read it with the release of forebay that wrote it"));
        }
        if bytes.len() < HEADER {
            return Err(Error::new(ErrorKind::InvalidInput, "the trace is cut off in its header")
                .with("bytes", bytes.len())
                .with("header_bytes", HEADER)
                .hint("copy it whole, or record it again: forebay run --trace FILE -- CMD"));
        }
        let text = |index: usize| {
            let (at, len) = (word(TEXTS_AT + index * 8) as usize, word(TEXTS_AT + index * 8 + 4) as usize);
            at.checked_add(len).and_then(|end| bytes.get(at..end)).unwrap_or_default()
        };
        let string = |index| String::from_utf8_lossy(text(index)).into_owned();
        let path = |index| PathBuf::from(OsString::from_vec(text(index).to_vec()));
        Ok(Self {
            version: word(8),
            pid: word(20),
            parent: word(24),
            wall_start: long(32),
            clock_start: long(40),
            run: long(64),
            lost: long(LOST_AT),
            end: long(END_AT),
            host: string(0),
            release: string(1),
            executable: path(2),
            directory: path(3),
            command: split(text(4)),
        })
    }

    /// The command line for people: arguments with other than plain characters are quoted, at most 200 characters.
    pub fn command_line(&self) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        let quoted = self.command.iter().map(|arg| {
            let text = arg.to_string_lossy();
            if !text.is_empty() && text.chars().all(plain) {
                text.into_owned()
            } else {
                format!("'{}'", text.replace(char::is_control, " ").replace('\'', "'\\''"))
            }
        });
        let line = quoted.collect::<Vec<_>>().join(" ");
        if line.chars().count() <= 200 {
            return line;
        }
        line.chars().take(199).chain(['…']).collect()
    }

    /// The command's first word without its folder.
    pub fn program(&self) -> &Path {
        let first = self.command.first().map_or(self.executable.as_path(), Path::new);
        first.file_name().map_or(first, Path::new)
    }
}

/// Whether a file that begins with these bytes is a trace (of whatever version).
pub fn is_trace(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Arguments that each end with a zero.
fn split(bytes: &[u8]) -> Vec<OsString> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == 0).map(|arg| OsStr::from_bytes(arg).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes() {
        let header = TraceHeader { run: 77, lost: 3, end: 9, ..TraceHeader::here(77) };
        assert_eq!(TraceHeader::decode(&header.encode()).unwrap(), header);
        assert!(!header.command.is_empty() && !header.host.is_empty());
    }

    #[test]
    fn long_texts_are_cut() {
        let header = TraceHeader {
            host: "h".repeat(3000),
            directory: PathBuf::from("d".repeat(3000)),
            command: vec!["c".repeat(9000).into()],
            ..TraceHeader::here(0)
        };
        let read = TraceHeader::decode(&header.encode()).unwrap();
        assert_eq!((read.host.len(), read.directory.as_os_str().len()), (1024, 1024));
        assert!(read.command[0].len() > 500);
    }

    #[test]
    fn command_lines_can_be_typed() {
        let header = TraceHeader {
            command: ["a/b", "x y", "it's", "", "p\n"].map(OsString::from).to_vec(),
            ..TraceHeader::default()
        };
        assert_eq!(header.command_line(), r"a/b 'x y' 'it'\''s' '' 'p '");
        assert_eq!(header.program(), Path::new("b"));
    }

    #[test]
    fn other_files_and_versions_are_refused() {
        assert_eq!(TraceHeader::decode(b"garbage").unwrap_err().kind(), ErrorKind::InvalidInput);
        let mut bytes = TraceHeader::here(0).encode();
        bytes[8] = 2;
        assert_eq!(TraceHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(TraceHeader::decode(MAGIC).unwrap_err().kind(), ErrorKind::Unsupported);
        let cut = TraceHeader::decode(&TraceHeader::here(0).encode()[..1000]).unwrap_err();
        assert_eq!(
            (cut.kind(), cut.message()),
            (ErrorKind::InvalidInput, "the trace is cut off in its header")
        );
    }
}
