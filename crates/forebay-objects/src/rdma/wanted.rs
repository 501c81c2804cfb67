//! What a server is asked for to find out whether it moves bytes by RDMA.

use std::fmt::Write as _;

use forebay_s3_rdma::Operation;

use crate::account::encoded;

/// Bytes of an object.
pub(crate) struct Wanted {
    pub(super) operation: Operation,
    /// The object, as hipobj-rc-v2 names it.
    pub(super) target: String,
    pub(super) bytes: u64,
}

impl Wanted {
    /// An object that is there.
    pub(crate) fn read(bucket: &str, key: &str, version: Option<&str>, bytes: u64) -> Self {
        let query: Vec<_> =
            version.map(|version| ("versionId".to_owned(), version.to_owned())).into_iter().collect();
        Self { operation: Operation::Get, target: Self::target(bucket, key, &query), bytes }
    }

    /// An object that is to be written. Nothing is stored.
    pub(crate) fn write(bucket: &str, key: &str, bytes: u64) -> Self {
        Self { operation: Operation::Put, target: Self::target(bucket, key, &[]), bytes }
    }

    /// `/bucket/key?query`, percent-encoded.
    pub(super) fn target(bucket: &str, key: &str, query: &[(String, String)]) -> String {
        let mut target = format!("/{}/{}", encoded(bucket, false), encoded(key, true));
        for (number, (name, value)) in query.iter().enumerate() {
            target.push(if number == 0 { '?' } else { '&' });
            let _ = write!(target, "{}={}", encoded(name, false), encoded(value, false));
        }
        target
    }
}
