//! Memory kinds, devices and streams.
//!
//! A [`Device`] has memory that transfers end in, [`Stream`]s that copy to and from it, and [`Event`]s that tell
//! when copies are done. Three kinds of devices exist: [`cuda`] (the driver API, loaded at run time), [`bar`]
//! (memory in a PCI BAR that drives reach by themselves) and [`host`] (plain memory, where a "copy" happens at once).
//!
//! Addresses are integers here: a GPU's memory is never dereferenced by the CPU.

pub mod bar;
mod checksum;
pub mod cuda;
mod devices;
mod export;
mod gather;
pub mod host;
mod name;
mod naps;
mod pattern;
mod pci;
mod resident;

use std::fmt;
use std::time::Duration;

pub use checksum::{Checksum, ChecksumPiece, Shift};
pub use devices::Devices;
pub use export::{Allocation, DmaBuf};
pub use forebay_error::{Error, ErrorKind, Result};
pub use forebay_sys::{DeviceRange, HostRange};
pub use gather::{Gather, GatherReport};
pub use name::DeviceName;
pub use naps::Naps;
pub use pattern::{fill_pattern, first_mismatch, pattern_word, unmixed_word};
pub use pci::{PciDistance, PciPlace};
pub use resident::Resident;

/// What kind of memory an address points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memory of the device, copied to by its streams (plain, pool or virtual-memory allocations).
    Device,
    /// Host memory that no driver knows.
    Host,
    /// Host memory that is pinned and known to the driver.
    Pinned,
    /// Memory that the driver moves between host and device on demand.
    Managed,
    /// Memory in a PCI BAR that the CPU and drives reach by its address: see [`bar`].
    Bar,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Pinned => "pinned host",
            Self::Managed => "managed",
            Self::Bar => "P2P BAR",
        })
    }
}

/// The execution context that an address or a stream belongs to. `Context::PRIMARY` is the device's own default
/// one; others come from [`Device::classify`]. Opaque outside the device that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(pub(crate) u64);

impl Context {
    /// The device's default context.
    pub const PRIMARY: Self = Self(0);
}

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Index of the device that owns it (`None` for plain host memory).
    pub device: Option<usize>,
    /// The context that work on it must run in.
    pub context: Context,
    /// The allocation, where the driver tells.
    pub range: Option<DeviceRange>,
}

/// What a device is: names for people, numbers for programs.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Index at the surface (`-d`); inside, a device is named by UUID and PCI address.
    pub index: usize,
    /// Product name, "host memory" for the host.
    pub name: String,
    /// 16 bytes, all zero for the host.
    pub uuid: [u8; 16],
    /// PCI address as `0000:1b:00.0`; empty for the host.
    pub pci: String,
    /// The NUMA node of the device, where the system tells.
    pub numa_node: Option<u32>,
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Driver API version as 1000 × major + 10 × minor; 0 for the host.
    pub driver_version: i32,
    /// Compute capability (major, minor); (0, 0) for the host.
    pub capability: (i32, i32),
    /// True if this "device" is host memory.
    pub is_host: bool,
    /// True if it is memory in a PCI BAR: see [`bar`].
    pub is_bar: bool,
}

/// How to wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleep until the device signals: no CPU, some 10 µs of wake-up.
    Block,
    /// Poll: the lowest latency, a whole CPU.
    Spin,
    /// Poll for at most this long, then sleep.
    SpinThenBlock(Duration),
    /// Poll, and sleep by the clock this long between polls; a wait that turns out long is left to the driver. Where
    /// the driver's own sleep wakes up late, this is the faster way to wait for a copy without keeping a CPU busy.
    Nap(Duration),
}

/// One piece of a scatter or gather: `len` bytes from `src` to `dst`, any alignment. Both are addresses that the
/// device can reach. Laid out as the kernels read it: 24 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyPiece {
    /// Where the bytes come from.
    pub src: u64,
    /// Where they go.
    pub dst: u64,
    /// How many.
    pub len: u64,
}

