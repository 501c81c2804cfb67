//! CRC-32C: the checksum of Castagnoli's polynomial, in the form of RFC 3720 (iSCSI), ext4, Btrfs and cloud stores.
//!
//! A value of 32 bits stands for a polynomial over GF(2), its highest bit for x^0 (the "reflected" order), modulo P.
//! Adding n bytes to a message multiplies its part of the checksum by x^(8n): that is how parts are joined here, and
//! how the kernel in `kernels/checksums.cuh` joins those of its threads.

use std::fmt;

/// P without its highest term.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// The CRC-32C of some bytes, and their number: both are needed to join it with that of the following bytes.
///
/// ```
/// use forebay_gpu::Checksum;
///
/// let whole = Checksum::of(b"123456789");
/// assert_eq!(whole.crc(), 0xE306_9283);
/// assert_eq!(Checksum::of(b"1234").then(Checksum::of(b"56789")), whole);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Checksum {
    crc: u32,
    len: u64,
}

impl Checksum {
    /// Of no bytes.
    pub const EMPTY: Self = Self { crc: 0, len: 0 };

    /// Of `len` bytes whose CRC-32C is known.
    pub const fn new(crc: u32, len: u64) -> Self {
        Self { crc, len }
    }

    /// Of these bytes. Uses the CPU's instructions for it where there are any.
    pub fn of(bytes: &[u8]) -> Self {
        Self { crc: !add(!0, bytes), len: bytes.len() as u64 }
    }

    /// The CRC-32C.
    pub const fn crc(self) -> u32 {
        self.crc
    }

    /// How many bytes it is of.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether it is of no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Takes in the bytes that follow.
    pub fn update(&mut self, bytes: &[u8]) {
        self.crc = !add(!self.crc, bytes);
        self.len += bytes.len() as u64;
    }

    /// Of these bytes and then those of `next`. Costs about a microsecond, whatever the lengths.
    #[must_use]
    pub const fn then(self, next: Self) -> Self {
        let moved = if self.len == 0 { 0 } else { times(self.crc, x_to_bytes(next.len)) };
        Self { crc: moved ^ next.crc, len: self.len + next.len }
    }

    /// As [`Self::then`], for a length whose shift is known: a few nanoseconds.
    #[must_use]
    pub fn then_by(self, next: Self, shift: &Shift) -> Self {
        if shift.len != next.len {
            return self.then(next);
        }
        Self { crc: shift.apply(self.crc) ^ next.crc, len: self.len + next.len }
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:08x} of {} bytes)", self.crc, self.len)
    }
}

/// What [`Checksum::then_by`] needs for a `next` of one length: tables of 4 KiB.
pub struct Shift {
    len: u64,
    tables: [[u32; 256]; 4],
}

impl fmt::Debug for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shift").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Shift {
    /// For a `next` of `len` bytes.
    pub const fn new(len: u64) -> Self {
        Self { len, tables: tables_by(x_to_bytes(len)) }
    }

    const fn apply(&self, state: u32) -> u32 {
        let [a, b, c, d] = state.to_le_bytes();
        self.tables[0][a as usize]
            ^ self.tables[1][b as usize]
            ^ self.tables[2][c as usize]
            ^ self.tables[3][d as usize]
    }
}

/// What each byte of a state becomes when it is multiplied by `factor`.
const fn tables_by(factor: u32) -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    // Of a state's single bits; the other entries are sums.
    let mut bit = 32;
    let mut product = factor;
    while bit > 0 {
        bit -= 1;
        tables[bit / 8][1 << (bit % 8)] = product;
        product = times_x(product);
    }
    let mut entry: usize = 0;
    while entry < 4 * 256 {
        let (place, value) = (entry / 256, entry % 256);
        let low = value.isolate_lowest_one();
        tables[place][value] = tables[place][low] ^ tables[place][value ^ low];
        entry += 1;
    }
    tables
}

const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg())
}

/// The product of two polynomials.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

/// x^(8 × 2^k) at place k.
const POWERS: [u32; 64] = {
    let mut powers = [0; 64];
    let mut power = ONE >> 8;
    let mut at = 0;
    while at < 64 {
        powers[at] = power;
        power = times(power, power);
        at += 1;
    }
    powers
};

/// x^(8 × len).
const fn x_to_bytes(mut len: u64) -> u32 {
    let mut power = ONE;
    while len != 0 {
        power = times(power, POWERS[len.trailing_zeros() as usize]);
        len &= len - 1;
    }
    power
}

/// Adds bytes to a state (the checksum with all bits inverted).
fn add(state: u32, bytes: &[u8]) -> u32 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if hardware::is_there() {
        // SAFETY: the CPU has the instructions.
        return unsafe { hardware::add(state, bytes) };
    }
    portable(state, bytes)
}

/// By tables, eight bytes at a time.
fn portable(mut state: u32, bytes: &[u8]) -> u32 {
    // Entry (k, byte): the byte followed by k zeros.
    static TABLES: [[u32; 256]; 8] = {
        let near = tables_by(x_to_bytes(4));
        let far = tables_by(x_to_bytes(8));
        [near[3], near[2], near[1], near[0], far[3], far[2], far[1], far[0]]
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mixed = (u64::from_le_bytes(*word) ^ u64::from(state)).to_le_bytes();
        state = mixed.iter().rev().zip(&TABLES).fold(0, |sum, (byte, table)| sum ^ table[*byte as usize]);
    }
    rest.iter().fold(state, |state, byte| state >> 8 ^ TABLES[0][(state as u8 ^ byte) as usize])
}

