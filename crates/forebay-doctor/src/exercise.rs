//! Transfers that were tried: the seam between the doctor's rules and the engine.

use forebay_engine::Moved;
use forebay_ways::serialize_ways;
use serde::Serialize;

use crate::storage::StoragePlace;

/// A GPU that the driver offers.
#[derive(Clone, Debug, Default)]
pub struct GpuSeen {
    /// Index at the surface.
    pub index: Option<usize>,
    /// Product name.
    pub name: String,
    /// PCI address.
    pub pci: String,
    /// 32 hexadecimal digits.
    pub uuid: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Driver API version as 1000 × major + 10 × minor.
    pub driver_api: i32,
}

/// A text with its fix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hinted {
    /// The fact.
    pub text: String,
    /// The fix, if there is one.
    pub fix: Option<String>,
}

impl Hinted {
    /// A text without a fix.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), fix: None }
    }

    /// Adds a fix.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl From<&forebay_error::Error> for Hinted {
    fn from(error: &forebay_error::Error) -> Self {
        Self { text: error.to_string(), fix: error.hints().first().cloned() }
    }
}

/// The memory that bytes were moved to and from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExerciseTarget {
    /// Memory of the GPU with this index.
    Gpu(usize),
    /// Memory in a PCI BAR, by its name: `p2pmem:0000:03:00.0`.
    Bar(String),
    /// Host memory.
    Host,
}

/// The result of one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ExerciseOutcome {
    /// The bytes arrived and were compared.
    Works {
        /// Bytes moved and compared.
        bytes: u64,
        /// By way, a key for each.
        #[serde(flatten, serialize_with = "serialize_ways")]
        moved: Moved,
        /// From submission to completion.
        elapsed_us: u64,
    },
    /// The transfer failed, or wrong bytes arrived.
    Failed(Hinted),
    /// The transfer was not tried, for this reason.
    Skipped(Hinted),
}

/// The results of one target at one place.
#[derive(Clone, Debug, Serialize)]
pub struct ExerciseResult {
    /// The target.
    pub target: ExerciseTarget,
    /// The engine that the receipts name; none if nothing moved.
    pub engine: Option<String>,
    /// Reading bytes that were not in the page cache.
    pub cold: ExerciseOutcome,
    /// Reading bytes that were in the page cache.
    pub warm: ExerciseOutcome,
    /// Writing.
    pub write: ExerciseOutcome,
    /// Alignment of memory and of offsets for O_DIRECT, in bytes.
    pub alignment: Option<(u32, u32)>,
    /// Why there is no O_DIRECT.
    pub direct_refused: Option<String>,
    /// How residency in the page cache is measured.
    pub residency: Option<String>,
}

impl ExerciseResult {
    /// An exercise with no transfer tried, for one reason.
    pub fn skipped(target: ExerciseTarget, why: Hinted) -> Self {
        Self {
            target,
            engine: None,
            cold: ExerciseOutcome::Skipped(why.clone()),
            warm: ExerciseOutcome::Skipped(why.clone()),
            write: ExerciseOutcome::Skipped(why),
            alignment: None,
            direct_refused: None,
            residency: None,
        }
    }

    /// Cold read, warm read and write, with their names.
    pub fn outcomes(&self) -> [(&'static str, &ExerciseOutcome); 3] {
        [("cold read", &self.cold), ("warm read", &self.warm), ("write", &self.write)]
    }
}

/// The devices that the driver offers.
#[derive(Clone, Debug, Default)]
pub struct DriverOffer {
    /// GPUs.
    pub gpus: Vec<GpuSeen>,
    /// Why there is none.
    pub missing: Option<Hinted>,
}

/// The lanes of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneFacts {
    /// The target of their transfers.
    pub target: ExerciseTarget,
    /// How many work at first.
    pub lanes: usize,
    /// The most that may work, where more are measured to be faster.
    pub most: usize,
    /// Slots of each.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_size: usize,
    /// How they talk to the kernel: `io_uring` or `threads`.
    pub backend: String,
    /// Reasons why they are slower.
    pub notes: Vec<Hinted>,
}

