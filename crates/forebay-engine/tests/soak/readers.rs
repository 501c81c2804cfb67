//! Readers, and what they accept.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::{EngineKind, Offsets, ReadPiece, Receipt, Way};
use forebay_error::{Error, ErrorKind};

use super::history::{BLOCK, Inode, writer_of};
use super::{Load, Subject};

/// Small deterministic random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        forebay_gpu::pattern_word(self.0, 0) % bound.max(1)
    }
}

/// What a reader got: blocks from `first` on.
struct Got {
    first: u64,
    bytes: Vec<u8>,
}

/// How sure a reader may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// All is one state of the file.
    OneState,
    /// Each word for itself is of some state: as with read(2) while others write.
    AnyStates,
}

pub fn read(load: &Load, seed: u64) {
    let mut random = Random(seed * 1000 + 17);
    while !load.is_over() {
        let subject = &load.subjects[random.below(load.subjects.len() as u64) as usize];
        let inode = subject.now();
        // Half of the reads ask writers to wait: then the file holds still, and only its own bytes will do.
        if random.below(2) == 0 {
            let _still = inode.still.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            one_read(load, subject, &inode, true, &mut random);
        } else {
            one_read(load, subject, &inode, false, &mut random);
        }
    }
}

fn one_read(load: &Load, subject: &Subject, inode: &Arc<Inode>, is_still: bool, random: &mut Random) {
    let len = if is_still { inode.history().len() } else { subject.size };
    match random.below(8) {
        0..=2 => range(load, subject, inode, is_still, (0, len)),
        3 | 4 => {
            let first = random.below(len / BLOCK as u64);
            let most = [3 * BLOCK as u64, 700_000, 12 << 20][random.below(3) as usize];
            let bytes = (8 + random.below(most)).min(len - first * BLOCK as u64);
            range(load, subject, inode, is_still, (first, bytes));
        }
        5 | 6 => pieces(load, subject, inode, is_still, random, len),
        _ => gather(load, subject, inode, is_still, random, len),
    }
}

/// The first step that a read from now on can see.
fn first_step(inode: &Inode) -> u64 {
    *inode.history().visible().start()
}

/// Steps that a read could see that began at `first` and is over.
fn during(inode: &Inode, first: u64) -> RangeInclusive<u64> {
    first..=*inode.history().visible().end()
}

/// `bytes` from block `first`.
fn range(load: &Load, subject: &Subject, inode: &Inode, is_still: bool, (first, bytes): (u64, u64)) {
    let Ok(mut buffer) = load.session.buffer(0, bytes as usize) else { return };
    let begun = first_step(inode);
    let offset = first * BLOCK as u64;
    match load.session.read(&inode.file, offset, &mut buffer) {
        Ok(receipt) => {
            let seen = during(inode, begun);
            count(load, &receipt);
            let got = Got { first, bytes: buffer.to_vec().unwrap_or_default() };
            check(load, subject, inode, &seen, claim(&receipt, is_still), &[got], &receipt.to_string());
        }
        Err(error) => refused(load, subject, inode, (begun, is_still), offset + bytes, &error),
    }
}

fn pieces(load: &Load, subject: &Subject, inode: &Inode, is_still: bool, random: &mut Random, len: u64) {
    const COUNT: usize = 60;
    let mut at = 0;
    let mut list = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let first = random.below(len / BLOCK as u64);
        let room =
            (len - first * BLOCK as u64).min([4096, 20_000, 65_536, 200_000][random.below(4) as usize]);
        list.push(ReadPiece { offset: first * BLOCK as u64, range: at..at + room as usize });
        at += room as usize;
    }
    let Ok(buffer) = load.session.buffer(0, at) else { return };
    let begun = first_step(inode);
    let outcome = match load.session.read_batch(&inode.file, &list, buffer) {
        Ok(ticket) => ticket.wait(),
        Err(error) => return refused(load, subject, inode, (begun, is_still), len, &error),
    };
    let seen = during(inode, begun);
    count(load, &outcome.receipt);
    let bytes = outcome.buffer.to_vec().unwrap_or_default();
    let mut all = Vec::new();
    for (piece, entry) in list.iter().zip(&outcome.entries) {
        let end = piece.offset + piece.range.len() as u64;
        match entry {
            Ok(_) => all
                .push(Got { first: piece.offset / BLOCK as u64, bytes: bytes[piece.range.clone()].to_vec() }),
            Err(error) => refused(load, subject, inode, (begun, is_still), end, error),
        }
    }
    // A batch of which entries failed may have been divided.
    let claim = if all.len() == list.len() { claim(&outcome.receipt, is_still) } else { Claim::AnyStates };
    check(load, subject, inode, &seen, claim, &all, &outcome.receipt.to_string());
}

