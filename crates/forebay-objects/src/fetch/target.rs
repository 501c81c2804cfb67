//! One state of an object, and what asks for it.

use crate::ObjectUrl;
use crate::calls::etag::strong;
use crate::wire::call::{Ask, Method};

/// One state of an object.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) version: Option<String>,
    pub(crate) etag: Option<String>,
    pub(crate) len: u64,
}

impl Target {
    /// Its URL, at no particular site.
    pub(crate) fn url(&self) -> ObjectUrl {
        let (bucket, key, version) = (self.bucket.clone(), self.key.clone(), self.version.clone());
        ObjectUrl { site: None, bucket, key, version }
    }

    /// What asks for bytes of it; `None`: for its head.
    pub(crate) fn ask(&self, range: Option<(u64, u64)>) -> Ask {
        let mut headers = Vec::new();
        if let Some((start, end)) = range {
            // Servers send a checksum with all of the bytes alone; some send that of all with a part.
            headers.push(if (start, end) == (0, self.len) {
                ("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned())
            } else {
                ("range".to_owned(), format!("bytes={start}-{}", end - 1))
            });
            let etag = strong(self.etag.as_deref());
            headers.extend(etag.map(|etag| ("if-match".to_owned(), etag.to_owned())));
        }
        let version = self.version.as_ref().map(|version| ("versionId".to_owned(), version.clone()));
        Ask {
            method: if range.is_some() { Method::Get } else { Method::Head },
            bucket: self.bucket.clone(),
            key: self.key.clone(),
            query: version.into_iter().collect(),
            headers,
        }
    }
}
