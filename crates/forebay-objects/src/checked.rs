//! The checksum of a whole object, compared while it is received by one call.

use crc_fast::{CrcAlgorithm, Digest};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;
use reqsign_core::hash::{base64_encode, hex_sha256};

use crate::wire::call::ReplyHead;

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

impl CheckedBody {
    /// By a head whose body is the whole object. `None`: it has no checksum of all bytes that is known here. Sums of the sums of parts
    /// end in `-N`.
    pub(crate) fn of(head: &ReplyHead) -> Option<Self> {
        let is_composite = head.header("x-amz-checksum-type").is_some_and(|kind| kind == "COMPOSITE");
        let crc = |algorithm, bytes| Sum::Crc(Box::new(Digest::new(algorithm)), bytes);
        let all = [
            ("x-amz-checksum-crc64nvme", crc(CrcAlgorithm::Crc64Nvme, 8)),
            ("x-amz-checksum-crc32c", crc(CrcAlgorithm::Crc32Iscsi, 4)),
            ("x-amz-checksum-crc32", crc(CrcAlgorithm::Crc32IsoHdlc, 4)),
            ("x-amz-checksum-sha256", Sum::Sha256(Some(HostRange::NONE))),
        ];
        let found = all.into_iter().find_map(|(header, sum)| {
            let expected = head.header(header)?.to_owned();
            Some(Self { header, expected, sum })
        });
        found.filter(|found| !is_composite && !found.expected.contains('-'))
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
}
