//! What a server refuses, as an error: what it means, and what to type.

use forebay_error::{Error, ErrorKind, quoted};
use forebay_remote::endpoint::ServerUnreachable;

use crate::ObjectUrl;
use crate::account::{SITES, checked_region, region_of_aws};
use crate::endpoint::Endpoint;
use crate::wire::call::{Ask, Method, ReplyHead};
use crate::xml;

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
    /// It was sent again until it had failed for long enough: the server is gone.
    pub(crate) is_gone: bool,
}

impl Refusal {
    pub(super) fn without_reply(error: Error) -> Self {
        // A name that leads nowhere.
        let is_gone = error.is_caused_by::<ServerUnreachable>();
        Self { error, status: 0, code: String::new(), region: None, is_passing: false, is_gone }
    }

    /// That of a call that has failed for long enough.
    pub(super) fn gone(error: Error) -> Self {
        Self { is_gone: true, ..Self::without_reply(error) }
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
    // It goes into hints, which are pasted into shells.
    let region = region.and_then(|region| checked_region(&region).ok());
    let of_aws = leads_to.as_ref().and_then(|(_, host)| region_of_aws(host));
    let region = region.or_else(|| checked_region(of_aws?).ok());
    let request = told.request.take().or_else(|| head.header("x-amz-request-id").map(str::to_owned));
    let of_code = Meaning::of_code(&told.code, ask);
    let is_known = of_code.is_some() && told.code != "AccessDenied";
    let mut meaning = of_code.unwrap_or_else(|| Meaning::of_status(head.status, &told.code, ask));
    // AWS's own hosts follow from the region.
    let foreign = leads_to.as_ref().filter(|(_, host)| is_plain_host(host) && region_of_aws(host).is_none());
    if head.status == 407 {
        meaning = Meaning::of_proxy();
    } else if foreign.is_some() && meaning.hint == Hint::Region && region.is_none() {
        (meaning.words, meaning.hint) = ("the server sends requests on to another endpoint", Hint::Nothing);
    }
    let words = format!("cannot {}: {}", doing(ask), meaning.words);
    let mut error = Error::new(meaning.kind, words);
    if let Some(name) = name(ask) {
        error = error.with("url", name);
    }
    error = error.with("status", head.status);
    if !told.code.is_empty() {
        error = error.with("code", &told.code);
    }
    error = error.with("server", endpoint.site.name());
    if let Some(site) = endpoint.account.site_name() {
        error = error.with("site", site);
    }
    if let Some((_, host)) = &leads_to {
        error = error.with("redirect", forebay_error::plain(host));
    }
    if let Some(request) = request {
        error = error.with("request", request);
    }
    if let Some(time) = told.server_time.as_ref().filter(|_| meaning.hint == Hint::Clock) {
        error = error.with("server_time", time);
    }
    // What is not in the table, and who may not do what, the server says best.
    if (meaning.hint == Hint::Nothing || !is_known) && !told.message.is_empty() {
        error = error.with("message", &told.message);
    }
    let provider = endpoint.account.provider();
    let site = endpoint.account.site_name();
    if let Some(hint) = meaning.hint.words(ask, site, provider.as_deref(), region.as_deref()) {
        error = error.hint(hint);
    }
    if let Some((scheme, host)) = foreign {
        error = error.hint(format!(
            "credentials are not sent to hosts that a server names; if it is the right one: \
             export AWS_ENDPOINT_URL={scheme}://{host}"
        ));
    }
    // Keys of a provider are asked for anew; not where a reply without a body is for another region.
    let is_elsewhere = region.as_deref().is_some_and(|region| region != endpoint.account.region(&ask.bucket));
    let is_passing =
        meaning.is_passing || meaning.may_be_expired && !is_elsewhere && endpoint.account.distrust_keys();
    Refusal { error, status: head.status, code: told.code, region, is_passing, is_gone: false }
}

/// Scheme and host that a redirect leads to.
fn leads_to(told: &Told, head: &ReplyHead) -> Option<(&'static str, String)> {
    let url = head.header("location").or(told.endpoint.as_deref())?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let is_redirect = matches!(head.status, 301 | 307 | 308) && !host.is_empty();
    let scheme = if scheme.eq_ignore_ascii_case("http") { "http" } else { "https" };
    is_redirect.then(|| (scheme, host.to_ascii_lowercase()))
}

/// Whether it may stand in a line that is pasted into a shell.
fn is_plain_host(host: &str) -> bool {
    host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
}

/// The error of a call without a reply, with what it was about.
pub(super) fn about(error: Error, endpoint: &Endpoint, ask: &Ask) -> Error {
    let error = name(ask).into_iter().fold(error, |error, name| error.with("url", name));
    let has_server = error.context().iter().any(|(key, _)| *key == "server");
    let error = if has_server { error } else { error.with("server", endpoint.site.name()) };
    match endpoint.account.site_name() {
        Some(site) => error.with("site", site),
        None => error,
    }
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
    let url = || ObjectUrl { site: None, bucket: ask.bucket.clone(), key: ask.key.clone(), version: None };
    (!ask.bucket.is_empty()).then(url)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Nothing,
    Object,
    Bucket,
    Rights,
    Credentials,
    Expired,
    Secret,
    Clock,
    Region,
    Load,
    /// `forebay doctor` asks in a way that is answered with a reason.
    Doctor,
    Proxy,
}

struct Meaning {
    kind: ErrorKind,
    words: &'static str,
    hint: Hint,
    is_passing: bool,
    /// Other credentials of the same provider may do.
    may_be_expired: bool,
}

impl Meaning {
    fn new(kind: ErrorKind, words: &'static str, hint: Hint) -> Self {
        Self { kind, words, hint, is_passing: false, may_be_expired: hint == Hint::Expired }
    }