/// By the CPU's instructions. One takes three cycles but a new one can begin in each: three parts side by side.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod hardware {
    #[cfg(target_arch = "aarch64")]
    use std::arch::aarch64::{__crc32cb, __crc32cd};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    use super::Shift;

    /// Bytes of a part.
    const PART: usize = 4096;
    static BY_PART: Shift = Shift::new(PART as u64);

    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("sse4.2")
    }

    #[cfg(target_arch = "aarch64")]
    pub(super) fn is_there() -> bool {
        std::arch::is_aarch64_feature_detected!("crc")
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse4.2")]
    #[inline]
    fn add_word(state: u32, word: [u8; 8]) -> u32 {
        _mm_crc32_u64(u64::from(state), u64::from_le_bytes(word)) as u32
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse4.2")]
    #[inline]
    fn add_byte(state: u32, byte: u8) -> u32 {
        _mm_crc32_u8(state, byte)
    }

    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "crc")]
    #[inline]
    fn add_word(state: u32, word: [u8; 8]) -> u32 {
        __crc32cd(state, u64::from_le_bytes(word))
    }

    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "crc")]
    #[inline]
    fn add_byte(state: u32, byte: u8) -> u32 {
        __crc32cb(state, byte)
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc"))]
    pub(super) fn add(mut state: u32, bytes: &[u8]) -> u32 {
        let (triples, rest) = bytes.as_chunks::<{ 3 * PART }>();
        for triple in triples {
            let (words, _) = triple.as_chunks::<8>();
            let (first, others) = words.split_at(PART / 8);
            let (second, third) = others.split_at(PART / 8);
            let (mut b, mut c) = (0, 0);
            for ((one, two), three) in first.iter().zip(second).zip(third) {
                state = add_word(state, *one);
                b = add_word(b, *two);
                c = add_word(c, *three);
            }
            state = BY_PART.apply(BY_PART.apply(state) ^ b) ^ c;
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            state = add_word(state, *word);
        }
        for byte in rest {
            state = add_byte(state, *byte);
        }
        state
    }
}

/// A range of memory whose checksum is wanted: see [`crate::Stream::checksums`]. Any alignment and length. Laid out as
/// the kernel reads it: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumPiece {
    /// Its first address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the definition has it.
    fn plain(bytes: &[u8]) -> u32 {
        let add_bit = |state: u32, _| if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
        !bytes.iter().fold(!0, |state, byte| (0..8).fold(state ^ u32::from(*byte), add_bit))
    }

    fn some_bytes(len: usize, key: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        crate::fill_pattern(&mut bytes, key, 0);
        bytes
    }

    #[test]
    fn known_checksums() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        // The last four are those of RFC 3720, B.4.
        let known: [(&[u8], u32); 7] = [
            (b"", 0),
            (b"a", 0xC1D0_4330),
            (b"123456789", 0xE306_9283),
            (&[0; 32], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&up, 0x46DD_794E),
            (&down, 0x113F_DB5C),
        ];
        for (bytes, crc) in known {
            assert_eq!(Checksum::of(bytes).crc(), crc, "{bytes:?}");
            assert_eq!(!portable(!0, bytes), crc, "{bytes:?}");
            assert_eq!(plain(bytes), crc, "{bytes:?}");
        }
    }

    #[test]
    fn tables_and_instructions_agree_at_all_lengths() {
        let bytes = some_bytes(40_000, 3);
        for len in (0..70).chain([4095, 4096, 12_287, 12_288, 12_289, 24_576, 39_990]) {
            for skip in [0, 1, 7, 8, 10] {
                let part = &bytes[skip..skip + len];
                let wanted = plain(part);
                assert_eq!(Checksum::of(part), Checksum::new(wanted, len as u64));
                assert_eq!(!portable(!0, part), wanted, "{len} from {skip}");
            }
        }
    }

    #[test]
    fn parts_join_to_the_whole_wherever_it_is_split() {
        let bytes = some_bytes(20_000, 4);
        let whole = Checksum::of(&bytes);
        for split in [0, 1, 3, 4, 5, 63, 64, 4096, 10_007, 19_999, 20_000] {
            let (a, b) = (Checksum::of(&bytes[..split]), Checksum::of(&bytes[split..]));
            assert_eq!(a.then(b), whole, "{split}");
            assert_eq!(a.then_by(b, &Shift::new(b.len())), whole, "{split}");
            assert_eq!(a.then_by(b, &Shift::new(b.len() + 1)), whole, "{split}");
            let mut grown = a;
            grown.update(&bytes[split..]);
            assert_eq!(grown, whole, "{split}");
        }
        let in_three = Checksum::of(&bytes[..17])
            .then(Checksum::of(&bytes[17..9000]).then(Checksum::of(&bytes[9000..])));
        assert_eq!(in_three, whole, "whatever is joined first");
    }

    #[test]
    fn long_runs_of_zeros_by_doubling() {
        let mut zeros = Checksum::of(&[0; 1 << 10]);
        for _ in 10..40 {
            zeros = zeros.then(zeros);
        }
        assert_eq!(zeros.len(), 1 << 40);
        let (half, kib) = (Checksum::new(0, 0).then(zeros), Checksum::of(&[0; 1 << 10]));
        // The same length from other parts.
        let mut other = Checksum::EMPTY;
        for k in 10..40 {
            let mut part = kib;
            (10..k).for_each(|_| part = part.then(part));
            other = part.then(other);
        }
        assert_eq!(other.then(kib), half);
    }
}