/// A stream that every context has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The one that all threads share. It and blocking streams wait for each other.
    Legacy,
    /// The one of whichever thread uses it: a blocking stream. Its work comes after what stands on the legacy stream, and
    /// after that thread's own.
    PerThread,
}

/// What stands on the default streams of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultWork {
    /// Nothing.
    Done,
    /// Something, or work on another blocking stream that the legacy one would wait for.
    Pending,
    /// The driver cannot be asked: a stream is captured that the legacy stream would have to wait for.
    Captured,
}

/// A stream's name: handles are used again, this is not (where the driver tells: from CUDA 12.0 on).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamIdentity {
    /// The context that it works in.
    pub context: Context,
    /// The driver's number for it.
    pub id: u64,
}

/// A 32-bit word in pinned memory by which the CPU and a stream tell each other how far they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Where the CPU finds it.
    pub host: u64,
    /// Where the device finds it.
    pub device: u64,
}

/// One thing that a stream is to do: see [`Stream::post`].
#[derive(Clone, Copy, Debug)]
pub enum Post {
    /// Write the number, once all that was queued before is done and can be seen.
    Write(Word, u32),
    /// Go on when the word is at least this number, as a signed difference: numbers may wrap.
    Wait(Word, u32),
    /// As [`Stream::scatter`]. The list is read when the stream gets there.
    Scatter {
        /// The pieces' address for the device.
        list: u64,
        /// How many.
        count: usize,
        /// The greatest length among them.
        longest: usize,
    },
}

/// Why not all of a [`Stream::post`] was queued.
#[derive(Clone, Debug)]
pub struct RefusedPosts {
    /// How many of the posts were queued, from the first on.
    pub posted: usize,
    /// What the device said of the next.
    pub error: Error,
}

/// What a device may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it. All that the device may do with pages that this process maps for reading only.
    ReadOnly,
    /// Read and write it.
    ReadWrite,
}

/// What a check of pattern bytes found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternCheck {
    /// Bytes that differ from the pattern.
    pub wrong_bytes: u64,
    /// Offset (in the file) of the first 8-byte word with a wrong byte; meaningful when `wrong_bytes` > 0.
    pub first_wrong: u64,
}

