//! Receipts: the way that a transfer's bytes took.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_stats::{Counters, TextPlaces};
pub use forebay_ways::{EngineKind, Moved, Way};

/// An engine that was not used, why, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The engine.
    pub engine: EngineKind,
    /// Why it cannot serve this transfer.
    pub reason: String,
    /// What to type or change, if anything helps.
    pub hint: Option<String>,
}

/// A refusal or a note on its way into receipts. Most are the same for many transfers: those are never copied, nor counted
/// by all threads in one place.
#[derive(Debug)]
pub enum ReceiptPart<T: 'static> {
    /// The same for all.
    Always(&'static T),
    /// Of this transfer, or of some.
    Now(Arc<T>),
}

impl<T> ReceiptPart<T> {
    /// Whether both are one value.
    pub(crate) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) => std::ptr::eq::<T>(&**one, &**other),
            _ => false,
        }
    }
}

impl<T> Clone for ReceiptPart<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Always(value) => Self::Always(value),
            Self::Now(value) => Self::Now(value.clone()),
        }
    }
}

impl<T> std::ops::Deref for ReceiptPart<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            Self::Always(value) => value,
            Self::Now(value) => value,
        }
    }
}

/// The choice of an engine with its reasons; shared by all transfers of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// The chosen engine.
    pub engine: EngineKind,
    /// Better engines that were refused.
    pub refused: Vec<Refusal>,
    /// What held the chosen engine back (no io_uring, no registered buffers, …), with hints.
    pub notes: Vec<Note>,
    /// The mode that an engine with several works in: `compat`, of `libcufile`.
    pub mode: Option<&'static str>,
    /// Where the live counters count it.
    pub(crate) places: CountedPlaces,
}

/// Where an election's texts are counted, looked up once for all requests that share it. A copy looks for itself, since its texts may be
/// changed.
#[derive(Debug, Default)]
pub(crate) struct CountedPlaces(OnceLock<TextPlaces>);

impl Clone for CountedPlaces {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for CountedPlaces {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CountedPlaces {}

impl Election {
    /// Where the counters count requests of which the chosen engine (or the rest of one that moves bytes by itself: see
    /// [`EngineKind::for_the_rest`]) moves all; `None` for counters other than those that asked first.
    #[inline]
    pub fn places(&self, counters: &'static Counters) -> Option<&TextPlaces> {
        let find = || {
            let refused = self.refused.iter();
            counters.places(
                &self.title_of(self.engine.for_the_rest()),
                refused
                    .map(|refusal| (refusal.engine.name(), refusal.reason.as_str(), refusal.hint.as_deref())),
                self.notes.iter().map(|note| (note.text.as_str(), note.hint.as_deref())),
            )
        };
        let places = self.places.0.get_or_init(find);
        places.are_of(counters, (self.refused.len(), self.notes.len())).then_some(places)
    }

    /// The same with one more refusal, in place of an earlier one of the same engine.
    #[must_use]
    pub(crate) fn refusing(&self, refusal: &Refusal) -> Self {
        let mut made = self.clone();
        made.refused.retain(|earlier| earlier.engine != refusal.engine);
        made.refused.push(refusal.clone());
        made
    }

    /// The engine with its mode, as `libcufile (compat)`.
    pub fn title(&self) -> Cow<'static, str> {
        self.title_of(self.engine)
    }

    /// An engine that took part, with its mode if it is the chosen one.
    #[inline]
    pub fn title_of(&self, engine: EngineKind) -> Cow<'static, str> {
        match self.mode {
            Some(mode) if engine == self.engine => format!("{engine} ({mode})").into(),
            _ => engine.name().into(),
        }
    }
}

/// Something worth knowing about how an engine ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What is so.
    pub text: String,
    /// What to type to change it, if anything helps.
    pub hint: Option<String>,
}

/// What happened: bytes per way, the election behind it, wall time.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The engine and why no better one.
    pub election: Arc<Election>,
    /// Bytes by the way they took: those of each entry up to the first that is missing, and none behind it.
    pub moved: Moved,
    /// From submission to completion.
    pub elapsed: Duration,
}

impl Receipt {
    /// Bytes that are good from the start of the transfer on; of a submission of several, the sum of theirs. A transfer in
    /// parts that found the file's end in the middle counts nothing behind that, though later parts were moved.
    pub const fn bytes(&self) -> u64 {
        self.moved.total()
    }

    /// The engine that moved them; where two shared the work, the one that moved more.
    pub fn engine(&self) -> EngineKind {
        self.election.engine
    }

    /// The engines that moved bytes, and how many each.
    pub fn engines(&self) -> impl Iterator<Item = (EngineKind, u64)> + use<> {
        let rest = self.election.engine.for_the_rest();
        // What came from other devices was counted where it was read.
        let moved = |(engine, moved): (EngineKind, Moved)| (engine, moved.total() - moved[Way::Peer]);
        self.moved.by_engine(rest).map(moved).filter(|(_, bytes)| *bytes > 0)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes by {} in {:.3} ms",
            self.bytes(),
            self.election.title(),
            self.elapsed.as_secs_f64() * 1e3
        )?;
        for (way, bytes) in self.moved.taken() {
            write!(f, "; {bytes} {}", way.words())?;
        }
        if self.moved.resident > 0 {
            write!(f, "; {} of it by the resident kernel", self.moved.resident)?;
        }
        for refusal in &self.election.refused {
            write!(f, "\n  not {}: {}", refusal.engine, refusal.reason)?;
            if let Some(hint) = &refusal.hint {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        for note in &self.election.notes {
            write!(f, "\n  note: {}", note.text)?;
            if let Some(hint) = &note.hint {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}
