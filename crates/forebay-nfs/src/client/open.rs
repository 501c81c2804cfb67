//! From a URL to a file: the server's address, ports and version, the handle, and what the server takes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::Why;

use crate::client::clients::{self, Known, is_known, known};
use crate::client::mountd::mount;
use crate::client::nfs_client::Client;
use crate::client::url::Url;
use crate::lock;
use crate::mounts::mount::{Mounted, Named};
use crate::network::connect::{ServerUnreachable, resolve};
use crate::network::exchange::NO_ANSWER;
use crate::network::job::{self, Answer, Direction, Request};
use crate::network::options::{Options, Rdma};
use crate::network::place::Registered;
use crate::network::session::Server;
pub use crate::network::wire::takes_rdma;
use crate::network::wire::{try_out, try_out_at};
use crate::protocol::handle::{Attributes, FileState, Handle, Kind, Limits, Version};
use crate::protocol::status::Status;
use crate::protocol::v3;
use crate::protocol::v4::{self, op};
use crate::protocol::xdr::Writer;

/// A file of a server. It is open nowhere but here.
#[derive(Clone)]
pub struct File {
    client: Arc<Client>,
    named: Arc<job::FileTarget>,
    opened: Attributes,
    /// The same by one NIC alone, or why not, and since when.
    by_nic: Arc<Mutex<Vec<FileByNic>>>,
}

/// A file by a NIC, which is named.
type FileByNic = (String, Result<Arc<File>>, Instant);

/// After how long it is tried again to reach a file by a NIC that did not lead there.
const NIC_PAUSE: Duration = Duration::from_mins(1);

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.name())
    }
}

/// Opens a file by its URL.
pub fn open(url: &Url, options: &Options) -> Result<File> {
    let found = find(url, options).map_err(|error| {
        if is_silent(&error) { error.hint(format!("forebay nfs probe '{url}'")) } else { error }
    })?;
    match found.attributes.kind {
        Kind::Regular if url.path.ends_with(b"/") => {
            return Err(Error::new(ErrorKind::InvalidInput, "a file, and no directory")
                .with("url", url)
                .hint("leave out the / behind its name"));
        }
        Kind::Regular => {}
        Kind::Directory => {
            return Err(Error::new(ErrorKind::IsDirectory, "a directory where a file is needed")
                .with("url", url)
                .hint("name a file in it: directories are not listed by URL"));
        }
        Kind::Link => return Err(Status(10029).error("cannot open file", 0).with("url", url)),
        Kind::Other => {
            return Err(Error::new(ErrorKind::Unsupported, "it is no regular file")
                .with("url", url)
                .hint("name a regular file: what devices, pipes and sockets hold is not on the server"));
        }
    }
    let named = Arc::new(job::FileTarget { handle: found.handle, name: url.to_string() });
    found.client.server_of().further.uses(&named);
    Ok(File { client: found.client, named, opened: found.attributes, by_nic: Arc::default() })
}

/// A file or directory of a server.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its server.
    pub client: Arc<Client>,
    /// Its handle.
    pub handle: Handle,
    /// What it is.
    pub attributes: Attributes,
}

/// Finds what a URL names. Versions are tried in the URL's order; the error is that of the version that came furthest.
pub fn find(url: &Url, options: &Options) -> Result<Found> {
    let options = options.clone().checked();
    let mut told: Option<Error> = None;
    for version in &url.versions {
        let error = match find_as(url, *version, &options) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        // Others would fail alike.
        let is_last = is_unreached(&error);
        let error = told.map_or(error.clone(), |first| better(first, error));
        if is_last {
            return Err(error);
        }
        told = Some(error);
    }
    Err(told.unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "no version to try")))
}

/// Whether the server was not reached at all, over TCP or by RDMA, or did not answer.
pub fn is_unreached(error: &Error) -> bool {
    ServerUnreachable::is_why(error) || Why::of(error).is_some() || error.kind() == ErrorKind::Timeout
}

/// Whether the server was reached, but did not answer.
fn is_silent(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout && error.message().ends_with(NO_ANSWER)
}

/// A version that is not spoken says less than one that refuses.
fn better(first: Error, second: Error) -> Error {
    if first.kind() == ErrorKind::Unsupported { second } else { first }
}

