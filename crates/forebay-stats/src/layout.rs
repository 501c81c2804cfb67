//! How the counters lie in memory: 64-bit words only, so that every bit pattern is valid and no reader can be
//! misled into undefined behaviour. `docs/reference/stats.md` describes the same for other programs.
//!
//! Each struct exists twice: of `AtomicU64`, where the process counts, and of `u64`, a copy that readers decode.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_ways::Way;

use crate::ops::Op;

/// First word of the counters: "FOREBAY" and a zero byte.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY\0");
/// Version of this layout.
pub(crate) const LAYOUT: u64 = 2;

/// Places to count in; a thread keeps to one, so that threads do not fight over cache lines.
pub(crate) const SHARDS: usize = 16;
/// GPUs with counters of their own.
pub(crate) const GPUS: usize = 16;
/// Devices: the GPUs, then host memory (and GPUs beyond).
pub(crate) const DEVICES: usize = GPUS + 1;
/// The device that is no GPU.
pub(crate) const HOST: usize = GPUS;
/// Engines that can be named.
pub(crate) const ENGINES: usize = 8;
/// Different refusals that are kept.
pub(crate) const REFUSALS: usize = 32;
/// Files that are kept.
pub(crate) const FILES: usize = 64;
/// Different notes that are kept.
pub(crate) const NOTES: usize = 16;
/// Buckets of a size histogram.
pub(crate) const BUCKETS: usize = 32;
/// Ticks that are kept: two are read, one may be written meanwhile.
pub(crate) const TICKS: usize = 4;
/// What never changes once `magic` is there, except `level`.
#[repr(C)]
pub(crate) struct RegionHeader<W> {
    /// [`MAGIC`]; written last.
    pub(crate) magic: W,
    /// [`LAYOUT`].
    pub(crate) layout: W,
    /// Bytes of the whole region.
    pub(crate) size: W,
    /// The process, as it sees itself.
    pub(crate) pid: W,
    /// When the process started: field 22 of `/proc/PID/stat`.
    pub(crate) started: W,
    /// When the counters were made: nanoseconds since 1970.
    pub(crate) opened: W,
    /// What the program asked cuFile's statistics for: 0 to 3. Counting does not depend on it.
    pub(crate) level: W,
    /// The second (of the monotonic clock) that the last tick belongs to, plus one.
    pub(crate) second: W,
    /// How many ticks were written.
    pub(crate) ticks: W,
    pub(crate) spare: [W; 7],
}

/// Fields written now and then, away from the header's cache lines.
#[repr(C)]
pub(crate) struct RareWords<W> {
    /// Bytes of the last batch that completed.
    pub(crate) last_batch: [W; 2],
    /// Refusals that found no room.
    pub(crate) refusals_left_out: W,
    /// Files that were not listed, or not any more.
    pub(crate) files_left_out: W,
    /// Round trips to servers: how many, and their nanoseconds. Zero in processes that know none.
    pub(crate) round_trips: [W; 2],
    pub(crate) spare: [W; 10],
}

/// Transfers of one direction with one device.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct IoSums<W> {
    pub(crate) ok: W,
    pub(crate) err: W,
    pub(crate) bytes: W,
    pub(crate) nanos: W,
    pub(crate) unaligned: W,
    pub(crate) posix: W,
}

/// Registrations of one device's memory.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RegisteredWords<W> {
    pub(crate) ok: W,
    pub(crate) err: W,
    pub(crate) freed: W,
    /// Bytes that are registered now; of one shard alone it may be below zero.
    pub(crate) bytes: W,
}

/// Batches.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct BatchSums<W> {
    pub(crate) bytes: [W; 2],
    pub(crate) submit_nanos: W,
    pub(crate) complete_nanos: W,
}

/// Everything that only grows: sums over shards and differences of two such sums make sense word by word.
#[repr(C)]
pub(crate) struct Shard<W> {
    /// Reads and writes per device.
    pub(crate) io: [[IoSums<W>; DEVICES]; 2],
    /// Vectored reads and writes.
    pub(crate) vector: [IoSums<W>; 2],
    /// Sizes of reads and writes.
    pub(crate) sizes: [[W; BUCKETS]; 2],
    /// Other calls: good, failed.
    pub(crate) ops: [[W; 2]; Op::COUNT],
    pub(crate) registered: [RegisteredWords<W>; DEVICES],
    pub(crate) batch: BatchSums<W>,
    /// Asynchronous operations: started, done.
    pub(crate) asyncs: [W; 2],
    /// Per engine: bytes by way, then requests.
    pub(crate) engines: [[W; Way::COUNT + 1]; ENGINES],
    /// Per refusal: times, bytes.
    pub(crate) refusals: [[W; 2]; REFUSALS],
    /// Per note: times.
    pub(crate) notes: [W; NOTES],
}

/// The sums of all shards when a second began.
#[repr(C)]
pub(crate) struct Tick<W> {
    /// The second, plus one.
    pub(crate) second: W,
    /// When: nanoseconds of the monotonic clock.
    pub(crate) time: W,
    pub(crate) sums: Shard<W>,
}

