//! A protection domain, and the memory that is registered there.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Connection, Device, DeviceRange, Domain, HostRange, Memory, Options, Region, Transport,
    UnpairedEnd, Why, Window,
};

use crate::connection::FakeConnection;
use crate::end::{End, Place};
use crate::faults::Side;
use crate::machine::{FakeDevice, Machine, next_number};
use crate::memory::{FakeMemory, Map, PAGE, is_kept_from_children};
use crate::network::{Network, ask};
use crate::table::{NewRegion, Span};
use crate::unpaired::FakeUnpaired;

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
    pub(crate) const fn place(&self) -> Place {
        Place { device: self.index, domain: self.number, side: self.side }
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.network.machine
    }

    /// The locked memory of a connection's messages.
    fn message_memory(&self, options: &Options) -> Result<FakeMemory> {
        let bytes = |count: u32, size: u32| u64::from(count) * u64::from(size);
        let mut memory = FakeMemory::new(self.machine(), None);
        if self.side == Side::Client {
            memory.lock_bytes(
                bytes(options.receives, options.receive_size) + bytes(options.sends, options.send_size),
            )?;
        }
        Ok(memory)
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
        let memory = self.message_memory(options)?;
        let end = End::new(self.machine(), self.place(), options, None)?;
        let port = self.port.fetch_add(1, Ordering::Relaxed) | 0x8000;
        let answer = ask(&self.network, &end, SocketAddr::new(self.address, port), to, options)?;
        Ok(Box::new(FakeConnection::new(end, to, answer, options, Some(memory))))
    }

    fn end(&self, options: &Options) -> Result<Box<dyn UnpairedEnd>> {
        let device = self.present()?;
        if device.transport == Transport::Iwarp {
            return Err(Why::Unsupported
                .error("cannot pair in band: iWARP pairs by rdma_cm alone")
                .with("device", &device.name));
        }
        let memory = self.message_memory(options)?;
        let own = self.network.queues.next(&device)?;
        let end = End::new(self.machine(), self.place(), options, Some(own))?;
        self.network.queues.add(own.number, &end);
        let (network, options) = (Arc::clone(&self.network), options.clone());
        Ok(Box::new(FakeUnpaired { network, end, own, options, memory }))
    }
}