    fn passing(kind: ErrorKind, words: &'static str, hint: Hint) -> Self {
        Self { is_passing: true, ..Self::new(kind, words, hint) }
    }

    fn of_proxy() -> Self {
        Self::new(ErrorKind::PermissionDenied, "the proxy asks for a user", Hint::Proxy)
    }

    /// That of a code which S3 has.
    fn of_code(code: &str, ask: &Ask) -> Option<Self> {
        use ErrorKind::{Busy, Corrupt, InvalidInput, Io, NotFound, PermissionDenied, Unsupported};
        let (kind, words, hint) = match code {
            "NoSuchKey" | "NoSuchVersion" => (NotFound, "no such object", Hint::Object),
            "NoSuchBucket" => (NotFound, "no such bucket", Hint::Bucket),
            "NoSuchUpload" => (NotFound, "the upload was aborted meanwhile", Hint::Nothing),
            "InvalidAccessKeyId" => {
                (PermissionDenied, "the server does not know the access key", Hint::Credentials)
            }
            "ExpiredToken" | "TokenRefreshRequired" => {
                (PermissionDenied, "the credentials have expired", Hint::Expired)
            }
            "InvalidToken" => (PermissionDenied, "the session token is wrong", Hint::Expired),
            "SignatureDoesNotMatch" => (PermissionDenied, "the signature is wrong", Hint::Secret),
            "RequestTimeTooSkewed" => (PermissionDenied, "the clock of this machine is wrong", Hint::Clock),
            "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
                (InvalidInput, "the bucket is in another region", Hint::Region)
            }
            "PreconditionFailed" => return Some(Self::of_condition(ask)),
            "ConditionalRequestConflict" | "OperationAborted" => {
                return Some(Self::passing(Busy, "another request changes it", Hint::Nothing));
            }
            "BadDigest" | "XAmzContentChecksumMismatch" => {
                (Corrupt, "the bytes changed on the way to the server", Hint::Nothing)
            }
            "RequestTimeout" => {
                return Some(Self::passing(Busy, "the server did not get the bytes in time", Hint::Nothing));
            }
            "SlowDown" | "ServiceUnavailable" | "TooManyRequests" | "RequestLimitExceeded" => {
                return Some(Self::busy());
            }
            "InternalError" => return Some(Self::passing(Io, "the server failed", Hint::Nothing)),
            "NotImplemented" => (Unsupported, "the server cannot do it", Hint::Nothing),
            "InvalidRange" => (InvalidInput, "the range is beyond its end", Hint::Nothing),
            "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => {
                (PermissionDenied, "access denied", Hint::Rights)
            }
            _ => return None,
        };
        Some(Self::new(kind, words, hint))
    }

    /// That of a status, where there is no code, or an unknown one.
    fn of_status(status: u16, code: &str, ask: &Ask) -> Self {
        use ErrorKind::{InvalidInput, Io, NotFound, PermissionDenied, Unsupported};
        let is_bare_head = ask.method == Method::Head && code.is_empty();
        match status {
            412 => Self::of_condition(ask),
            429 | 503 => Self::busy(),
            500 | 502 | 504 => Self::passing(Io, "the server failed", Hint::Nothing),
            501 => Self::new(Unsupported, "the server cannot do it", Hint::Nothing),
            416 => Self::new(InvalidInput, "the range is beyond its end", Hint::Nothing),
            // The reply to a HEAD has no body that says more.
            401 | 403 if is_bare_head => {
                Self::new(PermissionDenied, "access denied, or the credentials are wrong", Hint::Doctor)
            }
            401 | 403 => Self::new(PermissionDenied, "access denied", Hint::Rights),
            301 | 307 | 308 => Self::new(InvalidInput, "the bucket is in another region", Hint::Region),
            404 if !code.is_empty() => {
                Self::new(NotFound, "the server does not find what the request names", Hint::Nothing)
            }
            404 if ask.key.is_empty() => Self::new(NotFound, "no such bucket", Hint::Bucket),
            404 => Self::new(NotFound, "no such object", Hint::Object),
            400 if is_bare_head => Self {
                may_be_expired: true,
                ..Self::new(InvalidInput, "the server does not take the request", Hint::Doctor)
            },
            _ => Self::new(InvalidInput, "the server does not take the request", Hint::Nothing),
        }
    }

    fn of_condition(ask: &Ask) -> Self {
        if has_header(ask, "if-none-match") {
            return Self::new(ErrorKind::AlreadyExists, "an object is there already", Hint::Nothing);
        }
        Self::new(ErrorKind::Busy, "the object was replaced", Hint::Nothing)
    }

    fn busy() -> Self {
        Self::passing(ErrorKind::Busy, "the server has too much to do", Hint::Load)
    }
}

