//! Objects as sources of engines, and the opener of `s3://`.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Access, Answer, Direction, Facts, Fill, HeldUp, ListEntry, Opener, Request, RequestShape, Requests,
    Source, StateToken, StoredSum, Upload,
};

use crate::calls::checked::CheckedObject;
use crate::calls::etag::replaced;
use crate::calls::{Bucket, Listed, ObjectHead, ObjectUpload};
use crate::endpoint::Endpoint;
use crate::fetch::{FIRST, ObjectFetch, Target};
use crate::lock;
use crate::pace::MOST_RANGES;
use crate::url::ObjectUrl;

/// An object as it was when it was opened.
pub(crate) struct ObjectSource {
    url: ObjectUrl,
    bucket: Bucket,
    len: u64,
    fetch: Arc<ObjectFetch>,
    /// What the server said when it was opened, until its state is asked for.
    opened: Mutex<Option<(Instant, ObjectHead)>>,
}

/// How long the head of an opened object is its state: one that opens an object and asks for its state asks the server once.
const FRESH: Duration = Duration::from_secs(1);

impl ObjectSource {
    /// Opens one. It is neither made nor written in place.
    fn open(url: ObjectUrl, access: Access) -> Result<Self> {
        if access.write || access.make {
            let text = "cannot open object: objects are not written in place";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .with("url", &url)
                .hint("save a new one: forebay.save_file, forebay cp"));
        }
        let bucket = Bucket::of(&url.bucket)?;
        if url.is_prefix() {
            return Err(no_object(&bucket, &url)?);
        }
        let version = url.version.as_deref();
        // One that is to be read is asked for its first bytes at once.
        let found = if access.read {
            bucket.first(&url.key, version, FIRST)
        } else {
            bucket.head(&url.key, version).map(|head| (head, Vec::new()))
        };
        match found {
            // The server may have said that the bucket is in another region.
            Ok((head, first)) => Ok(Self::new(Bucket::of(&url.bucket)?, url, head, first)),
            Err(error) if error.kind() == ErrorKind::NotFound && url.version.is_none() => {
                Err(match no_object(&bucket, &url) {
                    Ok(found) if is_folder(&found) => found,
                    // There is no such bucket. Where its names may not be looked at, the first error says more.
                    Err(other) if other.kind() == ErrorKind::NotFound => other,
                    _ => error,
                })
            }
            Err(error) => Err(error),
        }
    }

    fn new(bucket: Bucket, url: ObjectUrl, head: ObjectHead, first: Vec<u8>) -> Self {
        let (len, etag) = (head.len, head.etag.clone());
        let (key, version) = (url.key.clone(), url.version.clone());
        let target = Target { bucket: url.bucket.clone(), key, version, etag, len };
        let fetch = ObjectFetch::new(bucket.endpoint.clone(), target, first);
        Self { url, bucket, len, fetch, opened: Mutex::new(Some((Instant::now(), head))) }
    }

    /// The head of the object that is there now.
    fn head(&self) -> Result<ObjectHead> {
        let opened = lock(&self.opened).take();
        match opened.filter(|(at, _)| at.elapsed() < FRESH) {
            Some((_, head)) => Ok(head),
            None => self.bucket.head(&self.url.key, self.url.version.as_deref()),
        }
    }
}

fn is_folder(error: &Error) -> bool {
    error.kind() == ErrorKind::IsDirectory
}

/// What is at a URL where no object is: a folder, or nothing.
fn no_object(bucket: &Bucket, url: &ObjectUrl) -> Result<Error> {
    let is_there = match url.key.as_str() {
        "" => bucket.region().map(|_| true)?,
        _ => bucket.list(&url.prefix(), false).next().transpose()?.is_some(),
    };
    if is_there {
        let error = Error::new(ErrorKind::IsDirectory, "cannot open object: it is a folder").with("url", url);
        let shown = url.to_string();
        return Ok(
            error.hint(format!("forebay s3 cp --recursive {} DIRECTORY", forebay_error::quoted(&shown)))
        );
    }
    Ok(missing("cannot open object: no such object", url))
}

