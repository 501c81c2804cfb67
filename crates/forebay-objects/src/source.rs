//! Objects as sources of engines, and the opener of `s3://`.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_config::S3Local;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Access, Answer, Direction, Facts, Fill, LateNote, ListEntry, ListedState, Opener, Place, Request,
    RequestShape, Requests, Source, StateToken, StoredSum, Upload,
};

use crate::by_file::{self, ObjectDraft, ObjectFile};
use crate::by_rdma::ByRdma;
use crate::calls::checked::CheckedObject;
use crate::calls::etag::replaced;
use crate::calls::{Bucket, Listed, ObjectHead, ObjectUpload, Refusal};
use crate::endpoint::Endpoint;
use crate::fetch::{FIRST, HeadNow, ObjectFetch, Sites, Target};
use crate::listed;
use crate::lock;
use crate::pace::MOST_RANGES;
use crate::url::ObjectUrl;

/// An object as it was when it was opened.
pub(crate) struct ObjectSource {
    url: ObjectUrl,
    len: u64,
    fetch: Arc<ObjectFetch>,
    content: Content,
    by_rdma: ByRdma,
    /// Why its file on this node is not read, where the gateway has a socket.
    not_by_file: Option<Error>,
    /// When it was opened, until its state is asked for.
    opened: Mutex<Option<Instant>>,
}

/// What distinguishes a state of an object from the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// The length and the ETag, or where it has none the time of its last change.
    text: Option<String>,
    version: String,
}

impl Content {
    pub(crate) fn of(head: &ObjectHead) -> Self {
        let ObjectHead { len, etag, version, modified, .. } = head;
        let name = etag.clone().or_else(|| modified.map(|time| time.to_string()));
        let text = name.map(|name| Self::text(*len, &name));
        Self { text, version: version.clone().unwrap_or_default() }
    }

    pub(crate) fn text(len: u64, name: &str) -> String {
        format!("{len} {name}")
    }

    pub(crate) fn token(&self) -> Option<StateToken> {
        let text = self.text.as_ref()?;
        Some(StateToken::of_parts(text.as_bytes(), self.version.as_bytes(), &[]))
    }
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
        let bucket = Bucket::of_url(&url)?.anywhere()?;
        if url.is_prefix() {
            return Err(no_object(&bucket, &url)?);
        }
        let by_rdma = ByRdma::of_environment()?;
        // Its first bytes would come in a body of HTTP.
        let has_first = access.read && !by_rdma.is_required();
        match bucket.read(|bucket| found(bucket, &url, has_first)).map_err(Error::from) {
            Ok(found) => Self::new(bucket, url, found, by_rdma),
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

    /// `bucket` is that of all sites, where reads may go to others.
    fn new(bucket: Bucket, url: ObjectUrl, found: Found, by_rdma: ByRdma) -> Result<Self> {
        let Found { at, head, first, crc64 } = found;
        let (len, etag) = (head.len, head.etag.clone());
        let (key, version) = (url.key.clone(), url.version.clone());
        let target = Target { bucket: url.bucket.clone(), key, version, etag, len };
        // The server may have said that the bucket is in another region.
        let endpoint = at.endpoint_now()?;
        let sites = bucket.has_sites().then(|| Sites::new(bucket, &at, crc64));
        let fetch = ObjectFetch::new(endpoint, target, first, sites);
        let content = Content::of(&head);
        let opened = Mutex::new(Some(Instant::now()));
        Ok(Self { url, len, fetch, content, by_rdma, not_by_file: None, opened })
    }

    /// Whether what the server said when it was opened is what it says now. Asked once.
    fn is_fresh(&self) -> bool {
        lock(&self.opened).take().is_some_and(|at| at.elapsed() < FRESH)
    }
}

/// An object at the site that has it.
struct Found {
    at: Bucket,
    head: ObjectHead,
    first: Vec<u8>,
    /// Where reads may go on at another site.
    crc64: Option<String>,
}

fn found(bucket: &Bucket, url: &ObjectUrl, has_first: bool) -> Result<Found, Refusal> {
    let version = url.version.as_deref();
    // One that is to be read is asked for its first bytes at once.
    let (head, first) = if has_first {
        bucket.first(&url.key, version, FIRST)?
    } else {
        (bucket.head_here(&url.key, version)?, Vec::new())
    };
    let is_whole = !has_first || first.len() as u64 == head.len;
    let crc64 = match bucket.site_name() {
        None => None,
        // A server may send the checksum of a part with the part.
        Some(_) if !is_whole => {
            let now = bucket.head_here(&url.key, version)?;
            now.crc64().filter(|_| now.etag == head.etag).map(str::to_owned)
        }
        Some(_) => head.crc64().map(str::to_owned),
    };
    Ok(Found { at: bucket.clone(), head, first, crc64 })
}

impl ObjectSource {
    /// By what transfers are held up from now on.
    fn held_up(&self) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let endpoint = self.fetch.endpoint();
        let before = (endpoint.network.facts().silences, endpoint.budget.paused());
        let endpoint = Arc::downgrade(&endpoint);
        move || {
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
            let server = endpoint.site.name();
            Some(format!("held up: server {server} {what} for {} s in all", seconds.as_secs()))
        }
    }

