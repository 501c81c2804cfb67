//! forebay's kernels as host functions: what they do, not how.

use crate::access;
use crate::resident::ResidentArguments;
use crate::result::Answer;

/// Memory is looked at in chunks of this many bytes, a multiple of 8.
const CHUNK: usize = 64 << 10;

/// A launch with its parameters, copied when it was queued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FakeKernel {
    Scatter { list: u64, count: u32 },
    Fill { dst: u64, len: u64, key: u64, offset: u64 },
    Check { src: u64, len: u64, key: u64, offset: u64, result: u64 },
    Gather(GatherArguments),
    Checksums { list: u64, results: u64, count: u32 },
    Resident(ResidentArguments),
}

/// What a gather is asked for, in the kernel's order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherArguments {
    base: u64,
    len: u64,
    offsets: u64,
    count: u64,
    piece: u64,
    out: u64,
    report: u64,
}

/// The kernels that a module of forebay's has.
pub(crate) const NAMES: [&str; 6] = [
    "forebay_scatter",
    "forebay_fill",
    "forebay_check",
    "forebay_gather",
    "forebay_checksums",
    "forebay_resident",
];

impl FakeKernel {
    /// Reads the parameters of the kernel with this name.
    ///
    /// # Safety
    /// `parameters` point to what the kernel takes.
    pub(crate) unsafe fn read(name: &str, parameters: *const *const u64) -> Option<Self> {
        // SAFETY: the caller promises it; a 32-bit parameter is read as such.
        unsafe {
            let word = |index: usize| parameters.add(index).read().read_unaligned();
            let half = |index: usize| parameters.add(index).read().cast::<u32>().read_unaligned();
            Some(match name {
                "forebay_scatter" => Self::Scatter { list: word(0), count: half(1) },
                "forebay_fill" => Self::Fill { dst: word(0), len: word(1), key: word(2), offset: word(3) },
                "forebay_check" => {
                    Self::Check { src: word(0), len: word(1), key: word(2), offset: word(3), result: word(4) }
                }
                "forebay_gather" => Self::Gather(GatherArguments {
                    base: word(0),
                    len: word(1),
                    offsets: word(2),
                    count: word(3),
                    piece: word(4),
                    out: word(5),
                    report: word(6),
                }),
                "forebay_checksums" => Self::Checksums { list: word(0), results: word(1), count: half(2) },
                "forebay_resident" => Self::Resident(ResidentArguments {
                    mailboxes: word(0),
                    count: half(1),
                    idle: half(2),
                    life: half(3),
                    ended: word(4),
                    number: half(5),
                    stream: half(6),
                }),
                _ => return None,
            })
        }
    }

    /// What a fault of it is called.
    pub(crate) fn fault(self) -> &'static str {
        if matches!(self, Self::Resident(_)) { "async:resident" } else { "async:kernel" }
    }

    /// Runs on `gpu`, in a context. An address out of its reach is an illegal one, as on the real thing.
    pub(crate) fn run(self, gpu: usize, context: u64) -> Answer {
        match self {
            Self::Resident(asked) => asked.run(gpu, context),
            Self::Scatter { list, count } => scatter(gpu, list, count),
            Self::Fill { dst, len, key, offset } => fill(gpu, dst, len as usize, key, offset),
            Self::Gather(asked) => gather(gpu, asked),
            Self::Checksums { list, results, count } => checksums(gpu, list, results, count),
            Self::Check { src, len, key, offset, result } => {
                check(gpu, src, len as usize, key, offset, result)
            }
        }
    }
}

/// A few words of memory.
fn words<const COUNT: usize>(gpu: usize, address: u64) -> Answer<[u64; COUNT]> {
    let mut bytes = vec![0; 8 * COUNT];
    access::read(gpu, address, &mut bytes)?;
    Ok(words_of(&bytes))
}

