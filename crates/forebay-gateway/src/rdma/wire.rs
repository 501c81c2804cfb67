//! A connection to a client: RDMA WRITEs out of slots, RDMA READs into slots.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_verbs::{Completion, Connection, Post, Remote, Why};

use super::landing::{Landed, Landing};
use super::rail::{SLOT, SLOTS, Slots};

/// A connection that completes nothing for this long is given up. A NIC repeats for a few seconds itself.
const STALL: Duration = Duration::from_secs(20);

/// How often a transfer that waits for its client looks whether that may still come.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes that a client's NIC takes, or gives, in a second at least, as a whole transfer has it.
const LEAST_RATE: u64 = 4_000_000;

/// Bytes of the longest message of a soft NIC; others take more.
const MESSAGE: usize = 8 << 20;

/// A transfer that did not go through.
#[derive(Debug)]
pub(crate) enum Broken<E> {
    /// By the connection, which has ended: nothing of it reaches memory of either side any more.
    Wire(Error),
    /// By what filled or emptied the slots. The connection is good, and nothing is in flight.
    Own(E),
}

/// A connection. Once it failed it is gone.
pub(crate) struct Wire {
    flight: Option<Flight>,
    reads: bool,
}

/// A connection during a transfer. Dropped with operations in flight it ends them.
struct Flight {
    connection: Box<dyn Connection>,
    completions: Vec<Completion>,
    posted: usize,
    done: usize,
    /// How long the transfer waited for the NIC, and may.
    waited: Duration,
    limit: Duration,
}

/// Where a piece lies.
struct Piece {
    slot: usize,
    offset: u64,
    len: usize,
}

/// Pieces of this number of bytes, one a slot, in turn.
fn pieces(bytes: u64) -> impl Iterator<Item = Piece> {
    (0..bytes.div_ceil(SLOT as u64)).map(move |at| {
        let offset = at * SLOT as u64;
        Piece { slot: (at % SLOTS as u64) as usize, offset, len: (bytes - offset).min(SLOT as u64) as usize }
    })
}

impl Wire {
    /// `reads`: the client's memory can be read.
    pub(super) fn new(connection: Box<dyn Connection>, reads: bool) -> Self {
        Self { flight: Some(Flight::new(connection)), reads }
    }

