//! Checksums of bodies and objects.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};
use ring::digest::{Context, SHA256, digest};

use crate::content::Content;
use crate::md5::Md5;
use crate::reply::Reply;
use crate::request::Request;
use crate::text::{base64, hex};

/// A checksum that S3 keeps with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64,
    Sha256,
}

pub(crate) const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64, Algorithm::Sha256];

impl Algorithm {
    /// As `x-amz-checksum-algorithm` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64 => "CRC64NVME",
            Self::Sha256 => "SHA256",
        }
    }

    pub(crate) fn header(self) -> String {
        format!("x-amz-checksum-{}", self.name().to_ascii_lowercase())
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        ALGORITHMS.into_iter().find(|one| one.name().eq_ignore_ascii_case(name))
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64 => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha256 => None,
        }
    }

    /// That of bytes.
    pub(crate) fn sum(self, bytes: &[u8]) -> Vec<u8> {
        match self.crc() {
            Some(crc) => {
                let mut digest = Digest::new(crc);
                digest.update(bytes);
                self.bytes(digest.finalize())
            }
            None => digest(&SHA256, bytes).as_ref().to_vec(),
        }
    }

    fn bytes(self, sum: u64) -> Vec<u8> {
        if self == Self::Crc64 { sum.to_be_bytes().to_vec() } else { (sum as u32).to_be_bytes().to_vec() }
    }

    /// That of two neighbours, of their sums and the second one's length; only CRCs can.
    pub(crate) fn joined(self, first: &[u8], second: &[u8], len: u64) -> Option<Vec<u8>> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Some(self.bytes(checksum_combine(self.crc()?, number(first), number(second), len)))
    }
}

/// The sums of a body while it comes.
pub(crate) struct Sums {
    len: u64,
    md5: Option<Md5>,
    content_sha256: Option<Context>,
    sha256: Option<Context>,
    crcs: Vec<(Algorithm, Digest)>,
}

impl std::fmt::Debug for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sums").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The sums of a body.
#[derive(Clone, Debug)]
pub(crate) struct Summed {
    pub(crate) len: u64,
    pub(crate) md5: Option<[u8; 16]>,
    content_sha256: Option<String>,
    all: Vec<(Algorithm, Vec<u8>)>,
}

impl Sums {
    /// Those that a request asks for, CRC-64, and MD5 for the ETag where bodies are kept.
    pub(crate) fn new(request: &Request, is_kept: bool) -> Self {
        let has = |algorithm: Algorithm| request.header(&algorithm.header()).is_some();
        let crc = |algorithm: Algorithm| algorithm.crc().map(|crc| (algorithm, Digest::new(crc)));
        Self {
            len: 0,
            md5: (is_kept || request.header("content-md5").is_some()).then(Md5::default),
            content_sha256: request
                .header("x-amz-content-sha256")
                .filter(|value| value.len() == 64)
                .map(|_| Context::new(&SHA256)),
            sha256: has(Algorithm::Sha256).then(|| Context::new(&SHA256)),
            crcs: ALGORITHMS
                .into_iter()
                .filter(|one| has(*one) || *one == Algorithm::Crc64)
                .filter_map(crc)
                .collect(),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if let Some(md5) = &mut self.md5 {
            md5.add(bytes);
        }
        for context in [&mut self.content_sha256, &mut self.sha256].into_iter().flatten() {
            context.update(bytes);
        }
        for (_, digest) in &mut self.crcs {
            digest.update(bytes);
        }
    }

    pub(crate) fn end(self) -> Summed {
        let mut all: Vec<_> = self
            .crcs
            .into_iter()
            .map(|(algorithm, digest)| (algorithm, algorithm.bytes(digest.finalize())))
            .collect();
        all.extend(self.sha256.map(|context| (Algorithm::Sha256, context.finish().as_ref().to_vec())));
        Summed {
            len: self.len,
            md5: self.md5.map(Md5::end),
            content_sha256: self.content_sha256.map(|context| hex(context.finish().as_ref())),
            all,
        }
    }
}

impl Summed {
    pub(crate) fn of(&self, algorithm: Algorithm) -> Option<&[u8]> {
        self.all.iter().find(|(found, _)| *found == algorithm).map(|(_, sum)| sum.as_slice())
    }

    /// The checksum that a request has sent, or CRC-64.
    pub(crate) fn kept(&self, request: &Request) -> Option<(Algorithm, Vec<u8>)> {
        let sent = ALGORITHMS.into_iter().find(|one| request.header(&one.header()).is_some());
        let algorithm = sent.unwrap_or(Algorithm::Crc64);
        self.of(algorithm).map(|sum| (algorithm, sum.to_vec()))
    }

    /// Compares with what the head says of the body. Old stores do not know `x-amz-checksum-*`.
    pub(crate) fn check(&self, request: &Request, knows_checksums: bool) -> Result<(), Reply> {
        if let Some(md5) = request.header("content-md5")
            && self.md5.is_none_or(|found| base64(&found) != md5)
        {
            return Err(Reply::error(
                400,
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
            ));
        }
        if let Some(found) = &self.content_sha256
            && request.header("x-amz-content-sha256") != Some(found)
        {
            let message = "The provided 'x-amz-content-sha256' header does not match the computed one.";
            return Err(Reply::error(400, "XAmzContentSHA256Mismatch", message));
        }
        for algorithm in ALGORITHMS.into_iter().filter(|_| knows_checksums) {
            let sent = request.header(&algorithm.header());
            if let Some(sent) = sent
                && self.of(algorithm).is_none_or(|found| base64(found) != sent)
            {
                return Err(wrong(algorithm));
            }
        }
        Ok(())
    }
}

pub(crate) fn wrong(algorithm: Algorithm) -> Reply {
    let name = algorithm.name();
    let message = format!("The {name} you specified did not match the calculated checksum.");
    Reply::error(400, "BadDigest", &message)
}

/// The ETag of kept bytes: their MD5.
pub(crate) fn etag(content: &Content) -> String {
    let mut md5 = Md5::default();
    md5.add(&content.to_vec());
    hex(&md5.end())
}
