//! Files of an NFS server, by forebay's own client: no mount is needed.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_config::{Config, Nfs};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Access, Answer, Facts, Fill, LateNote, ListEntry, Opener, Place, Request, RequestShape, Requests, Source,
    StateToken, Upload,
};

use crate::handle::FileKind;
use crate::read_dir::DirEntry;
use crate::{
    Direction, LeftOutAddress, NewNfsFile, NfsClient, NfsFile, NfsOptions, NfsUrl, RdmaOptions, folder,
};

/// Room for "up to N connections to N addresses".
const UP_TO: usize = 48;

/// Receipts say so where own memory is registered in place of the caller's.
const COPIED: &str = "; bytes are copied once more, because a fork would take registered memory away (kernel before 5.12, or libibverbs before 35)";

/// A file of a server, named by its URL.
pub struct NfsSource {
    file: Arc<NfsFile>,
    access: (bool, bool),
    /// What the server said last.
    len: AtomicU64,
    way: String,
    /// That own memory is registered, or nothing.
    copied: &'static str,
}

/// Silences of a server from a time on.
pub(crate) struct ServerSilences {
    client: Weak<NfsClient>,
    before: (u64, Duration),
    since: Instant,
}

impl ServerSilences {
    /// From now on.
    pub(crate) fn of(client: &Arc<NfsClient>) -> Self {
        Self { client: Arc::downgrade(client), before: client.silences(), since: Instant::now() }
    }

    /// The reason why a transfer that began then was delayed; `None`: it was not delayed.
    pub(crate) fn told(&self) -> Option<String> {
        let client = self.client.upgrade()?;
        let ((times, long), (times_before, long_before)) = (client.silences(), self.before);
        let times = match times - times_before {
            0 => return None,
            1 => String::new(),
            more => format!("{more} times, "),
        };
        // One that had begun before held it up for the rest.
        let seconds = long.saturating_sub(long_before).min(self.since.elapsed()).as_secs();
        Some(format!("held up: server {} was silent {times}for {seconds} s in all", client.server()))
    }
}

impl NfsSource {
    /// A file that a program has opened by [`crate::open()`], with options of its own; `access` is for reading, for writing.
    pub fn new(file: NfsFile, access: (bool, bool)) -> Self {
        let len = AtomicU64::new(file.opened().size);
        let client = file.client();
        let (version, transport, server) = (client.version(), client.transport(), client.server());
        let is_copied = client.is_rdma() && client.domain().is_ok_and(|domain| !domain.copies_at_fork());
        let copied = if is_copied { COPIED } else { "" };
        let way = format!("NFS {version} over {transport}, by forebay's own client: server {server}, ");
        Self { file: Arc::new(file), access, len, way, copied }
    }

    /// Opens it. It is neither made nor cut in place.
    fn open(path: &Path, access: Access) -> Result<Self> {
        let (url, options) = reached(path, "cannot open file")?;
        if access.make {
            let text = "cannot open file: forebay does not truncate or create files on a server in place";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .with("url", &url)
                .hint("save to it (forebay.save_file, forebay cp), or write to one that is there"));
        }
        Ok(Self::new(crate::open(&url, &options)?, (access.read, access.write)))
    }
}

/// What a path names, and the options of the environment.
fn reached(path: &Path, doing: &str) -> Result<(NfsUrl, NfsOptions)> {
    let url = NfsUrl::parse(path)?;
    let config = Config::from_env()?;
    let rdma = match config.nfs {
        Nfs::Auto | Nfs::Tcp => None,
        Nfs::Rdma => {
            let of_machine = RdmaOptions::of_machine();
            Some(of_machine.map_err(|error| error.with("url", &url).hint("FOREBAY_NFS=tcp"))?)
        }
        Nfs::Off => {
            let text = format!("{doing}: FOREBAY_NFS=off refuses URLs");
            return Err(Error::new(ErrorKind::Unsupported, text)
                .with("url", &url)
                .hint("unset FOREBAY_NFS, or name a mounted path"));
        }
    };
    let further = config.nfs_servers.of(&[&url.server]);
    let options = NfsOptions { rdma, connections: config.nfs_connections, further, ..NfsOptions::default() };
    Ok((url, options))
}

/// A new file of a server.
#[derive(Debug)]
struct NfsUpload {
    source: Arc<NfsSource>,
    file: NewNfsFile,
}

impl Upload for NfsUpload {
    fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    /// Whatever is asked for, it is durable: each write is, and what servers do to names.
    fn finish(self: Box<Self>, _durable: bool) -> Result<Vec<String>> {
        self.file.finish()
    }
}

