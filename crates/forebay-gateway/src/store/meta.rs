//! The facts that an object has beside its bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A checksum of an object's bytes, as S3 writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// `CRC64NVME`, `CRC32C`, `CRC32`, `SHA1`, `SHA256`.
    pub algorithm: String,
    /// In base64; of a composite one, with its `-N`.
    pub value: String,
    /// Of the parts' checksums, not of the bytes.
    pub is_composite: bool,
}

/// What a client said of an object when it wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Standard headers by their lower-case name: `content-type`, `content-encoding`, `cache-control`, …
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Names without `x-amz-meta-`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub user: BTreeMap<String, String>,
    /// Tags of the object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Of the bytes as they were written: the store drops it where another program changed the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// In hexadecimal digits; the client sent it. It is the ETag then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
    /// The lengths of the parts that it was made of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
    /// The checksums of these parts, of the object's algorithm; none where one lacks it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub part_sums: Vec<String>,
}

impl Meta {
    /// The checksum of a part, from 1.
    pub(crate) fn checksum_of_part(&self, number: usize) -> Option<Checksum> {
        let value = self.part_sums.get(number.checked_sub(1)?)?.clone();
        let algorithm = self.checksum.as_ref()?.algorithm.clone();
        Some(Checksum { algorithm, value, is_composite: false })
    }

    /// Without what is only so of these very bytes.
    pub(crate) fn without_bytes(self) -> Self {
        Self { checksum: None, md5: None, parts: Vec::new(), part_sums: Vec::new(), ..self }
    }
}
