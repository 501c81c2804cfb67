//! What a server refuses, as an error: what it means, and what to type.

use forebay_error::{Error, ErrorKind, quoted};

use super::xml;
use crate::ObjectUrl;
use crate::account::region_of_aws;
use crate::endpoint::Endpoint;
use crate::wire::call::{Ask, Method, ReplyHead};

/// A refused call.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// The status of the reply; 0: there was none.
    pub(crate) status: u16,
    /// S3's name of it: `NoSuchKey`. Empty: the reply had none.
    pub(crate) code: String,
    /// The region that the bucket is in, where the server says so.
    pub(crate) region: Option<String>,
    /// Sent again it may succeed.
    pub(crate) is_passing: bool,
}

impl Refusal {
    pub(super) fn without_reply(error: Error) -> Self {
        Self { error, status: 0, code: String::new(), region: None, is_passing: false }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::without_reply(error)
    }
}

/// What the body of an error says.
#[derive(Default)]
pub(super) struct Told {
    code: String,
    message: String,
    region: Option<String>,
    /// The host of a redirect.
    endpoint: Option<String>,
    request: Option<String>,
    server_time: Option<String>,
}

impl Told {
    pub(super) fn of(body: &[u8]) -> Self {
        let mut told = Self::default();
        // What is no XML has no code: a proxy's page.
        let _ = xml::read(body, |path, node| {
            if let ([_, name], xml::Node::End(text)) = (path, node) {
                let text = text.chars().take(300).collect::<String>();
                match name.as_str() {
                    "Code" => told.code = text,
                    "Message" => told.message = text,
                    "Region" => told.region = Some(text),
                    "Endpoint" => told.endpoint = Some(text),
                    "RequestId" => told.request = Some(text),
                    "ServerTime" => told.server_time = Some(text),
                    _ => {}
                }
            }
            Ok(())
        });
        told
    }
}

/// The error of a reply that is none of success.
pub(crate) fn refusal(endpoint: &Endpoint, ask: &Ask, head: &ReplyHead, body: &[u8]) -> Refusal {
    let mut told = Told::of(body);
    let leads_to = leads_to(&told, head);
    let region = told.region.take().or_else(|| head.header("x-amz-bucket-region").map(str::to_owned));
    let region = region.filter(|region| !region.is_empty());
    let region = region.or_else(|| region_of_aws(leads_to.as_deref()?).map(str::to_owned));
    let request = told.request.take().or_else(|| head.header("x-amz-request-id").map(str::to_owned));
    let meaning = Meaning::of(head.status, &told.code, ask);
    let mut error = Error::new(meaning.kind, format!("cannot {}: {}", doing(ask), meaning.words));
    if let Some(name) = name(ask) {
        error = error.with("url", name);
    }
    error = error.with("status", head.status);
    if !told.code.is_empty() {
        error = error.with("code", &told.code);
    }
    error = error.with("endpoint", &endpoint.site.host);
    if let Some(host) = &leads_to {
        error = error.with("redirect", forebay_error::plain(host));
    }
    if let Some(request) = request {
        error = error.with("request", request);
    }
    // What is not in the table, the server says best.
    if meaning.hint == Hint::Nothing && !told.message.is_empty() {
        error = error.with("message", &told.message);
    }
    let provider = endpoint.account.provider();
    for hint in meaning.hint.words(ask, provider.as_deref(), region.as_deref(), &told) {
        error = error.hint(hint);
    }
    // AWS's own hosts follow from the region.
    if let Some(host) = leads_to.filter(|host| region_of_aws(host).is_none()) {
        error = error.hint(format!(
            "keys are not sent to hosts that a server names: set AWS_ENDPOINT_URL if {} is the right one",
            forebay_error::plain(&host)
        ));
    }
    // Keys of a provider are asked for anew; not where a reply without a body is for another region.
    let is_elsewhere = region.as_deref().is_some_and(|region| region != endpoint.account.region(&ask.bucket));
    let is_passing = meaning.is_passing
        || meaning.hint == Hint::Expired && !is_elsewhere && endpoint.account.distrust_keys();
    Refusal { error, status: head.status, code: told.code, region, is_passing }
}

/// The host that a redirect leads to.
fn leads_to(told: &Told, head: &ReplyHead) -> Option<String> {
    let url = head.header("location").or(told.endpoint.as_deref())?;
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let is_redirect = matches!(head.status, 301 | 307 | 308) && !host.is_empty();
    is_redirect.then(|| host.to_ascii_lowercase())
}

/// What a request was to do.
fn doing(ask: &Ask) -> &'static str {
    let has = |name: &str| ask.query.iter().any(|(found, _)| found == name);
    match ask.method {
        Method::Get if ask.bucket.is_empty() => "list the buckets",
        Method::Get if ask.key.is_empty() && has("uploads") => "list the unfinished uploads",
        Method::Get if ask.key.is_empty() => "list the bucket",
        Method::Head if ask.key.is_empty() => "look at the bucket",
        Method::Get | Method::Head => "read the object",
        Method::Delete if has("uploadId") => "abort the upload",
        Method::Delete => "remove the object",
        Method::Post if has("delete") => "remove objects",
        Method::Post if has("uploads") => "begin the upload",
        Method::Post => "finish the upload",
        Method::Put if has("partNumber") => "upload a part of the object",
        Method::Put => "write the object",
    }
}

/// The URL that the request is about; `None` for the list of buckets.
fn name(ask: &Ask) -> Option<ObjectUrl> {
    let url = || ObjectUrl { bucket: ask.bucket.clone(), key: ask.key.clone(), version: None };
    (!ask.bucket.is_empty()).then(url)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Nothing,
    Key,
    Bucket,
    Rights,
    Keys,
    Expired,
    Secret,
    Clock,
    Region,
    Load,
}

