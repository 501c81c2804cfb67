//! Objects by their files: a process of this machine asks through the socket, and gets a descriptor beside the answer.
//!
//! | request | `x-forebay-file` | what it gets |
//! |---|---|---|
//! | GET | `read` | the object's file; with `upgrade: forebay-files` the connection lends more by their paths ([`FileGrant`]) |
//! | PUT | `write` | a new file, which is the connection's until it ends |
//! | PUT | `publish` | the object is that file, of the length that `x-forebay-length` says |
//!
//! Where the client, or another process that has the descriptor from it, still has the file open for writing, `publish` answers 409
//! `StillOpen`; with `x-forebay-still-open: copy` the object is a copy of it.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use hyper::upgrade::OnUpgrade;
use s3s::auth::Credentials;
use s3s::dto::*;
use s3s::path::{S3Path, parse_path_style};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::access::{Belongs, Visit, signs};
use super::codes::{answer, answer_read};
use super::conditions::{read_terms, write_condition};
use super::objects::described;
use super::said::{meta_of, path_of, tag_of};
use super::sums::{Algorithm, kind};
use super::{Front, blocking};
use crate::accounts::{Account, AccountEntry, Accounts};
use crate::store::{Draft, Facts, Lent, Progress, TakenBack};
use crate::threads::is_own;

/// The header that asks for a file.
const ASKS: &str = "x-forebay-file";
/// What a connection becomes by `upgrade`, where it is to lend files and nothing else.
pub(crate) const FILES: &str = "forebay-files";

/// A process of this machine, as its connection is seen.
#[derive(Default)]
pub(crate) struct LocalPeer {
    parcel: Mutex<Option<Parcel>>,
    draft: Mutex<Option<HandedDraft>>,
    /// It is being published: it may come back.
    publishes: AtomicBool,
    grant: Mutex<Option<FileGrant>>,
}

/// Ends when the draft is published, or is the connection's again.
struct Publishing(Arc<LocalPeer>);

impl Publishing {
    fn begin(peer: &Arc<LocalPeer>) -> Self {
        peer.publishes.store(true, Ordering::SeqCst);
        Self(Arc::clone(peer))
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.0.publishes.store(false, Ordering::SeqCst);
    }
}

/// A new object that the process writes. It goes when the connection ends.
struct HandedDraft {
    draft: Box<dyn Draft>,
    entry: AccountEntry,
    bucket: String,
    key: String,
    seen: Option<Seen>,
}

/// A draft's file when it was looked at.
struct Seen {
    progress: Progress,
    since: Instant,
}

impl HandedDraft {
    /// Whether the file changed within this time, as far as looks at it show.
    fn is_active(&mut self, within: Duration) -> bool {
        let progress = self.draft.progress().unwrap_or_default();
        match &self.seen {
            Some(seen) if seen.progress == progress => seen.since.elapsed() < within,
            _ => {
                self.seen = Some(Seen { progress, since: Instant::now() });
                true
            }
        }
    }

    /// Whether an account as it is now may publish it by this name.
    fn is_of(&self, entry: &AccountEntry, bucket: &str, key: &str) -> bool {
        let rights = |entry: &AccountEntry| (entry.directory.clone(), entry.uid, entry.gid);
        self.entry.access_key == entry.access_key
            && rights(&self.entry) == rights(entry)
            && (self.bucket.as_str(), self.key.as_str()) == (bucket, key)
    }
}

/// A descriptor that goes out with the next bytes of the answer.
pub(crate) struct Parcel {
    pub(crate) file: OwnedFd,
    /// Bytes of the object.
    pub(crate) len: u64,
    /// Of the object's file, in nanoseconds since 1970.
    pub(crate) modified: i64,
}

impl LocalPeer {
    /// Whether a draft is its own: the connection is quiet while it is written.
    pub(crate) fn has_draft(&self) -> bool {
        self.publishes.load(Ordering::SeqCst) || self.draft().is_some()
    }

    /// Whether the account of its draft may still write it.
    pub(crate) fn may_write(&self, accounts: &Accounts) -> bool {
        self.draft().as_ref().is_none_or(|handed| {
            let account = accounts.find(&handed.entry.access_key);
            account.is_some_and(|account| {
                !account.entry.read_only && handed.is_of(&account.entry, &handed.bucket, &handed.key)
            })
        })
    }

    /// Whether its draft's file changed within this time. Asks the file system.
    pub(crate) fn is_active(&self, within: Duration) -> bool {
        self.draft().as_mut().is_some_and(|handed| handed.is_active(within))
    }

