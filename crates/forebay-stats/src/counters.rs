//! Where the process counts.

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_config::env;
use forebay_error::Result;
use forebay_ways::{Moved, Way};

use crate::files::Files;
use crate::layout::{
    ENGINES, GPUS, HOST, IoSums, LAYOUT, MAGIC, NOTES, REFUSALS, SHARDS, SIZE, Shard, zeroed,
};
use crate::list::WordList;
use crate::memory::{CounterMemory, DIRECTORY_VARIABLE};
use crate::ops::Op;
use crate::snapshot::Snapshot;
use crate::{FileCounter, clock};

/// One read or write that ended.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Bytes moved.
    pub bytes: u64,
    /// From the call to its end.
    pub latency: Duration,
    /// The GPU whose memory it was; none for memory of the host.
    pub gpu: Option<usize>,
    /// Offset, size or address was not a multiple of a page.
    pub unaligned: bool,
    /// The bytes went through host memory and the kernel's plain file calls.
    pub posix: bool,
    /// Whether it succeeded.
    pub ok: bool,
}

/// Where an engine, refusals and notes are counted that many requests have in common: texts are compared once.
#[derive(Debug)]
pub struct TextPlaces {
    /// The counters, by their address: they are never moved.
    of: usize,
    engine: Option<usize>,
    refused: Box<[Option<usize>]>,
    notes: Box<[Option<usize>]>,
}

impl TextPlaces {
    /// Whether they are places of these counters, of as many refusals and notes.
    #[inline]
    pub fn are_of(&self, counters: &'static Counters, (refused, notes): (usize, usize)) -> bool {
        self.of == std::ptr::from_ref(counters) as usize
            && (self.refused.len(), self.notes.len()) == (refused, notes)
    }
}

/// The counters of this process. Counting is a handful of relaxed additions, in a place of the thread's own.
///
/// After a fork the child's copy is private memory that starts at zero: nothing reaches the parent's counters, and
/// nobody finds them. A child that wants to be seen opens its own.
pub struct Counters {
    memory: CounterMemory,
    /// The number of its shards, the first ones, that threads of any shared object have counted in. The others were never touched.
    used_shards: AtomicUsize,
    engines: WordList<ENGINES>,
    refusals: WordList<REFUSALS>,
    notes: WordList<NOTES>,
    files: Files,
    collection: Mutex<Collection>,
}

/// What [`Counters::collected`] leaves out.
struct Collection {
    /// The counts before the last reset, and while stopped.
    base: Box<Shard<u64>>,
    /// The counters when collection stopped.
    stopped: Option<Box<Shard<u64>>>,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("level", &self.level()).finish_non_exhaustive()
    }
}

impl Counters {
    /// Counters that other processes find: in a memfd, or in a file of the directory that `FOREBAY_COUNTERS_DIR` names.
    pub fn open() -> Result<Self> {
        let directory = env::filled(DIRECTORY_VARIABLE);
        Self::open_in(directory.as_deref())
    }

    /// Counters in a file of this directory, or in a memfd.
    pub fn open_in(directory: Option<&OsStr>) -> Result<Self> {
        CounterMemory::shared(directory).map(Self::new)
    }

    /// Counters that only this process sees, for where [`Counters::open`] fails.
    pub fn hidden() -> Result<Self> {
        CounterMemory::hidden().map(Self::new)
    }

