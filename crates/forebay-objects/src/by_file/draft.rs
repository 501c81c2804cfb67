//! New objects, written by their file: engines write it as a file of this machine, and the gateway gives it the object's name.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_source::{Facts, Fill, Source, StateToken, Upload};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fdatasync, fstat};

use super::way;
use crate::calls::{Bucket, refusal};
use crate::endpoint::Endpoint;
use crate::local::{LocalConnection, LocalReply};
use crate::url::ObjectUrl;
use crate::wire::call::{Ask, Body, Heads, Method};

/// How long the file may stay open behind the last write, in lanes that close it when they have nothing more to do. Then the gateway
/// makes a copy.
const CLOSING: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A new object; dropped before it is finished, nothing of it remains.
pub(crate) struct ObjectDraft {
    url: ObjectUrl,
    bucket: Bucket,
    /// The draft is this connection's.
    connection: LocalConnection,
    file: Arc<DraftFile>,
    process: ProcessId,
}

/// Its file.
struct DraftFile {
    url: ObjectUrl,
    endpoint: Arc<Endpoint>,
    file: OwnedFd,
}

impl ObjectDraft {
    /// Begins one. `None`: no gateway on this node has announced itself.
    pub(crate) fn begin(bucket: &Bucket, url: &ObjectUrl) -> Option<Result<Self>> {
        let socket = bucket.endpoint.local.socket()?;
        Some(socket.and_then(|socket| {
            let endpoint = bucket.endpoint.clone();
            let ask = ask(bucket, url, "write", &[]);
            let head = endpoint.account.head(&ask, &Body::None)?;
            let begun = socket.begin(&head).inspect_err(|error| endpoint.local.lose(&socket, error));
            let (reply, connection) = begun?;
            let file = file_of(&endpoint, &ask, reply)?;
            let file = Arc::new(DraftFile { url: url.clone(), endpoint, file });
            let (url, bucket, process) = (url.clone(), bucket.clone(), ProcessId::current());
            Ok(Self { url, bucket, connection, file, process })
        }))
    }

    /// Closes the file, where nobody else holds it, and has it published.
    fn finish_now(self) -> Result<()> {
        self.process.check()?;
        let len = self.file.len()?;
        let Self { file, url, bucket, connection, .. } = self;
        drop(file);
        let closed = ClosedDraft { url, bucket, connection };
        let (mut pause, until) = (Duration::from_millis(1), Instant::now() + CLOSING);
        loop {
            let is_late = Instant::now() >= until;
            if closed.try_publish(len, is_late)? {
                return Ok(());
            }
            forebay_remote::stop::sleep(pause)?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// One whose bytes are written.
struct ClosedDraft {
    url: ObjectUrl,
    bucket: Bucket,
    connection: LocalConnection,
}

impl ClosedDraft {
    /// `false`: the file is still open.
    fn try_publish(&self, len: u64, copies: bool) -> Result<bool> {
        let mut headers = vec![("x-forebay-length", len.to_string())];
        if copies {
            headers.push(("x-forebay-still-open", "copy".to_owned()));
        }
        let endpoint = &self.bucket.endpoint;
        let ask = ask(&self.bucket, &self.url, "publish", &headers);
        let LocalReply { head, body, .. } = self
            .connection
            .ask_of(&endpoint.account.head(&ask, &Body::None)?, len)
            .map_err(|error| error.hint("check the object: it may be the new one already"))?;
        if head.status == 200 {
            return Ok(true);
        }
        let refusal = refusal(endpoint, &ask, &head, &body);
        if refusal.code == "StillOpen" && !copies { Ok(false) } else { Err(refusal.error) }
    }
}

fn ask(bucket: &Bucket, url: &ObjectUrl, way: &str, headers: &[(&str, String)]) -> Ask {
    let mut ask = bucket.ask(Method::Put, &url.key);
    ask.headers.push(("x-forebay-file".to_owned(), way.to_owned()));
    ask.headers.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    ask
}

fn file_of(endpoint: &Endpoint, ask: &Ask, reply: LocalReply) -> Result<OwnedFd> {
    let LocalReply { head, body, file } = reply;
    if head.status != 200 {
        return Err(refusal(endpoint, ask, &head, &body).error);
    }
    let is_for_writing = |file: &OwnedFd| {
        let is_file =
            fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        is_file && fcntl_getfl(file).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
    };
    file.filter(is_for_writing)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the gateway sent no file for writing"))
}

impl fmt::Debug for ObjectDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectDraft({})", self.url)
    }
}

impl Upload for ObjectDraft {
    fn source(&self) -> Arc<dyn Source> {
        self.file.clone()
    }

    /// The gateway makes it durable, unless it was started without that.
    fn finish(self: Box<Self>, _durable: bool) -> Result<Vec<String>> {
        let url = self.url.clone();
        self.finish_now().map_err(|error| error.with("url", &url))?;
        Ok(Vec::new())
    }
}

impl fmt::Debug for DraftFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DraftFile({})", self.url)
    }
}

impl Source for DraftFile {
    fn name(&self) -> String {
        self.url.to_string()
    }

    fn len(&self) -> Result<u64> {
        let stat = fstat(&self.file)
            .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot examine the object's file"))?;
        Ok(u64::try_from(stat.st_size).unwrap_or_default())
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Descriptor(self.file.as_fd())
    }

    fn sync(&self) -> Result<()> {
        fdatasync(&self.file)
            .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot make the file durable"))
    }

    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }

    fn facts(&self) -> Facts {
        Facts { way: Some(way(&self.endpoint)), ..Facts::default() }
    }
}
