//! Objects of a gateway on this node, by their files: engines read them as files of this machine.

mod draft;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Facts, Fill, Source, StateToken, StoredSum};
use rustix::fs::{FileType, OFlags, Stat, fcntl_getfl, fstat};

use crate::calls::checked::CheckedObject;
use crate::calls::etag::{replaced, strong};
use crate::calls::{Bucket, ObjectHead, refusal};
use crate::endpoint::Endpoint;
use crate::local::{LocalReply, LocalSocket, SWITCHED};
use crate::url::ObjectUrl;
use crate::wire::call::{Ask, Body, Heads, Method};
pub(crate) use draft::ObjectDraft;

/// An object, and the file that has its bytes. It stays readable where the object is replaced or removed, as an open file does.
pub(crate) struct ObjectFile {
    url: ObjectUrl,
    endpoint: Arc<Endpoint>,
    head: ObjectHead,
    file: OwnedFd,
    /// When it had its ETag.
    opened: FileState,
}

/// What changes where another program writes into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    len: u64,
    /// Nanoseconds since 1970.
    modified: i64,
}

impl FileState {
    fn of(stat: &Stat) -> Self {
        #[allow(clippy::unnecessary_cast, reason = "the types are others on other machines")]
        let (seconds, rest) = (stat.st_mtime as i64, stat.st_mtime_nsec as i64);
        let modified = seconds.saturating_mul(1_000_000_000) + rest;
        Self { len: u64::try_from(stat.st_size).unwrap_or_default(), modified }
    }
}

/// How bytes go, for receipts.
fn way(endpoint: &Endpoint) -> String {
    let Endpoint { account, site, .. } = endpoint;
    let keys = account.provider().map_or("without keys".to_owned(), |provider| format!("keys of {provider}"));
    format!("S3 gateway on this node, by its file: {}, {keys}", site.name())
}

/// Why an object goes by S3 where its file was tried, for receipts, and what to do.
pub(crate) fn left_out(why: &Error) -> (String, String) {
    let hint = "docs/guides/gateway.md says what the file needs; to leave it: FOREBAY_S3_LOCAL=off";
    (format!("not by its file on this node: {why}"), hint.to_owned())
}

/// The error where a file is required and cannot be had.
pub(crate) fn required(url: &ObjectUrl, why: Option<&Error>) -> Error {
    let text = match why {
        Some(why) => format!("cannot reach the object by its file: {why}"),
        None => "cannot reach the object by its file: no gateway on this node announces itself".to_owned(),
    };
    Error::new(ErrorKind::Unsupported, text).with("url", url).hint("FOREBAY_S3_LOCAL=auto")
}

impl ObjectFile {
    /// Opens an object by its file, that with this ETag where one is given. `None`: no gateway on this node has announced itself.
    pub(crate) fn open(bucket: &Bucket, url: &ObjectUrl, etag: Option<&str>) -> Option<Result<Self>> {
        let endpoint = bucket.endpoint.clone();
        let socket = endpoint.local.socket()?;
        Some(socket.and_then(|socket| {
            let mut ask = bucket.ask(Method::Get, &url.key);
            let reply = replied(&endpoint, &socket, &mut ask, strong(etag))?;
            Self::of_reply(endpoint, url, &ask, reply)
        }))
    }

    fn of_reply(endpoint: Arc<Endpoint>, url: &ObjectUrl, ask: &Ask, reply: LocalReply) -> Result<Self> {
        let LocalReply { head, body, file } = reply;
        if !matches!(head.status, 200 | SWITCHED) {
            return Err(refusal(&endpoint, ask, &head, &body).error);
        }
        let strange = |what: &str| Error::new(ErrorKind::Corrupt, format!("the gateway sent {what}"));
        let number = |name| head.header(name).and_then(|text| text.parse::<i64>().ok());
        let (len, modified) = (number("x-forebay-length"), number("x-forebay-modified"));
        let len = len.and_then(|len| u64::try_from(len).ok());
        let (Some(file), Some(len), Some(modified)) = (file, len, modified) else {
            return Err(strange("no file"));
        };
        let cannot = |errno: rustix::io::Errno| {
            Error::from_errno(errno.raw_os_error(), "cannot examine the file that the gateway sent")
        };
        let stat = fstat(&file).map_err(cannot)?;
        let is_read_only = (fcntl_getfl(&file).map_err(cannot)? & OFlags::RWMODE) == OFlags::RDONLY;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_read_only {
            return Err(strange("what is no file for reading"));
        }
        // As it was when the gateway made the ETag: a program may have written into it since.
        let opened = FileState { len, modified };
        Ok(Self { url: url.clone(), endpoint, head: ObjectHead::of_len(&head, len), file, opened })
    }

    fn now(&self) -> Result<FileState> {
        let stat = fstat(&self.file)
            .map_err(|errno| Error::from_errno(errno.raw_os_error(), "cannot examine the object's file"))?;
        Ok(FileState::of(&stat))
    }
}

/// The reply to a request for a file: on a connection that lends files where there is one, else to a signed request that asks for one.
fn replied(
    endpoint: &Endpoint,
    socket: &Arc<LocalSocket>,
    ask: &mut Ask,
    etag: Option<&str>,
) -> Result<LocalReply> {
    let lose = |error: Error| {
        let error = error.with("path", socket.path().display());
        endpoint.local.lose(socket, &error);
        error
    };
    let keys = endpoint.account.keys()?;
    if let Some(keys) = &keys
        && let Some(reply) = socket.borrow(keys, &endpoint.account.path(ask)?, etag).map_err(lose)?
    {
        return Ok(reply);
    }
    let headers = [
        ("x-forebay-file", Some("read")),
        ("x-amz-checksum-mode", Some("ENABLED")),
        ("connection", Some("upgrade")),
        ("upgrade", Some("forebay-files")),
        ("if-match", etag),
    ];
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    ask.headers.extend(headers);
    let head = endpoint.account.head(ask, &Body::None)?;
    socket.ask(&head, keys).map_err(lose)
}

impl fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectFile({})", self.url)
    }
}

impl Source for ObjectFile {
    fn name(&self) -> String {
        self.url.to_string()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.head.len)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Descriptor(self.file.as_fd())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// As that of an object that is read by S3, unless a program wrote into the file.
    fn state(&self) -> Result<Option<StateToken>> {
        let Some(etag) = &self.head.etag else { return Ok(None) };
        let now = self.now()?;
        let len = self.head.len;
        let content =
            if now == self.opened { format!("{len} {etag}") } else { format!("{len} {etag} {now:?}") };
        Ok(Some(StateToken::new(content.as_bytes())))
    }

    fn stored_sum(&self) -> Option<Result<Box<dyn StoredSum>>> {
        let sum = self.now().and_then(|now| {
            if now != self.opened {
                return Err(replaced(self.head.etag.as_deref(), None).with("url", &self.url));
            }
            CheckedObject::of(&self.head)
        });
        Some(sum.map(|sum| Box::new(sum) as Box<dyn StoredSum>))
    }

    fn facts(&self) -> Facts {
        Facts { way: Some(way(&self.endpoint)), ..Facts::default() }
    }

    fn access(&self) -> (bool, bool) {
        (true, false)
    }
}