fn gather(load: &Load, subject: &Subject, inode: &Inode, is_still: bool, random: &mut Random, len: u64) {
    const COUNT: usize = 64;
    let Ok(device) = load.session.device(0) else { return };
    let map = match load.session.map(&inode.file, &device) {
        Ok(map) => map,
        Err(error)
            if [ErrorKind::Unsupported, ErrorKind::Busy, ErrorKind::InvalidInput].contains(&error.kind()) =>
        {
            load.counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        Err(error) => return load.violation(format!("{}: map: {error:?}", subject.path.display())),
    };
    let len = len.min(map.len());
    let firsts: Vec<u64> = (0..COUNT).map(|_| random.below(len / BLOCK as u64)).collect();
    let offsets: Vec<u64> = firsts.iter().map(|first| first * BLOCK as u64).collect();
    let Ok(mut out) = load.session.buffer(0, COUNT * BLOCK) else { return };
    let begun = first_step(inode);
    match map.gather(Offsets::Host(&offsets), BLOCK, &mut out) {
        Ok(_) => {
            let seen = during(inode, begun);
            load.counts.gathers.fetch_add(1, Ordering::Relaxed);
            let bytes = out.to_vec().unwrap_or_default();
            let parts = firsts.iter().zip(bytes.chunks(BLOCK));
            let all: Vec<_> =
                parts.map(|(first, bytes)| Got { first: *first, bytes: bytes.to_vec() }).collect();
            check(load, subject, inode, &seen, Claim::OneState, &all, "gather");
        }
        Err(error) => refused(load, subject, inode, (begun, is_still), len, &error),
    }
}

fn claim(receipt: &Receipt, is_still: bool) -> Claim {
    let in_place = receipt.moved[Way::Mapped] > 0 && receipt.moved[Way::Mapped] == receipt.moved.total();
    if is_still || in_place { Claim::OneState } else { Claim::AnyStates }
}

fn count(load: &Load, receipt: &Receipt) {
    let counts = &load.counts;
    let counter = match (receipt.engine(), receipt.moved[Way::Mapped], receipt.moved.total()) {
        (_, 0, _) => &counts.staged,
        (EngineKind::Mapped, mapped, total) if mapped == total => &counts.mapped,
        _ => &counts.both,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    counts.bytes.fetch_add(receipt.moved.total(), Ordering::Relaxed);
    let again = receipt.election.refused.iter().any(|refusal| refusal.reason.contains("read again"));
    counts.again.fetch_add(u64::from(again), Ordering::Relaxed);
}

/// A read that did not succeed: only for reasons that there were.
fn refused(
    load: &Load,
    subject: &Subject,
    inode: &Inode,
    (begun, is_still): (u64, bool),
    end: u64,
    error: &Error,
) {
    let seen = during(inode, begun);
    match error.kind() {
        // Of a file that holds still, the name's changes may still come in between.
        ErrorKind::Busy => {
            load.counts.busy.fetch_add(1, Ordering::Relaxed);
        }
        ErrorKind::ShortRead if !is_still && inode.history().was_shorter(end, &seen) => {
            load.counts.short.fetch_add(1, Ordering::Relaxed);
        }
        _ => load.violation(format!("{}: up to {end}: {error:?}", subject.path.display())),
    }
}

fn check(
    load: &Load,
    subject: &Subject,
    inode: &Inode,
    seen: &RangeInclusive<u64>,
    claim: Claim,
    all: &[Got],
    what: &str,
) {
    let mut found = Vec::new();
    let mut torn = Vec::new();
    for got in all {
        for (at, bytes) in got.bytes.chunks(BLOCK).enumerate().filter(|(_, bytes)| bytes.len() >= 8) {
            let index = got.first + at as u64;
            match writer_of(bytes, index) {
                Some(writer) => found.push((index, writer)),
                None => torn.push((index, bytes)),
            }
        }
    }
    let history = inode.history();
    let good = match claim {
        Claim::OneState => torn.is_empty() && history.is_one_state(&found, seen),
        Claim::AnyStates => {
            history.are_states(&found, seen)
                && torn.iter().all(|(index, bytes)| history.is_torn(bytes, *index, seen))
        }
    };
    drop(history);
    if !good {
        let mut writers: Vec<_> = found.iter().map(|(_, writer)| *writer).collect();
        writers.sort_unstable();
        writers.dedup();
        load.violation(format!(
            "{}: wrong bytes: {claim:?}, steps {seen:?}, writers seen {writers:?}, {} torn blocks (first {:?}): {what}",
            subject.path.display(),
            torn.len(),
            torn.first().map(|(index, _)| index)
        ));
    }
}
