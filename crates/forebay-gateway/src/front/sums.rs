//! Checksums of bodies: computed while the bytes come, compared with what the client says, joined from those of parts.

use base64_simd::STANDARD as BASE64;
use crc_fast::{CrcAlgorithm, Digest};
use hyper::HeaderMap;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::ChecksumType;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::hex::hex;
use crate::store::{Checksum, PartFacts};

/// A checksum that S3's clients may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc64Nvme,
    Crc32c,
    Crc32,
    Sha1,
    Sha256,
}

impl Algorithm {
    const ALL: [Self; 5] = [Self::Crc64Nvme, Self::Crc32c, Self::Crc32, Self::Sha1, Self::Sha256];

    /// As in `x-amz-checksum-algorithm` and in the object's metadata.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crc64Nvme => "CRC64NVME",
            Self::Crc32c => "CRC32C",
            Self::Crc32 => "CRC32",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// The header, or trailer, that has its value.
    pub(crate) const fn header(self) -> &'static str {
        match self {
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The algorithm of a name.
    pub(crate) fn of(name: &str) -> S3Result<Self> {
        let found = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| refused(&format!("the checksum {name} is not one of this server's")))
    }

    /// Parts' checksums of it can be joined to the whole object's.
    pub(crate) const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// Bytes of a value.
    const fn len(self) -> usize {
        match self {
            Self::Crc64Nvme => 8,
            Self::Crc32c | Self::Crc32 => 4,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    fn hasher(self) -> Hasher {
        match self.crc() {
            Some(crc) => Hasher::Crc(Digest::new(crc), self.len()),
            None if self == Self::Sha1 => Hasher::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            None => Hasher::Sha(Context::new(&SHA256)),
        }
    }
}

enum Hasher {
    Crc(Digest, usize),
    Sha(Context),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(bytes),
            Self::Sha(context) => context.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc(digest, len) => digest.finalize().to_be_bytes()[8 - len..].to_vec(),
            Self::Sha(context) => context.finish().as_ref().to_vec(),
        }
    }
}

/// The checksums of a body: the client's, and ours as far as it came.
pub(crate) struct Sums {
    algorithm: Algorithm,
    hasher: Hasher,
    /// In base64, from a header; one from a trailer comes later.
    said: Option<String>,
    in_trailer: bool,
    /// In base64, from `Content-MD5`.
    md5: Option<(Md5, String)>,
}

/// The checksums of a body that came whole and right.
pub(crate) struct Summed {
    pub(crate) checksum: Checksum,
    /// In hexadecimal digits, where the client said it.
    pub(crate) md5: Option<String>,
}

impl Sums {
    /// By the heads of a request. `usual`: where they ask for none.
    pub(crate) fn of(headers: &HeaderMap, usual: Algorithm) -> S3Result<Self> {
        let said = said(headers)?;
        let trailer = trailer(headers)?;
        if said.is_some() && trailer.is_some() {
            return Err(refused("one checksum is allowed in a request"));
        }
        let algorithm = match (&said, trailer, text(headers, "x-amz-sdk-checksum-algorithm")) {
            (Some((algorithm, _)), ..) => *algorithm,
            (None, Some(algorithm), _) => algorithm,
            (None, None, Some(name)) => Algorithm::of(name)?,
            (None, None, None) => usual,
        };
        let md5 = match text(headers, "content-md5") {
            None => None,
            Some(value) if bytes_of(value, 16).is_some() => Some((Md5::new(), value.to_owned())),
            Some(_) => return Err(S3Error::new(S3ErrorCode::InvalidDigest)),
        };
        let in_trailer = said.is_none() && trailer.is_some();
        Ok(Self {
            algorithm,
            hasher: algorithm.hasher(),
            said: said.map(|(_, value)| value),
            in_trailer,
            md5,
        })
    }

    /// Refuses a part whose checksum is not the one that its upload was begun with: the object's could not be made of it.
    pub(crate) fn require(&self, asked: Algorithm) -> S3Result<()> {
        if self.algorithm == asked {
            return Ok(());
        }
        let (is, asked) = (self.algorithm.name(), asked.name());
        Err(refused(&format!("the part has the checksum {is}, the upload was begun with {asked}")))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some((md5, _)) = &mut self.md5 {
            md5.update(bytes);
        }
    }

    /// Compares. `trailers`: of the body, where it had some.
    pub(crate) fn finish(self, trailers: Option<&HeaderMap>) -> S3Result<Summed> {
        let value = BASE64.encode_to_string(self.hasher.finish());
        let said = match (self.said, self.in_trailer) {
            (Some(said), _) => Some(said),
            (None, true) => {
                let trailer = trailers.and_then(|trailers| text(trailers, self.algorithm.header()));
                Some(
                    trailer.ok_or_else(|| refused("the trailer that was announced is not there"))?.to_owned(),
                )
            }
            (None, false) => None,
        };
        if said.is_some_and(|said| said != value) {
            return Err(wrong(self.algorithm.name()));
        }
        let md5 = match self.md5 {
            None => None,
            Some((md5, said)) => {
                let bytes = md5.finalize();
                if BASE64.encode_to_string(bytes) != said {
                    return Err(wrong("MD5"));
                }
                Some(hex(&bytes))
            }
        };
        let algorithm = self.algorithm.name().to_owned();
        Ok(Summed { checksum: Checksum { algorithm, value, is_composite: false }, md5 })
    }
}

