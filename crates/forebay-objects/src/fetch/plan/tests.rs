#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Direction, HostRange, Request};
use proptest::prelude::*;

use super::super::limits::READ_AHEAD;
use super::*;

/// The bytes of the object.
fn object() -> &'static [u8] {
    static OBJECT_BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    OBJECT_BYTES.get_or_init(|| {
        (0..OBJECT >> 3).flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes()).collect()
    })
}

/// A request, its memory, and its answers.
struct Reader {
    offset: u64,
    memory: Vec<u8>,
    answers: Arc<Mutex<Vec<Result<usize>>>>,
}

/// A plan that a server without connections serves: what is under way, and how much was asked for.
struct Server {
    plan: Plan,
    now: Instant,
    readers: Vec<Reader>,
    gets: Vec<NewRange>,
    open: Vec<RangeId>,
    /// Whether memory gets its bytes.
    fills: bool,
}

impl Server {
    fn new(len: u64) -> Self {
        let (readers, gets, open) = (Vec::new(), Vec::new(), Vec::new());
        Self { plan: Plan::new(len), now: Instant::now(), readers, gets, open, fills: true }
    }

    fn ask(&mut self, offset: u64, len: usize, ahead: u64) {
        let mut memory = vec![0; len];
        let answers = Arc::new(Mutex::new(Vec::new()));
        let tell = answers.clone();
        let request =
            Request { direction: Direction::Read, offset, memory: HostRange::of_mut(&mut memory), ahead };
        self.plan.ask(request, Box::new(move |result| tell.lock().unwrap().push(result)), self.now);
        self.readers.push(Reader { offset, memory, answers });
        self.answer();
    }

    fn answer(&mut self) {
        self.plan.take_answers().into_iter().for_each(|(answer, result)| answer(result));
    }

    /// Begins ranges while fewer than `most` are under way.
    fn begin(&mut self, most: usize) {
        while self.plan.under_way().active < most
            && let Some(new) = self.plan.next_range()
        {
            self.open(new);
        }
        while self.open.len() < most
            && let Some(new) = self.plan.next_ahead(self.now)
        {
            self.open(new);
        }
    }

    fn open(&mut self, new: NewRange) {
        assert!(new.start < new.end && new.end - new.start <= LONGEST, "{new:?}");
        self.gets.push(new);
        self.open.push(new.id);
    }

    /// Has at most `bytes` of a range come. Whether any did.
    fn serve(&mut self, id: RangeId, bytes: usize) -> bool {
        let at = self.plan.ranges[&id].at;
        let came = match self.plan.room(id, self.now) {
            RangeRoom::Memory(memory) => {
                let memory = memory.first(bytes);
                // SAFETY: the readers own their memory as long as the test runs.
                let room = unsafe { memory.bytes_mut() };
                if self.fills {
                    room.copy_from_slice(&object()[at as usize..at as usize + memory.len]);
                }
                memory.len as u64
            }
            RangeRoom::Skip(most) => most.min(bytes as u64),
            RangeRoom::Later => 0,
            RangeRoom::Enough => {
                self.end(id, &Ok(()), false);
                return true;
            }
        };
        self.plan.filled(id, came);
        self.answer();
        came > 0
    }

    fn end(&mut self, id: RangeId, result: &Result<()>, retries: bool) {
        self.open.retain(|open| *open != id);
        self.plan.ended(id, result, retries, self.now);
        self.answer();
    }

    /// Until nothing is under way.
    fn run(&mut self, most: usize) {
        for _ in 0..100_000 {
            self.begin(most);
            if self.plan.is_idle() && self.open.is_empty() {
                return;
            }
            let open = self.open.clone();
            let moved = open.into_iter().fold(false, |any, id| self.serve(id, usize::MAX) | any);
            if !moved {
                self.now += Duration::from_millis(5);
            }
        }
        panic!("requests wait for ever: {} of {}", self.open.len(), self.gets.len());
    }

    fn check(&self, len: u64) {
        for Reader { offset, memory, answers } in &self.readers {
            let there = len.saturating_sub(*offset).min(memory.len() as u64) as usize;
            let answers = answers.lock().unwrap();
            assert_eq!(answers.len(), 1, "one answer of {offset}");
            assert_eq!(answers[0].as_ref().unwrap(), &there);
            let from = (*offset).min(len) as usize;
            assert!(memory[..there] == object()[from..from + there], "of {offset}");
        }
    }
}

/// What happens in a run.
#[derive(Clone, Debug)]
enum Event {
    Ask {
        offset: u64,
        len: usize,
        ahead: u64,
    },
    /// The next of a row, which keeps its promise.
    Row {
        len: usize,
        promised: u64,
    },
    Begin(usize),
    Serve {
        which: usize,
        bytes: usize,
    },
    Break {
        which: usize,
    },
    Wait(u64),
}