fn find_as(url: &Url, version: Version, options: &Options) -> Result<Found> {
    let known = if let Some(known) = known((&url.server, url.port), version, options) {
        known
    } else {
        let addresses = resolve(&url.server, url.port)?;
        Known::new(Server::new(url.server.clone(), addresses, version, options.clone()))
    };
    let (handle, attributes, limits) =
        known.look(|server| look_up(url, server)).map_err(|error| at(url, error))?;
    let Some(known) = known.unless_outdated(limits) else { return find_as(url, version, options) };
    known.server.opened(&handle, &attributes, try_out_at);
    let client = client_of(known, limits).map_err(|error| at(url, error))?;
    Ok(Found { client, handle, attributes })
}

/// The client of a server on which a file was found.
fn client_of(known: Known, limits: Limits) -> Result<Arc<Client>> {
    if let Some(client) = known.client {
        return Ok(client);
    }
    try_out(&known.server)?;
    Ok(new_client(&known.server, limits))
}

/// The error with its URL, and with what to look at where it does not say.
fn at(url: &Url, error: Error) -> Error {
    let error = error.with("url", url);
    if !error.hints().is_empty() {
        return error;
    }
    let server = &url.server;
    let has_status = error.context().iter().any(|(key, _)| *key == "nfs_status");
    match error.kind() {
        _ if error.errno() == libc::ECONNREFUSED => error.hint(format!(
            "nothing listens on port {}: start the server, or name its port: {}",
            url.port,
            url.with_port("PORT")
        )),
        ErrorKind::Io if has_status => error.hint("look at the server's log"),
        ErrorKind::Io | ErrorKind::Unsupported => {
            error.hint(format!("is it an NFS server that listens there? rpcinfo -p {server}"))
        }
        _ => error,
    }
}

/// How the error begins of a file that the server says other things of than the kernel.
pub const OTHER_FACTS: &str = "the server tells other facts of the file than the kernel";

/// The file of a mount of the kernel's, by the handle that the kernel told, else by its path. Calls without bytes go over TCP to the
/// mount's address. Fails where what the server says of the file does not fit: then it is another one. Without `low_ports` these are taken
/// where the server refuses others.
pub fn of_mount(mounted: &Mounted, options: &Options) -> Result<File> {
    let options = options.clone().checked();
    if options.low_ports {
        return of_mount_by(mounted, options);
    }
    let low = Options { low_ports: true, ..options.clone() };
    let server = (mounted.mount.address.to_string(), mounted.mount.tcp_port);
    if is_known((&server.0, server.1), mounted.mount.version, &low) {
        return of_mount_by(mounted, low);
    }
    match of_mount_by(mounted, options) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let why = |by_low| if Status::is_without_low_port(&by_low) { by_low } else { error };
            of_mount_by(mounted, low).map_err(why)
        }
        found => found,
    }
}

/// Whether the server takes calls about a file of a mount from ports that any program may have: an export without `insecure` does not.
/// The error is why neither these nor low ones are taken, or why it did not answer.
pub fn takes_any_port(mounted: &Mounted, options: &Options) -> Result<bool> {
    let by = |low_ports| of_mount_by(mounted, Options { low_ports, ..options.clone() }.checked());
    match by(false) {
        Ok(_) => Ok(true),
        // It has answered.
        Err(error) if error.message().starts_with(OTHER_FACTS) => Ok(true),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            by(true).map(|_| false).map_err(|_| error)
        }
        Err(error) => Err(error),
    }
}

