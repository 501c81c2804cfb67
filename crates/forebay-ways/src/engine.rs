//! The engines.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};

use crate::Way;

/// What a row of the table says.
struct EngineRow {
    name: &'static str,
    words: &'static str,
    trace_code: u8,
    way: Option<Way>,
    rest: Option<EngineKind>,
    old_names: &'static [&'static str],
    is_forebays: bool,
}

impl EngineRow {
    const DEFAULT: Self =
        Self { name: "", words: "", trace_code: 0, way: None, rest: None, old_names: &[], is_forebays: true };
}

/// An engine of a program has no code of its own in traces: it counts as more than one engine.
static REGISTERED: EngineRow =
    EngineRow { trace_code: EngineKind::MIXED_CODE, is_forebays: false, ..EngineRow::DEFAULT };

macro_rules! engines {
    ($($(#[$doc:meta])+ $kind:ident { $($field:ident: $value:expr),+ })+) => {
        /// An engine: joins a capability of a source with a kind of memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EngineKind {
            $($(#[$doc])+ $kind,)+
            /// One that a program registered, by its name.
            Registered(&'static str),
        }

        impl EngineKind {
            /// All engines that forebay names, best first as election tries them; `libcufile` and `noop` only run when they
            /// are asked for.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            const fn row(self) -> &'static EngineRow {
                match self {
                    $(Self::$kind => &const { EngineRow { $($field: $value,)+ ..EngineRow::DEFAULT } },)+
                    Self::Registered(_) => &REGISTERED,
                }
            }
        }
    };
}

// To add an engine, add a row.
// name: what users type. words: what it does. trace_code: 1 to 15, in the records of traces; docs/concepts/engines.md has all.
// way: the way that is its own. rest: the engine that moves what it leaves. is_forebays: no other library or program moves bytes.
engines! {
    /// The drive's own DMA into device memory.
    P2p { name: "p2p", words: "the drive's own DMA into the memory", trace_code: 4,
          way: Some(Way::Drive), rest: Some(EngineKind::Staged) }
    /// The server of a file writes into device memory by RDMA.
    Placed { name: "placed", words: "the server's own RDMA into it", trace_code: 8,
             way: Some(Way::Server), rest: Some(EngineKind::Staged), old_names: &["rdma"] }
    /// Page-cache pages that the device reads in place.
    Mapped { name: "mapped", words: "the device reads the page cache", trace_code: 3,
             way: Some(Way::Mapped), rest: Some(EngineKind::Staged) }
    /// Through pinned host slots, each slot's device copy overlapping the next read.
    Staged { name: "staged", words: "through pinned host memory", trace_code: 1 }
    /// Straight into host memory.
    Host { name: "host", words: "into host memory", trace_code: 2 }
    /// NVIDIA's own libcufile.
    Libcufile { name: "libcufile", words: "NVIDIA's own libcufile", trace_code: 5, old_names: &["vendor"], is_forebays: false }
    /// Nothing moves: measures forebay itself.
    Noop { name: "noop", words: "nothing moves", trace_code: 6, is_forebays: false }
}

impl EngineKind {
    /// The code in traces of a transfer that several engines shared.
    pub const MIXED_CODE: u8 = 7;

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registered(name) => name,
            _ => self.row().name,
        }
    }

    /// What it does, in a few words; empty for one that a program registered.
    pub const fn words(self) -> &'static str {
        self.row().words
    }

    /// The code in the records of traces.
    pub const fn trace_code(self) -> u8 {
        self.row().trace_code
    }

    /// The way that its bytes take, and no other engine's. Its other bytes are moved by [`EngineKind::for_the_rest`].
    pub const fn way(self) -> Option<Way> {
        self.row().way
    }

    /// Whether forebay itself moves the bytes, as opposed to another library or a program.
    pub const fn is_forebays(self) -> bool {
        self.row().is_forebays
    }

    /// Whether no byte that it moves crosses the CPU.
    pub fn is_direct(self) -> bool {
        self.way().is_some_and(Way::is_direct)
    }

    /// The engine of the bytes that this one did not move, where it moved others.
    #[must_use]
    pub const fn for_the_rest(self) -> Self {
        match self.row().rest {
            Some(rest) => rest,
            None => self,
        }
    }

    /// The engine that options called this before.
    pub fn of_old_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.row().old_names.contains(&name))
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
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        named.or_else(|| Self::of_old_name(text)).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("unknown engine: {text:?}"))
                .hint(format!("use one of: {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_codes_and_ways_belong_to_one_engine_each() {
        for (index, one) in EngineKind::ALL.into_iter().enumerate() {
            assert_eq!(one.name().parse::<EngineKind>().unwrap(), one);
            assert!(
                (1..16).contains(&one.trace_code()) && one.trace_code() != EngineKind::MIXED_CODE,
                "{one}"
            );
            for other in &EngineKind::ALL[..index] {
                assert!(
                    one.name() != other.name() && one.trace_code() != other.trace_code(),
                    "{one} {other}"
                );
                assert!(one.way().is_none() || one.way() != other.way(), "{one} {other}");
            }
        }
        assert_eq!("vendor".parse::<EngineKind>().unwrap(), EngineKind::Libcufile);
    }

    #[test]
    fn the_pages_of_engines_have_all() {
        let page = include_str!("../../../docs/concepts/engines.md");
        let architecture = include_str!("../../../docs/architecture.md");
        for kind in EngineKind::ALL {
            assert!(page.contains(&format!("| `{kind}` | {} |", kind.trace_code())), "{kind}");
            assert!(architecture.contains(&format!("\n| `{kind}` | ")), "docs/architecture.md: {kind}");
        }
    }
}
