//! A file of a server, and its reads and writes.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{DeviceRange, HostRange, RegisteredMemory};

use crate::client::clients::{KnownServer, known};
use crate::client::look_up::new_client;
use crate::client::nfs_client::NfsClient;
use crate::lock;
use crate::network::job::{Answer, Direction, FileTarget, IoRequest};
use crate::network::options::{NfsOptions, RdmaOptions};
use crate::network::server::NfsServer;
use crate::network::wire::try_out_at;
use crate::protocol::handle::{FileAttributes, FileState, NfsHandle};

/// A file of a server. It is open nowhere but here.
#[derive(Clone)]
pub struct NfsFile {
    client: Arc<NfsClient>,
    named: Arc<FileTarget>,
    opened: FileAttributes,
    /// The same by one NIC alone, or why not, and since when.
    by_nic: Arc<Mutex<Vec<FileByNic>>>,
}

/// A file by a NIC, which is named.
type FileByNic = (String, Result<Arc<NfsFile>>, Instant);

/// After how long it is tried again to reach a file by a NIC that did not lead there.
const NIC_PAUSE: Duration = Duration::from_mins(1);

impl fmt::Debug for NfsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfsFile({})", self.name())
    }
}

impl NfsFile {
    pub(crate) fn new(
        client: Arc<NfsClient>,
        handle: NfsHandle,
        name: String,
        opened: FileAttributes,
    ) -> Self {
        let named = Arc::new(FileTarget { handle, name });
        client.server_of().further.uses(&named);
        Self { client, named, opened, by_nic: Arc::default() }
    }

    /// Its URL.
    pub fn name(&self) -> &str {
        &self.named.name
    }

    /// Its server.
    pub fn client(&self) -> &Arc<NfsClient> {
        &self.client
    }

    /// The same file, by the addresses alone to which a NIC leads: connections of their own, for memory that is registered with it. Asks
    /// the server when it is first called.
    pub fn by_nic(&self, nic: &str) -> Result<Arc<Self>> {
        self.client.check_process()?;
        if let Some(found) = self.known_by_nic(nic) {
            return found;
        }
        let found = self.open_by_nic(nic).map(Arc::new);
        let mut all = lock(&self.by_nic);
        // Another thread may have asked, too.
        if let Some((_, known, _)) = all.iter().find(|(name, known, _)| name == nic && known.is_ok()) {
            return known.clone();
        }
        all.retain(|(name, ..)| name != nic);
        all.push((nic.to_owned(), found.clone(), Instant::now()));
        found
    }

    /// The same, where it is known: asks nobody.
    pub fn known_by_nic(&self, nic: &str) -> Option<Result<Arc<Self>>> {
        let mut all = lock(&self.by_nic);
        all.retain(|(_, found, since)| found.is_ok() || since.elapsed() < NIC_PAUSE);
        all.iter().find(|(name, ..)| name == nic).map(|(_, found, _)| found.clone())
    }

    fn open_by_nic(&self, nic: &str) -> Result<Self> {
        let of = self.client.server_of();
        let rdma = of.options.rdma.clone().map(|rdma| RdmaOptions { nic: Some(nic.to_owned()), ..rdma });
        let options = NfsOptions { rdma, ..of.options.clone() };
        let known = known((&of.name, of.port()), of.version, &options);
        let known = known.unwrap_or_else(|| {
            KnownServer::new(NfsServer::new(of.name.clone(), of.addresses.clone(), of.version, options))
        });
        let server = &known.server;
        if server.who != of.who {
            return Err(Error::new(ErrorKind::PermissionDenied, "the file was opened by another user"));
        }
        if known.client.is_none() {
            server.renew(0)?;
        }
        server.opened(self.handle(), &self.opened, try_out_at);
        server.further.uses(&self.named);
        // Fails where the NIC leads to no address.
        server.domain_in_use()?;
        let limits = self.client.limits();
        let client = known.client.unwrap_or_else(|| new_client(&known.server, limits));
        Ok(Self { client, named: self.named.clone(), opened: self.opened, by_nic: Arc::default() })
    }

    /// Its handle.
    pub fn handle(&self) -> &NfsHandle {
        &self.named.handle
    }

    /// What it was when it was opened.
    pub fn opened(&self) -> &FileAttributes {
        &self.opened
    }

    /// What it is now.
    pub fn attributes(&self) -> Result<FileAttributes> {
        self.client.check_process()?;
        let told = self.client.server_of().facts(self.handle());
        told.map(|(attributes, _)| attributes).map_err(|error| error.with("url", self.name()))
    }

    /// Starts a read or a write; `answer` is called once, from any thread, perhaps before this returns. Bytes of a write are
    /// durable when it is answered.
    ///
    /// # Safety
    /// `memory` is valid, and nobody else uses it (for a write: nobody changes it), until the answer.
    pub unsafe fn start(&self, direction: Direction, offset: u64, memory: HostRange, answer: Answer) {
        // SAFETY: passed on.
        unsafe { self.client.start(self.request(direction, offset, memory), answer) };
    }

    /// Starts a read of a file that is in this state. Where the server says that it is in another one by now, the answer is an error
    /// ([`ErrorKind::Busy`]), and the memory may have bytes of either; each call's reply is looked at.
    ///
    /// # Safety
    /// As of [`NfsFile::start`].
    pub unsafe fn start_in(&self, state: FileState, offset: u64, memory: HostRange, answer: Answer) {
        let request = IoRequest { state: Some(state), ..self.request(Direction::Read, offset, memory) };
        // SAFETY: passed on.
        unsafe { self.client.start(request, answer) };
    }

    /// Has the server put a range of the file to a range of memory that is registered in its client's domain; `answer` is
    /// called once, when nothing can arrive in the range any more, with the bytes that came: fewer where the file ends. This
    /// process does not touch the memory.
    ///
    /// # Safety
    /// Nobody else uses the range until the answer.
    pub unsafe fn place(
        &self,
        offset: u64,
        range: DeviceRange,
        memory: Arc<RegisteredMemory>,
        answer: Answer,
    ) {
        let host = HostRange::new(std::ptr::without_provenance(range.start as usize), range.len);
        let request = self.request(Direction::Read, offset, host);
        if let Err(error) = memory.remote(range) {
            return answer(Err(request.name(error)));
        }
        // SAFETY: passed on.
        unsafe { self.client.start(IoRequest { registered: Some(memory), ..request }, answer) };
    }

    fn request(&self, direction: Direction, offset: u64, memory: HostRange) -> IoRequest {
        let file = self.named.clone();
        let durable = self.client.server_of().writes_durably();
        IoRequest { file, direction, offset, memory, registered: None, state: None, durable }
    }

    /// Reads at `offset`, and waits. Fewer bytes: the file ends there.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        // SAFETY: the bytes are borrowed until the answer.
        unsafe { self.run(Direction::Read, offset, HostRange::of_mut(bytes)) }
    }

    /// Writes at `offset`, and waits until it is durable.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        // SAFETY: the bytes are borrowed until the answer, and only read.
        unsafe { self.run(Direction::Write, offset, HostRange::of(bytes)) }
    }

    /// # Safety
    /// As of `start`, until this returns.
    unsafe fn run(&self, direction: Direction, offset: u64, memory: HostRange) -> Result<usize> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let answer: Answer = Box::new(move |result| drop(tell.send(result)));
        // SAFETY: passed on.
        unsafe { self.start(direction, offset, memory, answer) };
        told.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a request was not answered")))
    }
}
