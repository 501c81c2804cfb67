//! Finds why objects cannot be reached: few questions, each sent once.

use std::sync::Arc;
use std::time::SystemTime;

use forebay_error::{Error, ErrorKind};
use forebay_remote::endpoint::ServerUnreachable;

use super::bucket::ask;
use super::exchange::once;
use super::refusal::{Refusal, refusal};
use super::{list, time};
use crate::ObjectUrl;
use crate::account::{Account, checked_region};
use crate::endpoint::Endpoint;
use crate::wire::call::{Ask, Body, Method};
use crate::wire::{ProxyFailed, TlsFailed};

/// Seconds by which a clock may be wrong: more is worth a note, and servers refuse the rest.
const NOTED_SKEW: i64 = 60;
const REFUSED_SKEW: i64 = 15 * 60;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Objects cannot be reached by it.
    Bad,
}

/// One finding about the server of an object, the keys, or the object.
#[derive(Clone, Debug)]
pub struct ObjectFinding {
    /// A stable name of its rule: `s3-region`.
    pub id: &'static str,
    /// How bad it is.
    pub weight: Weight,
    /// The fact.
    pub text: String,
    /// Where that was seen, and what: `endpoint`, `http://localhost:9000`.
    pub seen: Vec<(&'static str, String)>,
    /// What to type.
    pub fix: Option<String>,
}

/// Looks at what a URL names as the environment of now reaches it: settings, keys, names, TLS, clock, region, style, rights. Asks
/// the server for one byte, or for one name of a folder.
pub fn examine(url: &ObjectUrl) -> Vec<ObjectFinding> {
    by_account(url, Account::named(url.site.as_deref()))
}

fn by_account(url: &ObjectUrl, account: Result<Arc<Account>, Error>) -> Vec<ObjectFinding> {
    let mut look = Look { url, found: Vec::new() };
    match account {
        Ok(account) => look.all(&account),
        Err(error) => look.failed("s3-settings", &error),
    }
    look.found
}

#[cfg(test)]
mod tests;

struct Look<'a> {
    url: &'a ObjectUrl,
    found: Vec<ObjectFinding>,
}

/// What a server said.
struct Answer {
    refused: Option<Refusal>,
    /// Seconds by which this machine's clock is ahead.
    skew: Option<i64>,
    region: Option<String>,
}

