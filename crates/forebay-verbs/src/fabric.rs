//! The trait that the real device and its double have in common.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::{Access, Completion, Failure, Local, Memory, Message, Region, Remote, UnpairedEnd, Window};

/// RDMA devices and what connects them.
pub trait Fabric: Send + Sync + Debug {
    /// The devices that there are. Opens none.
    fn devices(&self) -> Result<Vec<Device>>;

    /// The address by which a device is found: with RoCE its first one that is not link-local. [`crate::Why::NoDevice`] where there is none of that
    /// name.
    fn address_of(&self, device: &str) -> Result<IpAddr> {
        Err(crate::Why::Unsupported
            .error("devices of this fabric have no names to find them by")
            .with("device", device))
    }

    /// Opens the device on a route, with a new protection domain: memory registered there is reached by connections of
    /// that domain alone. [`crate::Why::NoRoute`] where no RDMA device leads there.
    fn open(&self, route: &Route) -> Result<Arc<dyn Domain>>;

    /// Listens at an address; port 0 takes a free one.
    fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>>;
}

/// Where to, and from which of this machine's addresses.
#[derive(Clone, Debug)]
pub struct Route {
    /// The peer.
    pub to: SocketAddr,
    /// The address of the NIC to use; the kernel's choice if none is named.
    pub from: Option<IpAddr>,
    /// How long finding the address and the route may take.
    pub timeout: Duration,
    /// Ends it before.
    pub stop: Stop,
}

/// Asked several times a second by what waits for a peer: whether the wait is to end, with [`ErrorKind::Cancelled`].
#[derive(Clone, Copy, Debug)]
pub struct Stop(fn() -> bool);

impl Stop {
    /// It goes on.
    pub const NEVER: Self = Self(|| false);

    /// It ends when the function says so.
    pub const fn when(is_stopped: fn() -> bool) -> Self {
        Self(is_stopped)
    }

    /// An error if the wait is to end.
    pub fn check(self) -> Result<()> {
        if (self.0)() { Err(Error::new(ErrorKind::Cancelled, "cannot connect: interrupted")) } else { Ok(()) }
    }
}

impl PartialEq for Stop {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Stop {}

/// How long something waits before it looks at its [`Stop`].
pub const STOP_SLICE: Duration = Duration::from_millis(100);

impl Route {
    /// The kernel's route, found within five seconds.
    pub const fn to(to: SocketAddr) -> Self {
        Self { to, from: None, timeout: Duration::from_secs(5), stop: Stop::NEVER }
    }

    /// From this address.
    #[must_use]
    pub const fn from(mut self, from: IpAddr) -> Self {
        self.from = Some(from);
        self
    }
}

/// What carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE.
    Infiniband,
    /// iWARP.
    Iwarp,
    /// Another, or not known.
    Other,
}

/// A device, and what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in /sys/class/infiniband.
    pub name: String,
    /// What carries it.
    pub transport: Transport,
    /// Whether it says that it has windows of type 2B. `None`: not asked, because that needs the device opened.
    pub windows: Option<bool>,
    /// RDMA READs of a peer that it answers at a time.
    pub reads: Option<u32>,
    /// What else it says of itself. `None`: not asked, as above.
    pub limits: Option<DeviceLimits>,
    /// Its path below /sys/devices, which says where it is on the PCI bus. `None`: not told.
    pub path: Option<String>,
}

/// What a device says of itself when it is asked (`ibv_query_device`), beside what the rest of [`Device`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes of the largest region.
    pub region_bytes: u64,
    /// How many regions it has room for.
    pub regions: u32,
    /// `device_cap_flags`: 2²¹ is for registering by work requests, 2²³ and 2²⁴ for windows of type 2A and 2B.
    pub flags: u32,
}

/// A protection domain on an opened device. Threads share it.
pub trait Domain: Send + Sync + Debug {
    /// The device.
    fn device(&self) -> &Device;

