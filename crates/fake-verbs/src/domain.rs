//! A protection domain, and the memory that is registered there.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Connection, Device, DeviceRange, Domain, Handle, HostRange, Memory, Options, Region, Why, Window,
};

use crate::connection::FakeConnection;
use crate::end::{End, Place};
use crate::faults::Side;
use crate::machine::{FakeDevice, Machine, next_number};
use crate::network::{Network, ask};
use crate::table::{NewRegion, Refusal, Span};

#[derive(Debug)]
pub(crate) struct FakeDomain {
    network: Arc<Network>,
    number: u64,
    index: usize,
    address: std::net::IpAddr,
    device: Device,
    port: AtomicU16,
    /// Whose memory it registers.
    side: Side,
}

impl FakeDomain {
    pub(crate) fn new(
        network: &Arc<Network>,
        side: Side,
        (index, device): (usize, &FakeDevice),
    ) -> Arc<Self> {
        Arc::new(Self {
            network: Arc::clone(network),
            number: next_number(),
            index,
            address: device.address,
            device: device.describe(),
            port: AtomicU16::new(32768),
            side,
        })
    }

    /// The place of a new connection's end.
    pub(crate) fn place(&self, peer: SocketAddr) -> Place {
        Place { device: self.index, domain: self.number, side: self.side, peer }
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.network.machine
    }

    fn present(&self) -> Result<FakeDevice> {
        let device = self.machine().device(self.index);
        device
            .ok_or_else(|| Why::DeviceRemoved.error("no such RDMA device").with("device", &self.device.name))
    }
}

impl Domain for FakeDomain {
    fn device(&self) -> &Device {
        &self.device
    }

    unsafe fn register(&self, memory: Memory<'_>, access: Access) -> Result<Region> {
        let device = self.present()?;
        let refuse = |text: &str| Err(Error::new(ErrorKind::InvalidInput, text.to_owned()));
        if memory.range().len == 0 {
            return refuse("cannot register memory: no bytes");
        }
        if access.has(Access::REMOTE_WRITE) && !access.has(Access::WRITE) {
            return refuse("cannot register memory: remote writes without local ones");
        }
        let mut handle = FakeMemory::new(self.machine(), None);
        handle.may_be_kept = self.side == Side::Client;
        let base = match memory {
            Memory::Host(HostRange { start, len }) => {
                if self.side == Side::Client {
                    if !self.copies_at_fork() && !is_kept_from_children(start as usize, len) {
                        return refuse("cannot register memory: a fork would take it away");
                    }
                    handle.lock_bytes(len as u64)?;
                }
                start as usize
            }
            Memory::DmaBuf { fd, offset, range: DeviceRange { start, len } } => {
                if !device.dma_bufs || access.has(Access::BIND) {
                    return Err(Why::Unsupported
                        .error("cannot register a dma-buf")
                        .with("device", &device.name));
                }
                if start % PAGE != offset % PAGE {
                    return refuse("cannot register a dma-buf: address and offset differ within their page");
                }
                let map = Map::new(fd.as_raw_fd(), offset, len)?;
                handle.map.insert(map).first
            }
        };
        let span = Span { address: memory.range().start, len: memory.range().len as u64 };
        let new = NewRegion { device: self.index, domain: self.number, base, span, access };
        let key = self.machine().change_table().add_region(new);
        handle.key = Some(key);
        Ok(Region::new((key, key), &memory, access, Box::new(handle)))
    }

    fn copies_at_fork(&self) -> bool {
        self.machine().copies_at_fork.load(Ordering::Acquire)
    }

    fn window(&self) -> Result<Window> {
        if !self.present()?.windows {
            return Err(Why::Unsupported
                .error("cannot make a memory window")
                .with("device", &self.device.name));
        }
        let key = self.machine().change_table().add_window(self.index, self.number);
        Ok(Window::new(key, Box::new(FakeMemory::new(self.machine(), Some(key)))))
    }