fn missing(text: &str, url: &ObjectUrl) -> Error {
    let parent =
        url.with_key(url.key.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent));
    let hint = format!("forebay s3 ls {}", forebay_error::quoted(&parent.to_string()));
    Error::new(ErrorKind::NotFound, text).with("url", url).hint(hint)
}

impl Drop for ObjectSource {
    fn drop(&mut self) {
        self.fetch.close();
    }
}

impl fmt::Debug for ObjectSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectSource({})", self.url)
    }
}

impl Source for ObjectSource {
    fn name(&self) -> String {
        self.url.to_string()
    }

    /// Objects do not grow: another one may take its place, and reads of this one fail then.
    fn len(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// The ETag and the length, or where it has none the time of its last change; the server is asked.
    fn state(&self) -> Result<Option<StateToken>> {
        let ObjectHead { len, etag, version, modified, .. } = self.head()?;
        let Some(content) = etag.or_else(|| modified.map(|time| time.to_string())) else { return Ok(None) };
        let content = format!("{len} {content}");
        Ok(Some(StateToken::of_parts(content.as_bytes(), version.unwrap_or_default().as_bytes(), &[])))
    }

    /// The server is asked. An error also where another object is there by now.
    fn stored_sum(&self) -> Option<Result<Box<dyn StoredSum>>> {
        let ours = self.fetch.etag();
        let sum = self.bucket.head(&self.url.key, self.url.version.as_deref()).and_then(|head| {
            if head.etag.as_deref() != ours {
                return Err(replaced(ours, head.etag.as_deref()).with("url", &self.url));
            }
            CheckedObject::of(&head)
        });
        Some(sum.map(|sum| Box::new(sum) as Box<dyn StoredSum>))
    }

    /// Ranges are asked for by the ETag of the opening.
    fn reads_one_state(&self) -> bool {
        self.fetch.etag().is_some()
    }

    fn facts(&self) -> Facts {
        // Locks of the parent's may be held for ever.
        if !self.fetch.is_of_this_process() {
            return Facts { file_system: Some("s3"), ..Facts::default() };
        }
        let Endpoint { account, site, network, .. } = &**self.fetch.endpoint();
        let facts = network.facts();
        let transport = if facts.transport.is_empty() { "TCP" } else { facts.transport };
        let (region, most) = (account.region(&self.url.bucket), MOST_RANGES);
        let keys =
            account.provider().map_or("without keys".to_owned(), |provider| format!("keys of {provider}"));
        let way = format!(
            "S3 over {transport}, by forebay's own client: {}, region {region}, up to {most} connections, {keys}",
            site.name()
        );
        let left_out = facts.left_out.into_iter().map(|(address, why)| {
            let hint = format!("check the route and firewalls: nc -vz {} {}", address.ip(), address.port());
            (format!("address {address} of {} left out: {why}", site.name()), hint)
        });
        Facts { way: Some(way), left_out: left_out.collect(), file_system: Some("s3") }
    }

    fn held_up_from_now(&self) -> Option<HeldUp> {
        if !self.fetch.is_of_this_process() {
            return None;
        }
        let endpoint = self.fetch.endpoint();
        let before = (endpoint.network.facts().silences, endpoint.budget.paused());
        let endpoint = Arc::downgrade(endpoint);
        Some(Box::new(move || {
            let endpoint = endpoint.upgrade()?;
            let (silences, pauses) = before;
            let silent = since(silences, endpoint.network.facts().silences);
            let paused = since(pauses, endpoint.budget.paused());
            let (what, seconds) = match (silent, paused) {
                (silent, Some(paused)) if silent.is_none_or(|silent| silent < paused) => {
                    ("had too much to do", paused)
                }
                (silent, _) => ("was silent", silent?),
            };
            Some(format!(
                "held up: server {} {what} for {} s in all",
                endpoint.site.name(),
                seconds.as_secs()
            ))
        }))
    }

    fn access(&self) -> (bool, bool) {
        (true, false)
    }
}

/// Receipts speak of pauses from this length on.
const NOTED_FROM: Duration = Duration::from_secs(1);

/// How much longer pauses were than before, where that is worth a note.
fn since(before: (u64, Duration), now: (u64, Duration)) -> Option<Duration> {
    Some(now.1.saturating_sub(before.1)).filter(|longer| *longer >= NOTED_FROM)
}

impl Requests for ObjectSource {
    fn start(&self, request: Request, done: Answer) {
        if request.direction == Direction::Write {
            return done(Err(Error::from_errno(
                libc::EBADF,
                "cannot write: objects are not written in place",
            )
            .with("url", &self.url)
            .hint("save a new one: forebay.save_file, forebay cp")));
        }
        // SAFETY: the lane keeps the memory valid and untouched until the answer.
        unsafe { self.fetch.start(request, done) };
    }

