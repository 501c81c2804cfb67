//! How a server behaves, and what it has counted.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::request::Request;
use crate::signing::Keys;
use crate::{Asked, Counts, FakeS3, Fault, HEADS, Seen, Shared, lock};

pub(crate) struct Settings {
    pub(crate) keys: Vec<Keys>,
    pub(crate) is_public: bool,
    pub(crate) region: String,
    /// Seconds that the clock is ahead.
    pub(crate) skew: i64,
    pub(crate) knows_checksums: bool,
    /// Bytes of a part that is not the last one, at least.
    pub(crate) part_least: u64,
    /// Entries of a listing, at most.
    pub(crate) page: usize,
    pub(crate) keeps_bodies: bool,
    pub(crate) closes: bool,
    /// Buckets of other regions: the region, and its endpoint.
    pub(crate) moved: HashMap<String, (String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keys: vec![Keys::default()],
            is_public: true,
            region: "us-east-1".to_owned(),
            skew: 0,
            knows_checksums: true,
            part_least: 5 << 20,
            page: 1000,
            keeps_bodies: true,
            closes: false,
            moved: HashMap::new(),
        }
    }
}

impl FakeS3 {
    /// Further keys: access key, secret, and the session's token.
    pub fn add_keys(&self, access: &str, secret: &str, token: Option<&str>) {
        let keys = Keys {
            access: access.to_owned(),
            secret: secret.to_owned(),
            token: token.map(str::to_owned),
            is_expired: false,
        };
        lock(&self.shared.settings).keys.push(keys);
    }

    /// Keys have expired: requests with them end with `ExpiredToken`.
    pub fn expire_keys(&self, access: &str) {
        for keys in lock(&self.shared.settings).keys.iter_mut().filter(|keys| keys.access == access) {
            keys.is_expired = true;
        }
    }

    /// Requests without a signature are refused.
    pub fn require_signatures(&self) {
        lock(&self.shared.settings).is_public = false;
    }

    /// Another region than us-east-1; signatures for others are refused.
    pub fn set_region(&self, region: &str) {
        region.clone_into(&mut lock(&self.shared.settings).region);
    }

    /// A bucket is in another region, at that endpoint: requests are answered by a 301.
    pub fn move_bucket(&self, bucket: &str, region: &str, endpoint: &str) {
        let place = (region.to_owned(), endpoint.to_owned());
        lock(&self.shared.settings).moved.insert(bucket.to_owned(), place);
    }

    /// Its clock is that many seconds ahead.
    pub fn set_skew(&self, seconds: i64) {
        lock(&self.shared.settings).skew = seconds;
    }

    /// An old store: it neither checks nor keeps checksums.
    pub fn forget_checksums(&self) {
        lock(&self.shared.settings).knows_checksums = false;
    }

    /// Bytes of a part that is not the last one, at least. S3 has 5 MiB.
    pub fn set_part_least(&self, bytes: u64) {
        lock(&self.shared.settings).part_least = bytes;
    }

    /// Entries of a page of listings, at most. S3 has 1000.
    pub fn set_page(&self, entries: usize) {
        lock(&self.shared.settings).page = entries;
    }

    /// Bodies of PUT are checked and forgotten: objects are the pattern (see [`crate::fill_pattern`]), as long.
    pub fn forget_bodies(&self) {
        lock(&self.shared.settings).keeps_bodies = false;
    }

    /// Each connection is closed behind its first reply, which says so.
    pub fn close_each(&self) {
        lock(&self.shared.settings).closes = true;
    }

    /// Requests of a kind so far.
    pub fn requests(&self, asked: Asked) -> u64 {
        lock(&self.shared.counts).requests.get(&asked).copied().unwrap_or(0)
    }

    /// Requests so far.
    pub fn all_requests(&self) -> u64 {
        lock(&self.shared.counts).requests.values().sum()
    }

    /// Bytes of bodies that were sent.
    pub fn bytes_sent(&self) -> u64 {
        lock(&self.shared.counts).bytes
    }

    /// Values of `Range`, in the order in which they came.
    pub fn ranges(&self) -> Vec<String> {
        lock(&self.shared.counts).ranges.clone()
    }

    /// Connections that were opened.
    pub fn connections(&self) -> u64 {
        lock(&self.shared.counts).connections
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Requests that were under way at once, at most.
    pub fn most_under_way(&self) -> u64 {
        self.shared.most_under_way.load(Ordering::Relaxed)
    }

    /// Heads of requests, at most the last 4096.
    pub fn heads(&self) -> Vec<String> {
        lock(&self.shared.counts).heads.iter().cloned().collect()
    }

    /// Counts from 0 again.
    pub fn forget_counts(&self) {
        *lock(&self.shared.counts) = Counts::default();
        self.shared.most_under_way.store(0, Ordering::Relaxed);
    }

    /// Closes its connections, as servers do with those that nothing uses.
    pub fn close_connections(&self) {
        for connection in lock(&self.shared.connections).values() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Counts a request until it is dropped.
pub(crate) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Counts a connection. Returns its number.
    pub(crate) fn opened(&self, stream: &TcpStream) -> u64 {
        lock(&self.counts).connections += 1;
        let number = self.connection_numbers.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).extend(stream.try_clone().map(|stream| (number, stream)));
        number
    }

    pub(crate) fn closed(&self, connection: u64) {
        if let Some(stream) = lock(&self.connections).remove(&connection) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The connection is reset when its thread leaves it.
    pub(crate) fn reset(&self, connection: u64) {
        if let Some(stream) = lock(&self.connections).remove(&connection) {
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
    }

    pub(crate) fn began(&self, request: &Request) -> UnderWay<'_> {
        let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_under_way.fetch_max(now, Ordering::Relaxed);
        let mut counts = lock(&self.counts);
        counts.ranges.extend(request.header("range").map(str::to_owned));
        if counts.heads.len() == HEADS {
            counts.heads.pop_front();
        }
        counts.heads.push_back(request.raw.clone());
        UnderWay(&self.under_way)
    }

    pub(crate) fn count_bytes(&self, bytes: u64) {
        lock(&self.counts).bytes += bytes;
    }

    /// What goes wrong with a request.
    pub(crate) fn fault(&self, mut seen: Seen) -> Option<Fault> {
        let count = {
            let mut counts = lock(&self.counts);
            let count = counts.requests.entry(seen.asked).or_default();
            *count += 1;
            *count
        };
        seen.before = count - 1;
        (lock(&self.faults))(&seen)
    }
}

impl Drop for FakeS3 {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.close_connections();
        let _ = TcpStream::connect(self.address);
    }
}