    fn connect(&self, to: SocketAddr, options: &Options) -> Result<Box<dyn Connection>> {
        self.present()?;
        if self.machine().route(to.ip()).is_some_and(|name| name != self.device.name) {
            return Err(Why::NoRoute
                .error("cannot connect: another device than the domain's is on the route")
                .with("address", to));
        }
        let bytes = |count: u32, size: u32| u64::from(count) * u64::from(size);
        let mut memory = FakeMemory::new(self.machine(), None);
        memory.lock_bytes(
            bytes(options.receives, options.receive_size) + bytes(options.sends, options.send_size),
        )?;
        let end = End::new(self.machine(), self.place(to), options)?;
        let port = self.port.fetch_add(1, Ordering::Relaxed) | 0x8000;
        let answer = ask(&self.network, &end, SocketAddr::new(self.address, port), to, options)?;
        Ok(Box::new(FakeConnection::new(end, answer, options, Some(memory))))
    }
}

/// What is behind a region or a window, or of a connection's own.
pub(crate) struct FakeMemory {
    machine: Arc<Machine>,
    key: Option<u32>,
    map: Option<Map>,
    locked: u64,
    /// Whether its deregistration fails where [`crate::Fake::refuse_deregistrations`] says so.
    may_be_kept: bool,
}

impl FakeMemory {
    fn new(machine: &Arc<Machine>, key: Option<u32>) -> Self {
        Self { machine: Arc::clone(machine), key, map: None, locked: 0, may_be_kept: false }
    }

    /// Whether this attempt to deregister it is to fail.
    fn is_kept(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.may_be_kept
            && self.key.is_some()
            && self.machine.kept.try_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    fn lock_bytes(&mut self, bytes: u64) -> Result<()> {
        let lockable = &self.machine.lockable;
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(bytes) };
        match lockable.try_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(u64::MAX) => Ok(()),
            Ok(_) => {
                self.locked = bytes;
                Ok(())
            }
            Err(left) => Err(Why::Memlock
                .error("cannot register memory")
                .with("bytes", bytes)
                .with("lockable", left)
                .hint("ulimit -l unlimited")),
        }
    }
}

impl Handle for FakeMemory {
    fn release(&mut self) -> Result<()> {
        if self.is_kept() {
            return Err(Error::from_errno(libc::EIO, "cannot deregister memory"));
        }
        if let Some(key) = self.key {
            self.machine.change_table().remove(key).map_err(|refusal| {
                let kind = if refusal == Refusal::InUse { ErrorKind::Busy } else { ErrorKind::Internal };
                Error::new(kind, format!("cannot deregister memory: {refusal}"))
            })?;
        }
        self.key = None;
        self.map = None;
        if self.locked > 0 {
            let give = |left: u64| (left != u64::MAX).then(|| left.saturating_add(self.locked));
            // Without a limit nothing is counted.
            let _ = self.machine.lockable.try_update(Ordering::AcqRel, Ordering::Acquire, give);
            self.locked = 0;
        }
        Ok(())
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        // With a window bound to it memory stays registered, as with a device: its pages must stay, too.
        if self.release().is_err() {
            std::mem::forget(self.map.take());
        }
    }
}

/// Whether all of a range is mapped so that no child gets it (MADV_DONTFORK).
fn is_kept_from_children(address: usize, len: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut kept = 0;
    let mut own = 0..0;
    for line in maps.lines() {
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| number(start).zip(number(end))) {
            own = start.max(address)..end.min(address + len);
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|flag| flag == "dc"))
        {
            kept += own.len();
        }
    }
    kept == len
}

const PAGE: u64 = 4096;

/// A dma-buf as this process sees it: the pages stay while it lives, with the descriptor closed too.
struct Map {
    /// Where the range begins.
    first: usize,
    start: usize,
    len: usize,
}

impl Map {
    fn new(fd: i32, offset: u64, len: usize) -> Result<Self> {
        let before = (offset % PAGE) as usize;
        let (start, len) = (offset - before as u64, len + before);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice; nothing else knows of it.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, start.cast_signed())
        };
        if map == libc::MAP_FAILED {
            return Err(Why::Unsupported.mark(Error::last_os("cannot register a dma-buf")));
        }
        Ok(Self { first: map as usize + before, start: map as usize, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whole; its keys are gone.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}
