//! Checksums that stores keep.

use forebay_error::Result;

/// Compares all bytes of a source, in their order, with the checksum that its store keeps of them.
pub trait StoredSum: Send {
    /// The algorithm: `crc64nvme`.
    fn algorithm(&self) -> &str;

    /// Takes the next bytes.
    fn add(&mut self, bytes: &[u8]);

    /// All bytes were taken: an error if they are not those of the checksum.
    fn end(self: Box<Self>) -> Result<()>;
}
