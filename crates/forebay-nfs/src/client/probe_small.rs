//! Costs of a server's small reads, durable writes and commits.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;

use crate::client::file::NfsFile;
use crate::client::make::make;
use crate::client::open::open;
use crate::client::url::NfsUrl;
use crate::network::job::Direction;
use crate::network::options::NfsOptions;
use crate::protocol::handle::{FileKind, NfsVersion};

/// Bytes of a small read or write.
pub const SMALL: usize = 4096;
/// Each measurement goes on for this long, at most.
const TIME: Duration = Duration::from_millis(500);
/// Small I/Os one at a time: as many at most.
const MOST: usize = 2000;
/// Connections, and reads in flight, of the measurement of IOPS.
const PARALLEL: (usize, usize) = (8, 64);
/// Connections, and bytes, of the measurement of writes.
const WRITES: (usize, usize) = (4, 64 << 20);
/// Bytes of one large read or write. Longer than what a call carries: the parts of a write share a COMMIT.
pub(super) const PIECE: usize = 4 << 20;

/// Latencies of I/Os that were made one at a time.
#[derive(Clone, Debug)]
pub struct ProbeLatency {
    /// How many.
    pub count: usize,
    /// Half of them were not longer.
    pub p50: Duration,
    /// 99 of 100 were not longer.
    pub p99: Duration,
}

/// Reads of 4 KiB at random places.
#[derive(Clone, Debug)]
pub struct SmallReads {
    /// The version.
    pub version: NfsVersion,
    /// One at a time, over one connection.
    pub alone: ProbeLatency,
    /// Connections of the rest.
    pub connections: usize,
    /// Reads in flight.
    pub in_flight: usize,
    /// Reads a second.
    pub iops: f64,
}

/// Writes to a file that was made for it.
#[derive(Clone, Debug)]
pub struct WriteCost {
    /// The version.
    pub version: NfsVersion,
    /// Connections.
    pub connections: usize,
    /// Bytes that were written, in pieces of 4 MiB, and made durable.
    pub bytes: u64,
    /// How long that took.
    pub elapsed: Duration,
    /// 4 KiB each, durable when it is answered; one at a time, over one connection.
    pub alone: ProbeLatency,
    /// COMMITs of the large writes; 0 where the server makes each WRITE durable at once.
    pub commits: u64,
    /// The mean time that one took; zero without commits.
    pub commit: Duration,
}

impl WriteCost {
    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Reads of a file whose first bytes are `known`; each is compared. `None` for a file of less than 4 KiB.
pub(super) fn small_reads(url: &NfsUrl, options: &NfsOptions, known: &[u8]) -> Result<Option<SmallReads>> {
    let pages = known.len() / SMALL;
    if pages == 0 {
        return Ok(None);
    }
    let with = |connections| open(url, &NfsOptions { connections, rdma: None, ..options.clone() });
    let file = with(1)?;
    let mut place = vec![0; SMALL];
    let mut turn = 0;
    let alone = latency(|| {
        let at = page(&mut turn, pages);
        let got = file.read_at(&mut place, at as u64)?;
        same(&file, &place[..got], &known[at..at + SMALL], at)
    })?;
    let (connections, in_flight) = PARALLEL;
    let iops = parallel(&with(connections)?, known, pages, in_flight)?;
    Ok(Some(SmallReads { version: file.client().version(), alone, connections, in_flight, iops }))
}

/// Where one of `pages` begins; another one each time.
fn page(turn: &mut u64, pages: usize) -> usize {
    *turn += 1;
    (turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % pages * SMALL
}

fn same(file: &NfsFile, got: &[u8], wanted: &[u8], at: usize) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "the file is not the same when it is read again")
        .with("url", file.name())
        .with("offset", at)
        .hint("if nothing writes to it, please report it"))
}

/// One after the other, for a while.
fn latency(mut one: impl FnMut() -> Result<()>) -> Result<ProbeLatency> {
    let (end, mut all) = (Instant::now() + TIME, Vec::with_capacity(MOST));
    while all.is_empty() || all.len() < MOST && Instant::now() < end {
        let began = Instant::now();
        one()?;
        all.push(began.elapsed());
    }
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent).div_ceil(100).max(1) - 1];
    Ok(ProbeLatency { count: all.len(), p50: at(50), p99: at(99) })
}

