//! Live counters: what transfers leave behind for `forebay stats`.
//!
//! A process has one set, whatever fronts it loads (see [`crate::runtime::process`]). The session counts the transfers of its
//! callers; a front that counts its own calls, in its own words, takes a session that does not
//! ([`Session::uncounted`](crate::Session::uncounted)) and counts in the same set.

use std::sync::OnceLock;
use std::time::Duration;

use forebay_error::Error;
use forebay_gpu::Device;
use forebay_stats::{Counters, Io};

use crate::request::receipt::{Election, EngineKind, Moved};
use crate::runtime::process::PerProcess;
use crate::source::piece::{Direction, Piece};

/// Live counters, once they are on.
#[derive(Default)]
struct LiveCounters(OnceLock<Option<Counters>>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for LiveCounters {
    const NAME: &'static str = "counters";
}

/// The live counters of this process: the same ones for all shared objects of this build. `None` where there is no memory
/// for them.
pub fn counters() -> Option<&'static Counters> {
    // Counting must not keep a program from running.
    let counters = LiveCounters::of_process()
        .0
        .get_or_init(|| Counters::open().or_else(|_| Counters::hidden()).ok())
        .as_ref()?;
    // Each shared object has sources of its own.
    forebay_source::count_round_trips(|took| counters.round_trip(took));
    Some(counters)
}

/// Totals of a session for one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The engine.
    pub engine: EngineKind,
    /// The device's name.
    pub device: String,
    /// Transfers and batches that were resolved.
    pub requests: u64,
    /// Those with an error.
    pub errors: u64,
    /// Bytes by the way they took.
    pub moved: Moved,
}

/// Counts one request: where, and as what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestCounter {
    counters: &'static Counters,
    direction: Direction,
    gpu: Option<usize>,
    unaligned: bool,
}

impl RequestCounter {
    pub(crate) fn new(
        counters: &'static Counters,
        direction: Direction,
        device: &dyn Device,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Self {
        const PAGE: u64 = 4095;
        let info = device.info();
        let bits = |piece: Piece| piece.offset | piece.len as u64 | piece.address;
        let unaligned = pieces.into_iter().any(|piece| bits(piece) & PAGE != 0);
        Self { counters, direction, gpu: (!info.is_host && !info.is_bar).then_some(info.index), unaligned }
    }

    /// A request that ended: how, and with what.
    pub(crate) fn count(&self, moved: Moved, latency: Duration, ok: bool, election: Option<&Election>) {
        let Self { counters, direction, gpu, unaligned } = *self;
        let bytes = moved.total();
        let io = Io { bytes, latency, gpu, unaligned, posix: moved.direct() < bytes, ok };
        match direction {
            Direction::Read => counters.read(io),
            Direction::Write => counters.write(io),
        }
        if let Some(election) = election {
            self.count_engines(moved, election);
        }
    }

    /// Keeps why one failed; which file it was is not kept, since there may be many.
    #[cold]
    pub(crate) fn failed(&self, error: &Error) {
        self.counters.failed(error.message(), error.hints().first().map(String::as_str));
    }

    /// Which engines did it, and what kept better ones away.
    fn count_engines(&self, moved: Moved, election: &Election) {
        let rest = moved.total() - moved.by_own_ways();
        if rest == moved.total()
            && rest > 0
            && let Some(places) = election.places(self.counters)
        {
            self.counters.explained(places, moved, rest);
            return;
        }
        // Usually one engine's own way brought all of it: no list of engines then.
        let is_own = |way| rest == 0 && moved[way] > 0 && moved[way] == moved.total();
        if election.engine.way().is_some_and(is_own) {
            self.counters.engine(&election.title_of(election.engine), moved);
            return;
        }
        let staged = election.engine.for_the_rest();
        for (engine, moved) in moved.by_engine(staged) {
            self.counters.engine(&election.title_of(engine), moved);
        }
        if rest == 0 {
            return;
        }
        for refusal in &election.refused {
            self.counters.refused(refusal.engine.name(), &refusal.reason, refusal.hint.as_deref(), rest);
        }
        for note in &election.notes {
            self.counters.note(&note.text, note.hint.as_deref());
        }
    }
}
