//! The checksum of a whole object, compared while it is received by one call.

use crc_fast::{CrcAlgorithm, Digest};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{HostRange, StoredSum};
use reqsign_core::hash::{base64_encode, hex_sha256};

use crate::calls::ObjectHead;
use crate::wire::call::ReplyHead;

/// What names of headers with checksums begin with.
const PREFIX: &str = "x-amz-checksum-";

/// What a reply has to have.
pub(crate) struct CheckedBody {
    /// The header: `x-amz-checksum-crc64nvme`.
    header: &'static str,
    expected: String,
    sum: Sum,
}

enum Sum {
    /// And its bytes.
    Crc(Box<Digest>, usize),
    /// Of bytes that lie behind each other; `None`: they do not, and are not compared.
    Sha256(Option<HostRange>),
}

impl Sum {
    fn bytes(&self) -> usize {
        match self {
            Self::Crc(_, bytes) => *bytes,
            Self::Sha256(_) => 32,
        }
    }
}

impl CheckedBody {
    /// By a head whose body is the whole object. `None`: it has no checksum of all bytes that is known here. Sums of the sums of parts
    /// end in `-N`.
    pub(crate) fn of(head: &ReplyHead) -> Option<Self> {
        let is_composite = head.header("x-amz-checksum-type").is_some_and(|kind| kind == "COMPOSITE");
        Self::by(|header| head.header(header)).filter(|_| !is_composite)
    }

    fn by<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let crc = |algorithm, bytes| Sum::Crc(Box::new(Digest::new(algorithm)), bytes);
        let all = [
            ("x-amz-checksum-crc64nvme", crc(CrcAlgorithm::Crc64Nvme, 8)),
            ("x-amz-checksum-crc32c", crc(CrcAlgorithm::Crc32Iscsi, 4)),
            ("x-amz-checksum-crc32", crc(CrcAlgorithm::Crc32IsoHdlc, 4)),
            ("x-amz-checksum-sha256", Sum::Sha256(Some(HostRange::NONE))),
        ];
        let found = all.into_iter().find_map(|(header, sum)| {
            let expected = value(header)?.to_owned();
            Some(Self { header, expected, sum })
        });
        // Sums of the sums of parts are longer; moto's server gives a CRC-32 the name of another algorithm.
        found.filter(|found| found.expected.len() == found.sum.bytes().div_ceil(3) * 4)
    }

    /// S3's name of the algorithm: `crc64nvme`.
    fn name(&self) -> &'static str {
        self.header.strip_prefix(PREFIX).unwrap_or(self.header)
    }

    /// Whether the bytes have to be there until the check ends.
    pub(crate) fn needs_all(&self) -> bool {
        matches!(self.sum, Sum::Sha256(_))
    }

    /// Bytes came to this memory.
    ///
    /// # Safety
    /// They are there now, and until the check ends where it needs all.
    pub(crate) unsafe fn add(&mut self, bytes: HostRange) {
        match &mut self.sum {
            // SAFETY: passed on.
            Sum::Crc(digest, _) => digest.update(unsafe { bytes.bytes() }),
            Sum::Sha256(all) => {
                *all = all.and_then(|all| match all.len {
                    0 => Some(bytes),
                    len if all.after(len).start == bytes.start => {
                        Some(HostRange::new(all.start, len + bytes.len))
                    }
                    _ => None,
                });
            }
        }
    }

    /// All bytes came.
    pub(crate) fn end(self) -> Result<()> {
        let found = match self.sum {
            Sum::Crc(digest, bytes) => base64_encode(&digest.finalize().to_be_bytes()[8 - bytes..]),
            Sum::Sha256(None) => return Ok(()),
            // SAFETY: as `add` says.
            Sum::Sha256(Some(all)) => base64_encode(&unhex(&hex_sha256(unsafe { all.bytes() }))),
        };
        if found == self.expected {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "the object's bytes are others than those of its checksum")
            .with("checksum", self.header)
            .with("expected", forebay_error::plain(&self.expected))
            .with("found", found))
    }
}

/// The checksum of an object that is read by many calls; its bytes are not kept, so a hash of all of them cannot be made.
pub(crate) struct CheckedObject(CheckedBody);

