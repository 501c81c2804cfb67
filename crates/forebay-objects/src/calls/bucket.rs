//! A bucket, and the calls for its objects.

use std::fmt::Write;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::{is_stopped, stopped};
use forebay_source::{HostRange, StoredSum};

use super::etag::{replaced, strong};
use super::exchange::{Reply, exchange_within, head_of};
use super::refusal::Refusal;
use super::{checksum, list, time};
use crate::ObjectUrl;
use crate::account::{Account, SITES};
use crate::calls::checked::{CheckedBody, CheckedObject};
use crate::endpoint::Endpoint;
use crate::pace::DEADLINE;
use crate::wire::call::{Ask, Body, Method, ReplyHead};
use crate::xml::{self, Node};

/// Keys that one call removes at most.
const REMOVED_AT_ONCE: usize = 1000;

/// A bucket, and the endpoint that it is reached by.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) name: String,
    /// The site that its URL names.
    pub(crate) named: Option<String>,
    /// All sites, where reads may go to others.
    pub(crate) sites: Arc<[Arc<Account>]>,
    /// How long a call may fail.
    pub(crate) patience: Duration,
}

/// What the head of an object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectHead {
    /// Bytes.
    pub len: u64,
    /// With its quotes.
    pub etag: Option<String>,
    /// Of a bucket with versions.
    pub version: Option<String>,
    /// When it was written, in seconds since 1970.
    pub modified: Option<i64>,
    /// Names of algorithms, and values in base64: `crc64nvme`, `sAJc…=`.
    pub checksums: Vec<(String, String)>,
    /// Whether these are of the whole object (not of its parts' checksums).
    pub is_full_checksum: bool,
    /// Whether its bytes come by ranges.
    pub takes_ranges: bool,
    /// What the server calls itself.
    pub server: Option<String>,
}

impl ObjectHead {
    /// The CRC-64/NVME of all bytes, in base64, where the server keeps it.
    #[must_use]
    pub fn crc64(&self) -> Option<&str> {
        let found = self.checksums.iter().find(|(name, _)| name == "crc64nvme" && self.is_full_checksum);
        // Those of parts' checksums are longer.
        found.map(|(_, value)| value.as_str()).filter(|value| value.len() == 12)
    }

    pub(crate) fn of(head: &ReplyHead) -> Result<Self> {
        let len = head.length;
        let len =
            len.ok_or_else(|| Error::new(ErrorKind::Io, "the server does not tell the object's length"))?;
        Ok(Self::of_len(head, len))
    }

    /// The same of an object of this length.
    pub(crate) fn of_len(head: &ReplyHead, len: u64) -> Self {
        let text = |name: &str| head.header(name).map(str::to_owned);
        let checksums = head.headers.iter().filter_map(|(name, value)| {
            let algorithm = name.strip_prefix("x-amz-checksum-")?;
            // What kind it is, and its algorithm: neither is a checksum.
            (!matches!(algorithm, "type" | "algorithm")).then(|| (algorithm.to_owned(), value.clone()))
        });
        let kind = head.header("x-amz-checksum-type");
        Self {
            len,
            etag: text("etag"),
            version: text("x-amz-version-id").filter(|version| version != "null"),
            modified: head.header("last-modified").and_then(time::seconds),
            checksums: checksums.collect(),
            is_full_checksum: kind.is_none_or(|kind| kind == "FULL_OBJECT"),
            takes_ranges: head.header("accept-ranges") != Some("none"),
            server: head.header("server").map(|name| forebay_error::plain(name).into_owned()),
        }
    }
}

/// Asks for nothing in particular.
pub(super) fn ask(method: Method, bucket: &str, key: &str) -> Ask {
    Ask { method, bucket: bucket.to_owned(), key: key.to_owned(), query: Vec::new(), headers: Vec::new() }
}