/// The checksum that a head has, and its value.
pub(crate) fn said(headers: &HeaderMap) -> S3Result<Option<(Algorithm, String)>> {
    let mut found = None;
    for name in headers.keys().map(hyper::header::HeaderName::as_str) {
        let Some(which) = name.strip_prefix("x-amz-checksum-") else { continue };
        if matches!(which, "algorithm" | "type" | "mode") {
            continue;
        }
        let algorithm = Algorithm::of(which)?;
        let value = text(headers, name).unwrap_or_default();
        // A composite one has its `-N`: the bytes before it are compared.
        if bytes_of(value.split('-').next().unwrap_or_default(), algorithm.len()).is_none() {
            return Err(refused(&format!("the value of {name} is no checksum")));
        }
        if found.replace((algorithm, value.to_owned())).is_some() {
            return Err(refused("one checksum is allowed in a request"));
        }
    }
    Ok(found)
}

/// The checksum that `x-amz-trailer` announces.
fn trailer(headers: &HeaderMap) -> S3Result<Option<Algorithm>> {
    let lines = headers.get_all("x-amz-trailer").into_iter().filter_map(|line| line.to_str().ok());
    let mut found = None;
    for name in lines.flat_map(|line| line.split(',')) {
        let name = name.trim().to_ascii_lowercase();
        let Some(which) = name.strip_prefix("x-amz-checksum-") else { continue };
        if found.replace(Algorithm::of(which)?).is_some() {
            return Err(refused("one checksum is allowed in a request"));
        }
    }
    Ok(found)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

pub(crate) fn bytes_of(value: &str, len: usize) -> Option<Vec<u8>> {
    BASE64.decode_to_vec(value).ok().filter(|bytes| bytes.len() == len)
}

fn refused(why: &str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, why.to_owned())
}

fn wrong(name: &str) -> S3Error {
    S3Error::with_message(
        S3ErrorCode::BadDigest,
        format!("The {name} that was given is not that of the bytes that came."),
    )
}

/// The checksum of an object that is made of parts; `None` where a part lacks it.
pub(crate) fn joined(parts: &[&PartFacts], algorithm: Algorithm, is_composite: bool) -> Option<Checksum> {
    let mut values = Vec::new();
    for part in parts {
        let sum = part.facts.meta.checksum.as_ref().filter(|sum| sum.algorithm == algorithm.name())?;
        values.push((bytes_of(&sum.value, algorithm.len())?, part.facts.len));
    }
    let value = if is_composite {
        let mut hasher = algorithm.hasher();
        for (value, _) in &values {
            hasher.update(value);
        }
        format!("{}-{}", BASE64.encode_to_string(hasher.finish()), values.len())
    } else {
        let crc = algorithm.crc()?;
        let mut values = values.into_iter().map(|(value, len)| (number(&value), len));
        let (first, _) = values.next()?;
        let all = values.fold(first, |all, (next, len)| crc_fast::checksum_combine(crc, all, next, len));
        BASE64.encode_to_string(&all.to_be_bytes()[8 - algorithm.len()..])
    };
    Some(Checksum { algorithm: algorithm.name().to_owned(), value, is_composite })
}

