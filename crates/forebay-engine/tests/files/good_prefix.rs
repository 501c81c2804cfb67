//! A count is the length of the good prefix: where one part of a transfer meets the file's end, or finds no room, nothing
//! behind it counts, whatever came of it and in whatever order. So is what the receipt and the session's totals say.

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{
    Random, Scratch, Target, bar, chill, config, context, disk, pattern, session_with_bar, turn,
};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::{
    Answer, Calls, Fault, Faulty, Fill, HostRange, MemorySource, Request, Requests, StateToken,
};
use forebay_engine::{
    Batch, Bound, Buffer, Direction, File, Late, Moved, Piece, Receipt, Session, Source, Ticket, Transfer,
};
use forebay_error::{Error, ErrorKind, Result};

/// By the lanes, and not by the caller's thread.
const LEN: usize = 1_300_001;
const KEY: u64 = 47;
/// The slots of the sessions here: no part that one call moves is longer.
const SLOT: u64 = 256 << 10;
const ALWAYS: u64 = u64::MAX;
/// In the first part, at borders of parts and beside them, in the last byte.
const PLACES: [usize; 4] = [0, 262_144, 700_001, LEN - 1];

/// Faults of the kernel's calls that come in any order: each call takes a while of its own.
#[derive(Debug)]
struct Shuffled {
    faulty: Faulty,
    seed: AtomicU64,
}

impl Shuffled {
    fn wait(&self) {
        let micros = Random(self.seed.fetch_add(1, Ordering::Relaxed)).below(300);
        std::thread::sleep(Duration::from_micros(micros));
    }
}

impl Calls for Shuffled {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        self.wait();
        // SAFETY: passed on.
        unsafe { self.faulty.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        self.wait();
        // SAFETY: passed on.
        unsafe { self.faulty.write(fd, memory, offset) }
    }

    fn completed(&self, direction: Direction, memory: HostRange, offset: u64, result: i32) -> i32 {
        self.faulty.completed(direction, memory, offset, result)
    }
}

/// A source without a descriptor, one request of which is answered with fewer bytes, or an error.
#[derive(Debug)]
struct Brief {
    whole: Arc<MemorySource>,
    place: u64,
}

impl Requests for Brief {
    fn start(&self, request: Request, done: Answer) {
        let Fill::Requests(whole) = self.whole.fill() else { panic!("it has no descriptor") };
        let is_hit = (request.offset..request.offset + request.memory.len as u64).contains(&self.place);
        match request.direction {
            Direction::Read if is_hit => done(Ok(0)),
            Direction::Write if is_hit => done(Err(Error::from_errno(libc::ENOSPC, "cannot write"))),
            _ => whole.start(request, done),
        }
    }
}

impl Source for Brief {
    fn name(&self) -> String {
        "brief".to_owned()
    }