/// The result of reading a user's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRead {
    /// The target.
    pub target: ExerciseTarget,
    /// Bytes read through the session and compared with an ordinary read.
    pub bytes: u64,
    /// The engine.
    pub engine: String,
    /// By way, a key for each.
    #[serde(flatten, serialize_with = "serialize_ways")]
    pub moved: Moved,
}

/// The result of reading a file by one engine alone: `mapped` or `placed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// All bytes came that way, and were compared.
    Works {
        /// Bytes.
        bytes: u64,
        /// From submission to completion.
        elapsed_us: u64,
    },
    /// Device, file system or an option does not allow it.
    Refused(Hinted),
    /// It was tried and failed, or wrong bytes arrived.
    Failed(Hinted),
    /// There was no file to try it with.
    Skipped(Hinted),
}

/// How much page cache may be pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinBudget {
    /// Bytes, over all GPUs of a process.
    pub bytes: u64,
    /// Why not more.
    pub limited_by: String,
    /// How fast pages are registered, and what part of the time.
    pub registering: String,
}

/// An answer of a server, or of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Answer {
    /// Yes; the text says how that was measured.
    Yes(Hinted),
    /// No.
    No(Hinted),
    /// Unknown.
    Unknown(Hinted),
}

impl Answer {
    /// Its text, and its fix.
    pub const fn said(&self) -> &Hinted {
        match self {
            Self::Yes(said) | Self::No(said) | Self::Unknown(said) => said,
        }
    }
}

/// Answers of the server of an NFS mount, asked without the kernel's client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerAnswers {
    /// Where it is mounted.
    pub mount_point: String,
    /// The server's address, if it was asked.
    pub server: Option<String>,
    /// Whether the kernel gives handles of its files, which requests to the server need.
    pub handle: Answer,
    /// Whether the export takes calls from ports that any program may have (`insecure`).
    pub any_port: Answer,
    /// Whether the server takes connections over RDMA.
    pub rdma: Answer,
}

/// Tries things for real.
pub trait Exercise {
    /// The GPUs.
    fn offered(&self) -> DriverOffer;
    /// The lanes of a target; an error if no session can be had.
    fn lanes(&self, target: ExerciseTarget) -> Result<LaneFacts, Hinted>;
    /// Moves bytes between a place and a target and compares them.
    fn exercise(&self, target: ExerciseTarget, place: &StoragePlace) -> ExerciseResult;
    /// Lets a target read the pages of a file at a place, as they lie in the page cache, and compares.
    fn read_in_place(&self, target: ExerciseTarget, place: &StoragePlace) -> InPlace;
    /// Has the server of a file on a mount of NFS write into a target's memory, and compares; `None` where it was not tried.
    fn read_by_server(&self, _target: ExerciseTarget, _place: &StoragePlace) -> Option<InPlace> {
        None
    }
    /// Asks the server of a place on a mount of NFS; `None` for all else.
    fn ask_server(&self, _place: &StoragePlace) -> Option<ServerAnswers> {
        None
    }
    /// How much page cache may be pinned for a target; none for host memory.
    fn pin_budget(&self, target: ExerciseTarget) -> Option<PinBudget>;
    /// The target that memory in a PCI BAR of this name is.
    fn bar(&self, name: &str) -> Result<ExerciseTarget, Hinted> {
        Err(Hinted::new(format!("no such device: {name}")))
    }
    /// Has the drive itself move bytes between a place and a target, by the engine `p2p` alone, and compares them.
    fn exercise_by_drive(&self, target: ExerciseTarget, _place: &StoragePlace) -> ExerciseResult {
        ExerciseResult::skipped(target, Hinted::new("nothing was tried"))
    }
    /// Reads a file of the user (its first 8 MiB at most) and compares with an ordinary read.
    fn read_file(&self, target: ExerciseTarget, path: &str) -> Result<FileRead, Hinted>;
}
