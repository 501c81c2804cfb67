//! forebay's kernels as host functions: what they do, not how.

use crate::state::{Answer, state};

/// A launch with its parameters, copied when it was queued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    Scatter { list: u64, count: u32 },
    Fill { dst: u64, len: u64, key: u64, offset: u64 },
    Check { src: u64, len: u64, key: u64, offset: u64, result: u64 },
}

impl Kernel {
    /// Reads the parameters of the kernel with this name.
    ///
    /// # Safety
    /// `parameters` point to what the kernel takes.
    pub(crate) unsafe fn read(name: &str, parameters: *const *const u64) -> Option<Self> {
        // SAFETY: the caller promises it; a 32-bit parameter is read as such.
        unsafe {
            let word = |index: usize| parameters.add(index).read().read_unaligned();
            Some(match name {
                "forebay_scatter" => {
                    let count = parameters.add(1).read().cast::<u32>().read_unaligned();
                    Self::Scatter { list: word(0), count }
                }
                "forebay_fill" => Self::Fill { dst: word(0), len: word(1), key: word(2), offset: word(3) },
                "forebay_check" => {
                    Self::Check { src: word(0), len: word(1), key: word(2), offset: word(3), result: word(4) }
                }
                _ => return None,
            })
        }
    }

    /// Runs on `gpu`. An address out of its reach is an illegal one, as on the real thing.
    pub(crate) fn run(self, gpu: usize) -> Answer {
        match self {
            Self::Scatter { list, count } => scatter(gpu, list, count),
            Self::Fill { dst, len, key, offset } => {
                let bytes = state().reach(gpu, dst, len as usize)?;
                // SAFETY: known memory of that length.
                let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, len as usize) };
                for (index, chunk) in bytes.chunks_mut(8).enumerate() {
                    chunk.copy_from_slice(&word(key, offset + 8 * index as u64)[..chunk.len()]);
                }
                Ok(())
            }
            Self::Check { src, len, key, offset, result } => {
                check(gpu, src, len as usize, key, offset, result)
            }
        }
    }
}

fn scatter(gpu: usize, list: u64, count: u32) -> Answer {
    let pieces = state().reach(gpu, list, 24 * count as usize)? as u64;
    for index in 0..count as usize {
        // SAFETY: the list is known memory of that length.
        let [src, dst, len] = unsafe { (pieces as *const [u64; 3]).add(index).read_unaligned() };
        let (from, to) = {
            let state = state();
            (state.reach(gpu, src, len as usize)?, state.reach(gpu, dst, len as usize)?)
        };
        // SAFETY: both ranges are known memory of that length.
        unsafe { std::ptr::copy(from, to, len as usize) };
    }
    Ok(())
}

fn check(gpu: usize, src: u64, len: usize, key: u64, offset: u64, result: u64) -> Answer {
    let (bytes, result) = {
        let state = state();
        (state.reach(gpu, src, len)?, state.reach(gpu, result, 16)? as u64)
    };
    // SAFETY: known memory of that length.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    let (mut wrong, mut first) = (0, u64::MAX);
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let at = offset + 8 * index as u64;
        let here = chunk.iter().zip(word(key, at)).filter(|(byte, wanted)| **byte != *wanted).count() as u64;
        if here > 0 {
            wrong += here;
            first = first.min(at);
        }
    }
    let result = result as *mut [u64; 2];
    // SAFETY: known memory of 16 bytes.
    unsafe {
        let [before, least] = result.read_unaligned();
        result.write_unaligned([before + wrong, least.min(first)]);
    }
    Ok(())
}

/// The pattern's word at `offset`: the same arithmetic as in `forebay.cu`, written down once more so that the two
/// can disagree.
fn word(key: u64, offset: u64) -> [u8; 8] {
    let mut z = key.wrapping_add((offset / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z ^= z >> 30;
    z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    z.to_le_bytes()
}
