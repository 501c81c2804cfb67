//! The order of a data set's records: a permutation that is computed, not stored.
//!
//! A Feistel network permutes the numbers below the next power of two; numbers that are none of a record are sent through it
//! again until they are (at most half are). So any place of any epoch is found at once, and nothing is kept.

use forebay_error::{Error, ErrorKind};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{invalid, raise};

/// Rounds of the network. Changing it, or anything else here, changes the order: `Loader.state_dict` has a version for it.
const ROUNDS: usize = 8;

/// Fewer numbers are made without letting go of the interpreter's lock.
const HELD: u64 = 1 << 16;

/// Bytes of the numbers of `count` records. More than the machine's memory are refused before they are asked for: systems that
/// promise more than they have end the process when it is used.
fn bytes_of(count: u64) -> PyResult<usize> {
    let bytes = count.checked_mul(8).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes <= HELD as usize * 8 || *bytes <= memory()).ok_or_else(|| no_memory(count))
}

/// Bytes of memory that the machine has.
fn memory() -> usize {
    // SAFETY: asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let pages = usize::try_from(pages).unwrap_or(usize::MAX);
    pages.saturating_mul(forebay_sys::page_size()).min(isize::MAX as usize)
}

fn no_memory(count: u64) -> PyErr {
    let error =
        Error::new(ErrorKind::OutOfMemory, "no memory for a batch: its record numbers alone are too many");
    raise(&error.with("records", count).hint("a smaller batch_size"))
}

/// Keyed permutation of the numbers below `len`.
struct Permutation {
    len: u64,
    /// Bits of the two halves.
    bits: [u32; 2],
    keys: [u64; ROUNDS],
}

/// The finaliser of splitmix64: mixes all bits into all others.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Permutation {
    fn new(len: u64, seed: u64, epoch: u64, stream: u64) -> Self {
        let bits = len.saturating_sub(1).bit_width().max(2);
        let mut state = mix(mix(mix(seed.wrapping_add(STEP)) ^ epoch).wrapping_add(STEP) ^ stream);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(STEP);
            mix(state)
        });
        Self { len, bits: [bits / 2, bits - bits / 2], keys }
    }

    /// The network: permutes the numbers below the next power of two.
    #[inline]
    fn once(&self, value: u64) -> u64 {
        let [left, right] = self.bits;
        let (low, high) = ((1u64 << right) - 1, (1u64 << left) - 1);
        let (mut a, mut b) = (value >> right, value & low);
        for keys in self.keys.as_chunks::<2>().0 {
            a ^= (b ^ keys[0]).wrapping_mul(STEP).rotate_right(29).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32
                & high;
            b ^= (a ^ keys[1]).wrapping_mul(STEP).rotate_right(29).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32
                & low;
        }
        (a << right) | b
    }

    fn of(&self, place: u64) -> u64 {
        if self.len < 2 {
            return place;
        }
        let mut value = self.once(place);
        while value >= self.len {
            value = self.once(value);
        }
        value
    }

    /// The numbers at the places from `start` up to `stop`. All go through the network once, then those again that are none of a
    /// record: half the numbers may be such, and a jump that is guessed wrong costs as much as the network.
    fn range(&self, start: u64, stop: u64, mut put: impl FnMut(u64)) {
        const GROUP: usize = 256;
        if self.len < 2 {
            return (start..stop).for_each(put);
        }
        let (mut values, mut again) = ([0u64; GROUP], [0u16; GROUP]);
        for first in (start..stop).step_by(GROUP) {
            let count = (stop - first).min(GROUP as u64) as usize;
            let mut outside = 0;
            for (index, value) in values[..count].iter_mut().enumerate() {
                *value = self.once(first + index as u64);
                again[outside] = index as u16;
                outside += usize::from(*value >= self.len);
            }
            while outside > 0 {
                let waiting = outside;
                outside = 0;
                for number in 0..waiting {
                    let index = again[number];
                    let value = &mut values[usize::from(index)];
                    *value = self.once(*value);
                    again[outside] = index;
                    outside += usize::from(*value >= self.len);
                }
            }
            values[..count].iter().for_each(|value| put(*value));
        }
    }
}

/// An order of `len` records: "sequential", "random" or "block". In block order blocks of `block` records come in random order,
/// and the records of each `window` blocks that follow each other in it are mixed.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Order {
    len: u64,
    seed: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Sequential,
    Random,
    Block { block: u64, window: u64 },
}

/// Whole blocks come in windows; the rest after the last one belongs to the last window.
struct Blocks {
    block: u64,
    window: u64,
    /// Whole blocks.
    count: u64,
    windows: u64,
    order: Permutation,
}

