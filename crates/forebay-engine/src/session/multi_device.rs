//! One range of a file for several devices: each pulls its part from storage, and passes it on to the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, DeviceRange, Stream, Wait};

use crate::request::buffer::Buffer;
use crate::request::file::File;
use crate::request::receipt::{Election, EngineKind, Moved, Note, Receipt, Way};
use crate::request::ticket::Ticket;
use crate::request::transfer::{Memory, Transfer};
use crate::session::Session;
use crate::source::piece::Direction;
use forebay_sys::threads::without_signals;

/// Bytes that are passed on at once, while the next come in. The parts are cut at multiples of it.
const CHUNK: u64 = 32 << 20;
/// Chunks that a device has asked for and not yet passed on.
const CHUNKS_AHEAD: usize = 3;

/// The election with a note that a change of the source would not have been noticed.
fn unwatched(election: &Election) -> Arc<Election> {
    let mut with = election.clone();
    with.notes.push(Note {
        text: "the source has no version of its bytes: a change during the read is not noticed".to_owned(),
        hint: None,
    });
    Arc::new(with)
}

/// Where a device's copy of the range goes.
#[derive(Clone)]
struct Target {
    device: Arc<dyn Device>,
    address: u64,
}

impl Session {
    /// Fills every buffer with the same range of a file, from `offset` on. The buffers have the same length, and each is
    /// on a device of its own. Every byte crosses from storage once; devices pass on what they have by peer copies
    /// (NVLink, where there is some). Devices that cannot reach each other read for themselves.
    ///
    /// The receipt counts bytes delivered: those that came from other devices as `peer`. A file that ends before the
    /// range does is [`ErrorKind::ShortRead`]; one that changes meanwhile is [`ErrorKind::Busy`]. A write that was under way
    /// before may be read half-way, as by `read(2)`.
    pub fn read_to_all(&self, file: &File, offset: u64, buffers: &mut [Buffer]) -> Result<Receipt> {
        let started = Instant::now();
        let len = check(buffers)?;
        let before = file.distinct_state()?;
        let targets: Vec<_> = buffers
            .iter()
            .map(|buffer| Target { device: buffer.device().clone(), address: buffer.address() })
            .collect();
        let together = can_reach_each_other(&targets);
        let parts = if together { parts(len, targets.len()) } else { vec![(0, len); targets.len()] };
        let receipts = std::thread::scope(|scope| {
            let threads: Vec<_> = parts
                .into_iter()
                .enumerate()
                .map(|(index, part)| {
                    let targets = &targets;
                    let body = move || self.pass_on(file, offset, part, targets, index, together);
                    without_signals(|| scope.spawn(body))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(died())))
                .collect::<Vec<_>>()
        });
        let receipts = receipts.into_iter().collect::<Result<Vec<_>>>()?;
        if file.state()? != before {
            return Err(Error::new(ErrorKind::Busy, "the file changed while it was read")
                .with("file", file.name())
                .hint("read it again when its writer is done"));
        }
        let moved = receipts.iter().fold(Moved::default(), |sum, receipt| sum.plus(receipt.moved));
        let main = receipts
            .into_iter()
            .max_by_key(|receipt| (receipt.engine() == EngineKind::Mapped, receipt.bytes()));
        let Some(main) = main else { return Err(died()) };
        let election = if before.is_some() { main.election } else { unwatched(&main.election) };
        Ok(Receipt { election, moved, elapsed: started.elapsed() })
    }