/// Reads a second with `in_flight` of them at a time.
fn parallel(file: &NfsFile, known: &[u8], pages: usize, in_flight: usize) -> Result<f64> {
    let mut slots = vec![vec![0; SMALL]; in_flight];
    let (tell, told) = channel();
    let mut turn = 0;
    let mut begin = |slot: usize, place: &mut [u8]| {
        let (tell, at) = (tell.clone(), page(&mut turn, pages));
        let range = HostRange::of_mut(place);
        // The receiver waits for all.
        let answer = Box::new(move |result: Result<usize>| drop(tell.send((slot, at, result))));
        // SAFETY: a slot has one read at a time, and this function returns when all are answered.
        unsafe { file.start(Direction::Read, at as u64, range, answer) };
    };
    let began = Instant::now();
    slots.iter_mut().enumerate().for_each(|(slot, place)| begin(slot, place));
    let (mut under_way, mut done, mut failed) = (in_flight, 0_u64, None);
    while under_way > 0 {
        let Ok((slot, at, result)) = told.recv() else { break };
        under_way -= 1;
        done += 1;
        let read =
            result.and_then(|got| same(file, &slots[slot][..got.min(SMALL)], &known[at..at + SMALL], at));
        failed = failed.or(read.err());
        if failed.is_none() && began.elapsed() < TIME {
            begin(slot, &mut slots[slot]);
            under_way += 1;
        }
    }
    failed.map_or_else(|| Ok(done as f64 / began.elapsed().as_secs_f64()), Err)
}

/// Writes a file beside what the URL names (in it, for a directory) under a hidden name, reads it again, compares and removes it.
pub fn probe_writes(
    url: &NfsUrl,
    options: &NfsOptions,
    kind: FileKind,
    version: NfsVersion,
) -> Result<WriteCost> {
    let mut path = url.path.clone();
    if kind != FileKind::Directory {
        path.truncate(path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1));
    }
    path.extend_from_slice(if path.ends_with(b"/") { b"probe" } else { b"/probe" });
    let url = NfsUrl { path, versions: vec![version], ..url.clone() };
    let with = |connections| NfsOptions { connections, rdma: None, ..options.clone() };
    let (connections, len) = WRITES;
    let made = make(&url, &with(connections), 0o600)?;
    let file = made.file();
    let mut bytes = vec![0; len];
    for (number, word) in (0_u64..).zip(bytes.as_chunks_mut().0) {
        *word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    }
    let before = file.client().traffic();
    let elapsed = write(file, &bytes, connections * 2)?;
    let after = file.client().traffic();
    let mut read = vec![0; len];
    for (index, piece) in read.chunks_mut(PIECE).enumerate() {
        let at = index * PIECE;
        let got = file.read_at(piece, at as u64)?;
        same(file, &piece[..got], &bytes[at..][..piece.len()], at)?;
    }
    drop(made);
    let made = make(&url, &with(1), 0o600)?;
    let mut at = 0;
    let alone = latency(|| {
        made.file().write_at(&bytes[..SMALL], at)?;
        at += SMALL as u64;
        Ok(())
    })?;
    let commits = after.commits - before.commits;
    let commit = after.commit_time.saturating_sub(before.commit_time)
        / u32::try_from(commits.max(1)).unwrap_or(u32::MAX);
    Ok(WriteCost { version, connections, bytes: len as u64, elapsed, alone, commits, commit })
}

/// Writes `bytes` in pieces, `depth` at a time. They are durable then.
fn write(file: &NfsFile, bytes: &[u8], depth: usize) -> Result<Duration> {
    keep_in_flight(depth, bytes.chunks(PIECE).enumerate(), |(index, piece), tell| {
        // The receiver waits for all.
        let answer = Box::new(move |result: Result<usize>| drop(tell.send(result.map(drop))));
        // SAFETY: nobody changes the bytes, and this function returns when all are answered.
        unsafe { file.start(Direction::Write, (index * PIECE) as u64, HostRange::of(piece), answer) };
    })
}

/// Keeps `depth` calls in flight and returns when all are answered: how long that took, or the first error, after which
/// no further call begins. `start` begins a call, whose answer goes to the sender.
pub(super) fn keep_in_flight<T>(
    depth: usize,
    mut pieces: impl Iterator<Item = T>,
    mut start: impl FnMut(T, Sender<Result<()>>),
) -> Result<Duration> {
    let (tell, told) = channel();
    let (began, mut under_way, mut failed) = (Instant::now(), 0, None);
    loop {
        let next = if under_way < depth && failed.is_none() { pieces.next() } else { None };
        if let Some(piece) = next {
            start(piece, tell.clone());
            under_way += 1;
            continue;
        }
        if under_way == 0 {
            return failed.map_or_else(|| Ok(began.elapsed()), Err);
        }
        if let Ok(result) = told.recv() {
            under_way -= 1;
            failed = failed.or(result.err());
        }
    }
}
