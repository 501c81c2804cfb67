//! Bytes of objects: kept ones, or a pattern that is made when it is sent.

use std::io::{Result, Write};
use std::sync::Arc;

/// Bytes that are made and written at a time.
const BLOCK: u64 = 256 << 10;

/// The bytes of an object, or of a reply.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Bytes(Arc<Vec<u8>>),
    Pattern { seed: u64, len: u64 },
}

impl Content {
    pub(crate) fn of(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bytes(Arc::new(bytes.into()))
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pattern { len, .. } => *len,
        }
    }

    /// Writes a range of them, and zeros where there are none.
    pub(crate) fn write(&self, to: &mut dyn Write, first: u64, len: u64) -> Result<()> {
        let mut at = first;
        let mut block = Vec::new();
        while at < first + len {
            let size = BLOCK.min(first + len - at);
            match self {
                Self::Bytes(bytes) if at + size <= bytes.len() as u64 => {
                    to.write_all(&bytes[at as usize..(at + size) as usize])?;
                }
                _ => {
                    block.resize(size as usize, 0);
                    self.copy(at, &mut block);
                    to.write_all(&block)?;
                }
            }
            at += size;
        }
        Ok(())
    }

    /// A range of them, and zeros where there are none.
    pub(crate) fn copy(&self, at: u64, to: &mut [u8]) {
        match self {
            Self::Pattern { seed, .. } => fill_pattern(*seed, at, to),
            Self::Bytes(bytes) => {
                let here = bytes.get(at as usize..).unwrap_or(&[]);
                let len = here.len().min(to.len());
                to[..len].copy_from_slice(&here[..len]);
                to[len..].fill(0);
            }
        }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; self.len() as usize];
        self.copy(0, &mut all);
        all
    }
}

/// The bytes from `at` on of the pattern that [`crate::FakeS3::put_pattern`] makes. Every 8 bytes are another word.
pub fn fill_pattern(seed: u64, at: u64, to: &mut [u8]) {
    let word =
        |index: u64| (index ^ seed).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    let before = ((8 - at % 8) % 8).min(to.len() as u64) as usize;
    let (start, rest) = to.split_at_mut(before);
    let first = word(at / 8).to_le_bytes();
    let from = (at % 8) as usize;
    start.copy_from_slice(&first[from..from + before]);
    let index = at.div_ceil(8);
    for (more, bytes) in rest.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(index + more as u64).to_le_bytes()[..bytes.len()]);
    }
}