/// A device: memory and the streams that move bytes to and from it.
///
/// All methods may be called from any thread and work whatever context the calling thread has made current; they
/// leave that context, and any stream capture going on elsewhere, as they were.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Allocates `len` bytes of device memory in the primary context; free with [`Device::free`].
    fn allocate(&self, len: usize) -> Result<u64>;

    /// Allocates `len` bytes of `kind` (for the load generator's `-m`; not every device knows every kind).
    fn allocate_kind(&self, kind: AllocationKind, len: usize) -> Result<u64>;

    /// Frees memory from [`Device::allocate`].
    ///
    /// # Safety
    /// `address` came from `allocate` on this device, is freed once, and no transfer uses it any more.
    unsafe fn free(&self, address: u64);

    /// Frees memory from [`Device::allocate_kind`].
    ///
    /// # Safety
    /// As [`Device::free`], with the same kind and length as at allocation.
    unsafe fn free_kind(&self, kind: AllocationKind, memory: DeviceRange);

    /// Free and total device memory in bytes.
    fn memory_info(&self) -> Result<(u64, u64)>;

    /// Tells what an address points to. Plain host memory is a valid answer, not an error.
    fn classify(&self, address: u64) -> Result<PointerInfo>;

    /// Makes host memory known to the device, for every context. Returns the address by which the device reaches
    /// it.
    ///
    /// # Safety
    /// The memory stays mapped until [`Device::unpin`].
    unsafe fn pin(&self, memory: HostRange) -> Result<u64>;

    /// Undoes [`Device::pin`].
    ///
    /// # Safety
    /// `address` was pinned by this device and no copy that uses it is in flight.
    unsafe fn unpin(&self, address: *mut u8);

    /// Whether this device can use memory that the CPU maps (a file's pages) in place; the reason if not. Asks for
    /// attributes only: creates no context.
    fn can_register(&self, access: Access) -> Result<()> {
        Err(no_registration().with("access", format!("{access:?}")))
    }

    /// Pins pages (whole ones, mapped by this process) and lets this device read
    /// (or write) them in its primary context, at the same address. Other devices do not reach them.
    ///
    /// # Safety
    /// The range stays mapped until [`Device::unregister`].
    unsafe fn register(&self, pages: HostRange, _access: Access) -> Result<()> {
        Err(no_registration().with("len", pages.len))
    }

    /// Undoes [`Device::register`].
    ///
    /// # Safety
    /// `address` was registered with this device, and no work in flight uses the range.
    unsafe fn unregister(&self, _address: *mut u8) -> Result<()> {
        Err(no_registration())
    }

    /// Whether file calls of the kernel take addresses of this device's memory as they are, so that a drive's DMA ends
    /// in it; the reason if not. Whether a certain drive reaches it is another question.
    fn can_place(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "drives do not reach this device's memory"))
    }

    /// Whether this device's memory can be given to other devices as a dma-buf, and what those write be made visible here; the
    /// reason if not. Asks for attributes only: creates no context.
    fn can_export(&self) -> Result<()> {
        Err(no_export())
    }

    /// The allocation of plain device memory around `address`, as the driver says now. Memory that is freed and allocated again
    /// at the same address is another one.
    fn allocation(&self, _address: u64) -> Result<Allocation> {
        Err(no_export())
    }

    /// A dma-buf of the whole pages around an allocation. It keeps the memory, also after the program has freed it.
    fn export(&self, _allocation: &Allocation) -> Result<DmaBuf> {
        Err(no_export())
    }

    /// Has work that begins later in `context` see what other devices have written to this one's memory until now.
    fn flush_writes(&self, _context: Context) -> Result<()> {
        Ok(())
    }

    /// Lets streams of this device read and write memory of `peer` directly, both in their primary contexts.
    /// Harmless when repeated.
    fn enable_peer(&self, _peer: &dyn Device) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "this device cannot reach memory of others"))
    }

    /// A new stream in `context` that orders nothing but itself (non-blocking towards the legacy stream).
    fn stream(&self, context: Context) -> Result<Box<dyn Stream>>;

    /// The handle of a stream of another library (`CUstream` as an integer; 0 is the default stream), for
    /// good. [`ErrorKind::Unsupported`] if it is being captured; the capture stays as it was.
    ///
    /// # Safety
    /// `handle` is a live stream.
    unsafe fn identify(&self, handle: u64) -> Result<StreamIdentity> {
        Ok(StreamIdentity { context: Context::PRIMARY, id: handle })
    }

    /// Whether a foreign stream works on this device.
    ///
    /// # Safety
    /// `handle` is a live stream.
    unsafe fn owns_stream(&self, _handle: u64) -> bool {
        true
    }

    /// Wraps a stream of another library (`CUstream` as an integer; 0 is the default stream).
    ///
    /// # Safety
    /// `handle` is a live stream of this device as long as the wrapper lives.
    unsafe fn foreign_stream(&self, handle: u64) -> Result<Box<dyn Stream>>;

    /// A default stream of `context`, for work of ours. Only copies of at most 1 MiB belong there: the user's work
    /// waits for them.
    fn default_stream(&self, context: Context, _which: DefaultStream) -> Result<Box<dyn Stream>> {
        self.stream(context)
    }

    /// What stands on the default streams of `context`, of all threads. Leaves captures as they are.
    fn default_work(&self, _context: Context) -> Result<DefaultWork> {
        Ok(DefaultWork::Done)
    }

    /// Whether a capture under way forbids the use of the legacy default stream. Far cheaper than
    /// [`Device::default_work`].
    fn is_legacy_captured(&self, _context: Context) -> Result<bool> {
        Ok(false)
    }

    /// The memory around `address` that kernels of `context` may read and write: plain memory of this device, as the driver says
    /// now. A kernel that goes beyond it breaks the context, where a copy would be an error.
    fn kernels_memory(&self, _context: Context, _address: u64) -> Option<DeviceRange> {
        None
    }

    /// Copies and sets of the memory at `address` that the user starts from now on are done when the call that starts
    /// them returns (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    fn make_synchronous(&self, _address: u64) -> Result<()> {
        Ok(())
    }

    /// Whether scatter, checksum, fill and verify kernels can run here; the reason if not. The first call loads them, and
    /// may compile them.
    fn kernels(&self, context: Context) -> Result<()>;

    /// Whether the device's default context exists, from any library of the process. Creates none.
    fn is_in_use(&self) -> bool {
        true
    }

    /// Calls that this thread makes from now on leave stream captures of other threads alone. For threads that
    /// forebay owns; calls on a user's thread are guarded one by one.
    fn adopt_thread(&self) {}

    /// Makes a context current on this thread, and leaves it so: for threads that forebay owns, before they call a library
    /// that expects one.
    fn enter(&self, _context: Context) -> Result<()> {
        Ok(())
    }
}