    /// Whether it is there.
    pub(crate) fn is_up(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.connection.down().is_none())
    }

    /// Whether [`Wire::pull`] works.
    pub(crate) const fn reads(&self) -> bool {
        self.reads
    }

    /// Writes this number of bytes to the client's memory. `fill` has the next of them, from an offset. When it returns they are there.
    /// Blocks.
    pub(crate) fn push<E>(
        &mut self,
        slots: &mut Slots,
        to: Remote,
        bytes: u64,
        fill: impl FnMut(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<(), Broken<E>> {
        self.fly(bytes, |flight| flight.push(slots, to, bytes, fill))
    }

    /// Writes all of it to the client's memory, and has the number arrive behind it. Blocks.
    pub(crate) fn send(mut self, landing: &Landing, to: Remote, immediate: u32) -> forebay_error::Result<()> {
        // Dropped before the memory is anybody else's.
        let mut flight = self.flight.take().ok_or_else(|| Why::Down.error("the connection has ended"))?;
        flight.send(landing, to, immediate)
    }

    /// Waits until the client has written, which it tells by a message with this number, or until `is_over`. The connection has ended
    /// then: nothing more is written. Blocks.
    pub(crate) fn await_writes(
        mut self,
        landing: Landing,
        immediate: u32,
        limit: Duration,
        is_over: impl Fn() -> bool,
    ) -> forebay_error::Result<Landed> {
        let mut flight = self.flight.take().ok_or_else(|| Why::Down.error("the connection has ended"))?;
        let came = flight.message(limit, is_over)?;
        drop(flight);
        if came != Some(immediate) {
            return Err(Error::new(
                ErrorKind::Io,
                "the client's message has another number than its request",
            ));
        }
        // SAFETY: the one connection of its domain has just ended: nothing writes there any more.
        Ok(unsafe { landing.fenced() })
    }

    /// Reads this number of bytes of the client's memory. `take` gets them in order, each with its offset. Blocks.
    pub(crate) fn pull<E>(
        &mut self,
        slots: &mut Slots,
        from: Remote,
        bytes: u64,
        take: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), Broken<E>> {
        self.fly(bytes, |flight| flight.pull(slots, from, bytes, take))
    }

    /// Where the transfer breaks, or panics, the connection ends before its slots are another transfer's.
    fn fly<E>(
        &mut self,
        bytes: u64,
        transfer: impl FnOnce(&mut Flight) -> Result<(), Broken<E>>,
    ) -> Result<(), Broken<E>> {
        let gone = || Broken::Wire(Why::Down.error("the connection has ended"));
        let mut flight = self.flight.take().ok_or_else(gone)?;
        (flight.posted, flight.done) = (0, 0);
        (flight.waited, flight.limit) = (Duration::ZERO, STALL + Duration::from_secs(bytes / LEAST_RATE));
        let moved = transfer(&mut flight);
        if !matches!(moved, Err(Broken::Wire(_))) {
            self.flight = Some(flight);
        }
        moved
    }
}

impl Flight {
    fn new(connection: Box<dyn Connection>) -> Self {
        let completions = Vec::with_capacity(SLOTS);
        Self { connection, completions, posted: 0, done: 0, waited: Duration::ZERO, limit: STALL }
    }

    fn push<E>(
        &mut self,
        slots: &mut Slots,
        to: Remote,
        bytes: u64,
        mut fill: impl FnMut(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<(), Broken<E>> {
        for piece in pieces(bytes) {
            self.reach((self.posted + 1).saturating_sub(SLOTS))?;
            // SAFETY: pieces take slots in turn and complete in order: the one before in this slot is complete.
            let memory = unsafe { slots.bytes(piece.slot, piece.len) };
            if let Err(error) = fill(memory, piece.offset) {
                self.reach(self.posted)?;
                return Err(Broken::Own(error));
            }
            let to = Remote { key: to.key, address: to.address + piece.offset };
            let from = slots.range(piece.slot, piece.len).map_err(Broken::Wire)?;
            self.connection.write(piece.offset, from, to, Post::PLAIN).map_err(Broken::Wire)?;
            self.posted += 1;
        }
        self.reach(self.posted)
    }

    /// One write where the NIC takes it at once; the last of several has the number.
    fn send(&mut self, landing: &Landing, to: Remote, immediate: u32) -> forebay_error::Result<()> {
        let (len, mut at) = (landing.len(), 0);
        let behind = |at: usize| Remote { key: to.key, address: to.address.wrapping_add(at as u64) };
        (self.posted, self.done) = (1, 0);
        while len - at > MESSAGE {
            self.connection.write(at as u64, landing.range(at, MESSAGE)?, behind(at), Post::PLAIN)?;
            at += MESSAGE;
            self.posted += 1;
        }
        let last = landing.range(at, len - at)?;
        self.connection.write_with_immediate(at as u64, last, behind(at), immediate, Post::PLAIN)?;
        while self.done < self.posted {
            self.done += self.complete()?;
        }
        Ok(())
    }

    /// The number of the next message.
    fn message(&mut self, limit: Duration, is_over: impl Fn() -> bool) -> forebay_error::Result<Option<u32>> {
        self.completions.clear();
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.connection.wait(&mut self.completions, left.min(LOOK))? > 0 {
                break;
            }
            if left.is_zero() || is_over() || self.connection.down().is_some() {
                return Err(Why::Unreachable.error("the client has not written"));
            }
        }
        match self.completions.first() {
            Some(Completion::Received(message)) => Ok(message.immediate()),
            Some(Completion::Failed { why, .. }) => {
                Err(Error::new(ErrorKind::Io, format!("a transfer by RDMA failed: {why}")))
            }
            _ => Ok(None),
        }
    }

    fn pull<E>(
        &mut self,
        slots: &mut Slots,
        from: Remote,
        bytes: u64,
        mut take: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), Broken<E>> {
        let mut ahead = pieces(bytes);
        for (taken, piece) in pieces(bytes).enumerate() {
            while self.posted < taken + SLOTS
                && let Some(next) = ahead.next()
            {
                let from = Remote { key: from.key, address: from.address + next.offset };
                let into = slots.range(next.slot, next.len).map_err(Broken::Wire)?;
                self.connection.read(next.offset, into, from, Post::PLAIN).map_err(Broken::Wire)?;
                self.posted += 1;
            }
            self.reach(taken + 1)?;
            // SAFETY: reads complete in order: this one is complete, and the next into its slot is not posted yet.
            let memory = unsafe { slots.bytes(piece.slot, piece.len) };
            if let Err(error) = take(memory, piece.offset) {
                self.reach(self.posted)?;
                return Err(Broken::Own(error));
            }
        }
        Ok(())
    }

    /// Waits until this number of the transfer's operations are done.
    fn reach<E>(&mut self, count: usize) -> Result<(), Broken<E>> {
        while self.done < count {
            self.done += self.complete().map_err(Broken::Wire)?;
        }
        Ok(())
    }

    /// Waits for operations; how many are done.
    fn complete(&mut self) -> forebay_error::Result<usize> {
        self.completions.clear();
        let began = Instant::now();
        let count = self.connection.wait(&mut self.completions, STALL)?;
        // The file system's time is not the client's.
        self.waited += began.elapsed();
        if count == 0 || self.waited > self.limit {
            let why = if self.connection.down().is_some() { Why::Down } else { Why::Unreachable };
            return Err(why.error("the client's NIC does not answer"));
        }
        for completion in &self.completions {
            let why = match completion {
                Completion::Done { .. } => continue,
                Completion::Failed { why, .. } => why.to_string(),
                Completion::Received(_) => "the client sent a message, and the dialect has none".to_owned(),
            };
            return Err(Error::new(ErrorKind::Io, format!("a transfer by RDMA failed: {why}")));
        }
        Ok(self.completions.len())
    }
}

#[cfg(test)]
mod tests {
    use fake_verbs::{Fake, Fault, Side, What};
    use forebay_verbs::{Access, Fabric as _, Kind, Memory, Options, Pages, Route};

    use super::super::rail::Rail;
    use super::*;

    #[test]
    fn pieces_take_slots_in_turn() {
        let slot = SLOT as u64;
        let all: Vec<_> = pieces(2 * slot + 5).map(|piece| (piece.slot, piece.offset, piece.len)).collect();
        assert_eq!(all, [(0, 0, SLOT), (1, slot, SLOT), (0, 2 * slot, 5)]);
        assert_eq!(pieces(0).count(), 0);
        // 4 GiB and a byte.
        let last = pieces((1 << 32) + 1).last().unwrap();
        assert_eq!((last.slot, last.offset, last.len), (0, 1 << 32, 1));
        assert_eq!(pieces(slot).count(), 1);
    }

    /// Writes four slots to a client whose NIC takes 50 ms for each.
    fn push_slowly(limit: Duration) -> bool {
        let fake = Fake::new();
        let rail = Rail::open(&fake.serving(), "10.0.0.1".parse().unwrap()).unwrap();
        let client = fake.open(&Route::to("10.0.0.1:0".parse().unwrap())).unwrap();
        let (near, far) = (rail.domain.end(&Options::default()), client.end(&Options::default()));
        let (near, far) = (near.unwrap(), far.unwrap());
        let (near_end, far_end) = (near.own(), far.own());
        let _far = far.pair(&near_end).unwrap();
        let pages = Pages::new(4 * SLOT).unwrap();
        let access = Access::WRITE | Access::REMOTE_WRITE;
        // SAFETY: the pages go after the region, and nobody looks at them.
        let region = unsafe { client.register(Memory::Host(pages.range()), access) }.unwrap();
        let to = Remote { key: region.remote_key(), address: region.memory().start };
        let slow = What::Delay(Duration::from_millis(50));
        fake.inject(Fault::on(Side::Server, Kind::Write, slow).times(4));
        let mut flight = Flight::new(near.pair(&far_end).unwrap());
        flight.limit = limit;
        let mut slots = rail.slots("ana").unwrap();
        let pushed = flight.push(&mut slots, to, 4 * SLOT as u64, |_, _| Ok::<_, ()>(()));
        drop(flight);
        pushed.is_ok()
    }

    #[test]
    fn a_transfer_has_an_end_though_pieces_come() {
        assert!(push_slowly(Duration::from_secs(10)));
        assert!(!push_slowly(Duration::from_millis(60)));
    }
}
