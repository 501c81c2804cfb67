//! CRC-64/NVME of parts and objects.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// The checksum of bytes.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// The checksum of two neighbours; the length is that of the second.
pub(super) fn joined(first: u64, second: u64, second_len: u64) -> u64 {
    crc_fast::checksum_combine(Crc64Nvme, first, second, second_len)
}

/// As headers have it.
pub(crate) fn text(checksum: u64) -> String {
    reqsign_core::hash::base64_encode(&checksum.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_s3_has() {
        // The check value of CRC-64/NVME.
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(text(crc64(b"123456789")), "rosUhgp5mIg=");
        assert_eq!(joined(crc64(b"1234"), crc64(b"56789"), 5), crc64(b"123456789"));
    }
}