    fn len(&self) -> Result<u64> {
        self.whole.len()
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A source of LEN bytes that has a fault at a place, and its bytes as they are.
struct Subject {
    name: &'static str,
    file: File,
    outside: Box<dyn Fn() -> Vec<u8>>,
    _scratch: Option<Scratch>,
}

fn on_disk(name: &'static str, folder: &Path, place: usize, direction: Direction, fault: Fault) -> Subject {
    let scratch = Scratch::with_pattern(folder, KEY, LEN);
    let faulty = Faulty::new(direction, place as u64, fault, ALWAYS);
    let calls = Shuffled { faulty, seed: AtomicU64::new(place as u64) };
    let file = File::options().write(true).calls(Box::new(calls)).open(scratch.path()).unwrap();
    if name == "cold" {
        chill(&file);
    }
    let path = scratch.path().to_owned();
    let outside = Box::new(move || std::fs::read(&path).unwrap());
    Subject { name, file, outside, _scratch: Some(scratch) }
}

fn subjects(place: usize, direction: Direction, fault: Fault) -> Vec<Subject> {
    let memory = Path::new("/dev/shm");
    let whole = Arc::new(MemorySource::new(pattern(KEY, 0, LEN), Duration::from_micros(50)));
    let source = Brief { whole: whole.clone(), place: place as u64 };
    let requests = Subject {
        name: "requests",
        file: File::from_source(Arc::new(source)).unwrap(),
        outside: Box::new(move || whole.snapshot()),
        _scratch: None,
    };
    vec![
        on_disk("warm", &disk(), place, direction, fault),
        on_disk("cold", &disk(), place, direction, fault),
        on_disk("memory", memory, place, direction, fault),
        requests,
    ]
}

fn each(direction: Direction, fault: Fault, test: impl Fn(&Session, Target, &Subject, usize)) {
    let all = [(IoBackend::Auto, CachePolicy::Auto), (IoBackend::Threads, CachePolicy::Bypass)];
    for (index, (io, cache)) in all.into_iter().enumerate() {
        let session = session_with_bar(config(io, cache));
        let targets = if bar::is_real() { &[Target::Bar][..] } else { &Target::WITH_BAR };
        for target in targets {
            for place in PLACES.into_iter().skip(index).step_by(2) {
                for subject in subjects(place, direction, fault) {
                    println!("{io} {cache} {target:?} {} at {place}", subject.name);
                    test(&session, *target, &subject, place);
                }
            }
        }
    }
}

fn transfer(subject: &Subject, buffer: &Buffer, direction: Direction, allow_short: bool) -> Transfer {
    let (file, memory) = (subject.file.clone(), buffer.memory());
    Transfer { file, offset: 0, memory, len: buffer.len(), direction, allow_short }
}

/// Each way to ask for one transfer: what it came to, and the receipt where there is one.
fn all_ways(session: &Session, asked: &Transfer) -> Vec<(&'static str, Result<u64>, Option<Receipt>)> {
    // SAFETY: the callers' buffers live, and nobody else uses them, until all of this is done.
    let ran = unsafe { session.run(asked) };
    let mut all = vec![("run", ran.as_ref().map(Receipt::bytes).map_err(Error::clone), ran.ok())];
    let mut add = |way, ticket: Result<Ticket>| {
        let outcome = ticket.unwrap().wait();
        let [entry] = <[_; 1]>::try_from(outcome.entries).unwrap();
        all.push((way, entry, Some(outcome.receipt)));
    };
    // SAFETY: as above.
    add("submit", unsafe { session.submit(vec![asked.clone()]) });
    // Memory in a BAR has no streams.
    if !asked.memory.device.info().is_bar {
        // SAFETY: as above.
        add("submit_on", unsafe { session.submit_on(0, vec![asked.clone()]) });
        if asked.allow_short {
            all.push(("enqueue", late(session, asked), None));
        }
    }
    all
}

fn late(session: &Session, asked: &Transfer) -> Result<u64> {
    let Transfer { file, offset, memory, len, direction, .. } = asked.clone();
    let bound = Bound { offset, address: memory.address, len };
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    let late = Late { file, memory, direction, most: len, bind: Box::new(move || Ok(bound)), done };
    // SAFETY: as in `all_ways`; the default stream lives.
    unsafe { session.enqueue(0, late) }.unwrap();
    told.recv_timeout(Duration::from_secs(20)).unwrap()
}

fn total(session: &Session) -> u64 {
    session.stats().iter().map(|engine| engine.moved.total()).sum()
}

#[test]
fn a_read_counts_nothing_behind_a_part_that_met_the_end() {
    let _turn = turn();
    each(Direction::Read, Fault::Short(0), |session, target, subject, place| {
        let mut buffer = target.buffer(session, LEN);
        buffer.copy_from_slice(&vec![0xA7; LEN]).unwrap();
        let (before, mut sum) = (total(session), 0);
        for (way, count, receipt) in all_ways(session, &transfer(subject, &buffer, Direction::Read, true)) {
            let count = count.unwrap();
            let end = place as u64;
            assert!(count <= end && end - count < SLOT, "{way}: {count} of {place}");
            assert!(buffer.to_vec().unwrap()[..count as usize] == pattern(KEY, 0, count as usize), "{way}");
            let of_receipt = receipt.map_or(count, |receipt| receipt.bytes());
            assert_eq!(of_receipt, count, "{way}");
            sum += count;
        }
        assert_eq!(total(session) - before, sum, "the totals count as the results do");
        for (way, count, _) in all_ways(session, &transfer(subject, &buffer, Direction::Read, false)) {
            let error = count.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShortRead, "{way}");
            assert!(
                context(&error, "got").unwrap().parse::<u64>().unwrap() <= place as u64,
                "{way}: {error:?}"
            );
        }
    });
}

#[test]
fn a_write_counts_nothing_behind_a_part_without_room() {
    let _turn = turn();
    each(Direction::Write, Fault::Errno(libc::ENOSPC), |session, target, subject, place| {
        let mut buffer = target.buffer(session, LEN);
        let bytes = pattern(1, 0, LEN);
        buffer.copy_from_slice(&bytes).unwrap();
        for (way, count, receipt) in all_ways(session, &transfer(subject, &buffer, Direction::Write, true)) {
            let count = count.unwrap_or_else(|error| {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{way}: {error:?}");
                0
            });
            let end = place as u64;
            assert!(count <= end && end - count < SLOT, "{way}: {count} of {place}");
            assert!((subject.outside)()[..count as usize] == bytes[..count as usize], "{way}");
            let of_receipt = receipt.map_or(count, |receipt| receipt.bytes());
            assert_eq!(of_receipt, count, "{way}");
        }
        for (way, count, _) in all_ways(session, &transfer(subject, &buffer, Direction::Write, false)) {
            assert_eq!(count.unwrap_err().kind(), ErrorKind::NoSpace, "{way}");
        }
    });
}

#[test]
fn each_entry_of_a_batch_has_a_prefix_of_its_own() {
    let _turn = turn();
    // Apart, and neighbours, which share calls.
    for (count, len, step) in [(3usize, 400_000usize, 430_000usize), (40, 30_000, 30_000)] {
        each(Direction::Read, Fault::Short(0), |session, target, subject, place| {
            let buffer = target.buffer(session, count * len);
            let pieces: Vec<_> = (0..count)
                .map(|index| Piece {
                    offset: (index * step) as u64,
                    address: buffer.address() + (index * len) as u64,
                    len,
                })
                .collect();
            let (file, memory, direction) = (subject.file.clone(), buffer.memory(), Direction::Read);
            let batch = Batch { file, memory, direction, pieces, allow_short: true };
            // SAFETY: the buffer lives until the ticket is waited for.
            let outcome = unsafe { session.submit_batch(batch) }.unwrap().wait();
            let bytes = buffer.to_vec().unwrap();
            let counts: Vec<_> = outcome.entries.into_iter().map(|entry| entry.unwrap() as usize).collect();
            for (index, count) in counts.iter().copied().enumerate() {
                let (offset, at) = (index * step, index * len);
                assert!(bytes[at..at + count] == pattern(KEY, offset as u64, count), "entry {index}");
                let is_hit = (offset..offset + len).contains(&place);
                assert!(!is_hit || count <= place - offset, "entry {index}: {count}");
                assert!(is_hit || step == len || count == len, "entry {index}: {count}");
                assert!(
                    is_hit || count == len || offset.abs_diff(place) < SLOT as usize + len,
                    "entry {index}: {count}"
                );
            }
            assert_eq!(outcome.receipt.bytes(), counts.iter().sum::<usize>() as u64);
        });
    }
}

#[test]
fn what_does_not_count_is_taken_from_the_ways() {
    let moved = Moved::from_ways([10, 20, 0, 0, 30, 0, 0, 0]).by_resident(55);
    assert_eq!(moved.up_to(100), moved);
    assert_eq!(moved.up_to(45), Moved::from_ways([10, 5, 0, 0, 30, 0, 0, 0]).by_resident(45));
    assert_eq!(moved.up_to(31), Moved::from_ways([1, 0, 0, 0, 30, 0, 0, 0]).by_resident(31));
    assert_eq!(moved.up_to(0), Moved::default());
}