    /// Registers memory. [`Access::REMOTE_WRITE`] needs [`Access::WRITE`]; a dma-buf takes no [`Access::BIND`].
    ///
    /// # Safety
    /// Until the region is dropped or released, host memory stays mapped, and the program expects the device and, as far as
    /// `access` and handed-out keys allow, the peer to read and write it at any time. Where the kernel does not copy at a fork
    /// ([`Domain::copies_at_fork`]), host memory is of [`Pages`](crate::Pages): other memory is the child's and not this process's once a page
    /// was written to behind a fork, and what the child does with its own ends it.
    unsafe fn register(&self, memory: Memory<'_>, access: Access) -> Result<Region>;

    /// Whether the kernel gives a forked child copies of registered pages (Linux 5.12 and later, with libibverbs 35 or later to say so). Otherwise the
    /// child shares them: this process's next write beside the registered range takes the page from the device.
    fn copies_at_fork(&self) -> bool;

    /// A window that is bound to nothing. [`crate::Why::Unsupported`] where the device has none.
    fn window(&self) -> Result<Window>;

    /// Connects, with all receives posted beforehand. Blocks for at most [`Options::timeout`], or until [`Options::stop`].
    /// [`crate::Why::Rejected`]: nobody listens there; [`crate::Why::Unreachable`]: no answer.
    fn connect(&self, to: SocketAddr, options: &Options) -> Result<Box<dyn Connection>>;

    /// A queue pair on the route's own address, with all receives posted, to be paired by messages of the program's own. RDMA READs
    /// that it is to have in flight ([`Options::reads_out`]) are at most those that the peer answers.
    /// [`crate::Why::Unsupported`] where the device pairs by rdma_cm alone (iWARP).
    fn end(&self, options: &Options) -> Result<Box<dyn UnpairedEnd>>;
}

/// What a connection is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes for the peer's [`Incoming::private_data`] or [`Connection::private_data`]; at most 56 when connecting, 196 when
    /// accepting.
    pub private_data: Vec<u8>,
    /// Receives, all posted before the connection is up. The connection owns their memory.
    pub receives: u32,
    /// Bytes of each.
    pub receive_size: u32,
    /// Operations in flight.
    pub sends: u32,
    /// Bytes of the longest message.
    pub send_size: u32,
    /// Bytes of a message that the device takes along with the request, if it can; longer ones are copied to registered
    /// memory of the connection's.
    pub inline: u32,
    /// RDMA READs that the peer may have in flight here, as far as the device can. Servers refuse 0.
    pub reads_in: u8,
    /// RDMA READs that this side may have in flight.
    pub reads_out: u8,
    /// How often an unanswered request is repeated, 0 to 7.
    pub retries: u8,
    /// How often a message is repeated for which no receive was posted, 0 to 7; 7 is for ever.
    pub receiver_retries: u8,
    /// How long connecting or accepting may take.
    pub timeout: Duration,
    /// Ends it before.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            receives: 32,
            receive_size: 4096,
            sends: 128,
            send_size: 4096,
            inline: 256,
            reads_in: 16,
            reads_out: 0,
            retries: 6,
            receiver_retries: 0,
            timeout: Duration::from_mins(1),
            stop: Stop::NEVER,
        }
    }
}

impl Options {
    /// Private data of at most this many bytes, or an error.
    pub fn check_private_data(&self, most: usize) -> Result<()> {
        let len = self.private_data.len();
        if len <= most {
            return Ok(());
        }
        let message = format!("cannot connect: more than {most} bytes of private data");
        Err(Error::new(ErrorKind::InvalidInput, message).with("bytes", len))
    }
}

/// How an operation is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// Begins only after all RDMA READs and invalidations posted before it.
    pub fence: bool,
    /// No completion if it succeeds. A failure always completes.
    pub quiet: bool,
    /// Of a message: the peer's key that becomes invalid with its arrival.
    pub invalidate: Option<u32>,
}

impl Post {
    /// Nothing special: one completion.
    pub const PLAIN: Self = Self { fence: false, quiet: false, invalidate: None };
    /// No completion if it succeeds.
    pub const QUIET: Self = Self { quiet: true, ..Self::PLAIN };
}

/// Why a connection is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// One of the two sides ended it, or the peer tried what its keys do not allow.
    Disconnected,
    /// The device was removed.
    DeviceRemoved,
    /// An operation of this side failed first.
    Failed(Failure),
}

/// A connection (RC). One thread at a time uses it; it may move between threads.
///
/// Operations begin in the order of posting, and a peer's message arrives after the RDMA WRITEs that the peer posted before
/// it. Once one failed, or the connection went down otherwise, all that were posted complete as
/// [`Failure::Flushed`], and nothing of the peer's reaches memory by it any more. Dropping it has the same effect at once,
/// without completions.
pub trait Connection: Send + Debug {
    /// Its number; no two of a process have the same.
    fn number(&self) -> u64;

    /// The peer's address.
    fn peer(&self) -> SocketAddr;

    /// What the peer gave as private data; a device may have put zeros behind it.
    fn private_data(&self) -> &[u8];

    /// Sends a message. The bytes are taken along: the caller's are free at once.
    fn send(&mut self, id: u64, bytes: &[u8], post: Post) -> Result<()>;