    fn new(memory: CounterMemory) -> Self {
        let header = &memory.header;
        header.layout.store(LAYOUT, Relaxed);
        header.size.store(SIZE as u64, Relaxed);
        header.pid.store(std::process::id().into(), Relaxed);
        header.started.store(crate::process::started().unwrap_or(0), Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        header.opened.store(now, Relaxed);
        memory.program.write(&crate::process::program());
        header.magic.store(MAGIC, Release);
        Self {
            memory,
            used_shards: AtomicUsize::new(0),
            engines: WordList::new(),
            refusals: WordList::new(),
            notes: WordList::new(),
            files: Files::new(),
            collection: Mutex::new(Collection { base: zeroed(), stopped: None }),
        }
    }

    /// Counts a read.
    pub fn read(&self, io: Io) {
        self.io(0, io);
    }

    /// Counts a write.
    pub fn write(&self, io: Io) {
        self.io(1, io);
    }

    fn io(&self, direction: usize, io: Io) {
        self.tick(io.latency);
        let shard = self.shard();
        add_io(&shard.io[direction][device(io.gpu)], io);
        if io.ok {
            shard.sizes[direction][bucket(io.bytes)].fetch_add(1, Relaxed);
        }
    }

    /// Counts a vectored read.
    pub fn readv(&self, io: Io) {
        self.tick(io.latency);
        add_io(&self.shard().vector[0], io);
    }

    /// Counts a vectored write.
    pub fn writev(&self, io: Io) {
        self.tick(io.latency);
        add_io(&self.shard().vector[1], io);
    }

    /// Counts a call.
    pub fn count(&self, op: Op, ok: bool) {
        self.count_many(op, 1, ok);
    }

    /// Counts several of a kind at once.
    pub fn count_many(&self, op: Op, times: u64, ok: bool) {
        self.shard().ops[op as usize][usize::from(!ok)].fetch_add(times, Relaxed);
    }

    /// Counts memory that was registered, or was not.
    pub fn buffer_registered(&self, gpu: Option<usize>, bytes: u64, ok: bool) {
        self.count(Op::BufRegister, ok);
        let of_device = &self.shard().registered[device(gpu)];
        if ok {
            of_device.ok.fetch_add(1, Relaxed);
            of_device.bytes.fetch_add(bytes, Relaxed);
        } else {
            of_device.err.fetch_add(1, Relaxed);
        }
    }

    /// Counts memory that was deregistered (`bytes` as when it was registered), or was not.
    pub fn buffer_deregistered(&self, gpu: Option<usize>, bytes: u64, ok: bool) {
        self.count(Op::BufDeregister, ok);
        if ok {
            let of_device = &self.shard().registered[device(gpu)];
            of_device.freed.fetch_add(1, Relaxed);
            of_device.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Counts the submission of a batch and how long the call took.
    pub fn batch_submitted(&self, latency: Duration, ok: bool) {
        self.tick(latency);
        self.count(Op::BatchSubmit, ok);
        self.count(Op::BatchTotalSubmit, ok);
        self.shard().batch.submit_nanos.fetch_add(nanos(latency), Relaxed);
    }

    /// Counts the end of a batch: its bytes, and the time since its submission.
    pub fn batch_completed(&self, read_bytes: u64, write_bytes: u64, latency: Duration, ok: bool) {
        self.tick(latency);
        self.count(Op::BatchComplete, ok);
        let batch = &self.shard().batch;
        batch.complete_nanos.fetch_add(nanos(latency), Relaxed);
        for (index, bytes) in [read_bytes, write_bytes].into_iter().enumerate() {
            batch.bytes[index].fetch_add(bytes, Relaxed);
            self.memory.rare.last_batch[index].store(bytes, Relaxed);
        }
    }

    /// Counts asynchronous operations that began.
    pub fn async_started(&self, operations: u64) {
        self.shard().asyncs[0].fetch_add(operations, Relaxed);
    }

    /// Counts asynchronous operations that ended.
    pub fn async_done(&self, operations: u64) {
        self.shard().asyncs[1].fetch_add(operations, Relaxed);
    }

    /// Counts a call to a server, and the time to its answer.
    pub fn round_trip(&self, took: Duration) {
        let [count, time] = &self.memory.rare.round_trips;
        count.fetch_add(1, Relaxed);
        time.fetch_add(nanos(took), Relaxed);
    }

    /// Counts a request that an engine carried out, with its bytes.
    pub fn engine(&self, engine: &str, moved: Moved) {
        if let Some(place) = self.place_of_engine(engine) {
            self.count_engine(place, moved);
        }
    }

    fn place_of_engine(&self, engine: &str) -> Option<usize> {
        self.engines.place(engine, "", |place| self.memory.engines[place].write(engine))
    }

    fn count_engine(&self, place: usize, moved: Moved) {
        let sums = &self.shard().engines[place];
        for (sum, bytes) in sums.iter().zip(moved.as_array()) {
            if *bytes > 0 {
                sum.fetch_add(*bytes, Relaxed);
            }
        }
        sums[Way::COUNT].fetch_add(1, Relaxed);
    }

    /// Counts a request for which an engine was refused, and the bytes that it would have moved.
    pub fn refused(&self, engine: &str, reason: &str, hint: Option<&str>, bytes: u64) {
        self.count_refused(self.place_of_refusal(engine, reason, hint), bytes);
    }

    fn place_of_refusal(&self, engine: &str, reason: &str, hint: Option<&str>) -> Option<usize> {
        let publish = |place: usize| {
            let (reason, hint) =
                (crate::layout::cut(reason, 200), crate::layout::cut(hint.unwrap_or(""), 200));
            self.memory.refusals[place].write(&format!("{engine}\0{reason}\0{hint}"));
        };
        self.refusals.place(engine, reason, publish)
    }

    fn count_refused(&self, place: Option<usize>, bytes: u64) {
        if let Some(place) = place {
            let sums = &self.shard().refusals[place];
            sums[0].fetch_add(1, Relaxed);
            sums[1].fetch_add(bytes, Relaxed);
        } else {
            self.memory.rare.refusals_left_out.fetch_add(1, Relaxed);
        }
    }

    /// Keeps something worth knowing, and counts how often it was said.
    pub fn note(&self, text: &str, hint: Option<&str>) {
        if let Some(place) = self.place_of_note(text, hint) {
            self.shard().notes[place].fetch_add(1, Relaxed);
        }
    }

    fn place_of_note(&self, text: &str, hint: Option<&str>) -> Option<usize> {
        let publish = |place: usize| {
            let (text, hint) = (crate::layout::cut(text, 200), crate::layout::cut(hint.unwrap_or(""), 200));
            self.memory.notes[place].write(&format!("{text}\0{hint}"));
        };
        self.notes.place(text, "", publish)
    }

    /// Finds, or makes, the places of an engine, of refusals (engine, reason, hint) and of notes (text, hint).
    pub fn places<'a>(
        &'static self,
        engine: &str,
        refused: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>,
        notes: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> TextPlaces {
        TextPlaces {
            of: std::ptr::from_ref(self) as usize,
            engine: self.place_of_engine(engine),
            refused: refused
                .map(|(engine, reason, hint)| self.place_of_refusal(engine, reason, hint))
                .collect(),
            notes: notes.map(|(text, hint)| self.place_of_note(text, hint)).collect(),
        }
    }

    /// Counts a request as [`engine`](Self::engine), [`refused`](Self::refused) and [`note`](Self::note) do.
    pub fn explained(&self, places: &TextPlaces, moved: Moved, refused: u64) {
        if let Some(place) = places.engine {
            self.count_engine(place, moved);
        }
        for place in &places.refused {
            self.count_refused(*place, refused);
        }
        for place in places.notes.iter().flatten() {
            self.shard().notes[*place].fetch_add(1, Relaxed);
        }
    }

    /// Keeps why a call failed.
    pub fn failed(&self, reason: &str, hint: Option<&str>) {
        self.note(&format!("a call failed: {reason}"), hint);
    }

    /// Counts a transfer of a file. Up to 64 files are listed; a file that took longer than the least of them takes
    /// its place.
    pub fn file(&self, file: &FileCounter, bytes: u64, latency: Duration) {
        self.files.count(&self.memory, shard_number(), file, bytes, nanos(latency));
    }

    /// Names a GPU.
    pub fn gpu(&self, index: usize, uuid: [u8; 16]) {
        let Some(gpu) = self.memory.gpus.get(index) else { return };
        let (first, second) = uuid.split_at(8);
        for (word, half) in gpu.uuid.iter().zip([first, second]) {
            word.store(half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), Relaxed);
        }
        gpu.known.store(1, Release);
    }

    /// What the program wants to see of cuFile's statistics, 0 to 3. Counting goes on at any level.
    pub fn set_level(&self, level: u32) {
        self.memory.header.level.store(level.min(3).into(), Relaxed);
    }

    /// The level that was set.
    pub fn level(&self) -> u32 {
        self.memory.header.level.load(Relaxed) as u32
    }

    /// Everything counted since the process began, whatever was reset or stopped.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.memory.copy(), clock::now(), None)
    }

    /// The counts since the last [`reset`](Self::reset), without those while stopped. Only the counters
    /// differ from [`snapshot`](Self::snapshot); files, and rates, do not know of resets.
    pub fn collected(&self) -> Snapshot {
        let collection = self.collection();
        let copy = self.memory.copy();
        let now = collection.stopped.as_ref().map_or_else(|| copy.sums(), |sums| sums.duplicate());
        Snapshot::of(&copy, clock::now(), Some(&now.since(&collection.base)))
    }

    /// [`collected`](Self::collected) begins at zero.
    pub fn reset(&self) {
        let mut collection = self.collection();
        collection.base =
            collection.stopped.as_ref().map_or_else(|| self.memory.sums(), |sums| sums.duplicate());
    }

    /// [`collected`](Self::collected) stands still until [`start`](Self::start).
    pub fn stop(&self) {
        let mut collection = self.collection();
        if collection.stopped.is_none() {
            collection.stopped = Some(self.memory.sums());
        }
    }

    /// [`collected`](Self::collected) goes on after [`stop`](Self::stop).
    pub fn start(&self) {
        let mut collection = self.collection();
        if let Some(stopped) = collection.stopped.take() {
            let missed = self.memory.sums().since(&stopped);
            collection.base.add(&missed);
        }
    }

    fn collection(&self) -> MutexGuard<'_, Collection> {
        self.collection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self) -> &Shard<AtomicU64> {
        let number = shard_number();
        if self.used_shards.load(Relaxed) <= number {
            self.used_shards.fetch_max(number + 1, Relaxed);
        }
        &self.memory.shards[number]
    }