struct Meaning {
    kind: ErrorKind,
    words: &'static str,
    hint: Hint,
    is_passing: bool,
}

impl Meaning {
    fn of(status: u16, code: &str, ask: &Ask) -> Self {
        use ErrorKind::{
            AlreadyExists, Busy, Corrupt, InvalidInput, Io, NotFound, PermissionDenied, Unsupported,
        };
        let new = |kind, words, hint| Self { kind, words, hint, is_passing: false };
        let passing = |words, hint| Self { kind: Busy, words, hint, is_passing: true };
        match (code, status) {
            ("NoSuchKey" | "NoSuchVersion", _) => new(NotFound, "no such object", Hint::Key),
            ("NoSuchBucket", _) => new(NotFound, "no such bucket", Hint::Bucket),
            ("NoSuchUpload", _) => new(NotFound, "the upload was aborted meanwhile", Hint::Nothing),
            ("InvalidAccessKeyId", _) => {
                new(PermissionDenied, "the server does not know the key", Hint::Keys)
            }
            ("ExpiredToken" | "TokenRefreshRequired", _) => {
                new(PermissionDenied, "the key has expired", Hint::Expired)
            }
            ("InvalidToken", _) => new(PermissionDenied, "the session token is wrong", Hint::Expired),
            ("SignatureDoesNotMatch", _) => new(PermissionDenied, "the signature is wrong", Hint::Secret),
            ("RequestTimeTooSkewed", _) => {
                new(PermissionDenied, "the clock of this machine is wrong", Hint::Clock)
            }
            (
                "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException",
                _,
            ) => new(InvalidInput, "the bucket is in another region", Hint::Region),
            ("PreconditionFailed", _) | ("", 412) if has_header(ask, "if-none-match") => {
                new(AlreadyExists, "an object is there already", Hint::Nothing)
            }
            ("PreconditionFailed", _) | ("", 412) => new(Busy, "the object was replaced", Hint::Nothing),
            ("ConditionalRequestConflict" | "OperationAborted", _) => {
                passing("another request changes it", Hint::Nothing)
            }
            ("BadDigest" | "XAmzContentChecksumMismatch", _) => {
                new(Corrupt, "the bytes changed on the way to the server", Hint::Nothing)
            }
            ("RequestTimeout", _) => passing("the server did not get the bytes in time", Hint::Nothing),
            ("SlowDown" | "ServiceUnavailable" | "TooManyRequests" | "RequestLimitExceeded", _)
            | (_, 429 | 503) => passing("the server has too much to do", Hint::Load),
            ("InternalError", _) | (_, 500 | 502 | 504) => {
                Self { kind: Io, ..passing("the server failed", Hint::Nothing) }
            }
            ("NotImplemented", _) | (_, 501) => new(Unsupported, "the server cannot do it", Hint::Nothing),
            ("InvalidRange", _) | (_, 416) => new(InvalidInput, "the range is beyond its end", Hint::Nothing),
            ("AccessDenied" | "AllAccessDisabled" | "AccountProblem", _) | (_, 401 | 403) => {
                new(PermissionDenied, "access denied", Hint::Rights)
            }
            (_, 301 | 307 | 308) => new(InvalidInput, "the bucket is in another region", Hint::Region),
            (_, 404) if ask.key.is_empty() => new(NotFound, "no such bucket", Hint::Bucket),
            (_, 404) => new(NotFound, "no such object", Hint::Key),
            (_, 400) if ask.method == Method::Head => {
                new(InvalidInput, "the server does not take the request", Hint::Expired)
            }
            _ => new(InvalidInput, "the server does not take the request", Hint::Nothing),
        }
    }
}

fn has_header(ask: &Ask, name: &str) -> bool {
    ask.headers.iter().any(|(found, _)| found == name)
}

impl Hint {
    fn words(self, ask: &Ask, provider: Option<&str>, region: Option<&str>, told: &Told) -> Vec<String> {
        let keys =
            provider.map_or_else(|| "no key was used".to_owned(), |of| format!("the key comes from {of}"));
        match self {
            Self::Nothing => Vec::new(),
            Self::Key => vec![format!("list what is there: forebay s3 ls {}", quoted(&parent(ask)))],
            Self::Bucket => vec!["list the buckets of this key: forebay s3 ls".to_owned()],
            Self::Rights => {
                vec![format!("{keys}: give it the right to this, or use another (AWS_PROFILE=NAME)")]
            }
            Self::Keys => {
                vec![format!("{keys}: check it, and that AWS_ENDPOINT_URL names the server that it is for")]
            }
            Self::Expired => vec![format!("{keys}: get a new one, as by aws sso login")],
            Self::Secret => vec![format!("{keys}: check AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN")],
            Self::Clock => {
                let server = told.server_time.as_ref().map(|time| format!(" (the server has {time})"));
                vec![format!(
                    "set the clock{}: as root, timedatectl set-ntp true",
                    server.unwrap_or_default()
                )]
            }
            Self::Region => vec![match region {
                Some(region) => format!("export AWS_REGION={}", forebay_error::plain(region)),
                None => "set AWS_REGION to the bucket's region".to_owned(),
            }],
            Self::Load => vec!["try again later, or with fewer programs at a time".to_owned()],
        }
    }
}

/// The prefix that an object is in.
fn parent(ask: &Ask) -> String {
    let end = ask.key.rfind('/').map_or(0, |at| at + 1);
    ObjectUrl { bucket: ask.bucket.clone(), key: ask.key[..end].to_owned(), version: None }.to_string()
}
