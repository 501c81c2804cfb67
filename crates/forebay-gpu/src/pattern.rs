//! The test pattern: every 8-byte word of a file has a value that follows from (key, offset).
//!
//! The same arithmetic stands in `kernels/pattern.cuh`. The mixing step is SplitMix64's finaliser (Steele, Lea,
//! Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).

/// The little-endian word at file offset `offset` (a multiple of 8) under `key`.
#[inline]
pub fn pattern_word(key: u64, offset: u64) -> u64 {
    let mut z = key.wrapping_add((offset >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a word of the pattern was before it was mixed: `key + offset / 8 × 0x9E3779B97F4A7C15`. Two words that differ by
/// that number are neighbours in the pattern of some key.
#[inline]
pub fn unmixed_word(word: u64) -> u64 {
    let mut z = word ^ (word >> 31) ^ (word >> 62);
    // Inverses modulo 2^64 of what `pattern_word` multiplies by.
    z = z.wrapping_mul(0x3196_42B2_D24D_8EC3);
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

/// Fills `bytes` with the pattern of a file from `offset` on; any offset and length.
pub fn fill_pattern(bytes: &mut [u8], key: u64, offset: u64) {
    each_word(bytes.len(), offset, |range, skip, word_offset| {
        let word = pattern_word(key, word_offset).to_le_bytes();
        let len = range.len();
        bytes[range].copy_from_slice(&word[skip..skip + len]);
        true
    });
}

/// The file offset of the first byte that differs from the pattern, if any.
pub fn first_mismatch(bytes: &[u8], key: u64, offset: u64) -> Option<u64> {
    let mut found = None;
    each_word(bytes.len(), offset, |range, skip, word_offset| {
        let word = pattern_word(key, word_offset).to_le_bytes();
        let start = range.start;
        let here = &bytes[range];
        if here != &word[skip..skip + here.len()] {
            let at = here.iter().zip(&word[skip..]).position(|(a, b)| a != b).unwrap_or(0);
            found = Some(offset + (start + at) as u64);
        }
        found.is_none()
    });
    found
}

/// Calls `visit(range in the buffer, bytes of the word to skip, offset of the word)` until it answers false.
fn each_word(len: usize, offset: u64, mut visit: impl FnMut(std::ops::Range<usize>, usize, u64) -> bool) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let skip = (at & 7) as usize;
        let take = (8 - skip).min(len - done);
        if !visit(done..done + take, skip, at & !7) {
            return;
        }
        done += take;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unmixed() {
        for (key, offset) in [(0_u64, 0_u64), (7, 8), (u64::MAX, 1 << 40), (0x1234_5678_9ABC_DEF0, 4096)] {
            let expected = key.wrapping_add((offset >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            assert_eq!(unmixed_word(pattern_word(key, offset)), expected);
        }
    }

    #[test]
    fn any_window_equals_the_whole() {
        let mut whole = vec![0u8; 4096];
        fill_pattern(&mut whole, 7, 0);
        for (start, len) in [(0, 4096), (1, 100), (7, 1), (8, 8), (13, 999)] {
            let mut part = vec![0u8; len];
            fill_pattern(&mut part, 7, start as u64);
            assert_eq!(part, whole[start..start + len]);
            assert_eq!(first_mismatch(&part, 7, start as u64), None);
        }
    }

    #[test]
    fn a_flipped_byte_is_found_where_it_is() {
        let mut bytes = vec![0u8; 100];
        fill_pattern(&mut bytes, 1, 3);
        bytes[50] ^= 1;
        assert_eq!(first_mismatch(&bytes, 1, 3), Some(53));
        assert!(first_mismatch(&bytes[..50], 1, 3).is_none());
        assert_eq!(first_mismatch(&bytes[..50], 2, 3), Some(3));
    }
}
