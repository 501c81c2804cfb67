//! Random numbers that follow from a seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Spreads the bits of a number.
pub const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// Another sequence for each seed and each salt.
    pub fn new(seed: u64, salt: &str) -> Self {
        Self(salt.bytes().fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte))))
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A number of `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A length: of each power of two as often as of the next one, most of them unaligned.
    pub fn len(&mut self, most: u64) -> u64 {
        let power = 1 << self.below(u64::from(most.ilog2()) + 1);
        let len = if self.once_in(3) { power } else { power + self.below(power) };
        len.clamp(1, most)
    }
}
