//! Zip archives as `.npz` and `.pt` files are: where each entry's bytes lie, and plans for archives of stored entries.

mod directory;
mod plan;

pub use directory::{Entry, Method, read};
pub use plan::{Place, Plan};

const LOCAL: u32 = 0x0403_4B50;
const CENTRAL: u32 = 0x0201_4B50;
const END: u32 = 0x0605_4B50;
const END_64: u32 = 0x0606_4B50;
const LOCATOR_64: u32 = 0x0706_4B50;
/// Bytes of these records without their names and extras.
const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: u64 = 46;
const END_LEN: u64 = 22;
const END_64_LEN: u64 = 56;
const LOCATOR_64_LEN: u64 = 20;
/// The extra field with sizes that 32 bits do not hold.
const EXTRA_64: u16 = 0x0001;
/// A field that 16 or 32 bits do not hold has all ones, and its value elsewhere.
const FULL_16: u16 = u16::MAX;
const FULL_32: u32 = u32::MAX;

/// The CRC-32 of zip: of `bytes`, continued from that of what came before (0 at first).
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// The CRC-32 of two parts together, the second of which has `len` bytes.
pub fn crc32_combine(first: u32, second: u32, len: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial_len(first, 0);
    hasher.combine(&crc32fast::Hasher::new_with_initial_len(second, len));
    hasher.finalize()
}
