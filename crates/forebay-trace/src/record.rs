//! One call as a record of 64 bytes, little endian.

use forebay_ways::EngineKind;

/// Bytes of a record, and of every slot of the file.
pub(crate) const RECORD: usize = 64;

/// An enumeration with its codes in the file and its names in reports.
macro_rules! codes {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $value:ident = $code:literal, $name:literal;)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $type { $($(#[$doc])* $value = $code,)+ }

        impl $type {
            /// All values, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// The code in the file.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The value of a code, if it is one.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$value),)+ _ => None }
            }

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

codes! {
    /// The function. Codes are never 0: a slot whose first byte is 0 holds nothing.
    Api {
        /// `cuFileRead`.
        #[default]
        Read = 1, "Read";
        /// `cuFileWrite`.
        Write = 2, "Write";
        /// `cuFileReadv`, one record for the call.
        Readv = 3, "Readv";
        /// `cuFileWritev`, one record for the call.
        Writev = 4, "Writev";
        /// An entry of a batch that reads.
        BatchRead = 5, "BatchRead";
        /// An entry of a batch that writes.
        BatchWrite = 6, "BatchWrite";
        /// `cuFileReadAsync`, from the call to its completion in the stream.
        ReadAsync = 7, "ReadAsync";
        /// `cuFileWriteAsync`, from the call to its completion in the stream.
        WriteAsync = 8, "WriteAsync";
        /// `cuFileHandleRegister`: `offset` is the descriptor's open flags, `size` the file's size.
        HandleRegister = 16, "HandleRegister";
        /// `cuFileHandleDeregister`.
        HandleDeregister = 17, "HandleDeregister";
        /// `cuFileBufRegister`: `address` and `size`; `offset` is the flags.
        BufRegister = 18, "BufRegister";
        /// `cuFileBufDeregister`: `address`.
        BufDeregister = 19, "BufDeregister";
        /// `cuFileDriverOpen`, or the first call that opens implicitly.
        DriverOpen = 20, "DriverOpen";
        /// `cuFileDriverClose`.
        DriverClose = 21, "DriverClose";
        /// `cuFileStreamRegister`: `group` is the stream, `offset` the flags.
        StreamRegister = 22, "StreamRegister";
        /// `cuFileStreamDeregister`: `group` is the stream.
        StreamDeregister = 23, "StreamDeregister";
        /// `cuFileBatchIOSetUp`: `group` is the batch, `size` its entries.
        BatchSetUp = 24, "BatchSetUp";
        /// `cuFileBatchIOSubmit`: `group` is the batch, `size` the entries submitted.
        BatchSubmit = 25, "BatchSubmit";
        /// `cuFileBatchIOGetStatus`: `size` is the least number asked for, `result` the events that came.
        BatchGetStatus = 26, "BatchGetStatus";
        /// `cuFileBatchIOCancel`.
        BatchCancel = 27, "BatchCancel";
        /// `cuFileBatchIODestroy`.
        BatchDestroy = 28, "BatchDestroy";
    }
}

impl Api {
    /// Whether it moves bytes from storage to memory.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Readv | Self::BatchRead | Self::ReadAsync)
    }

    /// Whether it moves bytes from memory to storage.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Writev | Self::BatchWrite | Self::WriteAsync)
    }

    /// Whether it moves bytes: its `result` is their number.
    pub const fn moves(self) -> bool {
        self.reads() || self.writes()
    }
}

codes! {
    /// The kind of memory that was read to or written from.
    MemoryCode {
        /// Not known, or the call has none.
        #[default]
        Unknown = 0, "unknown";
        /// Memory of a GPU.
        Device = 1, "device";
        /// Managed memory.
        Managed = 2, "managed";
        /// Host memory that CUDA knows.
        PinnedHost = 3, "pinned";
        /// Any other host memory.
        Host = 4, "host";
    }
}

/// The engine that moved the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineCode {
    /// No bytes were moved.
    #[default]
    None,
    /// One engine moved all.
    One(EngineKind),
    /// More than one engine had a part, or one that a program registered: a trace has no names of its own.
    Mixed,
}