    /// The first transfer that ends in a new second writes down the sums so far: rates are differences of these.
    fn tick(&self, latency: Duration) {
        let header = &self.memory.header;
        let now = clock::coarse();
        let (second, last) = (now / 1_000_000_000 + 1, header.second.load(Relaxed));
        if second <= last || header.second.compare_exchange(last, second, Relaxed, Relaxed).is_err() {
            return;
        }
        let number = header.ticks.load(Relaxed) as usize;
        let tick = &self.memory.ticks[number % crate::layout::TICKS];
        tick.second.store(second, Relaxed);
        tick.time.store(now.saturating_sub(nanos(latency)), Relaxed);
        self.memory.write_sums(&tick.sums, self.used_shards.load(Relaxed));
        header.ticks.store(number as u64 + 1, Release);
    }
}

fn add_io(sums: &IoSums<AtomicU64>, io: Io) {
    if io.ok {
        sums.ok.fetch_add(1, Relaxed);
        sums.bytes.fetch_add(io.bytes, Relaxed);
    } else {
        sums.err.fetch_add(1, Relaxed);
    }
    sums.nanos.fetch_add(nanos(io.latency), Relaxed);
    if io.unaligned {
        sums.unaligned.fetch_add(1, Relaxed);
    }
    if io.posix {
        sums.posix.fetch_add(1, Relaxed);
    }
}