impl Bucket {
    /// That of a name, by the environment of now. Asks nobody.
    pub fn of(name: &str) -> Result<Self> {
        Self::of_site(name, None)
    }

    /// That of a URL: at the site that it names, else at the first one.
    pub fn of_url(url: &ObjectUrl) -> Result<Self> {
        Self::of_site(&url.bucket, url.site.clone())
    }

    fn of_site(name: &str, named: Option<String>) -> Result<Self> {
        let endpoint = Endpoint::of_account(Account::named(named.as_deref())?, name)?;
        Ok(Self { endpoint, name: name.to_owned(), named, sites: [].into(), patience: DEADLINE })
    }

    /// That of an endpoint.
    pub(crate) fn of_endpoint(endpoint: Arc<Endpoint>, name: &str) -> Self {
        let (name, named) = (name.to_owned(), endpoint.account.site_name().map(str::to_owned));
        Self { endpoint, name, named, sites: [].into(), patience: DEADLINE }
    }

    /// The same for calls that fail for this long at most.
    pub(crate) fn hasty(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The error of a write that failed for long enough.
    pub(super) fn of_write(&self, error: Error) -> Error {
        if self.site_name().is_some() && self.named.is_none() { of_write(error, &self.name) } else { error }
    }

    /// Whether both are one bucket of one site.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.site_name() == other.site_name()
    }

    /// The URL of an object.
    pub fn url(&self, key: &str) -> String {
        let (site, bucket) = (self.named.clone(), self.name.clone());
        ObjectUrl { site, bucket, key: key.to_owned(), version: None }.to_string()
    }

    /// A URL by which anyone may read the object, without a key, for at most 7 days.
    pub fn presign(&self, key: &str, version: Option<&str>, expires: Duration) -> Result<String> {
        let mut ask = self.ask(Method::Get, key);
        ask.query.extend(version.map(|version| ("versionId".to_owned(), version.to_owned())));
        self.endpoint.account.presign(&ask, expires)
    }

    pub(crate) fn ask(&self, method: Method, key: &str) -> Ask {
        ask(method, &self.name, key)
    }

    /// The head of a reply, whose body is not wanted.
    pub(crate) fn head_of(&self, ask: &Ask) -> Result<ReplyHead, Refusal> {
        head_of(&*self.endpoint_here()?, ask)
    }

    pub(super) fn call(&self, ask: &Ask, body: &Body) -> Result<Reply, Refusal> {
        let is_write = !matches!(ask.method, Method::Get | Method::Head);
        self.call_by(|endpoint| exchange_within(self.patience, endpoint, ask, body)).map_err(|refusal| {
            let Refusal { error, is_gone, .. } = refusal;
            let error = if is_gone && is_write { self.of_write(error) } else { error };
            Refusal { error, ..refusal }
        })
    }

    /// A call that is sent again where the server says that the bucket is in another region.
    pub(super) fn call_by(
        &self,
        send: impl Fn(&Endpoint) -> Result<Reply, Refusal>,
    ) -> Result<Reply, Refusal> {
        let account = &self.endpoint.account;
        let used = account.region(&self.name);
        let end = send(&*self.endpoint_here()?);
        let Err(Refusal { status: 301 | 307 | 308 | 400, region: Some(region), .. }) = &end else {
            return end;
        };
        // The bucket is in that region. Later calls of the process know it.
        if *region == used || account.learn_region(&self.name, region).is_err() {
            return end;
        }
        send(&*self.endpoint_here()?)
    }

    /// Its own endpoint, unless the bucket was found to be in another region.
    pub(super) fn endpoint_here(&self) -> Result<Arc<Endpoint>> {
        let site = self.endpoint.account.site(&self.name)?;
        if site == self.endpoint.site { Ok(self.endpoint.clone()) } else { self.endpoint_now() }
    }

    /// That of the region that the bucket is in, as far as a server has said it since.
    pub(crate) fn endpoint_now(&self) -> Result<Arc<Endpoint>> {
        Endpoint::of_account(self.endpoint.account.clone(), &self.name)
    }