    /// What its last request got, if that asked for more than a file.
    pub(crate) fn grant(&self) -> MutexGuard<'_, Option<FileGrant>> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draft(&self) -> MutexGuard<'_, Option<HandedDraft>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes out next; a guard, since it goes when the socket takes it.
    pub(crate) fn parcel(&self) -> MutexGuard<'_, Option<Parcel>> {
        self.parcel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process that asks for a file, and for which of these ways; `None`: the request is one as any other.
pub(super) fn asking<T>(
    request: &S3Request<T>,
    ways: &[&'static str],
) -> S3Result<Option<(Arc<LocalPeer>, &'static str)>> {
    let Some(asked) = request.headers.get(ASKS) else { return Ok(None) };
    let refused = |code, why: &'static str| Err(S3Error::with_message(code, why));
    // A URL that was signed, or a head that was overheard, gives bytes and no descriptor.
    if !signs(&request.headers, ASKS) {
        return refused(S3ErrorCode::AccessDenied, "the header x-forebay-file is not signed");
    }
    let Some(way) = ways.iter().find(|way| asked.as_bytes() == way.as_bytes()) else {
        return refused(S3ErrorCode::InvalidArgument, "the operation has no such x-forebay-file");
    };
    let peer = Visit::current().and_then(|visit| visit.peer.clone());
    match peer {
        Some(peer) => Ok(Some((peer, way))),
        None => refused(S3ErrorCode::NotImplemented, "files go through the gateway's socket alone"),
    }
}

/// The file is not handed out. The client reads the object as any other.
fn kept(why: &'static str) -> S3Error {
    conflict("NotByFile", why)
}

fn conflict(code: &'static str, why: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), why);
    error.set_status_code(hyper::StatusCode::CONFLICT);
    error
}

/// The key that a connection stands for, once a request that it signed got a file.
pub(crate) struct FileGrant {
    signed: Credentials,
    pub(crate) upgrade: OnUpgrade,
    /// The connection counts as the account's.
    _belongs: Arc<Belongs>,
}

impl FileGrant {
    /// The account as it is now. `None`: it is gone, or has another secret.
    pub(crate) fn account(&self, accounts: &Accounts) -> Option<Arc<Account>> {
        let account = accounts.find(&self.signed.access_key)?;
        let is_same = account.entry.secret_key.expose() == self.signed.secret_key.expose();
        is_same.then_some(account)
    }
}

/// A file, and the head of the answer that it goes out with.
pub(crate) struct LentFile {
    pub(crate) head: String,
    pub(crate) parcel: Parcel,
}

impl LentFile {
    /// Opens the object of a request's path, if it has this ETag. Blocks. `None`: the answer to a request says why not.
    pub(crate) async fn open(account: &Account, path: &str, etag: Option<&str>) -> Option<Self> {
        let S3Path::Object { bucket, key } = parse_path_style(&path_of(path)?).ok()? else { return None };
        let _turn = account.turns.take().await?;
        let Ok(Lent::File(opened)) = account.store.lend(&bucket, &key) else { return None };
        let facts = &opened.facts;
        let ours = format!("\"{}\"", facts.etag);
        let head = head_of(facts, &ours).filter(|_| etag.is_none_or(|etag| etag == ours))?;
        let (len, modified) = (facts.len, nanoseconds(facts));
        Some(Self { head, parcel: Parcel { file: opened.file.into(), len, modified } })
    }
}

/// The headers that a request for the file gets. Records of objects are files' attributes, which other programs write: `None` for a value
/// that is none of a header.
fn head_of(facts: &Facts, etag: &str) -> Option<String> {
    let mut head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\netag: {etag}\r\nx-forebay-length: {}\r\nx-forebay-modified: {}\r\n",
        facts.len,
        nanoseconds(facts)
    );
    if let Some(sum) = &facts.meta.checksum {
        let (name, value) = (Algorithm::of(&sum.algorithm).ok()?.header(), &sum.value);
        let _ = write!(head, "{name}: {value}\r\nx-amz-checksum-type: {}\r\n", kind(sum).as_str());
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
    }
    head.push_str("\r\n");
    etag.bytes().all(|byte| byte.is_ascii_graphic()).then_some(head)
}

impl Front {
    /// GET with the file in place of its bytes.
    pub(super) async fn lend(
        &self,
        mut request: S3Request<GetObjectInput>,
        peer: Arc<LocalPeer>,
    ) -> S3Result<GetObjectOutput> {
        let store = self.store(request.credentials.as_ref())?;
        let grant = granted(&mut request);
        let input = request.input;
        if input.range.is_some() || input.part_number.is_some() {
            let why = "a file is handed out whole";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
        }
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let opened = blocking(move || match store.lend(&bucket, &key).map_err(answer_read)? {
            Lent::File(opened) => Ok(opened),
            Lent::Kept(why) => Err(kept(why)),
        })
        .await?;
        let terms = read_terms!(input);
        terms.check(&opened.facts)?;
        *peer.parcel() = Some(Parcel {
            file: opened.file.into(),
            len: opened.facts.len,
            modified: nanoseconds(&opened.facts),
        });
        *peer.grant() = grant;
        Ok(described(&opened.facts, input.checksum_mode.as_ref()))
    }
}

/// What a request gets beside its file, where it asks for more, and its connection has a thread that may wait for files.
fn granted<T>(request: &mut S3Request<T>) -> Option<FileGrant> {
    let asked = request.headers.get(UPGRADE)?;
    let upgrade = request.extensions.remove::<OnUpgrade>()?;
    let (signed, visit) = (request.credentials.clone()?, Visit::current()?);
    let is_granted = asked.as_bytes() == FILES.as_bytes() && is_own() && !has_bytes(&request.headers);
    is_granted.then(|| FileGrant { signed, upgrade, _belongs: Arc::clone(&visit.belongs) })
}

impl Front {
    /// PUT by a file: the client gets one to write to, or publishes it.
    pub(super) async fn put_file(
        &self,
        request: S3Request<PutObjectInput>,
        peer: Arc<LocalPeer>,
        way: &str,
    ) -> S3Result<PutObjectOutput> {
        if has_body(&request.headers) {
            let why = "a request for a file has no body";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
        }
        if way == "publish" { self.publish(request, peer).await } else { self.hand_out(request, peer).await }
    }

