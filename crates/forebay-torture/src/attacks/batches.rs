//! Batches cancelled and destroyed in flight: no event comes after a cancellation, no byte after the destruction.

use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::bytes::{make, open, pattern};
use crate::cufile::{Batch, Handle, Params, cufile};
use crate::gpu::{Memory, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const ENTRIES: usize = 32;
const ROOM: usize = 1 << 20;
const LEN: u64 = 32 << 20;
const KEY: u64 = 6;
const OLD: u8 = 0xEE;
const LATER: u8 = 0xDD;

pub fn run(trial: &'static Trial) -> Outcome {
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut random = trial.random(&format!("batches {number}"));
                let path = trial.place(&mut random).join(format!("file-{number}"));
                make(&path, KEY, LEN);
                let file = open(&path, random.one_of(&[0, libc::O_DIRECT]))
                    .or_else(|_| open(&path, 0))
                    .expect("a file");
                let handle = cufile().register(file.as_raw_fd()).expect("a registered file");
                let memory = gpu().memory(ENTRIES * ROOM);
                while !trial.is_over() {
                    if random.once_in(4) {
                        crate::bytes::forget_pages(&file);
                    }
                    one(trial, handle, &memory, &mut random);
                }
                cufile().deregister(handle);
            });
        }
    });
    Ok(())
}

fn one(trial: &Trial, handle: Handle, memory: &Memory, random: &mut Random) {
    let count = random.between(1, ENTRIES as u64) as usize;
    let most = random.one_of(&[4096, 64 << 10, ROOM as u64]);
    let entry = |at: usize, random: &mut Random| {
        let len = random.len(most);
        let offset = random.below(LEN - len + 1);
        (
            Params::new(handle, true, memory.address + (at * ROOM) as u64, len as usize, offset, at),
            offset,
            len as usize,
        )
    };
    let entries: Vec<_> = (0..count).map(|at| entry(at, random)).collect();
    for (at, (_, _, len)) in entries.iter().enumerate() {
        memory.put(at * ROOM, &vec![OLD; *len]);
    }
    let batch = cufile().batch(ENTRIES);
    let mut params: Vec<_> = entries.iter().map(|(params, _, _)| *params).collect();
    if let Err(code) = batch.submit(&mut params) {
        return trial.fail(format!("cuFileBatchIOSubmit of {count} reads: {code}"));
    }
    std::thread::sleep(Duration::from_micros(random.below(400)));
    let taken =
        if random.once_in(3) { batch.status(0, count, None).map_or(0, |events| events.len()) } else { 0 };
    let is_cancelled = !random.once_in(4);
    if is_cancelled {
        let code = trial.call(|| "cuFileBatchIOCancel".to_owned(), || batch.cancel());
        trial.check(code == 0, || format!("cuFileBatchIOCancel: {code}"));
        trial.add("batches cancelled", 1);
        no_events(trial, &batch, count, taken);
    }
    trial.call(|| "cuFileBatchIODestroy".to_owned(), || drop(batch));
    trial.add("batches destroyed", 1);
    // Old bytes or the file's, and nothing more from now on.
    for (at, (_, offset, len)) in entries.iter().enumerate() {
        let (found, want) = (memory.get(at * ROOM, *len), pattern(KEY, *offset, *len));
        let wrong = found.iter().zip(&want).position(|(found, want)| found != want && *found != OLD);
        trial.check(wrong.is_none(), || {
            format!("entry {at} of {len} bytes: byte {wrong:?} is neither old nor the file's")
        });
        trial.check(is_cancelled || found == want, || {
            format!("destroying waited for no bytes: entry {at} of {count}")
        });
        memory.put(at * ROOM, &vec![LATER; *len]);
        trial.add("bytes compared", *len as u64);
    }
    std::thread::sleep(Duration::from_micros(random.below(2000)));
    for (at, (_, _, len)) in entries.iter().enumerate() {
        let is_quiet = memory.get(at * ROOM, *len).iter().all(|byte| *byte == LATER);
        trial.check(is_quiet, || format!("entry {at} of {count} was written after the batch was destroyed"));
    }
}

fn no_events(trial: &Trial, batch: &Batch, count: usize, taken: usize) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    match batch.status(0, count, Some(limit)) {
        Ok(events) => {
            let left = events.len();
            let all = events.iter().map(|event| event.status).collect::<Vec<_>>();
            trial.check(left == 0, || format!("after cuFileBatchIOCancel of {count} entries ({taken} taken) there are {left} events: {all:x?}"));
        }
        Err(code) => trial.fail(format!("cuFileBatchIOGetStatus after a cancellation: {code}")),
    }
}