fn number(value: &[u8]) -> u64 {
    value.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// The checksum of an open file's range.
pub(crate) fn of_file(
    file: &std::fs::File,
    from: u64,
    len: u64,
    algorithm: Algorithm,
) -> std::io::Result<Checksum> {
    use std::os::unix::fs::FileExt as _;

    let mut hasher = algorithm.hasher();
    let mut piece = vec![0; 256 << 10];
    let mut at = 0;
    while at < len {
        let next = piece.len().min((len - at) as usize);
        file.read_exact_at(&mut piece[..next], from + at)?;
        hasher.update(&piece[..next]);
        at += next as u64;
    }
    let value = BASE64.encode_to_string(hasher.finish());
    Ok(Checksum { algorithm: algorithm.name().to_owned(), value, is_composite: false })
}

/// What S3 calls it.
pub(crate) fn kind(checksum: &Checksum) -> ChecksumType {
    ChecksumType::from_static(if checksum.is_composite {
        ChecksumType::COMPOSITE
    } else {
        ChecksumType::FULL_OBJECT
    })
}

/// Writes an `Option<&Checksum>` into the fields that an answer has for it.
macro_rules! tell_checksum {
    ($answer:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let value = Some(checksum.value.clone());
            match checksum.algorithm.as_str() {
                "CRC64NVME" => $answer.checksum_crc64nvme = value,
                "CRC32C" => $answer.checksum_crc32c = value,
                "CRC32" => $answer.checksum_crc32 = value,
                "SHA1" => $answer.checksum_sha1 = value,
                "SHA256" => $answer.checksum_sha256 = value,
                _ => {}
            }
        }
    };
}
pub(crate) use tell_checksum;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Facts, Meta};

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn sum(pairs: &[(&'static str, &str)], bytes: &[u8], trailers: Option<&HeaderMap>) -> S3Result<Summed> {
        let mut sums = Sums::of(&headers(pairs), Algorithm::Crc64Nvme)?;
        sums.update(bytes);
        sums.finish(trailers)
    }

    #[test]
    fn known_values_of_each_algorithm() {
        let known = [
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
            ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ];
        for (name, value) in &known {
            assert!(sum(&[(name, value)], b"123456789", None).is_ok(), "{name}");
            let code = sum(&[(name, value)], b"123456780", None).err().unwrap();
            assert_eq!(code.code(), &S3ErrorCode::BadDigest, "{name}");
        }
        assert_eq!(sum(&[], b"123456789", None).unwrap().checksum.value, "rosUhgp5mIg=");
    }

    #[test]
    fn a_trailer_that_was_announced_must_come() {
        let announced = [("x-amz-trailer", "x-amz-checksum-crc32")];
        let right = headers(&[("x-amz-checksum-crc32", "y/Q5Jg==")]);
        assert!(sum(&announced, b"123456789", Some(&right)).is_ok());
        assert!(sum(&announced, b"12345678", Some(&right)).is_err());
        assert!(sum(&announced, b"123456789", None).is_err());
    }

    #[test]
    fn trailers_are_announced_in_any_case_one_checksum_alone() {
        let right = headers(&[("x-amz-checksum-crc32", "y/Q5Jg==")]);
        let of = |names: &str| sum(&[("x-amz-trailer", names)], b"123456789", Some(&right));
        assert_eq!(of("X-Amz-Meta-A, X-Amz-Checksum-Crc32").unwrap().checksum.algorithm, "CRC32");
        for names in ["x-amz-checksum-crc32,x-amz-checksum-sha1", "X-Amz-Checksum-Xxhash64"] {
            assert_eq!(of(names).err().unwrap().code(), &S3ErrorCode::InvalidRequest, "{names}");
        }
        let both = [("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-trailer", "x-amz-checksum-crc32")];
        assert!(sum(&both, b"123456789", Some(&right)).is_err());
    }

    #[test]
    fn md5_is_compared_and_kept() {
        let summed = sum(&[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")], b"123456789", None).unwrap();
        assert_eq!(summed.md5.as_deref(), Some("25f9e794323b453885f5181f1b624d0b"));
        let error = sum(&[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")], b"12345678", None).err().unwrap();
        assert_eq!(error.code(), &S3ErrorCode::BadDigest);
        let error = sum(&[("content-md5", "bm8gTUQ1")], b"", None).err().unwrap();
        assert_eq!(error.code(), &S3ErrorCode::InvalidDigest);
    }

    #[test]
    fn two_checksums_and_unknown_ones_are_refused() {
        for pairs in [
            &[("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-checksum-crc32c", "4waSgw==")][..],
            &[("x-amz-checksum-xxhash64", "y/Q5Jg==")],
            &[("x-amz-checksum-crc32", "short")],
        ] {
            assert_eq!(sum(pairs, b"123456789", None).err().unwrap().code(), &S3ErrorCode::InvalidRequest);
        }
    }

    fn part(number: u32, bytes: &[u8], algorithm: Algorithm) -> PartFacts {
        let mut hasher = algorithm.hasher();
        hasher.update(bytes);
        let value = BASE64.encode_to_string(hasher.finish());
        let checksum = Some(Checksum { algorithm: algorithm.name().into(), value, is_composite: false });
        let meta = Meta { checksum, ..Meta::default() };
        let modified = std::time::SystemTime::UNIX_EPOCH;
        PartFacts { number, facts: Facts { len: bytes.len() as u64, modified, etag: String::new(), meta } }
    }

    #[test]
    fn crcs_of_parts_join_to_that_of_the_whole() {
        for algorithm in [Algorithm::Crc64Nvme, Algorithm::Crc32c, Algorithm::Crc32] {
            let parts = [part(1, b"1234", algorithm), part(2, b"", algorithm), part(5, b"56789", algorithm)];
            let whole = part(1, b"123456789", algorithm).facts.meta.checksum;
            assert_eq!(joined(&parts.iter().collect::<Vec<_>>(), algorithm, false), whole);
        }
    }

    #[test]
    fn composite_ones_have_the_number_of_parts_and_need_each() {
        let parts = [part(1, b"1234", Algorithm::Sha256), part(2, b"56789", Algorithm::Sha256)];
        let all: Vec<_> = parts.iter().collect();
        assert!(joined(&all, Algorithm::Sha256, true).unwrap().value.ends_with("=-2"));
        assert_eq!(joined(&all, Algorithm::Sha256, false), None);
        assert_eq!(joined(&all, Algorithm::Crc32, true), None);
    }
}
