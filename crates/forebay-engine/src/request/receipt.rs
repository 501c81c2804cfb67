//! What really happened to a transfer's bytes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_stats::{Counters, TextPlaces};

/// An engine: joins a capability of a source with a kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineKind {
    /// Through pinned host slots, each slot's device copy overlapping the next read.
    Staged,
    /// Straight into host memory.
    Host,
    /// Page-cache pages that the device reads in place.
    Mapped,
    /// The drive's own DMA into device memory.
    P2p,
    /// The server of a file writes into device memory by RDMA.
    Rdma,
    /// NVIDIA's own libcufile.
    Libcufile,
    /// Nothing moves: measures forebay itself.
    Noop,
    /// One that a program registered, by its name.
    Registered(&'static str),
}

impl EngineKind {
    /// All engines that forebay names, best first as election tries them; `libcufile` and `noop` only run when they are
    /// asked for.
    pub const ALL: [Self; 7] =
        [Self::P2p, Self::Rdma, Self::Mapped, Self::Staged, Self::Host, Self::Libcufile, Self::Noop];

    /// What `libcufile` was called in options before.
    pub(crate) const OLD_LIBCUFILE: &str = "vendor";

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Host => "host",
            Self::Mapped => "mapped",
            Self::P2p => "p2p",
            Self::Rdma => "rdma",
            Self::Libcufile => "libcufile",
            Self::Noop => "noop",
            Self::Registered(name) => name,
        }
    }
}

impl EngineKind {
    /// Whether forebay itself moves the bytes, as opposed to another library or a program.
    pub(crate) const fn is_forebays(self) -> bool {
        !matches!(self, Self::Libcufile | Self::Registered(_) | Self::Noop)
    }

    /// The engine of the bytes that this one did not move, where it moved others.
    #[must_use]
    pub const fn for_the_rest(self) -> Self {
        match self {
            Self::Mapped | Self::P2p | Self::Rdma => Self::Staged,
            other => other,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let text = if text == Self::OLD_LIBCUFILE { Self::Libcufile.name() } else { text };
        Self::ALL.into_iter().find(|engine| engine.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("unknown engine: {text:?}"))
                .hint(format!("use one of: {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

/// How an engine got at the stored bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that were in the page cache (or are memory by nature, as tmpfs), and all buffered writes.
    pub cached: u64,
    /// Bytes by O_DIRECT.
    pub direct: u64,
    /// Cold bytes that went through the page cache all the same (unaligned, or the file refuses O_DIRECT).
    pub buffered: u64,
    /// Bytes that somebody else moved when asked to: a source without a file descriptor, the server of a file on an NFS mount
    /// (beside the kernel), or NVIDIA's libcufile (the engine `libcufile`).
    pub requested: u64,
    /// Bytes that the device read from (or wrote to) the page cache in place: the engine `mapped`.
    pub mapped: u64,
    /// Bytes that came from another device's memory: see [`Session::read_to_all`](crate::Session::read_to_all).
    pub peer: u64,
    /// Bytes that the drive moved to or from the device's memory by itself: the engine `p2p`.
    pub placed: u64,
    /// Bytes that a server wrote to the device's memory by RDMA: the engine `rdma`.
    pub rdma: u64,
    /// Of all these, bytes that the resident kernel copied to or from the device, without a driver call for each piece.
    pub resident: u64,
}

impl Moved {
    /// All bytes. (Those by the resident kernel are among them.)
    pub const fn total(self) -> u64 {
        let by_cpu = self.cached + self.direct + self.buffered + self.requested;
        by_cpu + self.mapped + self.peer + self.placed + self.rdma
    }

    /// The sum of two.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cached: self.cached + other.cached,
            direct: self.direct + other.direct,
            buffered: self.buffered + other.buffered,
            requested: self.requested + other.requested,
            mapped: self.mapped + other.mapped,
            peer: self.peer + other.peer,
            placed: self.placed + other.placed,
            rdma: self.rdma + other.rdma,
            resident: self.resident + other.resident,
        }
    }

    /// At most this many bytes: those that count, where more were moved. Which of several ways the others took is not
    /// kept for each byte: those that read or wrote the file by calls lose theirs first.
    #[must_use]
    pub fn up_to(mut self, most: u64) -> Self {
        let mut more = self.total().saturating_sub(most);
        let Self { direct, buffered, cached, requested, mapped, peer, placed, rdma, resident: _ } = &mut self;
        for bytes in [direct, buffered, cached, requested, mapped, peer, placed, rdma] {
            let less = more.min(*bytes);
            *bytes -= less;
            more -= less;
        }
        self.resident = self.resident.min(self.total());
        self
    }
}

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
    /// Where the counters count requests of which the chosen engine (or what is left of one that moves bytes by itself: see
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
        let Moved { mapped, placed, peer, rdma, .. } = self.moved;
        let rest = self.moved.total() - mapped - placed - peer - rdma;
        let all = [
            (EngineKind::P2p, placed),
            (EngineKind::Rdma, rdma),
            (EngineKind::Mapped, mapped),
            (self.election.engine.for_the_rest(), rest),
        ];
        all.into_iter().filter(|(_, bytes)| *bytes > 0)
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
        let ways = [
            (self.moved.cached, "page cache"),
            (self.moved.direct, "O_DIRECT"),
            (self.moved.buffered, "cold through the page cache"),
            (self.moved.requested, "by request"),
            (self.moved.mapped, "in place by the device"),
            (self.moved.peer, "from other devices"),
            (self.moved.placed, "by the drive itself"),
            (self.moved.rdma, "by RDMA from the server"),
            (self.moved.resident, "of it by the resident kernel"),
        ];
        for (bytes, way) in ways.into_iter().filter(|(bytes, _)| *bytes > 0) {
            write!(f, "; {bytes} {way}")?;
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