impl EngineCode {
    /// The code of one engine.
    pub const fn of(engine: EngineKind) -> Self {
        match engine {
            EngineKind::Registered(_) => Self::Mixed,
            engine => Self::One(engine),
        }
    }

    /// All values.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::None, Self::Mixed].into_iter().chain(EngineKind::ALL.map(Self::One))
    }

    /// The code in the file.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::One(engine) => engine.trace_code(),
            Self::Mixed => EngineKind::MIXED_CODE,
        }
    }

    /// The value of a code, if it is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::all().find(|engine| engine.code() == code)
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One(engine) => engine.name(),
            Self::Mixed => "mixed",
        }
    }
}

impl std::fmt::Display for EngineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Facts about a call, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallFlags(pub u8);

impl CallFlags {
    /// The memory lies in a registered buffer.
    pub const REGISTERED: Self = Self(1);
    /// The caller's descriptor was opened with O_DIRECT.
    pub const DIRECT: Self = Self(2);
    /// A call on a stream whose size and offsets were read when the stream came to it.
    pub const LATE: Self = Self(4);
    /// The driver was opened by this call although the program did not ask for it.
    pub const IMPLICIT: Self = Self(8);
    /// The entry was cancelled before it was done.
    pub const CANCELLED: Self = Self(16);

    /// These and those.
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Whether all of `some` are set.
    pub const fn has(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }

    /// The names of those that are set, joined with `+`.
    pub fn names(self) -> String {
        let names = [
            (Self::REGISTERED, "registered"),
            (Self::DIRECT, "direct"),
            (Self::LATE, "late"),
            (Self::IMPLICIT, "implicit"),
            (Self::CANCELLED, "cancelled"),
        ];
        let set: Vec<_> = names.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        set.join("+")
    }
}

/// One call. What does not apply is 0; see [`Api`] for what the numbers of calls without bytes mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The function.
    pub api: Api,
    /// The kind of memory.
    pub memory: MemoryCode,
    /// The engine that moved the bytes.
    pub engine: EngineCode,
    /// The GPU that the memory belongs to, by CUDA's ordinal.
    pub gpu: Option<u8>,
    /// Further facts.
    pub flags: CallFlags,
    /// The calling thread, as gettid says: [`thread_id`](crate::thread_id).
    pub thread: u32,
    /// When the call began, in nanoseconds since the trace's start: [`Trace::now`](crate::Trace::now).
    pub start: u64,
    /// Nanoseconds until it returned; until it was done for batch entries and calls on streams.
    pub latency: u64,
    /// The file: [`Trace::file`](crate::Trace::file). 0 is none.
    pub file: u32,
    /// The batch or the stream, numbered by the writer from 1; 0 is none, or the default stream. Entries of one
    /// submission have the same group and the same start.
    pub group: u32,
    /// Offset in the file.
    pub offset: i64,
    /// Bytes asked for.
    pub size: u64,
    /// Bytes moved, or a negative error: an errno, or a cuFile code from 5000 on.
    pub result: i64,
    /// Where in memory: base and offset together.
    pub address: u64,
}

/// Says that a record has no GPU.
const NO_GPU: u8 = 255;

/// One slot of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct RecordSlot(pub(crate) [u8; RECORD]);

impl RecordSlot {
    /// Its first word: never 0 in a slot that holds something.
    pub(crate) fn tag(&self) -> u32 {
        u32::from_ne_bytes(take(&self.0, 0))
    }
}

/// `N` bytes from `at` on.
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        taken.copy_from_slice(found);
    }
    taken
}

impl Record {
    /// The bytes of the record.
    pub(crate) fn encode(&self) -> RecordSlot {
        let mut bytes = [0; RECORD];
        bytes[0] = self.api.code();
        bytes[1] = self.memory.code() | self.engine.code() << 4;
        bytes[2] = self.gpu.unwrap_or(NO_GPU);
        bytes[3] = self.flags.0;
        bytes[4..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.start.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.latency.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.file.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.group.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.result.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.address.to_le_bytes());
        RecordSlot(bytes)
    }