/// How many connections there may be, and to how many addresses, in words.
pub(crate) fn up_to(client: &NfsClient) -> String {
    let mut text = String::new();
    push_up_to(&mut text, client);
    text
}

/// Each receipt has this text: what needs no formatting is not formatted.
fn push_up_to(text: &mut String, client: &NfsClient) {
    match client.connections() {
        1 => text.push_str("1 connection"),
        more => text.extend(["up to ", &more.to_string(), " connections"]),
    }
    match client.addresses_in_use() {
        1 => {}
        addresses => text.extend([" to ", &addresses.to_string(), " addresses"]),
    }
}

/// Addresses of a server that are not used.
pub(crate) fn left_out(client: &NfsClient) -> Vec<(String, String)> {
    let text = |LeftOutAddress { address, reason, hint }| {
        (format!("address {address} of server {} left out: {reason}", client.server()), hint)
    };
    client.left_out().into_iter().map(text).collect()
}

impl fmt::Debug for NfsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl Source for NfsSource {
    fn name(&self) -> String {
        self.file.name().to_owned()
    }

    fn len(&self) -> Result<u64> {
        let len = self.file.attributes()?.size;
        self.len.store(len, Ordering::Relaxed);
        Ok(len)
    }

    /// Where the file was cut meanwhile, reads come short.
    fn len_lately(&self) -> Result<u64> {
        Ok(self.len.load(Ordering::Relaxed))
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    /// Writes are durable when they are done.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn place(&self) -> Option<Result<Arc<dyn Place>>> {
        if self.file.client().is_rdma() {
            return Some(Ok(self.file.clone()));
        }
        let over_tcp = Error::new(ErrorKind::Unsupported, "the file's bytes go over TCP");
        Some(Err(over_tcp.hint("FOREBAY_NFS=rdma")))
    }

    fn late_note(&self) -> Option<LateNote> {
        let silences = ServerSilences::of(self.file.client());
        Some(Box::new(move || silences.told()))
    }

    /// The server is asked.
    fn state(&self) -> Result<Option<StateToken>> {
        Place::state(self.file.as_ref()).map(Some)
    }

    fn facts(&self) -> Facts {
        let client = self.file.client();
        let mut way = String::with_capacity(self.way.len() + self.copied.len() + UP_TO);
        way.push_str(&self.way);
        push_up_to(&mut way, client);
        way.push_str(self.copied);
        Facts { way: Some(way), left_out: left_out(client), file_system: Some("nfs") }
    }

    fn access(&self) -> (bool, bool) {
        self.access
    }
}

impl Requests for NfsSource {
    fn start(&self, request: Request, done: Answer) {
        let allowed = match request.direction {
            Direction::Read => self.access.0,
            Direction::Write => self.access.1,
        };
        if !allowed {
            return done(Err(Error::from_errno(libc::EBADF, "cannot move bytes")
                .with("url", self.file.name())
                .hint("open the file for this direction")));
        }
        // SAFETY: the lane keeps the buffer valid and untouched until the answer.
        unsafe { self.file.start(request.direction, request.offset, request.memory, done) };
    }

    fn shape(&self) -> RequestShape {
        RequestShape { preferred: RequestShape::ANY }
    }
}

/// Opens `nfs://` URLs.
pub(crate) struct NfsOpener;

impl Opener for NfsOpener {
    fn scheme(&self) -> &'static str {
        "nfs"
    }

    fn check(&self, url: &Path) -> Result<()> {
        NfsUrl::parse(url).map(drop)
    }

    fn open(&self, url: &Path, access: Access) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(NfsSource::open(url, access)?))
    }

    fn list(&self, url: &Path) -> Result<Vec<ListEntry>> {
        let (url, options) = reached(url, "cannot list the directory")?;
        let named = |DirEntry { name, kind }| ListEntry {
            name: OsString::from_vec(name),
            is_folder: kind.map(|kind| kind == FileKind::Directory),
        };
        Ok(folder::list(&url, &options)?.into_iter().map(named).collect())
    }

    fn make(&self, url: &Path, mode: u32) -> Result<Box<dyn Upload>> {
        let (url, options) = reached(url, "cannot create file")?;
        let file = crate::make(&url, &options, mode)?;
        let source = Arc::new(NfsSource::new(file.file().clone(), (true, true)));
        Ok(Box::new(NfsUpload { source, file }))
    }

    fn near_miss(&self, path: &Path) -> Option<String> {
        NfsUrl::meant(path)
    }

    /// A URL has its options behind the name, and blanks as %20.
    fn file_name(&self, url: &Path) -> Option<OsString> {
        let path = PathBuf::from(OsString::from_vec(NfsUrl::parse(url).ok()?.path));
        path.file_name().map(OsString::from)
    }
}