fn words_of<const COUNT: usize>(bytes: &[u8]) -> [u64; COUNT] {
    std::array::from_fn(|index| {
        bytes[8 * index..8 * index + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    })
}

fn put_words<const COUNT: usize>(gpu: usize, address: u64, words: [u64; COUNT]) -> Answer {
    access::write(gpu, address, &words.map(u64::to_le_bytes).concat())
}

fn scatter(gpu: usize, list: u64, count: u32) -> Answer {
    let mut pieces = vec![0; 24 * count as usize];
    access::read(gpu, list, &mut pieces)?;
    for piece in pieces.as_chunks::<24>().0 {
        let [src, dst, len] = words_of(piece);
        access::transfer(gpu, src, dst, len as usize)?;
    }
    Ok(())
}

fn gather(gpu: usize, asked: GatherArguments) -> Answer {
    let GatherArguments { base, len, offsets, count, piece, out, report } = asked;
    let mut list = vec![0; 8 * count as usize];
    access::read(gpu, offsets, &mut list)?;
    for (index, offset) in list.as_chunks::<8>().0.iter().enumerate() {
        let [offset] = words_of(offset);
        let place = out + index as u64 * piece;
        if u128::from(offset) + u128::from(piece) <= u128::from(len) {
            access::transfer(gpu, base + offset, place, piece as usize)?;
            continue;
        }
        access::set(gpu, place, 0, piece as usize)?;
        let [refused, first] = words(gpu, report)?;
        put_words(gpu, report, [refused + 1, first.min(index as u64)])?;
    }
    Ok(())
}

fn checksums(gpu: usize, list: u64, results: u64, count: u32) -> Answer {
    let mut pieces = vec![0; 16 * count as usize];
    access::read(gpu, list, &mut pieces)?;
    let mut chunk = vec![0; CHUNK];
    for (index, piece) in pieces.as_chunks::<16>().0.iter().enumerate() {
        let [address, len] = words_of(piece);
        let mut state = u32::MAX;
        for at in (0..len as usize).step_by(CHUNK) {
            let part = &mut chunk[..CHUNK.min(len as usize - at)];
            access::read(gpu, address + at as u64, part)?;
            state = part.iter().fold(state, |state, byte| crc_byte(state, *byte));
        }
        access::write(gpu, results + 4 * index as u64, &(!state).to_le_bytes())?;
    }
    Ok(())
}

/// One more byte of a CRC-32C, four bits at a time: written down once more, as the pattern is.
fn crc_byte(state: u32, byte: u8) -> u32 {
    const NIBBLES: [u32; 16] = [
        0x0000_0000,
        0x105E_C76F,
        0x20BD_8EDE,
        0x30E3_49B1,
        0x417B_1DBC,
        0x5125_DAD3,
        0x61C6_9362,
        0x7198_540D,
        0x82F6_3B78,
        0x92A8_FC17,
        0xA24B_B5A6,
        0xB215_72C9,
        0xC38D_26C4,
        0xD3D3_E1AB,
        0xE330_A81A,
        0xF36E_6F75,
    ];
    let half = |state: u32| state >> 4 ^ NIBBLES[(state & 15) as usize];
    half(half(state ^ u32::from(byte)))
}

fn fill(gpu: usize, dst: u64, len: usize, key: u64, offset: u64) -> Answer {
    let mut chunk = vec![0; CHUNK.min(len)];
    for at in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(len - at)];
        for (index, bytes) in part.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&word(key, offset + (at + 8 * index) as u64)[..bytes.len()]);
        }
        access::write(gpu, dst + at as u64, part)?;
    }
    Ok(())
}

fn check(gpu: usize, src: u64, len: usize, key: u64, offset: u64, result: u64) -> Answer {
    let mut chunk = vec![0; CHUNK.min(len)];
    let (mut wrong, mut first) = (0, u64::MAX);
    for at in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(len - at)];
        access::read(gpu, src + at as u64, part)?;
        for (index, bytes) in part.chunks(8).enumerate() {
            let offset = offset + (at + 8 * index) as u64;
            let differ = |(byte, wanted): &(&u8, u8)| **byte != *wanted;
            let here = bytes.iter().zip(word(key, offset)).filter(differ).count() as u64;
            if here > 0 {
                wrong += here;
                first = first.min(offset);
            }
        }
    }
    let [before, least] = words(gpu, result)?;
    put_words(gpu, result, [before + wrong, least.min(first)])
}

/// The pattern's word at `offset`: the same arithmetic as in `pattern.cuh`, written down once more so that the two
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
