//! A test double: an S3 server in the process, with faults on demand. Never shipped.
//!
//! It has its own reading of requests, signatures and checksums, so that a mistake of the client's is not repeated here. A thread
//! serves a connection. Faults come on demand: see [`Fault`].
//!
//! ```
//! let server = fake_s3::FakeS3::start();
//! server.put("bucket", "a/key", "bytes");
//! assert!(server.endpoint().starts_with("http://127.0.0.1:"));
//! ```

#![allow(clippy::format_push_string, reason = "documents of a test double: clear before fast")]

mod answer;
mod call;
mod content;
mod fault;
mod listing;
mod md5;
mod objects;
mod reply;
mod request;
mod send;
mod serve;
mod settings;
mod signing;
mod store;
mod sums;
mod text;
mod tls;
mod uploads;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use content::Content;
pub use content::fill_pattern;
pub use fault::{Asked, Fault, Faults, Place, Seen};
use serve::Wire;
use settings::Settings;
pub use signing::{ACCESS_KEY, SECRET_KEY, verify_head};
use store::{Object, Store};
pub use tls::CA;

/// Heads that are kept.
const HEADS: usize = 4096;

/// A server; it ends when it is dropped.
pub struct FakeS3 {
    address: SocketAddr,
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    settings: Mutex<Settings>,
    counts: Mutex<Counts>,
    connections: Mutex<HashMap<u64, TcpStream>>,
    connection_numbers: AtomicU64,
    under_way: AtomicU64,
    most_under_way: AtomicU64,
    is_over: AtomicBool,
    tls: Option<Arc<rustls::ServerConfig>>,
}

#[derive(Default)]
struct Counts {
    requests: BTreeMap<Asked, u64>,
    bytes: u64,
    ranges: Vec<String>,
    connections: u64,
    heads: VecDeque<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

impl FakeS3 {
    /// Starts one on a free port of this host.
    ///
    /// # Panics
    /// If there is none.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts one that speaks TLS, as `localhost` and `127.0.0.1`. [`CA`] signed its certificate.
    ///
    /// # Panics
    /// If there is no port.
    pub fn start_tls() -> Self {
        Self::start_with(Some(tls::config()))
    }

    fn start_with(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        #[allow(clippy::expect_used, reason = "a test double: without a port there is no test")]
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        #[allow(clippy::expect_used, reason = "as above")]
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            store: Mutex::default(),
            faults: Mutex::new(Box::new(|_| None)),
            settings: Mutex::default(),
            counts: Mutex::default(),
            connections: Mutex::default(),
            connection_numbers: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            most_under_way: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            tls,
        });
        let serving = shared.clone();
        std::thread::spawn(move || serve::accept(&listener, &serving));
        Self { address, shared }
    }

    /// Its URL: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Variables by which clients use it: endpoint, region, keys, and none of the machine's own files and roles.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", lock(&self.shared.settings).region.clone()),
            ("AWS_CONFIG_FILE", "/dev/null".to_owned()),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// Makes a bucket, where there is none.
    pub fn make_bucket(&self, bucket: &str) {
        lock(&self.shared.store).buckets.entry(bucket.to_owned()).or_default();
    }

    /// Keeps all versions of a bucket's objects from now on.
    pub fn keep_versions(&self, bucket: &str) {
        lock(&self.shared.store).buckets.entry(bucket.to_owned()).or_default().is_versioned = true;
    }

    /// Makes an object, and its bucket. Returns the version, where they are kept.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Vec<u8>>) -> Option<String> {
        let content = Content::of(bytes);
        let mut object = Object::new(content.clone(), sums::etag(&content), now());
        if let Content::Bytes(bytes) = &content
            && lock(&self.shared.settings).knows_checksums
        {
            let algorithm = sums::Algorithm::Crc64;
            object.checksum = Some((algorithm, text::base64(&algorithm.sum(bytes))));
        }
        lock(&self.shared.store).put(bucket, key, object)
    }

    /// Makes an object whose bytes are made when they are sent (see [`fill_pattern`], with seed 0): it takes no memory.
    pub fn put_pattern(&self, bucket: &str, key: &str, len: u64) {
        let object = Object::new(Content::Pattern { seed: 0, len }, format!("{len:032x}-1"), now());
        lock(&self.shared.store).put(bucket, key, object);
    }

    /// The bytes of an object.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let content = lock(&self.shared.store).find(bucket, key, None)?.content.clone();
        Some(content.to_vec())
    }

    /// The size of an object.
    pub fn size(&self, bucket: &str, key: &str) -> Option<u64> {
        Some(lock(&self.shared.store).find(bucket, key, None)?.content.len())
    }

    /// The ETag of an object, without quotes.
    pub fn etag(&self, bucket: &str, key: &str) -> Option<String> {
        Some(lock(&self.shared.store).find(bucket, key, None)?.etag.clone())
    }

    /// Metadata that came with an object.
    pub fn metadata(&self, bucket: &str, key: &str) -> Vec<(String, String)> {
        lock(&self.shared.store).find(bucket, key, None).map_or(Vec::new(), |object| object.metadata.clone())
    }

    /// Gives an object this metadata: names of headers in lower case, and values.
    pub fn describe(&self, bucket: &str, key: &str, metadata: &[(&str, &str)]) {
        let owned = metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        lock(&self.shared.store).change(bucket, key, |object| object.metadata = owned.collect());
    }

    /// Gives an object this ETag, without quotes: those of two servers differ for the same bytes.
    pub fn tag(&self, bucket: &str, key: &str, etag: &str) {
        lock(&self.shared.store).change(bucket, key, |object| etag.clone_into(&mut object.etag));
    }

    /// Makes an object that many seconds older.
    pub fn age(&self, bucket: &str, key: &str, seconds: i64) {
        lock(&self.shared.store).change(bucket, key, |object| object.modified -= seconds);
    }

    /// Removes an object.
    pub fn remove(&self, bucket: &str, key: &str) {
        lock(&self.shared.store).remove(bucket, key, None);
    }

    /// The keys of a bucket.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let store = lock(&self.shared.store);
        store.buckets.get(bucket).map_or(Vec::new(), |bucket| bucket.objects.keys().cloned().collect())
    }

    /// Multipart uploads that were neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        lock(&self.shared.store).uploads.len()
    }

    /// Those of one bucket: tests that share a server have one each.
    pub fn open_uploads_of(&self, bucket: &str) -> usize {
        lock(&self.shared.store).uploads.values().filter(|upload| upload.bucket == bucket).count()
    }

    /// Makes these that many seconds older.
    pub fn age_uploads(&self, seconds: i64) {
        lock(&self.shared.store).uploads.values_mut().for_each(|upload| upload.begun -= seconds);
    }

    /// From now on these decide what goes wrong.
    pub fn faults(&self, faults: impl FnMut(&Seen) -> Option<Fault> + Send + 'static) {
        *lock(&self.shared.faults) = Box::new(faults);
    }

    /// The `nth` request of a kind from now on, counted from 0, goes wrong.
    pub fn fault_once(&self, asked: Asked, nth: u64, fault: Fault) {
        let mut seen_before = 0;
        self.faults(move |seen| {
            let is_it = seen.asked == asked;
            seen_before += u64::from(is_it);
            (is_it && seen_before == nth + 1).then(|| fault.clone())
        });
    }

    /// Each request of a kind goes wrong from now on.
    pub fn fault_always(&self, asked: Asked, fault: Fault) {
        self.faults(move |seen| (seen.asked == asked).then(|| fault.clone()));
    }

    /// Nothing goes wrong from now on.
    pub fn no_faults(&self) {
        self.faults(|_| None);
    }
}