impl Order {
    fn blocks(&self, epoch: u64, block: u64, window: u64) -> Blocks {
        let count = self.len / block;
        let order = Permutation::new(count, self.seed, epoch, 0);
        Blocks { block, window, count, windows: count.div_ceil(window).max(1), order }
    }

    /// Records of a window, and the first of its blocks.
    fn window(&self, blocks: &Blocks, window: u64) -> (u64, u64, u64) {
        let first = window * blocks.window;
        let whole = blocks.window.min(blocks.count - first);
        let is_last = window + 1 == blocks.windows;
        let rest = if is_last { self.len - blocks.count * blocks.block } else { 0 };
        (first, whole, whole * blocks.block + rest)
    }

    fn fill(&self, epoch: u64, start: u64, stop: u64, mut put: impl FnMut(u64)) {
        match self.kind {
            Kind::Sequential => (start..stop).for_each(put),
            Kind::Random => {
                let order = Permutation::new(self.len, self.seed, epoch, 0);
                order.range(start, stop, put);
            }
            Kind::Block { block, window } => {
                let blocks = self.blocks(epoch, block, window);
                let full = blocks.window.saturating_mul(block);
                let mut place = start;
                while place < stop {
                    let number = (place / full).min(blocks.windows - 1);
                    let begin = number * full;
                    let (first, whole, records) = self.window(&blocks, number);
                    let order = Permutation::new(records, self.seed, epoch, number + 1);
                    let end = stop.min(begin + records);
                    for within in place - begin..end - begin {
                        let within = order.of(within);
                        let row = if within < whole * block {
                            blocks.order.of(first + within / block) * block + within % block
                        } else {
                            blocks.count * block + (within - whole * block)
                        };
                        put(row);
                    }
                    place = end;
                }
            }
        }
    }
}

#[pymethods]
impl Order {
    #[new]
    #[pyo3(signature = (len, seed, kind, block=1, window=1))]
    fn new(len: u64, seed: u64, kind: &str, block: u64, window: u64) -> PyResult<Self> {
        let kind = match kind {
            "sequential" => Kind::Sequential,
            "random" => Kind::Random,
            "block" if block > 0 && window > 0 => Kind::Block { block, window },
            "block" => return Err(invalid("a block or window of nothing", "give 1 or more")),
            other => {
                return Err(invalid(
                    format!("unknown order: {other:?}"),
                    "\"random\", \"block\" or \"sequential\"",
                ));
            }
        };
        Ok(Self { len, seed, kind })
    }

    /// The records at the places from `start` up to `stop` of an epoch, as packed 64-bit numbers.
    fn rows<'py>(&self, py: Python<'py>, epoch: u64, start: u64, stop: u64) -> PyResult<Bound<'py, PyBytes>> {
        if start > stop || stop > self.len {
            return Err(invalid(
                format!("places {start} to {stop} of {}", self.len),
                "stay below the length",
            ));
        }
        let made = PyBytes::new_with(py, bytes_of(stop - start)?, |room| {
            let mut put = || {
                let mut words = room.as_chunks_mut().0.iter_mut();
                self.fill(epoch, start, stop, |row| {
                    if let Some(word) = words.next() {
                        *word = row.to_ne_bytes();
                    }
                });
            };
            // A small batch takes less time than another thread's turn.
            if stop - start < HELD {
                put();
            } else {
                py.detach(put);
            }
            Ok(())
        });
        made.map_err(
            |error| {
                if error.is_instance_of::<PyMemoryError>(py) { no_memory(stop - start) } else { error }
            },
        )
    }

    /// The window that a place belongs to.
    fn window_of(&self, place: u64) -> u64 {
        match self.kind {
            Kind::Block { block, window } => {
                let windows = (self.len / block).div_ceil(window).max(1);
                (place / window.saturating_mul(block)).min(windows - 1)
            }
            _ => 0,
        }
    }

    /// The records of a window in an epoch: (start, stop) of each of its blocks.
    fn blocks_of(&self, epoch: u64, window: u64) -> Vec<(u64, u64)> {
        let Kind::Block { block, window: size } = self.kind else { return vec![(0, self.len)] };
        let blocks = self.blocks(epoch, block, size);
        if window >= blocks.windows {
            return Vec::new();
        }
        let (first, whole, records) = self.window(&blocks, window);
        let begin = |number| blocks.order.of(number) * block;
        let mut found: Vec<_> =
            (first..first + whole).map(|number| (begin(number), begin(number) + block)).collect();
        if records > whole * block {
            found.push((blocks.count * block, self.len));
        }
        found
    }
}