impl CheckedObject {
    pub(crate) fn of(head: &ObjectHead) -> Result<Self> {
        let none = |why: String| Err(Error::new(ErrorKind::Unsupported, why));
        let Some((name, _)) = head.checksums.first() else {
            return none("the store gives no checksum of it".to_owned());
        };
        let value = |header: &str| {
            let name = header.strip_prefix(PREFIX)?;
            head.checksums.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        let name = forebay_error::plain(name);
        match CheckedBody::by(value) {
            _ if !head.is_full_checksum => none(format!("{name} is of the checksums of its parts")),
            Some(check) if !check.needs_all() => Ok(Self(check)),
            Some(_) => none(format!("{name} is not compared where an object is read in parts")),
            None => none(format!("{name} is not known, too short, or of the checksums of its parts")),
        }
    }
}

impl StoredSum for CheckedObject {
    fn algorithm(&self) -> &str {
        self.0.name()
    }

    fn add(&mut self, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed, and a CRC takes them now.
        unsafe { self.0.add(HostRange::of(bytes)) };
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.0.end()
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |byte, half| byte << 4 | digit(*half))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn head(headers: &[(&str, &str)]) -> ReplyHead {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        ReplyHead { status: 200, headers: headers.iter().map(owned).collect(), length: Some(9) }
    }

    fn end(name: &str, value: &str, bytes: &[u8]) -> Result<()> {
        let mut check = CheckedBody::of(&head(&[(name, value)])).unwrap();
        for part in bytes.chunks(4) {
            // SAFETY: the bytes live longer.
            unsafe { check.add(HostRange::of(part)) };
        }
        check.end()
    }

    #[test]
    fn values_of_another_length_are_not_compared() {
        for value in ["t6ALMg==", "rosUhgp5mIg=-2", ""] {
            assert!(CheckedBody::of(&head(&[("x-amz-checksum-crc64nvme", value)])).is_none(), "{value}");
        }
    }

    #[test]
    fn each_algorithm_knows_its_bytes() {
        for (name, sum) in [
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ] {
            end(name, sum, b"123456789").unwrap();
            let error = end(name, sum, b"123456780").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }

    #[test]
    fn sums_of_sums_and_unknown_ones_are_not_compared() {
        for headers in [
            &[("x-amz-checksum-crc32c", "4waSgw==-3")][..],
            &[("x-amz-checksum-crc32c", "4waSgw=="), ("x-amz-checksum-type", "COMPOSITE")],
            &[("x-amz-checksum-xxhash", "4waSgw==")],
            &[],
        ] {
            assert!(CheckedBody::of(&head(headers)).is_none(), "{headers:?}");
        }
    }

    fn object(checksums: &[(&str, &str)], is_full_checksum: bool) -> Result<CheckedObject> {
        let checksums = checksums.iter().map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned())).collect();
        CheckedObject::of(&ObjectHead { checksums, is_full_checksum, ..ObjectHead::default() })
    }

    #[test]
    fn objects_that_are_read_in_parts_fit_their_crcs() {
        for (name, sum) in [("crc64nvme", "rosUhgp5mIg="), ("crc32c", "4waSgw=="), ("crc32", "y/Q5Jg==")] {
            for (bytes, is_right) in [(b"123456789", true), (b"123456780", false)] {
                let mut object = Box::new(object(&[(name, sum)], true).unwrap());
                assert_eq!(object.algorithm(), name);
                bytes.chunks(4).for_each(|part| object.add(part));
                assert_eq!(object.end().is_ok(), is_right, "{name}");
            }
        }
        // Of several, one that can be compared.
        let both = object(&[("sha256", "FeKw"), ("crc32c", "4waSgw==")], true).unwrap();
        assert_eq!(both.algorithm(), "crc32c");
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        for (checksums, is_full, why) in [
            (&[][..], true, "gives no checksum"),
            (&[("crc32c", "4waSgw==")], false, "crc32c is of the checksums of its parts"),
            (&[("crc32", "4waSgw==-3")], true, "of the checksums of its parts"),
            (&[("sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=")], true, "sha256 is not compared"),
            (&[("xxhash", "4waSgw==")], true, "xxhash is not known"),
        ] {
            let error = object(checksums, is_full).err().unwrap();
            assert!(error.message().contains(why), "{checksums:?}: {error}");
        }
    }
}