/// The answer of a device whose memory is its own.
#[cold]
fn no_export() -> Error {
    Error::new(ErrorKind::Unsupported, "this device's memory cannot be given to other devices (dma-buf)")
}

/// The answer of a device without registration.
#[cold]
fn no_registration() -> Error {
    Error::new(ErrorKind::Unsupported, "this device cannot use the CPU's mappings in place")
}

/// What [`Device::allocate_kind`] can allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// Plain device memory (`-m 0`).
    Device,
    /// Virtual-memory API: reserve, create, map (`-m 1`).
    Virtual,
    /// Pinned host memory from the driver (`-m 2`).
    PinnedHost,
    /// Page-aligned host memory from the heap (`-m 3`).
    HostHeap,
    /// Anonymous host mapping (`-m 4`).
    HostMap,
    /// Managed memory, for tests of classification.
    Managed,
}

/// An ordered queue of copies and kernels on one device.
///
/// All operations are asynchronous: memory must stay valid until an event recorded after them is done.
pub trait Stream: Send + fmt::Debug {
    /// Copies host memory to the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done; `src` is pinned (else the call may block).
    unsafe fn copy_in(&self, dst: u64, src: HostRange) -> Result<()>;

    /// Copies device memory to the host.
    ///
    /// # Safety
    /// As [`Stream::copy_in`], with the roles exchanged.
    unsafe fn copy_out(&self, dst: HostRange, src: u64) -> Result<()>;

    /// Copies between device memories: of this device, or of a peer after [`Device::enable_peer`].
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done.
    unsafe fn copy_across(&self, dst: u64, src: DeviceRange) -> Result<()>;

    /// Gathers the pieces with one kernel. What does not lie in the range is not read but reported.
    ///
    /// # Safety
    /// The range, the offsets, the output (`count * piece` bytes) and the report are valid until the kernel is done,
    /// and the output overlaps none of the others.
    unsafe fn gather(&self, gather: &Gather) -> Result<()>;

    /// CRC-32C of the `count` ranges at `list` ([`ChecksumPiece`]s), with one kernel; as 32-bit words to `results`. Both
    /// are addresses that the device can reach (pinned). A warp does one range, so that large ones are to be cut into
    /// pieces of some 100 KiB whose checksums are then joined: see [`Checksum::then`].
    ///
    /// # Safety
    /// The list, the results and all that the list names are valid, and nobody writes it, until the kernel is done.
    unsafe fn checksums(&self, list: u64, count: usize, results: u64) -> Result<()>;

