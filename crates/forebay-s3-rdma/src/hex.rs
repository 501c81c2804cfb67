//! Hexadecimal digits: lower case alone, so that a value has one spelling.

/// In lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Whether there is nothing but digits, at least one.
pub(crate) fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| value(digit).is_some())
}

/// A number of 1 to `most` digits.
pub(crate) fn number(text: &str, most: usize) -> Option<u64> {
    debug_assert!(most <= 16);
    if text.is_empty() || text.len() > most {
        return None;
    }
    text.bytes().try_fold(0, |all: u64, digit| Some(all << 4 | u64::from(value(digit)?)))
}

/// Bytes of exactly twice as many digits.
pub(crate) fn array<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        assert_eq!(number("0", 8), Some(0));
        assert_eq!(number("ffffffff", 8), Some(u64::from(u32::MAX)));
        assert_eq!(number("ffffffffffffffff", 16), Some(u64::MAX));
        for wrong in ["", "+1", "-1", "FF", "0x1", " 1", "1g", "123456789", "é1"] {
            assert_eq!(number(wrong, 8), None, "{wrong}");
        }
    }

    #[test]
    fn arrays_are_of_their_length() {
        assert_eq!(array::<2>("0aff"), Some([10, 255]));
        assert_eq!(hex(&[10, 255]), "0aff");
        for wrong in ["0af", "0aff0", "0aFF", "é0f", ""] {
            assert_eq!(array::<2>(wrong), None, "{wrong}");
        }
    }
}
