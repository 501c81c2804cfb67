//! Buckets and objects, in memory.

use std::collections::BTreeMap;

use crate::content::Content;
use crate::sums::Algorithm;

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) buckets: BTreeMap<String, Bucket>,
    pub(crate) uploads: BTreeMap<String, Upload>,
    numbers: u64,
}

#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) is_versioned: bool,
    /// The newest version is the last.
    pub(crate) objects: BTreeMap<String, Vec<Object>>,
    pub(crate) made: i64,
}

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) content: Content,
    /// Without quotes.
    pub(crate) etag: String,
    /// Seconds since 1970.
    pub(crate) modified: i64,
    /// In base64, with `-N` where it is composite.
    pub(crate) checksum: Option<(Algorithm, String)>,
    pub(crate) is_composite: bool,
    pub(crate) version: Option<String>,
    /// A removal of a versioned object.
    pub(crate) is_marker: bool,
    /// `content-type`, `x-amz-meta-*`, `x-amz-tagging`, ….
    pub(crate) metadata: Vec<(String, String)>,
}

/// A multipart upload.
pub(crate) struct Upload {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) parts: BTreeMap<u32, Part>,
    pub(crate) algorithm: Algorithm,
    pub(crate) is_composite: bool,
    pub(crate) metadata: Vec<(String, String)>,
    /// Seconds since 1970.
    pub(crate) begun: i64,
}

pub(crate) struct Part {
    pub(crate) content: Content,
    pub(crate) etag: String,
    /// `None`: it was copied.
    pub(crate) sum: Option<Vec<u8>>,
}

impl Object {
    pub(crate) fn new(content: Content, etag: String, modified: i64) -> Self {
        Self {
            content,
            etag,
            modified,
            checksum: None,
            is_composite: false,
            version: None,
            is_marker: false,
            metadata: vec![("content-type".to_owned(), "binary/octet-stream".to_owned())],
        }
    }
}

impl Store {
    /// A number that nobody has had.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The newest version of an object, or one of it.
    pub(crate) fn find(&self, bucket: &str, key: &str, version: Option<&str>) -> Option<&Object> {
        let versions = self.buckets.get(bucket)?.objects.get(key)?;
        match version {
            Some(wanted) => versions.iter().find(|one| one.version.as_deref().unwrap_or("null") == wanted),
            None => versions.last().filter(|one| !one.is_marker),
        }
    }

    /// Puts an object in the place of the one before, or behind it. Returns its version.
    pub(crate) fn put(&mut self, bucket: &str, key: &str, mut object: Object) -> Option<String> {
        let number = self.number();
        let bucket = self.buckets.entry(bucket.to_owned()).or_default();
        let versions = bucket.objects.entry(key.to_owned()).or_default();
        if bucket.is_versioned {
            object.version = Some(format!("v{number:07}"));
        } else {
            versions.clear();
        }
        let version = object.version.clone();
        versions.push(object);
        version
    }

    /// Changes the newest version of an object.
    pub(crate) fn change(&mut self, bucket: &str, key: &str, change: impl FnOnce(&mut Object)) {
        let versions = self.buckets.get_mut(bucket).and_then(|bucket| bucket.objects.get_mut(key));
        versions.and_then(|versions| versions.last_mut()).map(change);
    }

    /// Removes an object, or a version; where versions are kept, another version says so.
    pub(crate) fn remove(&mut self, bucket: &str, key: &str, version: Option<&str>) {
        let number = self.number();
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        let Some(versions) = bucket.objects.get_mut(key) else { return };
        match version {
            Some(gone) => versions.retain(|one| one.version.as_deref().unwrap_or("null") != gone),
            None if bucket.is_versioned => {
                let Some(mut marker) = versions.last().cloned() else { return };
                marker.content = Content::of("");
                marker.version = Some(format!("v{number:07}"));
                marker.is_marker = true;
                versions.push(marker);
            }
            None => versions.clear(),
        }
        if versions.is_empty() {
            bucket.objects.remove(key);
        }
    }
}
