//! How fast an object is read by a number of connections.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_source::HostRange;

use crate::calls::{Bucket, ObjectHead, checksum::crc64, refusal};
use crate::endpoint::Endpoint;
use crate::wire::call::{Ask, Body, Method, ReplyHead, Room, Sink};

/// Bytes of a range.
const RANGE: u64 = 8 << 20;
/// Bytes that are read at most.
const BYTES: u64 = 256 << 20;
/// No further ranges are asked for after this time.
const TIME: Duration = Duration::from_secs(3);

/// Ranges that a server may leave out of a read.
const MOST_LEFT_OUT: u32 = 8;

/// A read of the object's begin.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectRate {
    /// Connections, each with one range at a time.
    pub connections: usize,
    /// Bytes.
    pub bytes: u64,
    /// From the first request to the end of the last range.
    pub elapsed: Duration,
    /// CPU time of this process, without comparing.
    pub cpu: Duration,
}

impl ObjectRate {
    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU seconds for 10^9 bytes.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9).max(1e-9)
    }
}

impl fmt::Display for ObjectRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.connections == 1 { "" } else { "s" };
        let (rate, cpu) = (self.gb_per_s(), self.cpu_per_gb());
        write!(
            f,
            "{} connection{s}: {rate:.3} GB/s at {cpu:.3} CPU s/GB ({} bytes)",
            self.connections, self.bytes
        )
    }
}

/// A range that ended.
struct Ended {
    start: u64,
    memory: Vec<u8>,
    filled: usize,
    result: Result<()>,
}

struct Receive {
    ask: Ask,
    endpoint: std::sync::Arc<Endpoint>,
    start: u64,
    memory: Vec<u8>,
    filled: usize,
    ended: Sender<Ended>,
}

impl Sink for Receive {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        let len = self.memory.len() as u64;
        let bytes = format!("bytes {}-{}/", self.start, self.start + len - 1);
        // rclone's server says 200, and which bytes it sends; with much to do it leaves a range out now and then.
        match (head.status, head.header("content-range")) {
            (200 | 206, Some(told)) if told.starts_with(&bytes) && head.length == Some(len) => Ok(()),
            (200, None) => Err(Error::new(ErrorKind::ShortRead, "the server gave no range")),
            _ => Err(refusal(&self.endpoint, &self.ask, &head, &[]).error),
        }
    }

    fn room(&mut self) -> Room {
        if self.filled == self.memory.len() {
            return Room::Enough;
        }
        Room::Memory(HostRange::of_mut(&mut self.memory[self.filled..]))
    }

    fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    fn end(self: Box<Self>, result: Result<()>) {
        let Self { start, memory, filled, ended, .. } = *self;
        // The probe may have ended with an error.
        let _ = ended.send(Ended { start, memory, filled, result });
    }
}

/// Reads an object, and remembers what it read.
pub(super) struct Rates<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) key: &'a str,
    pub(super) head: &'a ObjectHead,
    /// Checksums of ranges, by their starts.
    pub(super) known: HashMap<u64, u64>,
}

impl Rates<'_> {
    /// Reads the begin of the object by this many connections, which are new ones.
    pub(super) fn measure(&mut self, connections: usize) -> Result<ObjectRate> {
        let (account, site) = (self.bucket.endpoint.account.clone(), self.bucket.endpoint.site.clone());
        let endpoint = Endpoint::new(account, site);
        endpoint.network.allow(connections);
        let len = self.head.len.min(BYTES);
        let mut starts = (0..len).step_by(RANGE as usize);
        let (sender, receiver) = channel();
        let first: Vec<u64> = starts.by_ref().take(connections).collect();
        // Memory that was touched: faults are not of the network.
        let touched: Vec<_> = first.iter().map(|at| (*at, vec![1; RANGE.min(len - at) as usize])).collect();
        let (began, cpu) = (Instant::now(), cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID));
        let mut compared = Duration::ZERO;
        let start = |start: u64, mut memory: Vec<u8>| {
            memory.resize(RANGE.min(len - start) as usize, 0);
            let ask = self.ask(start, memory.len() as u64);
            let (endpoint, ended) = (endpoint.clone(), sender.clone());
            let sink =
                Receive { ask: ask.clone(), endpoint: endpoint.clone(), start, memory, filled: 0, ended };
            endpoint.network.start(ask, Body::None, Box::new(sink));
        };
        let mut under_way = touched.len();
        for (at, memory) in touched {
            start(at, memory);
        }
        let (mut bytes, mut sums, mut left_out) = (0, Vec::new(), 0);
        while under_way > 0 {
            let ended = next(&receiver)?;
            if let Err(error) = ended.result {
                left_out += 1;
                if error.kind() != ErrorKind::ShortRead || left_out > MOST_LEFT_OUT {
                    return Err(error);
                }
                start(ended.start, ended.memory);
                continue;
            }
            under_way -= 1;
            if ended.filled < ended.memory.len() {
                return Err(Error::new(ErrorKind::ShortRead, "the server ended a range too early"));
            }
            bytes += ended.filled as u64;
            let before = cpu_time(libc::CLOCK_THREAD_CPUTIME_ID);
            sums.push((ended.start, crc64(&ended.memory)));
            compared += cpu_time(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(before);
            if began.elapsed() < TIME
                && let Some(at) = starts.next()
            {
                start(at, ended.memory);
                under_way += 1;
            }
        }
        let elapsed = began.elapsed();
        let cpu = cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(cpu).saturating_sub(compared);
        self.compare(sums)?;
        Ok(ObjectRate { connections, bytes, elapsed, cpu })
    }

    /// Each range has the checksum that it had when it was measured before.
    fn compare(&mut self, sums: Vec<(u64, u64)>) -> Result<()> {
        for (at, sum) in sums {
            if *self.known.entry(at).or_insert(sum) != sum {
                return Err(Error::new(ErrorKind::Corrupt, "the server gave other bytes than before")
                    .with("offset", at)
                    .hint("report this to those who run the server"));
            }
        }
        Ok(())
    }

    fn ask(&self, start: u64, len: u64) -> Ask {
        let mut ask = self.bucket.ask(Method::Get, self.key);
        ask.headers.push(("range".to_owned(), format!("bytes={start}-{}", start + len - 1)));
        ask.headers.extend(self.head.etag.clone().map(|etag| ("if-match".to_owned(), etag)));
        ask
    }
}

fn next(receiver: &Receiver<Ended>) -> Result<Ended> {
    loop {
        match receiver.recv_timeout(stop::SLICE) {
            Ok(ended) => return Ok(ended),
            Err(_) if stop::is_stopped() => return Err(stop::stopped()),
            Err(_) => {}
        }
    }
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    // SAFETY: all-zero bytes are a valid timespec, and the call writes only that.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(clock, &mut now);
        now
    };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