fn has_header(ask: &Ask, name: &str) -> bool {
    ask.headers.iter().any(|(found, _)| found == name)
}

impl Hint {
    fn words(
        self,
        ask: &Ask,
        site: Option<&str>,
        provider: Option<&str>,
        region: Option<&str>,
    ) -> Option<String> {
        let credentials = provider.map_or_else(
            || "no credentials were used".to_owned(),
            |of| format!("the credentials are those of {of}"),
        );
        Some(match self {
            Self::Nothing => return None,
            Self::Object => format!("list what is there: forebay s3 ls {}", quoted(&at(site, parent(ask)))),
            Self::Bucket => "list your buckets: forebay s3 ls".to_owned(),
            Self::Rights => {
                format!("{credentials}: give them the right to this, or use others (AWS_PROFILE=NAME)")
            }
            Self::Credentials => {
                let names = if site.is_some() { SITES } else { "AWS_ENDPOINT_URL" };
                format!("{credentials}: check them, and that {names} names the server that they are for")
            }
            Self::Expired => format!("{credentials}: get new ones, as by aws sso login"),
            Self::Secret => format!("{credentials}: check AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"),
            Self::Clock => "set the clock: as root, timedatectl set-ntp true".to_owned(),
            Self::Region => match region {
                Some(region) => format!("export AWS_REGION={region}"),
                None => "set AWS_REGION to the bucket's region".to_owned(),
            },
            Self::Load => "try again later, or with fewer programs at a time".to_owned(),
            Self::Doctor => {
                format!("find the reason: forebay doctor {}", quoted(&at(site, name(ask)?)))
            }
            Self::Proxy => "export HTTP_PROXY=http://USER:PASSWORD@HOST:PORT".to_owned(),
        })
    }
}

/// The prefix that an object is in.
fn parent(ask: &Ask) -> ObjectUrl {
    let end = ask.key.rfind('/').map_or(0, |at| at + 1);
    ObjectUrl { site: None, bucket: ask.bucket.clone(), key: ask.key[..end].to_owned(), version: None }
}

/// The URL at a site, for hints: the command is to ask the server that refused.
fn at(site: Option<&str>, url: ObjectUrl) -> String {
    ObjectUrl { site: site.map(str::to_owned), ..url }.to_string()
}