impl Look<'_> {
    fn add(&mut self, id: &'static str, weight: Weight, text: impl Into<String>) -> &mut ObjectFinding {
        self.found.push(ObjectFinding { id, weight, text: text.into(), seen: Vec::new(), fix: None });
        let last = self.found.len() - 1;
        &mut self.found[last]
    }

    /// An error that ends the look.
    fn failed(&mut self, id: &'static str, error: &Error) {
        let fix = error.hints().first().cloned();
        self.add(id, Weight::Bad, error.to_string()).fix = fix;
    }

    fn all(&mut self, account: &Arc<Account>) {
        if let Err(error) = self.keys(account) {
            return self.failed("s3-keys", &error);
        }
        let endpoint = match Endpoint::of_account(account.clone(), &self.url.bucket) {
            Ok(endpoint) => endpoint,
            Err(error) => return self.failed("s3-style", &error),
        };
        let mut answer = question(&endpoint, self.url);
        if let Some(moved) = self.region(account, &answer) {
            answer = question(&moved, self.url);
        }
        if let (Some(proxy), Ok(_)) = (endpoint.site.proxy_name(), &answer) {
            let found = self.add("s3-proxy", Weight::Note, format!("requests go through the proxy {proxy}"));
            found.fix = Some(format!("to reach it without: export NO_PROXY={}", endpoint.site.host));
        }
        if self.style(account, &endpoint, &answer) {
            return;
        }
        match answer {
            Ok(answer) => self.answer(account, &endpoint, answer),
            Err(error) => self.unanswered(&endpoint, &error),
        }
    }

    /// There is no reply.
    fn unanswered(&mut self, endpoint: &Endpoint, error: &Error) {
        let id = kind_of_failure(error);
        let Some(proxy) = endpoint.site.proxy_name().filter(|_| id != "s3-tls") else {
            return self.failed(id, error);
        };
        let found = self.add("s3-proxy", Weight::Bad, error.to_string());
        found.seen.push(("proxy", proxy));
        let past = format!("to reach it without: export NO_PROXY={}", endpoint.site.host);
        found.fix = Some(error.hints().first().filter(|_| id == "s3-proxy").cloned().unwrap_or(past));
    }

    fn keys(&mut self, account: &Account) -> Result<(), Error> {
        let expires = account.expires()?;
        let provider = account.provider().unwrap_or_default();
        let left = expires.and_then(|end| end.duration_since(SystemTime::now()).ok());
        let text = match left {
            Some(left) => format!(
                "the credentials are those of {provider}, good for {} minutes more",
                left.as_secs() / 60
            ),
            None if account.settings().is_anonymous => {
                "requests are not signed: AWS_NO_SIGN_REQUEST".to_owned()
            }
            None => format!("the credentials are those of {provider}"),
        };
        self.add("s3-keys", Weight::Good, text);
        Ok(())
    }

    /// The bucket's endpoint in the region that the server names, where the settings have another one.
    fn region(&mut self, account: &Arc<Account>, answer: &Result<Answer, Error>) -> Option<Arc<Endpoint>> {
        let answer = answer.as_ref().ok()?;
        let (used, bucket) = (account.region(&self.url.bucket), &self.url.bucket);
        let right = answer.region.clone().filter(|region| *region != used)?;
        // Transfers go to the right one, too, where the server answers so.
        let follows = |refusal: &Refusal| matches!(refusal.status, 301 | 307 | 308 | 400);
        let weight = if answer.refused.as_ref().is_none_or(follows) { Weight::Note } else { Weight::Bad };
        let then = if weight == Weight::Note { " first, and sent again" } else { "" };
        let text =
            format!("the bucket {bucket} is in the region {right}; requests are signed for {used}{then}");
        let set = if account.settings().has_region { "as set" } else { "the default: none is set" };
        let found = self.add("s3-region", weight, text);
        found.seen.push(("region", format!("{used}, {set}")));
        found.fix = Some(format!("export AWS_REGION={right}"));
        answer.refused.as_ref()?;
        account.learn_region(bucket, &right).ok()?;
        Endpoint::of_account(account.clone(), bucket).ok()
    }

    /// Whether the server answers where the bucket's name stands at the other place.
    fn style(&mut self, account: &Account, endpoint: &Endpoint, answer: &Result<Answer, Error>) -> bool {
        let is_suspect = match answer {
            Ok(Answer { refused: Some(refusal), .. }) => {
                matches!(
                    refusal.code.as_str(),
                    "" | "NoSuchBucket" | "SignatureDoesNotMatch" | "InvalidBucketName"
                ) && matches!(refusal.status, 400 | 403 | 404 | 405 | 501)
            }
            Ok(_) => false,
            Err(error) => kind_of_failure(error) == "s3-name",
        };
        let is_in_host = endpoint.site.host.starts_with(&format!("{}.", self.url.bucket));
        let other = if is_in_host { "path" } else { "virtual" };
        if !is_suspect || account.settings().endpoint().is_none() {
            return false;
        }
        let moved =
            account.in_style(other).and_then(|account| Endpoint::of_account(account, &self.url.bucket));
        let Some(Ok(answer)) = moved.ok().map(|moved| question(&moved, self.url)) else { return false };
        let knows = |refusal: &Refusal| matches!(refusal.code.as_str(), "AccessDenied" | "NoSuchKey");
        if !answer.refused.as_ref().is_none_or(knows) {
            return false;
        }
        let place = if is_in_host { "path, not in the host's name" } else { "host's name, not in the path" };
        let found =
            self.add("s3-style", Weight::Bad, format!("the server wants the bucket's name in the {place}"));
        found.seen.push(("host", endpoint.site.host.clone()));
        found.fix = Some(format!("export AWS_S3_ADDRESSING_STYLE={other}"));
        true
    }

    fn answer(&mut self, account: &Account, endpoint: &Endpoint, answer: Answer) {
        let refused_for_clock = |refusal: &Refusal| refusal.code == "RequestTimeTooSkewed";
        let is_refused = answer.refused.as_ref().is_some_and(refused_for_clock);
        if let Some(skew) = answer.skew.filter(|skew| is_refused || skew.abs() > NOTED_SKEW) {
            let weight = if is_refused || skew.abs() > REFUSED_SKEW { Weight::Bad } else { Weight::Note };
            let side = if skew > 0 { "ahead of" } else { "behind" };
            let text = format!("the clock of this machine is {} seconds {side} the server's", skew.abs());
            self.add("s3-clock", weight, text).fix = Some("as root: timedatectl set-ntp true".to_owned());
        }
        let Some(refusal) = answer.refused else {
            let is_prefix = self.url.is_prefix();
            let (id, what) =
                if is_prefix { ("s3-bucket", "can be listed") } else { ("s3-object", "can be read") };
            let found = self.add(id, Weight::Good, format!("{} {what}", self.url));
            return found.seen.push(("server", endpoint.site.name()));
        };
        let id = match (refusal.code.as_str(), refusal.status) {
            ("RequestTimeTooSkewed", _) if answer.skew.is_some() => return,
            ("RequestTimeTooSkewed", _) => "s3-clock",
            (
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired",
                _,
            ) => "s3-keys",
            ("NoSuchBucket", _) => "s3-bucket",
            ("NoSuchKey" | "NoSuchVersion", _) => "s3-object",
            (_, 404) if self.url.is_prefix() => "s3-bucket",
            (_, 404) => "s3-object",
            (_, 401 | 403) => return self.denied(account, endpoint, &refusal),
            _ => "s3-refused",
        };
        self.failed(id, &refusal.error);
    }

    /// A refusal may mean that there is no such object: servers hide that from credentials that may not list the bucket.
    fn denied(&mut self, account: &Account, endpoint: &Endpoint, refusal: &Refusal) {
        let url = self.url;
        let provider = account.provider().unwrap_or_default();
        let rights = |right: &str| {
            format!(
                "give {right} to the credentials, which are those of {provider}; or use others: export AWS_PROFILE=NAME"
            )
        };
        let listed = (!url.is_prefix()).then(|| listed(endpoint, url));
        let (id, text, fix) = match listed {
            Some(Some(true)) => {
                ("s3-denied", "may be listed, and not be read".to_owned(), rights("s3:GetObject"))
            }
            Some(Some(false)) => {
                ("s3-object", "is not there".to_owned(), format!("forebay s3 ls {}", parent(url)))
            }
            Some(None) => {
                let text = "access denied, or it is not there: credentials that may not list the bucket get the same answer to both";
                ("s3-denied", text.to_owned(), rights("s3:GetObject and s3:ListBucket"))
            }
            None => ("s3-denied", "access denied".to_owned(), rights("s3:ListBucket")),
        };
        let found = self.add(id, Weight::Bad, format!("{url}: {text}"));
        found.seen.push(("status", format!("{} {}", refusal.status, refusal.code).trim_end().to_owned()));
        let unset = || {
            "unset AWS_NO_SIGN_REQUEST AWS_SKIP_SIGNATURE: nobody signs, and the bucket is not for all"
                .to_owned()
        };
        found.fix = Some(if account.settings().is_anonymous && id == "s3-denied" { unset() } else { fix });
    }
}