    /// The record of these bytes; `None` if they are none that this release knows. A kind of memory or an engine that
    /// it does not know is left open.
    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        Some(Self {
            api: Api::from_code(bytes[0])?,
            memory: MemoryCode::from_code(bytes[1] & 15).unwrap_or_default(),
            engine: EngineCode::from_code(bytes[1] >> 4).unwrap_or_default(),
            gpu: Some(bytes[2]).filter(|gpu| *gpu != NO_GPU),
            flags: CallFlags(bytes[3]),
            thread: u32::from_le_bytes(take(bytes, 4)),
            start: u64::from_le_bytes(take(bytes, 8)),
            latency: u64::from_le_bytes(take(bytes, 16)),
            file: u32::from_le_bytes(take(bytes, 24)),
            group: u32::from_le_bytes(take(bytes, 28)),
            offset: i64::from_le_bytes(take(bytes, 32)),
            size: u64::from_le_bytes(take(bytes, 40)),
            result: i64::from_le_bytes(take(bytes, 48)),
            address: u64::from_le_bytes(take(bytes, 56)),
        })
    }

    /// Bytes that it moved.
    pub fn moved(&self) -> u64 {
        if self.api.moves() { u64::try_from(self.result).unwrap_or(0) } else { 0 }
    }

    /// Whether it failed.
    pub const fn failed(&self) -> bool {
        self.result < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_bytes() {
        let record = Record {
            api: Api::WriteAsync,
            memory: MemoryCode::PinnedHost,
            engine: EngineCode::Mixed,
            gpu: Some(7),
            flags: CallFlags::REGISTERED.with(CallFlags::LATE),
            thread: 1234,
            start: u64::MAX - 1,
            latency: 55,
            file: 9,
            group: 3,
            offset: -4096,
            size: 1 << 40,
            result: -5027,
            address: 0x7f00_dead_beef_0000,
        };
        let slot = record.encode();
        assert_ne!(slot.tag(), 0);
        assert_eq!(Record::decode(&slot.0), Some(record));
        let plain = Record::default();
        assert_eq!(Record::decode(&plain.encode().0), Some(plain), "no GPU is not GPU 0");
    }

    #[test]
    fn the_documented_codes_are_these() {
        let page = include_str!("../../../docs/reference/trace.md");
        let mut rows: Vec<_> = Api::ALL.iter().map(|api| (api.code(), api.name())).collect();
        rows.extend(MemoryCode::ALL.iter().map(|memory| (memory.code(), memory.name())));
        rows.extend([EngineCode::None, EngineCode::Mixed].map(|engine| (engine.code(), engine.name())));
        let flags = [
            CallFlags::REGISTERED,
            CallFlags::DIRECT,
            CallFlags::LATE,
            CallFlags::IMPLICIT,
            CallFlags::CANCELLED,
        ];
        let names = flags.map(|flag| (flag.0, flag.names()));
        rows.extend(names.iter().map(|(code, name)| (*code, name.as_str())));
        for (code, name) in rows {
            assert!(page.contains(&format!("| {code} | {name} |")), "{code} {name}");
        }
    }

    #[test]
    fn codes_are_unique_and_go_both_ways() {
        for api in Api::ALL {
            assert_eq!(Api::from_code(api.code()), Some(*api));
            assert_ne!(api.code(), 0, "an empty slot");
            assert!(api.code() < crate::slots::NAME, "a name's tag");
        }
        assert!(MemoryCode::ALL.iter().all(|memory| memory.code() < 16), "four bits");
        assert!(EngineCode::all().all(|engine| EngineCode::from_code(engine.code()) == Some(engine)));
        assert_eq!(CallFlags::DIRECT.with(CallFlags::LATE).names(), "direct+late");
    }
}