/// One file's transfers.
#[repr(C)]
pub(crate) struct FileSums<W> {
    pub(crate) ops: W,
    pub(crate) bytes: W,
    pub(crate) nanos: W,
    pub(crate) max_nanos: W,
}

/// Text that may change: it is whole where `done` (read first) equals `begun` (read last) and is not zero.
#[repr(C)]
pub(crate) struct TextWords<W, const WORDS: usize> {
    pub(crate) done: W,
    pub(crate) length: W,
    pub(crate) words: [W; WORDS],
    pub(crate) begun: W,
}

/// A GPU that was named.
#[repr(C)]
pub(crate) struct GpuWords<W> {
    pub(crate) uuid: [W; 2],
    /// 1 once the UUID is there.
    pub(crate) known: W,
}

/// All of it.
#[repr(C)]
pub(crate) struct CounterRegion<W> {
    pub(crate) header: RegionHeader<W>,
    pub(crate) rare: RareWords<W>,
    pub(crate) shards: [Shard<W>; SHARDS],
    pub(crate) file_sums: [[FileSums<W>; FILES]; SHARDS],
    pub(crate) ticks: [Tick<W>; TICKS],
    pub(crate) gpus: [GpuWords<W>; GPUS],
    /// The command line.
    pub(crate) program: TextWords<W, 30>,
    pub(crate) engines: [TextWords<W, 4>; ENGINES],
    /// Engine, reason and hint, with zero bytes between them.
    pub(crate) refusals: [TextWords<W, 55>; REFUSALS],
    /// Note and hint, with a zero byte between them.
    pub(crate) notes: [TextWords<W, 51>; NOTES],
    pub(crate) files: [TextWords<W, 30>; FILES],
}

/// Bytes of the region.
pub(crate) const SIZE: usize = size_of::<CounterRegion<u64>>();

// Shards begin and end with a cache line (128 bytes: lines are fetched in pairs).
const _: () = assert!(size_of::<Shard<u64>>().is_multiple_of(128));
const _: () = assert!(std::mem::offset_of!(CounterRegion<u64>, shards).is_multiple_of(128));
const _: () = assert!(size_of::<CounterRegion<AtomicU64>>() == SIZE);

/// A struct that is nothing but words.
///
/// # Safety
/// The type is `repr(C)` and made of `Self::Word` only, which is 8 bytes wide and aligned.
pub(crate) unsafe trait Words: Sized {
    type Word;

    fn words(&self) -> &[Self::Word] {
        // SAFETY: by the trait's promise the memory is an array of words, all initialised.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>() / 8) }
    }

    fn words_mut(&mut self) -> &mut [Self::Word] {
        // SAFETY: as above, and the reference is unique.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>() / 8) }
    }
}

// SAFETY: repr(C) of words only, all the way down.
unsafe impl<W> Words for CounterRegion<W> {
    type Word = W;
}
// SAFETY: as above.
unsafe impl<W> Words for Shard<W> {
    type Word = W;
}

/// A zeroed struct of plain words, on the heap because of its size.
#[allow(clippy::unnecessary_box_returns, reason = "the region would not fit on small stacks")]
pub(crate) fn zeroed<T: Words<Word = u64>>() -> Box<T> {
    // SAFETY: it is made of u64 only, for which zero is a value.
    unsafe { Box::new_zeroed().assume_init() }
}

impl CounterRegion<AtomicU64> {
    /// A copy for decoding. Words are read in ascending order, as [`TextWords`] wants it.
    pub(crate) fn copy(&self) -> Box<CounterRegion<u64>> {
        let mut copy: Box<CounterRegion<u64>> = zeroed();
        for (to, from) in copy.words_mut().iter_mut().zip(self.words()) {
            *to = from.load(Ordering::Acquire);
        }
        copy
    }

    /// The sums of all shards.
    pub(crate) fn sums(&self) -> Box<Shard<u64>> {
        self.sums_of(SHARDS)
    }

