//! MD5 (RFC 1321): ETags and `Content-MD5`.

/// Bits that each step turns.
const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// A sum while bytes come.
pub(crate) struct Md5 {
    state: [u32; 4],
    /// Bytes of a block that is not full.
    rest: Vec<u8>,
    len: u64,
    sines: [u32; 64],
}

impl Default for Md5 {
    fn default() -> Self {
        let sines = std::array::from_fn(|at| (((at + 1) as f64).sin().abs() * 4_294_967_296.0) as u32);
        Self { state: [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476], rest: Vec::new(), len: 0, sines }
    }
}

impl Md5 {
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.rest.is_empty() {
            let (first, more) = bytes.split_at((64 - self.rest.len()).min(bytes.len()));
            self.rest.extend_from_slice(first);
            bytes = more;
            if self.rest.len() < 64 {
                return;
            }
            let block = std::mem::take(&mut self.rest);
            self.block(&block);
        }
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            self.block(block);
        }
        self.rest.extend_from_slice(rest);
    }

    fn block(&mut self, block: &[u8]) {
        let mut words = [0; 16];
        for (word, four) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_le_bytes(*four);
        }
        let [mut a, mut b, mut c, mut d] = self.state;
        for at in 0..64 {
            let (mixed, word) = match at / 16 {
                0 => ((b & c) | (!b & d), at),
                1 => ((d & b) | (!d & c), 5 * at + 1),
                2 => (b ^ c ^ d, 3 * at + 5),
                _ => (c ^ (b | !d), 7 * at),
            };
            let sum = a.wrapping_add(mixed).wrapping_add(self.sines[at]).wrapping_add(words[word % 16]);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(TURNS[at / 16][at % 4]));
        }
        for (state, more) in self.state.iter_mut().zip([a, b, c, d]) {
            *state = state.wrapping_add(more);
        }
    }

    pub(crate) fn end(mut self) -> [u8; 16] {
        let bits = self.len * 8;
        let zeros = (119 - self.len % 64) % 64;
        let mut last = vec![0x80];
        last.resize(1 + zeros as usize, 0);
        last.extend(bits.to_le_bytes());
        self.add(&last);
        let mut made = [0; 16];
        for (four, word) in made.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            four.copy_from_slice(&word.to_le_bytes());
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8], pieces: usize) -> String {
        let mut md5 = Md5::default();
        bytes.chunks(pieces).for_each(|piece| md5.add(piece));
        crate::text::hex(&md5.end())
    }

    #[test]
    fn sums_are_those_of_the_specification() {
        assert_eq!(sum(b"", 1), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(sum(b"message digest", 3), "f96b697d7cb7938d525a2f31aaf161d0");
        let long = "1234567890".repeat(8);
        for pieces in [1, 7, 64, 80] {
            assert_eq!(sum(long.as_bytes(), pieces), "57edf4a22be3c955ac49da2e2107b67a");
        }
        for len in [55, 56, 63, 64, 65] {
            assert_eq!(sum(&vec![b'a'; len], 1), sum(&vec![b'a'; len], 64), "{len}");
        }
    }
}
