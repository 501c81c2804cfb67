//! CRC-64/NVME as S3 writes it: eight bytes, the highest first, in base64.

use base64_simd::STANDARD as BASE64;

/// The checksum of a header's value.
pub fn sum_of_text(text: &str) -> Option<u64> {
    let bytes = BASE64.decode_to_vec(text).ok()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// A header's value.
pub fn text_of_sum(sum: u64) -> String {
    BASE64.encode_to_string(sum.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_algorithm() {
        assert_eq!(text_of_sum(0xae8b_1486_0a79_9888), "rosUhgp5mIg=");
        assert_eq!(sum_of_text("rosUhgp5mIg="), Some(0xae8b_1486_0a79_9888));
        for wrong in ["", "rosUhgp5mIg", "4waSgw==", "rosUhgp5mIg=-2"] {
            assert_eq!(sum_of_text(wrong), None, "{wrong}");
        }
    }
}