    /// The sums of the first `used` shards. To read one that nobody has used takes memory for it.
    fn sums_of(&self, used: usize) -> Box<Shard<u64>> {
        let mut sums: Box<Shard<u64>> = zeroed();
        for shard in self.shards.iter().take(used) {
            for (sum, word) in sums.words_mut().iter_mut().zip(shard.words()) {
                *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// Writes the sums of the first `used` shards: once a second.
    #[cold]
    #[inline(never)]
    pub(crate) fn write_sums(&self, to: &Shard<AtomicU64>, used: usize) {
        for (word, sum) in to.words().iter().zip(self.sums_of(used).words()) {
            word.store(*sum, Ordering::Relaxed);
        }
    }
}

impl CounterRegion<u64> {
    /// The sums of all shards.
    pub(crate) fn sums(&self) -> Box<Shard<u64>> {
        let mut sums: Box<Shard<u64>> = zeroed();
        for shard in &self.shards {
            sums.add(shard);
        }
        sums
    }
}

impl Shard<u64> {
    pub(crate) fn add(&mut self, other: &Self) {
        for (word, more) in self.words_mut().iter_mut().zip(other.words()) {
            *word = word.wrapping_add(*more);
        }
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Box<Self> {
        let mut sums: Box<Self> = zeroed();
        for (to, (now, then)) in sums.words_mut().iter_mut().zip(self.words().iter().zip(earlier.words())) {
            *to = now.wrapping_sub(*then);
        }
        sums
    }

    pub(crate) fn duplicate(&self) -> Box<Self> {
        let mut copy: Box<Self> = zeroed();
        copy.words_mut().copy_from_slice(self.words());
        copy
    }
}

impl<const WORDS: usize> TextWords<AtomicU64, WORDS> {
    /// Writes the text, cut to what fits. One writer at a time.
    pub(crate) fn write(&self, text: &str) {
        let text = cut(text, WORDS * 8);
        let number = self.done.load(Ordering::Relaxed) + 1;
        self.begun.store(number, Ordering::Relaxed);
        // A reader that sees new words below also sees `begun` above.
        std::sync::atomic::fence(Ordering::Release);
        self.length.store(text.len() as u64, Ordering::Release);
        for (word, bytes) in self.words.iter().zip(text.as_bytes().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Release);
        }
        self.done.store(number, Ordering::Release);
    }
}

impl<const WORDS: usize> TextWords<u64, WORDS> {
    /// The text, unless there is none or a writer was at it.
    pub(crate) fn read(&self) -> Option<String> {
        if self.done == 0 || self.done != self.begun {
            return None;
        }
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.length as usize);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether a writer was at it while the copy was made.
    pub(crate) fn is_torn(&self) -> bool {
        self.done != self.begun
    }
}

/// The longest beginning of `text` of at most `length` bytes.
pub(crate) fn cut(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        let mut copy: Box<CounterRegion<u64>> = zeroed();
        // SAFETY: the atomics have the same layout; nobody else has the memory.
        let live = unsafe { &*(&raw mut *copy).cast::<CounterRegion<AtomicU64>>() };
        live.engines[0].write(&"ä".repeat(20));
        live.engines[1].write("");
        let copy = live.copy();
        assert_eq!(copy.engines[0].read().unwrap(), "ä".repeat(16));
        assert_eq!(copy.engines[1].read().unwrap(), "");
        assert_eq!(copy.engines[2].read(), None);
    }

    #[test]
    fn a_text_in_the_making_is_not_read() {
        let mut copy: Box<CounterRegion<u64>> = zeroed();
        (copy.engines[0].done, copy.engines[0].begun) = (1, 2);
        assert!(copy.engines[0].is_torn());
        assert_eq!(copy.engines[0].read(), None);
    }

    #[test]
    fn a_length_from_outside_is_not_believed() {
        let mut copy: Box<CounterRegion<u64>> = zeroed();
        (copy.engines[0].done, copy.engines[0].begun, copy.engines[0].length) = (1, 1, u64::MAX);
        assert_eq!(copy.engines[0].read().unwrap().len(), 32);
    }

    /// docs/reference/stats.md names these: who changes them changes [`LAYOUT`] and the page.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        let region = [
            offset_of!(CounterRegion<u64>, rare),
            offset_of!(CounterRegion<u64>, shards),
            offset_of!(CounterRegion<u64>, file_sums),
            offset_of!(CounterRegion<u64>, ticks),
            offset_of!(CounterRegion<u64>, gpus),
            offset_of!(CounterRegion<u64>, program),
            offset_of!(CounterRegion<u64>, engines),
            offset_of!(CounterRegion<u64>, refusals),
            offset_of!(CounterRegion<u64>, notes),
            offset_of!(CounterRegion<u64>, files),
            SIZE,
        ];
        let expected = [16, 32, 8736, 12832, 15016, 15064, 15097, 15153, 17009, 17873, 19985];
        assert_eq!(region.map(|offset| offset / 8), expected);
        let shard = [
            offset_of!(Shard<u64>, vector),
            offset_of!(Shard<u64>, sizes),
            offset_of!(Shard<u64>, ops),
            offset_of!(Shard<u64>, registered),
            offset_of!(Shard<u64>, batch),
            offset_of!(Shard<u64>, asyncs),
            offset_of!(Shard<u64>, engines),
            offset_of!(Shard<u64>, refusals),
            offset_of!(Shard<u64>, notes),
            size_of::<Shard<u64>>(),
        ];
        assert_eq!(shard.map(|offset| offset / 8), [204, 216, 280, 318, 386, 390, 392, 464, 528, 544]);
        assert_eq!(LAYOUT, 2);
        let page = include_str!("../../../docs/reference/stats.md");
        let ways = Way::ALL.map(Way::name).join(", ");
        assert!(page.contains(&format!("| 392 … | 8 engines × ({ways}, requests) |")), "{ways}");
    }
}