fn nanos(latency: Duration) -> u64 {
    latency.as_nanos() as u64
}

fn device(gpu: Option<usize>) -> usize {
    gpu.filter(|index| *index < GPUS).unwrap_or(HOST)
}

/// 0 for less than 4 KiB, 1 for less than 8 KiB, and so on.
fn bucket(bytes: u64) -> usize {
    ((bytes >> 12).bit_width() as usize).min(crate::layout::BUCKETS - 1)
}

/// The place that this thread counts in.
fn shard_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        mine.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Words;

    #[test]
    fn texts_that_were_looked_up_count_as_others() {
        let [one, other]: [&'static Counters; 2] =
            std::array::from_fn(|_| &*Box::leak(Box::new(Counters::hidden().unwrap())));
        let (refused, note) = (("p2p", "no BAR", Some("lspci")), ("few lanes", None));
        let ways = Moved::from_ways([1, 2, 0, 0, 0, 3, 4, 5]);
        for counters in [one, other] {
            counters.engine("mapped", ways);
            counters.note("another", None);
        }
        let places = one.places("staged", [refused].into_iter(), [note].into_iter());
        assert!(places.are_of(one, (1, 1)) && !places.are_of(one, (1, 2)) && !places.are_of(other, (1, 1)));
        for bytes in [4096, 7] {
            one.explained(&places, ways, bytes);
            other.engine("staged", ways);
            other.refused(refused.0, refused.1, refused.2, bytes);
            other.note(note.0, note.1);
        }
        assert_eq!(one.memory.sums().words(), other.memory.sums().words());
        let texts = |counters: &Counters| {
            let copy = counters.memory.copy();
            (copy.engines[1].read(), copy.refusals[0].read(), copy.notes[1].read())
        };
        assert_eq!(texts(one), texts(other));
        assert_eq!(texts(one).0.as_deref(), Some("staged"));
    }

    #[test]
    fn a_tick_has_what_all_threads_have_counted() {
        let counters = Counters::hidden().unwrap();
        let latency = Duration::from_micros(9);
        let io = Io { bytes: 4096, latency, gpu: None, unaligned: false, posix: false, ok: true };
        for _ in 0..SHARDS / 2 {
            std::thread::scope(|scope| scope.spawn(|| counters.read(io)).join().unwrap());
        }
        let before = counters.memory.sums();
        // Another second.
        counters.memory.header.second.store(0, Relaxed);
        counters.read(io);
        let number = counters.memory.header.ticks.load(Relaxed) as usize - 1;
        let tick = &counters.memory.ticks[number % crate::layout::TICKS];
        let sums: Vec<_> = tick.sums.words().iter().map(|word| word.load(Relaxed)).collect();
        assert_eq!(sums, before.words());
        assert_eq!(before.io[0][HOST].bytes, 4096 * (SHARDS as u64 / 2));
    }

    #[test]
    fn sizes_fall_into_buckets_by_powers_of_two() {
        let of = |kib: u64| bucket(kib << 10);
        assert_eq!([of(0), of(3), of(4), of(7), of(8), of(16)], [0, 0, 1, 1, 2, 3]);
        assert_eq!(bucket(65536 << 10), 15);
        assert_eq!(bucket(u64::MAX), 31);
    }
}