    /// Why reads that were begun do not go on at another site, and how they would.
    fn not_elsewhere(&self, why: &str) -> (String, String) {
        let site = self.fetch.endpoint().account.site_name().map(str::to_owned);
        let text = format!("reads that were begun do not go on at another site: {why}");
        let url = forebay_error::quoted(&ObjectUrl { site, ..self.url.clone() }.to_string());
        (
            text,
            format!(
                "write it again, by S3 with its checksum: forebay cp {url} FILE && forebay cp FILE {url}"
            ),
        )
    }

    /// Which sites give bytes from now on, where it is not the one of now alone.
    fn sites_from_now(&self) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let (fetch, before) = (self.fetch.clone(), self.fetch.bytes_by_site());
        move || {
            let known =
                |name: &str| before.iter().find(|(known, _)| known == name).map_or(0, |(_, bytes)| *bytes);
            let more = |(name, bytes): (String, u64)| (bytes - known(&name), name);
            let more: Vec<_> =
                fetch.bytes_by_site().into_iter().map(more).filter(|(bytes, _)| *bytes > 0).collect();
            let was_moved = more.iter().any(|(_, name)| before.last().is_none_or(|(now, _)| now != name));
            let text =
                more.iter().map(|(bytes, name)| format!("{name} {bytes}")).collect::<Vec<_>>().join(", ");
            was_moved.then(|| format!("bytes by site: {text}"))
        }
    }
}

