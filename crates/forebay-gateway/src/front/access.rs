//! Who may do what, and what no request may ask for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_s3_rdma::headers::{OTHER_TOKEN, PREFIX};
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::{HeaderMap, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::lend::LocalPeer;
use super::word::RdmaWord;
use crate::accounts::{Account, Accounts, Seat};
use crate::lane::FileLane;
use crate::rdma::Way;
use crate::threads::Turns;

/// Headers that ask for what is not here. To store the object without it would be a lie.
const REFUSED: [(&str, &str); 5] = [
    ("x-amz-server-side-encryption", "encryption by the server"),
    ("x-amz-server-side-encryption-customer-algorithm", "encryption by the server"),
    ("x-amz-object-lock-mode", "object lock"),
    ("x-amz-object-lock-legal-hold", "object lock"),
    ("x-amz-write-offset-bytes", "writing into an object"),
];
/// Access lists that say what is so anyway: the account has all rights, nobody else has any.
const PRIVATE: [&str; 3] = ["private", "bucket-owner-full-control", "bucket-owner-read"];

/// The connection of a request: the account that it belongs to.
#[derive(Default)]
pub(crate) struct Belongs(Mutex<Option<(String, Seat)>>);

impl Belongs {
    /// Whether the account may have this connection, too.
    fn take(&self, account: &Account) -> bool {
        let mut seat = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = &account.entry.access_key;
        if seat.as_ref().is_some_and(|(holder, _)| holder == key) {
            return true;
        }
        *seat = account.sit().map(|seat| (key.clone(), seat));
        seat.is_some()
    }
}

/// What becomes known of a request, for the log and the figures.
#[derive(Default)]
pub(crate) struct Visit {
    pub(crate) belongs: Arc<Belongs>,
    pub(crate) lane: Option<Arc<FileLane>>,
    /// Of a request through the socket of this machine.
    pub(crate) peer: Option<Arc<LocalPeer>>,
    /// Of a TCP connection.
    pub(crate) way: Option<Way>,
    known: Mutex<(&'static str, String)>,
    /// It names an account's key.
    names_key: AtomicBool,
    turns: OnceLock<Turns>,
    word: Mutex<Option<RdmaWord>>,
}

tokio::task_local! {
    /// The request that a task serves now.
    static VISIT: Arc<Visit>;
}

impl Visit {
    /// Serves the request, which its operation finds as [`Visit::current`].
    pub(crate) async fn run<T>(self: &Arc<Self>, serve: impl Future<Output = T>) -> T {
        VISIT.scope(Arc::clone(self), serve).await
    }

    pub(super) fn current() -> Option<Arc<Self>> {
        VISIT.try_with(Arc::clone).ok()
    }

    /// The threads of the account.
    pub(super) fn turns(&self) -> Turns {
        self.turns.get().cloned().unwrap_or_default()
    }

    pub(crate) fn of(
        belongs: &Arc<Belongs>,
        lane: Option<Arc<FileLane>>,
        peer: Option<Arc<LocalPeer>>,
        way: Option<Way>,
    ) -> Arc<Self> {
        Arc::new(Self { belongs: Arc::clone(belongs), lane, peer, way, ..Self::default() })
    }

    /// What the answer says of RDMA.
    pub(super) fn say(&self, word: RdmaWord) {
        *self.word.lock().unwrap_or_else(PoisonError::into_inner) = Some(word);
    }

    /// What it says, where the request asked for it.
    pub(crate) fn word(&self) -> Option<RdmaWord> {
        *self.word.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has a signature of a known key, right or wrong.
    pub(crate) fn names_key(&self) -> bool {
        self.names_key.load(Ordering::Relaxed)
    }

    /// The operation and the account; empty where it did not come so far.
    pub(crate) fn known(&self) -> (&'static str, String) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Secrets for s3s's check of signatures, and what follows it.
pub(crate) struct Gate(Arc<Accounts>);

impl Gate {
    pub(crate) fn new(accounts: &Arc<Accounts>) -> Self {
        Self(Arc::clone(accounts))
    }
}

#[async_trait::async_trait]
impl S3Auth for Gate {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let found = self.0.find(access_key).map(|account| account.entry.secret_key.clone());
        if let Some(visit) = Visit::current().filter(|_| found.is_some()) {
            visit.names_key.store(true, Ordering::Relaxed);
        }
        found.ok_or_else(|| S3Error::new(S3ErrorCode::InvalidAccessKeyId))
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let operation = known_name(cx.s3_op().name());
        let is_signed = operation == "PostObject" || is_version_4(cx.uri(), cx.headers());
        let account = admit(&self.0, cx.credentials(), operation, is_signed)?;
        if account.entry.read_only && !reads(operation) {
            return Err(denied("the account may only read"));
        }
        refuse_unsigned(cx.headers())?;
        refuse_unknown(cx.headers())
    }
}

fn denied(why: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, why)
}

/// The account of a request, which counts as its from now on. `is_signed`: as the operation needs it.
pub(super) fn admit(
    accounts: &Accounts,
    signed: Option<&Credentials>,
    operation: &'static str,
    is_signed: bool,
) -> S3Result<Arc<Account>> {
    let signed = signed.ok_or_else(|| denied("a signature is needed"))?;
    let account = accounts.find(&signed.access_key).ok_or_else(|| denied("the account is gone"))?;
    if !is_signed {
        let why = "the request needs one signature, by AWS4-HMAC-SHA256: forms alone may have version 2";
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
    }
    if let Some(visit) = Visit::current() {
        visit.turns.get_or_init(|| account.turns.clone());
        *visit.known.lock().unwrap_or_else(PoisonError::into_inner) =
            (operation, account.entry.access_key.clone());
        if !visit.belongs.take(&account) {
            return Err(S3Error::with_message(
                S3ErrorCode::SlowDown,
                "the account has all the connections it may",
            ));
        }
    }
    Ok(account)
}

/// Whether a request's signature covers a header. That of a URL covers none that matters.
pub(super) fn signs(headers: &HeaderMap, header: &str) -> bool {
    let signed = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let names = signed.split("SignedHeaders=").nth(1).and_then(|rest| rest.split(',').next());
    names.is_some_and(|names| names.trim().split(';').any(|name| name == header))
}

/// Headers that name a client's memory are signed, each of them.
pub(super) fn refuse_unsigned(headers: &HeaderMap) -> S3Result<()> {
    let is_memory = |name: &str| name.starts_with(PREFIX) || name == OTHER_TOKEN;
    let mut names = headers.keys().map(HeaderName::as_str).filter(|name| is_memory(name));
    if names.all(|name| signs(headers, name)) {
        return Ok(());
    }
    Err(denied("each header x-amz-rdma-… has to be signed"))
}

/// Operations that this server has; a table, so that figures are counted by names that live as long as the program.
const OPERATIONS: [&str; 31] = [
    "ListBuckets",
    "CreateBucket",
    "HeadBucket",
    "DeleteBucket",
    "GetBucketLocation",
    "GetBucketVersioning",
    "GetBucketAcl",
    "PutBucketAcl",
    "ListObjects",
    "ListObjectsV2",
    "ListObjectVersions",
    "PutObject",
    "PostObject",
    "GetObject",
    "HeadObject",
    "DeleteObject",
    "DeleteObjects",
    "CopyObject",
    "GetObjectAttributes",
    "GetObjectAcl",
    "PutObjectAcl",
    "GetObjectTagging",
    "PutObjectTagging",
    "DeleteObjectTagging",
    "CreateMultipartUpload",
    "UploadPart",
    "UploadPartCopy",
    "ListParts",
    "ListMultipartUploads",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
];

/// Whether a request that is no form was signed by version 4, in its head or its URL. Where both have a signature, only that of the URL
/// was checked: nothing in the head is believed.
pub(super) fn is_version_4(uri: &Uri, headers: &HeaderMap) -> bool {
    let query = uri.query().unwrap_or_default();
    let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
    match headers.get(AUTHORIZATION) {
        Some(head) => {
            // A name that is written with `%` may be one of these.
            let is_signature =
                |name: &str| name.contains('%') || name == "X-Amz-Signature" || name == "Signature";
            head.as_bytes().starts_with(b"AWS4-HMAC-SHA256") && !names.any(is_signature)
        }
        None => names.any(|name| name == "X-Amz-Signature"),
    }
}

fn known_name(name: &str) -> &'static str {
    OPERATIONS.into_iter().find(|known| *known == name).unwrap_or("Other")
}

/// Whether an operation leaves all as it is.
fn reads(operation: &str) -> bool {
    ["Get", "Head", "List"].iter().any(|start| operation.starts_with(start))
}

pub(super) fn refuse_unknown(headers: &HeaderMap) -> S3Result<()> {
    if let Some((_, what)) = REFUSED.iter().find(|(name, _)| headers.contains_key(*name)) {
        return Err(S3Error::with_message(S3ErrorCode::NotImplemented, format!("there is no {what} here")));
    }
    let acl = headers.get("x-amz-acl").and_then(|value| value.to_str().ok());
    let grants = headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-"));
    if grants || acl.is_some_and(|acl| !PRIVATE.contains(&acl)) {
        return Err(super::buckets::all_is_private());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads() {
        let reading: Vec<_> = OPERATIONS.into_iter().filter(|name| reads(name)).collect();
        assert_eq!(reading.len(), 15);
        assert!(!reads("Other"));
        assert!(
            !reading.iter().any(|name| ["Put", "Delete", "Create"].iter().any(|verb| name.contains(verb)))
        );
    }

    #[test]
    fn what_is_signed() {
        let head = "AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request";
        let signed = |value: &str| {
            let headers = [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect();
            signs(&headers, "x-forebay-file")
        };
        assert!(signed(&format!("{head}, SignedHeaders=host;x-forebay-file, Signature=ab")));
        assert!(signed(&format!("{head},SignedHeaders=x-forebay-file;z,Signature=ab")));
        assert!(!signed(&format!("{head}, SignedHeaders=host;x-forebay-files, Signature=ab")));
        assert!(!signed(&format!("{head}, SignedHeaders=host, Signature=x-forebay-file")));
        assert!(!signs(&HeaderMap::new(), "x-forebay-file"));
    }

    #[test]
    fn what_is_not_here_is_refused() {
        let code = |name: &'static str, value: &str| {
            let headers = [(name.parse().unwrap(), value.parse().unwrap())].into_iter().collect();
            refuse_unknown(&headers).err().map(|error| error.code().clone())
        };
        assert_eq!(code("x-amz-server-side-encryption", "AES256"), Some(S3ErrorCode::NotImplemented));
        assert_eq!(code("x-amz-acl", "public-read"), Some(S3ErrorCode::AccessControlListNotSupported));
        assert_eq!(code("x-amz-acl", "private"), None);
    }
}