    /// Reads one device's part chunk by chunk, and copies each chunk to the others.
    fn pass_on(
        &self,
        file: &File,
        offset: u64,
        (start, end): (u64, u64),
        targets: &[Target],
        own: usize,
        together: bool,
    ) -> Result<Receipt> {
        let Target { device, address } = &targets[own];
        let others: Vec<_> =
            targets.iter().enumerate().filter(|(index, _)| together && *index != own).collect();
        // A stream for each: the links are used side by side.
        let streams = others
            .iter()
            .map(|_| device.stream(Context::PRIMARY))
            .collect::<Result<Vec<Box<dyn Stream>>>>()?;
        let ask = |from: u64| -> Result<(u64, u64, Ticket)> {
            let to = (from + CHUNK).min(end);
            let transfer = Transfer {
                file: file.clone(),
                offset: offset + from,
                memory: Memory::new(device.clone(), address + from),
                len: (to - from) as usize,
                direction: Direction::Read,
                allow_short: false,
            };
            // SAFETY: the buffers are borrowed mutably until all threads are done, and parts do not overlap. Tickets
            // are waited for below, whatever happens.
            Ok((from, to, unsafe { self.submit(vec![transfer]) }?))
        };
        let mut pending = VecDeque::new();
        let mut next = start;
        let mut sum: Option<Receipt> = None;
        let mut failed = None;
        loop {
            while failed.is_none() && next < end && pending.len() < CHUNKS_AHEAD {
                match ask(next) {
                    Ok(asked) => {
                        next = asked.1;
                        pending.push_back(asked);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            let Some((from, to, ticket)) = pending.pop_front() else { break };
            let passed = ticket.wait().into_result().and_then(|(receipt, ())| {
                for ((_, other), stream) in others.iter().zip(&streams) {
                    // SAFETY: both buffers are borrowed until all copies are done: see the wait below.
                    unsafe {
                        stream.copy_across(
                            other.address + from,
                            DeviceRange::new(address + from, (to - from) as usize),
                        )
                    }?;
                }
                Ok(receipt)
            });
            match passed {
                Ok(receipt) => sum = Some(joined(sum, receipt, (to - from) * others.len() as u64)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for stream in &streams {
            if let Err(error) = stream.synchronize(Wait::Block) {
                failed = failed.or(Some(error));
            }
        }
        match (failed, sum) {
            (Some(error), _) => Err(error),
            (None, Some(receipt)) => Ok(receipt),
            // A part without bytes.
            (None, None) => {
                let election = self.elect(device)?;
                Ok(Receipt { election, moved: Moved::default(), elapsed: std::time::Duration::ZERO })
            }
        }
    }
}

fn joined(sum: Option<Receipt>, receipt: Receipt, peer: u64) -> Receipt {
    let moved = receipt.moved.plus(Moved::of(Way::Peer, peer));
    match sum {
        None => Receipt { moved, ..receipt },
        // The election with more to tell is kept.
        Some(sum) if sum.election.refused.len() >= receipt.election.refused.len() => {
            Receipt { moved: sum.moved.plus(moved), ..sum }
        }
        Some(sum) => Receipt { moved: sum.moved.plus(moved), ..receipt },
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Internal, "a thread that passes bytes on died")
}

/// The length that all buffers have.
fn check(buffers: &[Buffer]) -> Result<u64> {
    let bad = |what: &str, hint: &str| Err(Error::new(ErrorKind::InvalidInput, what).hint(hint));
    let Some(first) = buffers.first() else {
        return bad("no buffer to read into", "give a buffer for each device");
    };
    if buffers.iter().any(|buffer| buffer.len() != first.len()) {
        return bad("the buffers differ in length", "give each device a buffer of the same length");
    }
    let mut devices: Vec<_> =
        buffers.iter().map(|buffer| (buffer.device().info().is_host, buffer.device().info().uuid)).collect();
    devices.sort_unstable();
    if devices.windows(2).any(|pair| pair[0] == pair[1]) {
        return bad("two buffers are on one device", "give one buffer for each device");
    }
    Ok(first.len() as u64)
}

/// Lets every device copy to every other one; false if some pair cannot.
fn can_reach_each_other(targets: &[Target]) -> bool {
    targets.iter().enumerate().all(|(index, one)| {
        targets
            .iter()
            .enumerate()
            .all(|(other, target)| index == other || one.device.enable_peer(target.device.as_ref()).is_ok())
    })
}

/// Cuts `len` bytes into one part for each device, at multiples of a chunk.
fn parts(len: u64, count: usize) -> Vec<(u64, u64)> {
    let share = len.div_ceil(count as u64).next_multiple_of(CHUNK);
    (0..count as u64).map(|index| ((index * share).min(len), ((index + 1) * share).min(len))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_once() {
        for len in [0, 1, CHUNK, 4 * CHUNK, 4 * CHUNK + 1, 1 << 33] {
            for count in 1..9 {
                let parts = parts(len, count);
                assert_eq!(parts.len(), count);
                assert_eq!((parts[0].0, parts[count - 1].1), (0, len));
                assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0));
            }
        }
    }
}