    /// Sets device memory to zero.
    ///
    /// # Safety
    /// `dst` is device memory, valid until it is done.
    unsafe fn zero(&self, dst: DeviceRange) -> Result<()>;

    /// Runs all `count` pieces at `list` with one kernel. `list` is an address that the device can reach (pinned).
    /// `longest` is the greatest `len` among them.
    ///
    /// # Safety
    /// The list and all that it names are valid until the kernel is done; destinations do not overlap.
    unsafe fn scatter(&self, list: u64, count: usize, longest: usize) -> Result<()>;

    /// Starts a kernel that serves requests in mailboxes for a moment: see [`Resident`]. [`ErrorKind::Unsupported`]
    /// where there are no kernels. The stream is one of [`Device::stream`], and lives until the kernel has ended.
    ///
    /// # Safety
    /// The mailboxes and the word stay valid until the kernel has ended; so does all that a request names until it is done,
    /// declined, or was withdrawn in time.
    unsafe fn resident(&self, _resident: &Resident) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "this device runs no kernels"))
    }

    /// Fills device memory with the pattern of `key` from `offset` on; see [`pattern_word`].
    ///
    /// # Safety
    /// `dst` is device memory, valid until the kernel is done. `offset` is a multiple of 8.
    unsafe fn fill_pattern(&self, dst: DeviceRange, key: u64, offset: u64) -> Result<()>;

    /// Checks device memory against the pattern and waits for the answer.
    ///
    /// # Safety
    /// As [`Stream::fill_pattern`].
    unsafe fn check_pattern(&self, src: DeviceRange, key: u64, offset: u64) -> Result<PatternCheck>;

    /// A new event for this stream's context.
    fn event(&self) -> Result<Box<dyn Event>>;

    /// Records `event` after all that was queued so far.
    fn record(&self, event: &dyn Event) -> Result<()>;

    /// Work queued from now on waits for `event` first.
    fn wait_event(&self, event: &dyn Event) -> Result<()>;

    /// Work queued from now on waits until the 32-bit word at `flag` (pinned host memory, device address) is
    /// at least `value`. [`ErrorKind::Unsupported`] where the device lacks stream memory operations.
    ///
    /// # Safety
    /// The word stays valid until the stream has passed the wait.
    unsafe fn wait_value(&self, flag: u64, value: u32) -> Result<()>;

    /// Queues words and scatters in this order. Words are the device's own matter where it has stream memory
    /// operations; elsewhere a callback writes, or blocks until a number is there.
    ///
    /// # Safety
    /// Words, lists and all that they name are valid until the stream has passed.
    unsafe fn post(&self, posts: &[Post]) -> Result<(), RefusedPosts>;

    /// Writes `value` to the 32-bit word at `flag` (pinned host memory, device address) once all that was queued so far
    /// is done: a thread that sees the value sees that work's bytes. A device that breaks before never writes it.
    /// [`ErrorKind::Unsupported`] where the device lacks stream memory operations.
    ///
    /// # Safety
    /// The word stays valid until it is written, and is written and read as an atomic one.
    unsafe fn write_value(&self, flag: u64, value: u32) -> Result<()>;

    /// The driver's handle (`CUstream` as an integer); 0 for host memory.
    fn handle(&self) -> u64;

    /// Calls `call` on a driver thread once all queued work is done. The call must not use the device.
    fn callback(&self, call: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// Waits for all queued work.
    fn synchronize(&self, wait: Wait) -> Result<()>;
}

/// A mark in a stream.
pub trait Event: Send + Sync + fmt::Debug {
    /// Whether all work before the mark is done. An error of that work surfaces here.
    fn is_done(&self) -> Result<bool>;

    /// Waits for the work before the mark.
    fn wait(&self, wait: Wait) -> Result<()>;

    /// The driver's handle, for the device that made it.
    fn handle(&self) -> u64;
}