fn of_mount_by(mounted: &Mounted, options: Options) -> Result<File> {
    let mount = &mounted.mount;
    let port = mount.tcp_port;
    let address = mount.address.to_string();
    let known = known((&address, port), mount.version, &options).unwrap_or_else(|| {
        let addresses = vec![SocketAddr::new(mount.address, port)];
        Known::new(Server::new(address.clone(), addresses, mount.version, options.clone()))
    });
    let (handle, opened, limits) = known.look(|server| match &mounted.named {
        Named::Handle(handle) => {
            let (opened, limits) = facts(server, handle)?;
            Ok((*handle, opened, limits))
        }
        Named::Path(path) => {
            let (server_name, path, versions) =
                (address.clone(), path.clone().into_bytes(), vec![mount.version]);
            let url = Url { server: server_name, port, path, versions, mount_port: mount.mount_port };
            look_up(&url, server)
        }
    })?;
    let Some(known) = known.unless_outdated(limits) else { return of_mount_by(mounted, options) };
    if !mounted.agrees(&opened) {
        let what = match &mounted.named {
            Named::Handle(_) => "the handle is another's",
            Named::Path(_) => "its path on the server is another's",
        };
        let text = format!("{OTHER_FACTS}: it has just changed, or {what}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    known.server.opened(&handle, &opened, try_out_at);
    let client = client_of(known, limits)?;
    let name = format!("{}:{} (file {})", mount.server, mount.path, opened.file_id);
    let named = Arc::new(job::FileTarget { handle, name });
    client.server_of().further.uses(&named);
    Ok(File { client, named, opened, by_nic: Arc::default() })
}

/// What a handle is of, and what its server takes.
fn facts(server: &Server, handle: &Handle) -> Result<(Attributes, Limits)> {
    server.renew(0)?;
    let (attributes, limits) = server.facts(handle)?;
    Ok((attributes, limits.map_or_else(|| limits_v3(server, handle), Ok)?))
}

fn new_client(server: &Arc<Server>, limits: Limits) -> Arc<Client> {
    let client = Client::new(server.clone(), server.limits(limits));
    clients::add(&client);
    client
}

/// What a path of a server is, in the server's version.
fn look_up(url: &Url, server: &Server) -> Result<(Handle, Attributes, Limits)> {
    match server.version {
        Version::V3 => look_up_v3(url, server),
        Version::V4(_) => look_up_v4(url, server),
    }
}

// ---- version 4 --------------------------------------------------------------------------------------------------

fn look_up_v4(url: &Url, server: &Server) -> Result<(Handle, Attributes, Limits)> {
    let doing = "cannot open file";
    server.renew(0)?;
    let names = url.names();
    if names.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidInput, "the path has more than 64 names"));
    }
    let said = server.compound(
        doing,
        names.len() as u32 + 3,
        |to| {
            to.u32(op::PUTROOTFH);
            for name in &names {
                to.u32(op::LOOKUP);
                to.opaque(name);
            }
            to.u32(op::GETFH);
            v4::put_getattr(to);
        },
        |from| {
            for expected in std::iter::once(op::PUTROOTFH).chain(names.iter().map(|_| op::LOOKUP)) {
                if let Err(status) = v4::get_op(from, expected)? {
                    return Ok(Err(status));
                }
            }
            match v4::get_handle(from)? {
                Ok(handle) => Ok(v4::get_attributes(from)?.map(|(facts, limits)| (handle, facts, limits))),
                Err(status) => Ok(Err(status)),
            }
        },
    )?;
    said.map_err(|status| explain(status, server, doing))
}

// ---- version 3 --------------------------------------------------------------------------------------------------

fn look_up_v3(url: &Url, server: &Server) -> Result<(Handle, Attributes, Limits)> {
    let names = url.names().len();
    // Linux's server holds on to whatever was mounted, also to a file that is removed: the last name is looked up. An exported
    // directory is mounted: looked up, it would be what the export covers.
    let below = look_up_below(url, server, names.saturating_sub(1));
    let is_final = match &below {
        Ok((_, attributes)) => attributes.kind != Kind::Directory,
        // It would be as silent again.
        Err(error) => is_unreached(error),
    };
    let (handle, attributes) = if is_final { below? } else { look_up_below(url, server, names).or(below)? };
    Ok((handle, attributes, limits_v3(server, &handle)?))
}

fn limits_v3(server: &Server, handle: &Handle) -> Result<Limits> {
    let doing = "cannot look at the file";
    let limits = server.call3(doing, v3::FSINFO, |to| v3::put_handle(to, handle), v3::get_limits)?;
    limits.map_err(|status| explain(status, server, doing))
}

/// Mounts at most `most` names of the path, and looks up the others.
fn look_up_below(url: &Url, server: &Server, most: usize) -> Result<(Handle, Attributes)> {
    let doing = "cannot open file";
    let (mut handle, rest) = mount(url, server, most)?;
    for name in rest {
        let put = |to: &mut Writer<'_>| {
            v3::put_handle(to, &handle);
            to.opaque(name);
        };
        let said = server.call3(doing, v3::LOOKUP, put, v3::get_lookup)?;
        handle = said.map_err(|status| explain(status, server, doing))?;
    }
    Ok((handle, server.facts(&handle)?.0))
}