    async fn hand_out(
        &self,
        request: S3Request<PutObjectInput>,
        peer: Arc<LocalPeer>,
    ) -> S3Result<PutObjectOutput> {
        let account = self.account(request.credentials.as_ref())?;
        let (bucket, key) = (request.input.bucket, request.input.key);
        blocking(move || {
            let mut draft = account.store.begin(&bucket, &key, None).map_err(answer)?;
            let file = draft.hand_out().map_err(answer)?.ok_or_else(|| kept("the object is a directory"))?;
            *peer.parcel() = Some(Parcel { file: file.into(), len: 0, modified: 0 });
            *peer.draft() =
                Some(HandedDraft { draft, entry: account.entry.clone(), bucket, key, seen: None });
            Ok(PutObjectOutput::default())
        })
        .await
    }

    async fn publish(
        &self,
        request: S3Request<PutObjectInput>,
        peer: Arc<LocalPeer>,
    ) -> S3Result<PutObjectOutput> {
        let account = self.account(request.credentials.as_ref())?;
        let (headers, input) = (request.headers, request.input);
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let meta = meta_of(&headers, input.metadata, input.tagging.as_deref())?;
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let len: Option<u64> = header("x-forebay-length").and_then(|len| len.parse().ok());
        let len = len.ok_or_else(|| S3Error::new(S3ErrorCode::MissingContentLength))?;
        let copies = header("x-forebay-still-open") == Some("copy");
        blocking(move || {
            let _publishing = Publishing::begin(&peer);
            let handed = peer.draft().take();
            let handed = handed.filter(|handed| handed.is_of(&account.entry, &input.bucket, &input.key));
            let Some(HandedDraft { draft, entry, bucket, key, seen }) = handed else {
                let why = "the connection has no file for this object";
                return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
            };
            match draft.take_back(len, copies).map_err(answer)? {
                TakenBack::Open(draft) => {
                    *peer.draft() = Some(HandedDraft { draft, entry, bucket, key, seen });
                    Err(conflict("StillOpen", "the file is open: close it before it is published"))
                }
                TakenBack::Whole(_, found) if found != len => Err(S3Error::new(S3ErrorCode::IncompleteBody)),
                TakenBack::Whole(draft, _) => {
                    let facts = draft.publish(len, meta, &condition).map_err(answer)?;
                    Ok(PutObjectOutput { e_tag: tag_of(&facts.etag), ..PutObjectOutput::default() })
                }
            }
        })
        .await
    }
}

fn nanoseconds(facts: &Facts) -> i64 {
    match facts.modified.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i64,
        Err(before) => -(before.duration().as_nanos() as i64),
    }
}

/// A body, or a checksum of one: bytes of a file are not looked at.
fn has_body(headers: &HeaderMap) -> bool {
    let has_sum = headers.keys().any(|name| name.as_str().starts_with("x-amz-checksum-"));
    has_bytes(headers) || headers.contains_key("content-md5") || has_sum
}

fn has_bytes(headers: &HeaderMap) -> bool {
    let len = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()).unwrap_or("0");
    len != "0" || headers.contains_key(TRANSFER_ENCODING)
}