/// Opens an object: by its file where the gateway is on this node, else by S3.
fn open(url: ObjectUrl, access: Access) -> Result<Arc<dyn Source>> {
    let wanted = S3Local::from_env()?;
    let is_read = access.read && !access.write && !access.make && url.version.is_none() && !url.is_prefix();
    if wanted == S3Local::Off || !is_read {
        return Ok(Arc::new(ObjectSource::open(url, access)?));
    }
    let bucket = Bucket::of_url(&url)?;
    let tried = match ObjectFile::open(&bucket, &url, None) {
        Some(Ok(file)) => return Ok(Arc::new(file)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    // Its errors are those of S3. Its reply says where the gateway's socket is.
    let mut object = ObjectSource::open(url.clone(), access)?;
    let again = (tried.is_none() || bucket.endpoint.local.has_news())
        .then(|| ObjectFile::open(&bucket, &url, object.fetch.etag().as_deref()));
    let tried = match again.flatten() {
        Some(Ok(file)) => return Ok(Arc::new(file)),
        Some(Err(error)) => Some(error),
        None => tried,
    };
    if wanted == S3Local::Require {
        return Err(by_file::required(&url, tried.as_ref()));
    }
    object.not_by_file = tried;
    Ok(Arc::new(object))
}

/// Begins an object: by a file where the gateway is on this node, else by an upload.
fn make(url: &ObjectUrl) -> Result<Box<dyn Upload>> {
    let (wanted, bucket) = (S3Local::from_env()?, Bucket::of_url(url)?);
    if wanted == S3Local::Off {
        return Ok(Box::new(ObjectUpload::new(bucket, &url.key)));
    }
    let local = &bucket.endpoint.local;
    if local.is_likely() || (wanted == S3Local::Require && local.is_unknown()) {
        // Any reply says where the socket is; what this one says beside it is said again by the upload.
        let _ = bucket.region();
    }
    let why_not = match ObjectDraft::begin(&bucket, url) {
        Some(Ok(draft)) => return Ok(Box::new(draft)),
        failed => failed.and_then(Result::err),
    };
    if wanted == S3Local::Require {
        return Err(by_file::required(url, why_not.as_ref()));
    }
    Ok(Box::new(ObjectUpload::new(bucket, &url.key).not_by_file(why_not.as_ref().map(by_file::left_out))))
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

    fn place(&self) -> Option<Result<Arc<dyn Place>>> {
        if self.fetch.is_of_this_process() { self.by_rdma.place(&self.fetch) } else { None }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// The ETag and the length, or where it has none the time of its last change; the server is asked.
    fn state(&self) -> Result<Option<StateToken>> {
        if self.is_fresh() {
            return Ok(self.content.token());
        }
        let HeadNow { head, ours, is_moved } = self.fetch.head()?;
        // Other sites have ETags of their own, for the same bytes.
        if is_moved && head.etag == ours {
            return Ok(self.content.token());
        }
        Ok(Content::of(&head).token())
    }

    /// The server is asked. An error also where another object is there by now.
    fn stored_sum(&self) -> Option<Result<Box<dyn StoredSum>>> {
        let sum = self.fetch.head().and_then(|HeadNow { head, ours, .. }| {
            if head.etag != ours {
                return Err(replaced(ours.as_deref(), head.etag.as_deref()).with("url", &self.url));
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
        let endpoint = self.fetch.endpoint();
        let Endpoint { account, site, network, .. } = &*endpoint;
        let facts = network.facts();
        let transport = if facts.transport.is_empty() { "TCP" } else { facts.transport };
        let (region, most) = (account.region(&self.url.bucket), MOST_RANGES);
        let keys =
            account.provider().map_or("without keys".to_owned(), |provider| format!("keys of {provider}"));
        let at = account.site_name().map_or(String::new(), |name| format!("site {name}, "));
        let way = format!(
            "S3 over {transport}, by forebay's own client: {at}{}, region {region}, up to {most} connections, {keys}",
            site.name()
        );
        let left_out = facts.left_out.into_iter().map(|(address, why)| {
            let hint = format!("check the route and firewalls: nc -vz {} {}", address.ip(), address.port());
            (format!("address {address} of {} left out: {why}", site.name()), hint)
        });
        let not_by_file = self.not_by_file.iter().map(by_file::left_out);
        let not_elsewhere =
            self.fetch.stays_at_site().filter(|_| self.len > FIRST).map(|why| self.not_elsewhere(why));
        let not_by_rdma = self.by_rdma.left_out(&self.fetch);
        let left_out = left_out.chain(not_by_file).chain(not_elsewhere).chain(not_by_rdma).collect();
        Facts { way: Some(way), left_out, file_system: Some("s3") }
    }

    fn late_note(&self) -> Option<LateNote> {
        if !self.fetch.is_of_this_process() {
            return None;
        }
        let (held_up, sites) = (self.held_up(), self.sites_from_now());
        let by_rdma = self.by_rdma.late_note(&self.fetch);
        Some(Box::new(move || {
            let notes: Vec<_> = [by_rdma(), held_up(), sites()].into_iter().flatten().collect();
            (!notes.is_empty()).then(|| notes.join("; "))
        }))
    }

    fn bytes_by_site(&self) -> Vec<(String, u64)> {
        if self.fetch.is_of_this_process() { self.fetch.bytes_by_site() } else { Vec::new() }
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
        let left = if self.fetch.is_of_this_process() {
            // SAFETY: the lane keeps the memory valid and untouched until the answer.
            unsafe { self.by_rdma.start(&self.fetch, request, done) }
        } else {
            Some((request, done))
        };
        if let Some((request, done)) = left {
            // SAFETY: as above.
            unsafe { self.fetch.start(request, done) };
        }
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
        open(ObjectUrl::parse(url)?, access)
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
        make(&url)
    }

    fn list(&self, url: &Path) -> Result<Vec<ListEntry>> {
        let url = ObjectUrl::parse(url)?;
        let (bucket, prefix) = (Bucket::of_url(&url)?.anywhere()?, url.prefix());
        let mut entries = Vec::new();
        let mut is_there = prefix.is_empty();
        let mut list = bucket.list(&prefix, false);
        for one in list.by_ref() {
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
        match list.unknown() {
            _ if is_there => Ok(entries),
            Some(error) => Err(error.with("url", &url)),
            None => Err(missing("cannot list the folder: no such folder", &url)),
        }
    }

    fn states(&self, urls: &[&Path]) -> Vec<Option<ListedState>> {
        listed::states(urls)
    }

    fn has_folders(&self) -> bool {
        false
    }

    fn remove(&self, url: &Path) -> Result<()> {
        let url = ObjectUrl::parse_newest(url)?;
        Bucket::of_url(&url)?.delete(&url.key)
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