const OBJECT: u64 = 40 << 20;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let len = || prop_oneof![1usize..5000, 1usize..3_000_000];
    let ask = (0..OBJECT + 1000, len(), prop_oneof![Just(0u64), 0u64..20_000_000])
        .prop_map(|(offset, len, ahead)| Event::Ask { offset, len, ahead });
    let row = (len(), 0u64..20_000_000).prop_map(|(len, promised)| Event::Row { len, promised });
    let serve = (0usize..8, 1usize..4_000_000).prop_map(|(which, bytes)| Event::Serve { which, bytes });
    let event = prop_oneof![
        2 => ask, 4 => row, 3 => (1usize..6).prop_map(Event::Begin), 8 => serve,
        1 => (0usize..8).prop_map(|which| Event::Break { which }), 1 => (1u64..2000).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_request_is_answered_once_with_its_bytes(events in events(), most in 1usize..6) {
        let mut server = Server::new(OBJECT);
        let mut row = 0;
        for event in events {
            match event {
                Event::Ask { offset, len, ahead } => server.ask(offset, len, ahead),
                Event::Row { len, promised } => {
                    server.ask(row, len, promised);
                    row = (row + len as u64) % OBJECT;
                }
                Event::Begin(most) => server.begin(most),
                Event::Serve { which, bytes } => {
                    if let Some(id) = server.open.get(which).copied() {
                        server.serve(id, bytes);
                    }
                }
                Event::Break { which } => {
                    if let Some(id) = server.open.get(which).copied() {
                        server.end(id, &Err(Error::new(ErrorKind::Io, "reset")), true);
                    }
                }
                Event::Wait(time) => server.now += Duration::from_millis(time),
            }
        }
        server.run(most);
        server.check(OBJECT);
    }
}

const SLOT: usize = 2 << 20;

#[test]
fn slots_in_a_row_share_ranges() {
    for most in [1, 2, 4, 16] {
        let len = 1u64 << 30;
        let mut server = Server { fills: false, ..Server::new(len) };
        let (mut next, slots) = (0u64, 6);
        while next < len || !server.plan.is_idle() {
            let waiting = |reader: &&Reader| reader.answers.lock().unwrap().is_empty();
            while next < len && server.readers.iter().filter(waiting).count() < slots {
                let end = next + SLOT as u64;
                server.ask(next, SLOT, (len - end).min(64 << 20));
                next = end;
            }
            server.begin(most);
            server.readers.retain(|reader| reader.answers.lock().unwrap().is_empty());
            for id in server.open.clone() {
                server.serve(id, 300_000);
            }
        }
        assert!(server.gets.len() <= 128, "{} by {most}", server.gets.len());
    }
}

/// A lane that is held up asks for its slots when others have read on: no range asks for theirs again.
#[test]
fn late_requests_promise_nothing_anew() {
    let mut server = Server::new(OBJECT);
    let at = |slot: u64| slot * SLOT as u64;
    for slot in (0..16).filter(|slot| *slot != 3) {
        server.ask(at(slot), SLOT, OBJECT - at(slot + 1));
        server.begin(2);
        for id in server.open.clone() {
            server.serve(id, usize::MAX);
        }
    }
    server.now += 2 * PROMISED;
    server.ask(at(3), SLOT, OBJECT - at(4));
    server.run(2);
    server.check(OBJECT);
    let bytes: u64 = server.gets.iter().map(|get| get.end - get.start).sum();
    assert!(bytes <= OBJECT + 2 * RANGE, "{bytes}: {:?}", server.gets);
}

/// Transfers of 16 MiB, each when the one before has ended, as a lane asks for them.
fn transfers(server: &mut Server, offsets: impl IntoIterator<Item = u64>, pause: Duration) {
    const TRANSFER: u64 = 16 << 20;
    for offset in offsets {
        for at in (0..TRANSFER).step_by(SLOT) {
            server.ask(offset + at, SLOT, TRANSFER - at - SLOT as u64);
        }
        while !server.plan.is_idle() {
            server.begin(8);
            for id in server.open.clone() {
                server.serve(id, 300_000);
            }
        }
        server.now += pause;
        for id in server.plan.overdue(server.now).0 {
            server.serve(id, usize::MAX);
        }
    }
}

fn asked_bytes(server: &Server) -> u64 {
    server.gets.iter().map(|get| get.end - get.start).sum()
}

#[test]
fn transfers_in_a_row_are_read_ahead() {
    let len = 256u64 << 20;
    let mut server = Server { fills: false, ..Server::new(len) };
    transfers(&mut server, (0..6).map(|number| number << 24), Duration::from_millis(1));
    let reach = server.gets.iter().map(|get| get.end).max().unwrap();
    assert_eq!(reach, (6 << 24) + READ_AHEAD, "{:?}", server.gets);
    transfers(&mut server, (6..16).map(|number| number << 24), Duration::from_millis(1));
    assert_eq!(asked_bytes(&server), len, "nothing twice, and nothing behind the end: {:?}", server.gets);
}

