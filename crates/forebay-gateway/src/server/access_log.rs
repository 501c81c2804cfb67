//! The access log: one line a request, without keys' secrets and without query strings, which may have signatures.
//!
//! A thread of its own writes: a file that takes no bytes delays no request. Lines that find no room are counted.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use forebay_error::{Error, Result};
use s3s::dto::{Timestamp, TimestampFormat};

use crate::warn::warn;

/// Lines wait until they have this many bytes, or this long.
const BATCH: usize = 32 << 10;
const PAUSE: Duration = Duration::from_millis(200);
/// Lines over this are lost while the file takes none.
const ROOM: usize = 4 << 20;

/// Where lines go. Dropped, it writes those that wait.
pub(super) struct AccessLog {
    waiting: Arc<Waiting>,
    writer: Option<JoinHandle<()>>,
}

/// Lines that wait for the writer.
#[derive(Default)]
struct Waiting {
    lines: Mutex<Lines>,
    more: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    is_last: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the log is dropped.
    fn write_to(&self, mut file: File) {
        let mut batch = Vec::new();
        let mut is_last = false;
        let mut lost = 0;
        while !is_last {
            let lines = self.lock();
            let is_early = |lines: &mut Lines| lines.text.len() < BATCH && !lines.is_last;
            let waited = self.more.wait_timeout_while(lines, PAUSE, is_early);
            let (mut lines, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut lines.text, &mut batch);
            is_last = lines.is_last;
            drop(lines);
            if let Err(error) = file.write_all(&batch) {
                self.lost.fetch_add(String::from_utf8_lossy(&batch).lines().count() as u64, Relaxed);
                warn(&format!("cannot write access log: {error}"));
            }
            batch.clear();
            let lost_now = self.lost.load(Relaxed);
            if lost_now > lost {
                warn(&format!("the access log lost {} lines", lost_now - lost));
                lost = lost_now;
            }
        }
    }
}

/// One request.
pub(super) struct Line<'a> {
    pub(super) began: SystemTime,
    pub(super) peer: &'a str,
    pub(super) account: &'a str,
    pub(super) operation: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) status: u16,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    /// Bytes of an object that went by RDMA, either way.
    pub(super) bytes_rdma: u64,
    pub(super) time: Duration,
    pub(super) id: &'a str,
}

impl AccessLog {
    /// Appends to a file; `-` is the standard output.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let opened = if path == Path::new("-") {
            rustix::io::dup(io::stdout()).map(File::from).map_err(io::Error::from)
        } else {
            File::options().append(true).create(true).open(path)
        };
        let file = opened
            .map_err(|error| Error::from_io(&error, "cannot open access log").with("path", path.display()))?;
        let waiting = Arc::<Waiting>::default();
        let theirs = Arc::clone(&waiting);
        let writer = std::thread::Builder::new()
            .name("forebay-log".into())
            .spawn(move || theirs.write_to(file))
            .map_err(|error| Error::from_io(&error, "cannot start threads"))?;
        Ok(Self { waiting, writer: Some(writer) })
    }

    /// Lines that were not written.
    pub(super) fn lost(&self) -> u64 {
        self.waiting.lost.load(Relaxed)
    }

    pub(super) fn add(&self, line: &Line<'_>) {
        let mut lines = self.waiting.lock();
        if lines.text.len() > ROOM {
            self.waiting.lost.fetch_add(1, Relaxed);
            return;
        }
        let text = &mut lines.text;
        let _ = Timestamp::from(line.began).format(TimestampFormat::DateTime, &mut *text);
        let or_dash = |value: &'_ str| if value.is_empty() { "-".to_owned() } else { value.to_owned() };
        let by_rdma = if line.bytes_rdma > 0 { format!(" rdma={}", line.bytes_rdma) } else { String::new() };
        let _ = writeln!(
            text,
            " {} {} {} {} {} {} in={} out={}{by_rdma} us={} id={}",
            line.peer,
            or_dash(line.account),
            or_dash(line.operation),
            line.method,
            line.path,
            line.status,
            line.bytes_in,
            line.bytes_out,
            line.time.as_micros(),
            line.id,
        );
        if text.len() >= BATCH {
            self.waiting.more.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.waiting.lock().is_last = true;
        self.waiting.more.notify_one();
        if let Some(writer) = self.writer.take() {
            // Its panic was printed.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str) -> Line<'_> {
        Line {
            began: SystemTime::UNIX_EPOCH,
            peer: "127.0.0.1:1",
            account: "",
            operation: "GetObject",
            method: "GET",
            path,
            status: 200,
            bytes_in: 0,
            bytes_out: 1,
            bytes_rdma: 0,
            time: Duration::from_micros(2),
            id: "A",
        }
    }

    #[test]
    fn lines_are_written_when_the_log_ends() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = AccessLog::open(file.path()).unwrap();
        log.add(&line("/a"));
        log.add(&Line { bytes_rdma: 7, ..line("/b") });
        assert_eq!(log.lost(), 0);
        drop(log);
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        for (line, end) in
            text.lines().zip(["/a 200 in=0 out=1 us=2 id=A", "/b 200 in=0 out=1 rdma=7 us=2 id=A"])
        {
            assert!(line.ends_with(&format!("- GetObject GET {end}")), "{text}");
        }
    }

    #[test]
    fn lines_without_room_are_counted() {
        let log = AccessLog::open(Path::new("/dev/full")).unwrap();
        let long = "x".repeat(BATCH);
        for _ in 0..3 {
            log.add(&line(&long));
        }
        while log.lost() < 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