    /// Writes this side's bytes to the peer's memory.
    fn write(&mut self, id: u64, from: Local<'_>, to: Remote, post: Post) -> Result<()>;

    /// The same, and the peer gets a message of no bytes with this number ([`Message::immediate`]) once all is written. It takes one
    /// of the peer's receives. [`crate::Why::Unsupported`] with iWARP.
    fn write_with_immediate(
        &mut self,
        id: u64,
        from: Local<'_>,
        to: Remote,
        immediate: u32,
        post: Post,
    ) -> Result<()>;

    /// Reads the peer's memory into this side's.
    fn read(&mut self, id: u64, into: Local<'_>, from: Remote, post: Post) -> Result<()>;

    /// Asks whether the peer still has the connection: its device answers, and its program does not notice. An RDMA WRITE of no
    /// bytes, which needs no key. Completes only if it fails, as a [`crate::Kind::Write`].
    fn probe(&mut self, id: u64) -> Result<()>;

    /// Binds a window to a range; afterwards the window has a new key, good for this connection's peer. A message posted
    /// behind it may carry the key: the order of posting holds.
    fn bind(&mut self, id: u64, window: &mut Window, to: Local<'_>, access: Access, post: Post)
    -> Result<()>;

    /// Makes a window's key invalid. With its completion the peer reaches the memory no more.
    fn invalidate(&mut self, id: u64, window: &mut Window, post: Post) -> Result<()>;

    /// Puts completions that are there behind those in `out`, at most as many as `out` has room for without growing (64 if it
    /// has none), and says how many. No system call.
    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize>;

    /// A message's bytes.
    fn bytes(&self, message: &Message) -> Result<&[u8]>;

    /// Gives a message's memory back for the next one.
    fn post_receive(&mut self, message: Message) -> Result<()>;

    /// Takes what made the descriptor readable, notes events of the connection, and has the next completion make it
    /// readable again. Poll once more before waiting: what came before is not told again.
    fn arm(&mut self) -> Result<()>;

    /// Readable when, after [`Connection::arm`], a completion is there or the connection has changed.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Why it is down. What only the peer knows is noted by [`Connection::arm`].
    fn down(&self) -> Option<Down>;

    /// Ends it: posted operations complete as failed.
    fn disconnect(&mut self);

    /// Polls until something is there, the connection is down with nothing left, or the time is over; how many came.
    fn wait(&mut self, out: &mut Vec<Completion>, timeout: Duration) -> Result<usize> {
        let until = Instant::now() + timeout;
        loop {
            let mut count = self.poll(out)?;
            if count == 0 {
                self.arm()?;
                count = self.poll(out)?;
            }
            let left = until.saturating_duration_since(Instant::now());
            if count > 0 || left.is_zero() || self.down().is_some() {
                return Ok(count);
            }
            readable(self.descriptor(), left)?;
        }
    }
}

/// An error for a message that is longer than a connection takes.
pub fn check_length(bytes: &[u8], longest: u32) -> Result<()> {
    if bytes.len() <= longest as usize {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "cannot send: the message is too long")
        .with("bytes", bytes.len())
        .with("longest", longest))
}

/// Waits until a descriptor is readable; false when the time is over first.
pub(crate) fn readable(descriptor: BorrowedFd<'_>, timeout: Duration) -> Result<bool> {
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let wait = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: one valid pollfd.
    match unsafe { libc::poll(&raw mut poll, 1, wait) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match std::io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINTR) => Ok(false),
            error => Err(Error::from_io(&error, "cannot wait for the connection")),
        },
    }
}

/// The same until then, or an error when the wait is to end.
pub(crate) fn readable_until(descriptor: BorrowedFd<'_>, until: Instant, stop: Stop) -> Result<bool> {
    loop {
        stop.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || readable(descriptor, left.min(STOP_SLICE))? {
            return Ok(!left.is_zero());
        }
    }
}

/// Waits for connections.
pub trait Listener: Send + Debug {
    /// Where it listens, with the port that it got.
    fn address(&self) -> SocketAddr;

    /// The next one, or none within the time.
    fn next(&mut self, timeout: Duration) -> Result<Option<Box<dyn Incoming>>>;
}

/// A peer that wants to connect. Dropped, it is rejected.
pub trait Incoming: Send + Debug {
    /// What the peer gave as private data; a device may have put zeros behind it.
    fn private_data(&self) -> &[u8];

    /// The domain that the connection will be of, the same for all of a listener's connections by one device: register there
    /// what it needs.
    fn domain(&self) -> Arc<dyn Domain>;

    /// Accepts, with all receives posted beforehand.
    fn accept(self: Box<Self>, options: &Options) -> Result<Box<dyn Connection>>;

    /// Rejects.
    fn reject(self: Box<Self>) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    static STOPPED: AtomicBool = AtomicBool::new(false);

    #[test]
    fn waits_end_with_what_they_wait_for_with_the_time_or_when_they_are_stopped() {
        let (from, mut to) = std::io::pipe().unwrap();
        let stop = Stop::when(|| STOPPED.load(Ordering::Relaxed));
        let wait = |time| {
            let began = Instant::now();
            (readable_until(from.as_fd(), began + time, stop), began.elapsed())
        };
        let (waited, took) = wait(Duration::from_millis(250));
        assert!(!waited.unwrap() && took >= Duration::from_millis(250), "{took:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(150));
                STOPPED.store(true, Ordering::Relaxed);
            });
            let (waited, took) = wait(Duration::from_secs(20));
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::Cancelled);
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
        STOPPED.store(false, Ordering::Relaxed);
        to.write_all(&[1]).unwrap();
        assert!(wait(Duration::from_secs(20)).0.unwrap());
    }
}