/// The first of two ranges that were read ahead breaks: the other one is not asked for again.
#[test]
fn a_range_that_breaks_leaves_those_behind_it() {
    let len = 256u64 << 20;
    let mut server = Server { fills: false, ..Server::new(len) };
    transfers(&mut server, [0, 1 << 24], Duration::from_millis(1));
    let first = server.gets[4].id;
    assert_eq!((server.gets[4].start, server.gets.len()), (2 << 24, 6), "{:?}", server.gets);
    server.end(first, &Err(Error::new(ErrorKind::Io, "reset")), true);
    transfers(&mut server, (2..16).map(|number| number << 24), Duration::from_millis(1));
    assert_eq!(asked_bytes(&server), len + RANGE, "{:?}", server.gets);
}

#[test]
fn transfers_at_any_place_and_slow_ones_are_not_read_ahead() {
    let len = 1u64 << 30;
    let mut server = Server { fills: false, ..Server::new(len) };
    transfers(&mut server, [5, 40, 3, 17, 60, 30].map(|number| number << 24), Duration::from_millis(1));
    assert_eq!(asked_bytes(&server), 6 << 24, "{:?}", server.gets);
    // Behind the head of a file.
    let mut server = Server { fills: false, ..Server::new(len) };
    for (offset, len) in [(0, 8), (8, 100_000)] {
        server.ask(offset, len, 0);
        server.run(8);
    }
    transfers(&mut server, [100_008], Duration::from_millis(1));
    assert_eq!(asked_bytes(&server), 100_008 + (16 << 20), "{:?}", server.gets);
    let mut server = Server { fills: false, ..Server::new(len) };
    transfers(&mut server, (0..20).map(|number| number << 24), 2 * PROMISED);
    assert!(asked_bytes(&server) <= (20 << 24) + READ_AHEAD, "{:?}", server.gets);
}

#[test]
fn small_neighbours_share_ranges() {
    for (gap, ahead) in [(0, 0), (0, 1), (3000, 0)] {
        let mut server = Server::new(OBJECT);
        for at in [5u64, 3, 4].into_iter().chain(0..3).chain(6..32) {
            let rest = (31 - at) * 95_000 * ahead;
            server.ask(1000 + at * (95_000 + gap), 95_000, rest);
        }
        server.run(4);
        server.check(OBJECT);
        assert_eq!(server.gets.len(), 1, "{:?}", server.gets);
    }
}

#[test]
fn a_long_request_is_cut_and_answered_when_all_of_it_came() {
    let mut server = Server::new(OBJECT);
    server.ask(3, 39 << 20, 0);
    server.begin(16);
    assert_eq!(server.gets.len(), 5, "{:?}", server.gets);
    for id in server.open.clone().into_iter().rev() {
        assert!(server.readers[0].answers.lock().unwrap().is_empty());
        while server.open.contains(&id) {
            server.serve(id, 1 << 20);
        }
    }
    server.check(OBJECT);
}

#[test]
fn a_broken_promise_ends_its_range_and_holds_up_nobody() {
    let mut server = Server::new(OBJECT);
    server.ask(0, SLOT, 20 << 20);
    server.begin(1);
    // The next one never comes, one behind it does.
    server.ask(2 * SLOT as u64, SLOT, 0);
    let began = server.now;
    server.run(1);
    server.check(OBJECT);
    assert!(server.now - began < 3 * PROMISED, "{:?}", server.now - began);
    assert_eq!(server.plan.ranges.len(), 0);
}

#[test]
fn an_error_fails_the_requests_of_its_range_when_none_of_their_memory_is_in_use() {
    let mut server = Server::new(OBJECT);
    server.ask(0, 20 << 20, 0);
    server.ask(30 << 20, 1 << 20, 0);
    server.begin(8);
    let (first, others) = (server.open[0], server.open[1..].to_vec());
    server.end(first, &Err(Error::new(ErrorKind::Busy, "replaced")), false);
    assert!(server.readers[0].answers.lock().unwrap().is_empty(), "others still receive");
    for id in others {
        while server.open.contains(&id) {
            server.serve(id, usize::MAX);
        }
    }
    assert_eq!(server.readers[0].answers.lock().unwrap()[0].as_ref().unwrap_err().kind(), ErrorKind::Busy);
    assert!(server.readers[1].answers.lock().unwrap()[0].is_ok());
}

#[test]
fn what_is_asked_for_in_vain_for_a_minute_is_an_error() {
    let mut server = Server::new(OBJECT);
    server.ask(0, 1 << 20, 0);
    let mut times = 0;
    while !server.plan.is_idle() {
        server.begin(1);
        let id = server.open[0];
        server.end(id, &Err(Error::new(ErrorKind::Busy, "slow down")), true);
        server.now += Duration::from_secs(5);
        times += 1;
    }
    let error = server.readers[0].answers.lock().unwrap()[0].clone().unwrap_err();
    assert_eq!((error.message(), times), ("slow down", 13));
    assert!(error.context().iter().any(|(key, value)| *key == "attempts" && value == "13"), "{error}");
}