    fn shape(&self) -> RequestShape {
        RequestShape { preferred: RequestShape::ANY }
    }
}

/// Opens `s3://` URLs.
pub(crate) struct ObjectOpener;

impl Opener for ObjectOpener {
    fn scheme(&self) -> &'static str {
        "s3"
    }

    fn check(&self, url: &Path) -> Result<()> {
        ObjectUrl::parse(url).map(drop)
    }

    fn open(&self, url: &Path, access: Access) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(ObjectSource::open(ObjectUrl::parse(url)?, access)?))
    }

    fn make(&self, url: &Path, _mode: u32) -> Result<Box<dyn Upload>> {
        let url = ObjectUrl::parse(url)?;
        if url.is_prefix() {
            return Err(Error::new(ErrorKind::IsDirectory, "cannot create object: the URL names a folder")
                .with("url", &url)
                .hint("name an object in it"));
        }
        if url.version.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "cannot create object: a new one gets its version from the server",
            )
            .with("url", &url)
            .hint("leave ?versionId= out"));
        }
        Ok(Box::new(ObjectUpload::new(Bucket::of(&url.bucket)?, &url.key)))
    }

    fn list(&self, url: &Path) -> Result<Vec<ListEntry>> {
        let url = ObjectUrl::parse(url)?;
        let (bucket, prefix) = (Bucket::of(&url.bucket)?, url.prefix());
        let mut entries = Vec::new();
        let mut is_there = prefix.is_empty();
        for one in bucket.list(&prefix, false) {
            is_there = true;
            let (name, is_folder) = match one? {
                Listed::Object(object) => (object.key, false),
                Listed::Folder(name) => (name, true),
            };
            let name = name.strip_prefix(&prefix).unwrap_or(&name).trim_end_matches('/').to_owned();
            // An object with the folder's own name marks it where it is empty.
            if !name.is_empty() {
                entries.push(ListEntry { name: OsString::from(name), is_folder: Some(is_folder) });
            }
        }
        if is_there { Ok(entries) } else { Err(missing("cannot list the folder: no such folder", &url)) }
    }

    fn has_folders(&self) -> bool {
        false
    }

    fn remove(&self, url: &Path) -> Result<()> {
        let url = ObjectUrl::parse_newest(url)?;
        Bucket::of(&url.bucket)?.delete(&url.key)
    }

    fn near_miss(&self, path: &Path) -> Option<String> {
        ObjectUrl::meant(path)
    }

    /// Names have escapes in URLs.
    fn file_name(&self, url: &Path) -> Option<OsString> {
        let url = ObjectUrl::parse(url).ok()?;
        let name = url.name();
        (!name.is_empty()).then(|| OsString::from(name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_version_is_not_removed() {
        let error = ObjectOpener.remove(Path::new("s3://bucket/key?versionId=1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("one version"), "{error}");
    }
}