/// Sends one request for the object's first byte, or for the folder's first name.
fn question(endpoint: &Endpoint, url: &ObjectUrl) -> Result<Answer, Error> {
    let ask = if url.is_prefix() { listing(&url.bucket, &url.key) } else { first_byte(url) };
    let reply = once(endpoint, ask.clone(), Body::None)?;
    let header = |name: &str| reply.head.header(name).map(ToOwned::to_owned);
    let now = time::since_1970(SystemTime::now());
    let skew = header("date").and_then(|date| Some(now - time::seconds(&date)?));
    let region = header("x-amz-bucket-region").and_then(|region| checked_region(&region).ok());
    let mut answer = Answer { refused: None, skew, region };
    // An object without a byte has no first one.
    if !matches!(reply.head.status, 200..=299 | 416) {
        let refusal = refusal(endpoint, &ask, &reply.head, &reply.body);
        answer.region.clone_from(&refusal.region);
        answer.refused = Some(refusal);
    }
    Ok(answer)
}

fn first_byte(url: &ObjectUrl) -> Ask {
    let mut ask = ask(Method::Get, &url.bucket, &url.key);
    ask.headers.push(("range".to_owned(), "bytes=0-0".to_owned()));
    ask.query.extend(url.version.iter().map(|version| ("versionId".to_owned(), version.clone())));
    ask
}

fn listing(bucket: &str, prefix: &str) -> Ask {
    let mut ask = ask(Method::Get, bucket, "");
    for (name, value) in [("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)] {
        ask.query.push((name.to_owned(), value.to_owned()));
    }
    ask
}

/// Whether a listing has the object; `None`: the bucket may not be listed.
fn listed(endpoint: &Endpoint, url: &ObjectUrl) -> Option<bool> {
    let reply = once(endpoint, listing(&url.bucket, &url.key), Body::None).ok()?;
    let of_page = || list::page_of(&reply.body).is_ok_and(|page| page.has(&url.key));
    (reply.head.status == 200).then(of_page)
}

fn parent(url: &ObjectUrl) -> ObjectUrl {
    url.with_key(&url.key[..url.key.rfind('/').map_or(0, |at| at + 1)])
}

/// The rule of an error without a reply.
fn kind_of_failure(error: &Error) -> &'static str {
    let is_unreachable = error.is_caused_by::<ServerUnreachable>();
    match error.kind() {
        ErrorKind::NotFound if is_unreachable => "s3-name",
        _ if error.is_caused_by::<TlsFailed>() => "s3-tls",
        _ if error.is_caused_by::<ProxyFailed>() => "s3-proxy",
        ErrorKind::Io | ErrorKind::Timeout | ErrorKind::ShortRead | ErrorKind::Corrupt => "s3-unreachable",
        _ if is_unreachable => "s3-unreachable",
        _ => "s3-refused",
    }
}