    /// The head of an object, or of one version of it.
    pub fn head(&self, key: &str, version: Option<&str>) -> Result<ObjectHead> {
        Ok(self.read(|bucket| bucket.head_here(key, version))?)
    }

    /// That of the bucket's own site.
    pub(crate) fn head_here(&self, key: &str, version: Option<&str>) -> Result<ObjectHead, Refusal> {
        Ok(ObjectHead::of(&self.head_reply(key, version)?)?)
    }

    /// All that the server says of it.
    pub(crate) fn head_reply(&self, key: &str, version: Option<&str>) -> Result<ReplyHead, Refusal> {
        let mut ask = self.ask(Method::Head, key);
        ask.query.extend(version.map(|version| ("versionId".to_owned(), version.to_owned())));
        ask.headers.push(("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned()));
        Ok(self.call(&ask, &Body::None)?.head)
    }

    /// The bytes of an object of at most 8 MiB; of the one with this ETag, where it is given: another one is an error, also where the
    /// server ignores `If-Match`.
    pub fn get(&self, key: &str, etag: Option<&str>) -> Result<Vec<u8>> {
        self.get_with_site(key, etag).map(|(bytes, _)| bytes)
    }

    /// The same, and the name of the site that gave the bytes, where sites have names. Another site has other ETags: the bytes of one
    /// are those that it has now.
    pub fn get_with_site(&self, key: &str, etag: Option<&str>) -> Result<(Vec<u8>, Option<String>)> {
        let asked_first = self.site_name();
        let got = self.read(|bucket| {
            let etag = etag.filter(|_| bucket.site_name() == asked_first);
            Ok((bucket.get_here(key, etag)?, bucket.site_name().map(str::to_owned)))
        });
        got.map_err(Error::from)
    }

    /// Whether an object has the bytes that are read, by the checksum that its server keeps. Where it keeps none, that is not known.
    pub fn is_like(&self, key: &str, bytes: &mut dyn Read) -> Result<bool> {
        let Ok(mut sum) = CheckedObject::of(&self.head(key, None)?) else { return Ok(false) };
        let mut piece = vec![0; 1 << 20];
        loop {
            if is_stopped() {
                return Err(stopped());
            }
            match bytes.read(&mut piece) {
                Ok(0) => return Ok(Box::new(sum).end().is_ok()),
                Ok(read) => sum.add(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::from_io(&error, "cannot read the file")),
            }
        }
    }

    fn get_here(&self, key: &str, etag: Option<&str>) -> Result<Vec<u8>, Refusal> {
        let mut ask = self.ask(Method::Get, key);
        ask.headers.extend(strong(etag).map(|etag| ("if-match".to_owned(), etag.to_owned())));
        ask.headers.push(("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned()));
        let Reply { head, body, .. } = self.call(&ask, &Body::None)?;
        // Listings leave quotes out, some of them.
        let plain = |etag: &str| etag.trim_start_matches("W/").trim_matches('"').to_owned();
        if let Some((ours, theirs)) = etag.zip(head.header("etag"))
            && plain(ours) != plain(theirs)
        {
            return Err(replaced(Some(ours), Some(theirs)).with("url", self.url(key)).into());
        }
        if let Some(mut check) = CheckedBody::of(&head).filter(|_| !body.is_empty()) {
            // SAFETY: the bytes are there, and nobody writes them, until the check has ended.
            unsafe { check.add(HostRange::of(&body)) };
            check.end().map_err(|error| error.with("url", self.url(key)))?;
        }
        Ok(body)
    }

    /// Whether the bucket is there and may be looked at; the region that the server says it is in.
    pub fn region(&self) -> Result<Option<String>> {
        match self.call(&self.ask(Method::Head, ""), &Body::None) {
            Ok(reply) => Ok(reply.head.header("x-amz-bucket-region").map(str::to_owned)),
            Err(Refusal { region: Some(region), .. }) => Ok(Some(region)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Objects whose keys begin with a prefix; what has a `/` behind it only as a folder, unless the whole tree is asked for.
    pub fn list(&self, prefix: &str, is_tree: bool) -> list::List {
        list::List::new(self.clone(), prefix, is_tree)
    }

    /// Writes an object by one call with these headers.
    pub(crate) fn put_body(
        &self,
        key: &str,
        body: &Body,
        headers: &[(&str, String)],
    ) -> Result<Reply, Refusal> {
        let mut ask = self.ask(Method::Put, key);
        ask.headers.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.call(&ask, body)
    }

    /// Removes an object. One that is not there is removed already.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.call(&self.ask(Method::Delete, key), &Body::None).map(drop).map_err(Error::from)
    }

    /// Removes objects. Returns those that are still there, with the reason.
    pub fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, Error)>> {
        let mut failed = Vec::new();
        // The document that names them is XML.
        let (of_xml, others): (Vec<String>, Vec<String>) =
            keys.iter().cloned().partition(|key| xml::can_have(key));
        for keys in of_xml.chunks(REMOVED_AT_ONCE) {
            failed.extend(self.delete_some(keys)?);
        }
        failed.extend(self.delete_each(&others));
        Ok(failed)
    }

    fn delete_some(&self, keys: &[String]) -> Result<Vec<(String, Error)>> {
        let mut document = "<Delete><Quiet>true</Quiet>".to_owned();
        for key in keys {
            let _ = write!(document, "<Object><Key>{}</Key></Object>", xml::escaped(key));
        }
        document.push_str("</Delete>");
        let mut ask = self.ask(Method::Post, "");
        ask.query.push(("delete".to_owned(), String::new()));
        // S3 asks for a checksum of this document, of any algorithm.
        let checksum = checksum::crc64(document.as_bytes());
        ask.headers.push(("x-amz-checksum-crc64nvme".to_owned(), checksum::text(checksum)));
        match self.call(&ask, &Body::Bytes(document.into_bytes().into())) {
            Ok(reply) => self.undeleted(&reply.body),
            // Old servers ask for Content-MD5.
            Err(refusal) if matches!(refusal.status, 400 | 501) => Ok(self.delete_each(keys)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn delete_each(&self, keys: &[String]) -> Vec<(String, Error)> {
        keys.iter().filter_map(|key| Some((key.clone(), self.delete(key).err()?))).collect()
    }

    /// What the reply to a removal of several objects says of those that are still there.
    fn undeleted(&self, document: &[u8]) -> Result<Vec<(String, Error)>> {
        let (mut failed, mut key, mut code, mut message) =
            (Vec::new(), String::new(), String::new(), String::new());
        xml::read(document, |path, node| {
            match (path, node) {
                ([_, error], Node::End(_)) if error == "Error" => {
                    let kind =
                        if code == "AccessDenied" { ErrorKind::PermissionDenied } else { ErrorKind::Io };
                    let error = Error::new(kind, "cannot remove the object")
                        .with("url", self.url(&key))
                        .with("code", &code)
                        .with("message", &message);
                    failed.push((std::mem::take(&mut key), error));
                }
                ([_, error, field], Node::End(text)) if error == "Error" => match field.as_str() {
                    "Key" => text.clone_into(&mut key),
                    "Code" => text.clone_into(&mut code),
                    "Message" => message = text.chars().take(300).collect(),
                    _ => {}
                },
                _ => {}
            }
            Ok(())
        })?;
        Ok(failed)
    }
}

/// What to say where a write fails because its site is gone.
fn of_write(error: Error, bucket: &str) -> Error {
    error.hint(format!(
        "objects are written to the first site of {SITES} alone; to another one by its name: s3://SITE@{bucket}/KEY"
    ))
}