fn explain(status: Status, server: &Server, doing: &str) -> Error {
    let error = server.error(status, doing);
    if status == Status::NO_ENTRY {
        error.hint(format!("check the export and the path: showmount -e {}", server.name))
    } else {
        error
    }
}

impl File {
    /// Its URL.
    pub fn name(&self) -> &str {
        &self.named.name
    }

    /// Its server.
    pub fn client(&self) -> &Arc<Client> {
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
        let rdma = of.options.rdma.clone().map(|rdma| Rdma { nic: Some(nic.to_owned()), ..rdma });
        let options = Options { rdma, ..of.options.clone() };
        let known = known((&of.name, of.port()), of.version, &options);
        let known = known.unwrap_or_else(|| {
            Known::new(Server::new(of.name.clone(), of.addresses.clone(), of.version, options))
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
    pub fn handle(&self) -> &Handle {
        &self.named.handle
    }

    /// What it was when it was opened.
    pub fn opened(&self) -> &Attributes {
        &self.opened
    }

    /// What it is now.
    pub fn attributes(&self) -> Result<Attributes> {
        self.client.check_process()?;
        let told = self.client.server_of().facts(self.handle());
        told.map(|(attributes, _)| attributes).map_err(|error| error.with("url", self.name()))
    }

    /// Starts a read or a write; `answer` is called once, from any thread, perhaps before this returns. Bytes of a write are
    /// durable when it is answered.
    ///
    /// # Safety
    /// `memory` is valid, and nobody else uses it (for a write: nobody changes it), until the answer.
    pub unsafe fn start(&self, direction: Direction, offset: u64, memory: (*mut u8, usize), answer: Answer) {
        // SAFETY: passed on.
        unsafe { self.client.start(self.request(direction, offset, memory), answer) };
    }

    /// Starts a read of a file that is in this state. Where the server says that it is in another one by now, the answer is an error
    /// ([`ErrorKind::Busy`]), and the memory may have bytes of either; each call's reply is looked at.
    ///
    /// # Safety
    /// As of [`File::start`].
    pub unsafe fn start_in(&self, state: FileState, offset: u64, memory: (*mut u8, usize), answer: Answer) {
        let request = Request { state: Some(state), ..self.request(Direction::Read, offset, memory) };
        // SAFETY: passed on.
        unsafe { self.client.start(request, answer) };
    }

    /// Has the server put a range of the file to `address` of memory that is registered in its client's domain; `answer` is
    /// called once, when nothing can arrive in the range any more, with the bytes that came: fewer where the file ends. This
    /// process does not touch the memory.
    ///
    /// # Safety
    /// Nobody else uses the range until the answer.
    pub unsafe fn place(
        &self,
        offset: u64,
        (address, len): (u64, usize),
        memory: Arc<Registered>,
        answer: Answer,
    ) {
        let range = (std::ptr::without_provenance_mut(address as usize), len);
        let request = self.request(Direction::Read, offset, range);
        if let Err(error) = memory.check(address, len) {
            return answer(Err(request.name(error)));
        }
        // SAFETY: passed on.
        unsafe { self.client.start(Request { registered: Some(memory), ..request }, answer) };
    }

    fn request(&self, direction: Direction, offset: u64, (buffer, len): (*mut u8, usize)) -> Request {
        let file = self.named.clone();
        let durable = self.client.server_of().writes_durably();
        Request { file, direction, offset, buffer, len, registered: None, state: None, durable }
    }

    /// Reads at `offset`, and waits. Fewer bytes: the file ends there.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        // SAFETY: the bytes are borrowed until the answer.
        unsafe { self.run(Direction::Read, offset, (bytes.as_mut_ptr(), bytes.len())) }
    }

    /// Writes at `offset`, and waits until it is durable.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        // SAFETY: the bytes are borrowed until the answer, and only read.
        unsafe { self.run(Direction::Write, offset, (bytes.as_ptr().cast_mut(), bytes.len())) }
    }

    /// # Safety
    /// As of `start`, until this returns.
    unsafe fn run(&self, direction: Direction, offset: u64, memory: (*mut u8, usize)) -> Result<usize> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let answer: Answer = Box::new(move |result| drop(tell.send(result)));
        // SAFETY: passed on.
        unsafe { self.start(direction, offset, memory, answer) };
        told.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a request was not answered")))
    }
}
