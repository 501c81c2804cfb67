//! Tuned constants: what each is, and why.
//!
//! Figures are of one machine unless a line names another: an H200 in a virtual machine with 16 CPUs, driver 580, kernel 6.18.
//! docs/architecture.md and docs/benchmarks.md have the measurements. A reason without a figure is an argument; "chosen" marks a
//! value without a measurement on record. Values that the kernel, the driver or a protocol prescribes stay beside their code.

/// Synchronous transfers on the caller's thread (`engines/staged/sync`).
pub(crate) mod callers {
    use std::time::Duration;

    /// Most bytes that a caller's thread moves by itself: a hand-over to a lane costs two wake-ups.
    pub(crate) const MAX_CALLER_BYTES: usize = 1 << 20;
    /// Bytes whose device copy starts while the next are read: the copies of larger parts overlap too little.
    pub(crate) const PART: u64 = 256 << 10;
    /// Poll before a sleep: a small copy takes less, and waking up costs more.
    pub(crate) const POLL: Duration = Duration::from_micros(20);
    /// Poll before a sleep with `FOREBAY_OBJECTIVE=latency`; after it the driver spins. Chosen.
    pub(crate) const POLL_LONG: Duration = Duration::from_millis(10);
    /// Longest copy that is polled for: it takes 40 µs on the link at 50 GB/s.
    pub(crate) const MAX_POLLED_BYTES: usize = 2 << 20;
    /// Callers at once that poll, and that overlap their own parts: more of them hold the driver's lock against those that start
    /// copies.
    pub(crate) const MAX_POLLING_CALLERS: usize = 2;
    /// More callers than this use the resident kernel, until [`MAX_POLLING_CALLERS`] are left: 4 KiB by 4 threads of cuFileRead
    /// 234 K IOPS by a polled copy each and 139 K by the kernel, by 6 threads of the Rust API 331 K and 462 K.
    pub(crate) const RESIDENT_ABOVE_CALLERS: usize = 4;
    /// Longest copy that is polled for by as many callers as there are CPUs: a sleep costs more than the bytes.
    pub(crate) const MAX_CROWD_POLLED_BYTES: usize = 16 << 10;
    /// Stream slots of a device; more callers at once use the lanes, but for small writes. Bounds pinned memory: 2 MiB each, once they are needed.
    pub(crate) const STREAM_SLOTS: usize = 64;
    /// Pinned bytes of a stream slot: [`MAX_CALLER_BYTES`] aligned out, as a whole huge page. Device and disk are far slower with
    /// many small pages.
    pub(crate) const SLOT_BYTES: usize = 2 << 20;
    /// Longest transfer, aligned out, for which a slot needs no such memory: [`MAX_CROWD_POLLED_BYTES`] between two pages. 64 threads
    /// that read 4 KiB cold beside busy CPUs had 3 reads in the first second while each cleared and pinned its 2 MiB (software GPU,
    /// 2 CPUs, 6 other threads), 7 to 14 thousand with this.
    pub(crate) const SHORT_SLOT_BYTES: usize = MAX_CROWD_POLLED_BYTES + 2 * 4096;
    /// Slots whose part of it is no huge page: those that few callers use. A first read of 1 MiB would clear and pin two of them. Chosen.
    pub(crate) const FIRST_SLOTS: usize = 4;
    /// A slot's part of the memory for those, with room for its stream's word behind: parts of the other slots are one huge page.
    pub(crate) const SHORT_SLOT_STRIDE: usize = SLOT_BYTES / STREAM_SLOTS;
    /// Further slots for small writes, and their pinned bytes. By lanes each such write wakes one up, which copies and writes it
    /// alone: 128 threads of 4 KiB wrote 31 K IOPS at 93 µs of CPU, 1 % of them after 37 ms, where copies and pwrites of their own come to
    /// 48 K at 53. Small cold reads need one lane for all callers, and stay there.
    pub(crate) const WRITE_SLOTS: usize = 192;
    pub(crate) const WRITE_SLOT_BYTES: usize = 64 << 10;
    /// Bytes of a part of a long read on the caller's thread: each needs two driver calls and a wait. By parts of 960 KiB and
    /// words in the stream 16 threads read 34 GB/s, by parts of 2 MiB and events 43.
    pub(crate) const LONG_PART: usize = 4 << 20;
    /// Sleep between two looks at a part's copy. By sleeps as long as copies took lately 16 threads read 41 GB/s at 0.165 CPU s/GB, so
    /// 44.5 at 0.20: who finds the link idle is not to oversleep.
    pub(crate) const LONG_LOOK: Duration = Duration::from_micros(20);
    /// Longest poll for it where half of the CPUs have nothing else to do: with the least time of a copy slept before it 8 threads read 36 GB/s at
    /// 0.20 CPU s/GB in later passes, by looks every 10 µs 31 at 0.24 (one H100, three processes each).
    pub(crate) const LONG_POLL: Duration = Duration::from_micros(300);
    /// Pinned bytes for a part: with what an alignment adds.
    pub(crate) const LONG_BYTES: usize = LONG_PART + (64 << 10);
    /// Callers from which on long warm reads stay on their threads, as a part of the CPUs: half. By lanes 8 threads
    /// read 4 MiB pieces at 37 GB/s, where a peer's, which copy by themselves, read 45; 16 threads 24 by lanes and 43 by themselves.
    pub(crate) const CROWD_FRACTION: (usize, usize) = (1, 2);
    /// Callers from which on they stay there once they began to: a quarter of the CPUs. It does not end while one of 8 is between two
    /// calls. With this 42.5 GB/s by 8 threads, without 40.
    pub(crate) const CROWD_END_FRACTION: (usize, usize) = (1, 4);
}

/// The resident copy kernel (`engines/resident`). Figures of a bare probe: 4 KiB × 16 threads 1.47 M IOPS at 10.9 µs of CPU,
/// where copies by the driver end at 0.6 M.
pub(crate) mod resident {
    use std::time::Duration;

    use super::callers::STREAM_SLOTS;

    /// One for each stream slot, and as many second ones.
    pub(crate) const MAILBOXES: usize = STREAM_SLOTS;
    /// Longest piece: 16 threads read 1 MiB pieces from registered pages at 46 GB/s by copies. From slots it is 24 to 27 GB/s by copies,
    /// 22 to 26 by the kernel within the promised [`MAX_LAUNCH_NS`].
    pub(crate) const MAX_PIECE: usize = 512 << 10;
    /// Longer warm reads from slots go in parts of this size: one is copied while the next is read.
    pub(crate) const PART: u64 = 128 << 10;
    /// A launch of the kernel ends after this time without work, in nanoseconds: the GPU is the user's.
    pub(crate) const IDLE_NS: u32 = 200_000;
    /// A launch ends after this time in all: a user's `cudaDeviceSynchronize` waits for no longer.
    pub(crate) const MAX_LAUNCH_NS: u64 = 1_000_000;
    /// What the kernel is given of [`MAX_LAUNCH_NS`] for pieces of [`SHORT_PIECE`] at most. It reckons that a block has 4 GB/s of the
    /// link; where all blocks copy it has less, and the kernel ends later.
    pub(crate) const LAUNCH_NS: u32 = 970_000;
    /// What it is given where longer pieces were posted lately: [`LONG_BYTES`] of those at most are posted at once.
    pub(crate) const LAUNCH_LONG_NS: u32 = 765_000;
    /// Longest piece that is short: where all blocks copy one of these, the launch still ends within [`MAX_LAUNCH_NS`].
    pub(crate) const SHORT_PIECE: u64 = 64 << 10;
    /// Most bytes of long pieces that are posted at once: 32 callers of 512 KiB. Further callers copy by themselves.
    pub(crate) const LONG_BYTES: u64 = 16 << 20;
    /// Time from a launch to the launcher's first look whether it has ended: one that is at work lasts about as long.
    pub(crate) const FIRST_LOOK: Duration = Duration::from_micros(900);
    /// Time between the launcher's further looks. Callers wake it too.
    pub(crate) const LOOK: Duration = Duration::from_micros(20);
    /// Pause between two launches: cooperative launches and calls that synchronize get in. Chosen.
    pub(crate) const LAUNCH_PAUSE: Duration = Duration::from_micros(20);
    /// A launch that has not ended after this time waits for room on the device, or was lost: the driver is asked. Chosen.
    pub(crate) const LAUNCH_LIMIT: Duration = Duration::from_millis(5);
    /// Shortest and longest time between two questions to the driver about a launch past [`LAUNCH_LIMIT`]; each is twice the last.
    /// They take the driver's lock. Chosen.
    pub(crate) const LATE_LAUNCH_LOOKS: (Duration, Duration) =
        (Duration::from_micros(200), Duration::from_millis(5));
    /// A caller withdraws a piece that the kernel has not begun after this time, and copies it by the driver, which needs no room beside
    /// the user's kernels. A trial that takes longer has failed.
    pub(crate) const START_LIMIT: Duration = Duration::from_millis(2);
    /// Pieces that may share the link: a caller waits for as many times its piece's own copy before it withdraws.
    pub(crate) const MAX_SHARING_PIECES: u32 = STREAM_SLOTS as u32;
    /// How long callers copy by themselves after a piece or a launch that was late. Between trials that fail it doubles up to [`MAX_PAUSE`].
    /// Chosen.
    pub(crate) const PAUSE: Duration = Duration::from_millis(200);
    /// See [`PAUSE`].
    pub(crate) const MAX_PAUSE: Duration = Duration::from_mins(1);
    /// A caller's poll before it lets others run: a small piece takes some 10 µs.
    pub(crate) const CALLER_POLL: Duration = Duration::from_micros(50);
    /// A caller's poll where callers share CPUs.
    pub(crate) const CROWDED_POLL: Duration = Duration::from_micros(2);
    /// A caller's poll for bytes from a disk, for which it waits for most of its time: a launch that is under way has copied them by
    /// then.
    pub(crate) const COLD_POLL: Duration = Duration::from_micros(20);
    /// Pieces from a disk that find no launch under way are copied by the driver. This number of them within [`COLD_SPAN`] cause a
    /// launch: 120 K a second. A disk of 50 to 85 K IOPS is read faster by the driver's copies (64 threads: 66 in place of 59 K at 50 in place of
    /// 65 µs of CPU; one H100); by those 64 threads reached 188 K on a faster one. Chosen between the two.
    pub(crate) const COLD_LAUNCH_PIECES: u32 = 240;
    /// See [`COLD_LAUNCH_PIECES`]. Chosen: long enough for chance to even out.
    pub(crate) const COLD_SPAN: Duration = Duration::from_millis(2);
    /// How long a caller lets others run before it sleeps.
    pub(crate) const CALLER_YIELD: Duration = Duration::from_micros(500);
    /// How long it does on one CPU: sched_yield costs 0.97 µs of user CPU a piece while others have something to do. Where all wait
    /// for the disk it would only burn time. Chosen.
    pub(crate) const LONE_YIELD: Duration = Duration::from_micros(20);
    /// Looks on one CPU, and times that others run, for each question to the clock, which costs about as much as a look. Chosen.
    pub(crate) const LONE_LOOKS: u32 = 4;
    /// A caller's shortest and longest sleep between looks: an eighth of the time so far between them.
    pub(crate) const CALLER_NAPS: (Duration, Duration) =
        (Duration::from_micros(20), Duration::from_millis(1));
    /// Most pieces of a batch whose copies go by mailboxes: 16 are read by one thread in some 20 µs, about what two wake-ups for a
    /// lane take. Larger batches fill lanes or one kernel, which move 4 M pieces a second. Chosen.
    pub(crate) const MAX_BATCH_PIECES: usize = 16;
    /// Most bytes of such a batch. Chosen.
    pub(crate) const MAX_BATCH_BYTES: usize = 256 << 10;
    /// How long the driver's word on a range of memory is believed, and that memory which a call has used is there for the next one: a slot's
    /// caller usually comes back with the same buffer.
    pub(crate) const MEMORY_CACHE_TIME: Duration = Duration::from_millis(1);
}

/// Lanes (`engines/staged/workers`).
pub(crate) mod lanes {
    use std::time::Duration;

    /// Lanes whose first slots are pinned at once: 16 MiB (when slots had 4) take 5 ms to clear and 1 to pin, and while the next ones are cleared
    /// these copy.
    pub(crate) const GROUP: usize = 4;
    /// Slots that a lane has for plain reads. More of three of 2 MiB stays in the CPU's caches than of two of 4 MiB: a new tmpfs file at 36 GB/s (26 to
    /// 39, by pass) in place of 29 (21 to 33), the page cache at 43 (27 to 46) in place of 37 (34 to 43), on an H100 whose memory was slow; two had 33
    /// and 45 there, and the same as three on one with faster memory.
    pub(crate) const PLAIN_SLOTS: usize = 3;
    /// Shortest and longest time between two attempts to put a lane in the place of one that died; each is twice the last. Chosen.
    pub(crate) const NEXT_LANE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
    /// Cells of a lane: its small cold reads in flight. Chosen.
    pub(crate) const CELLS: usize = 64;
    /// Operations in a ring at once: more make the kernel hand them to helper threads.
    pub(crate) const DEPTH: usize = 128;
    /// Pieces from which on a warm pack goes by the ring: with fewer, plain calls cost less. By the ring 4 KiB reads of 8
    /// lanes went from 3.8–4.7 M to 6.6–6.9 M IOPS.
    pub(crate) const MIN_RING_PACK: usize = 16;
    /// Ready cells that are delivered together while more could be started: a kernel launch costs 4.8 µs.
    pub(crate) const READY_CELLS: usize = 32;
    /// A lane wakes up when this fraction of the operations in flight has ended, an eighth: a wake-up for each costs more than it gains.
    pub(crate) const WAKE_FRACTION: usize = 8;
    /// Longest wait for that fraction. Batches of 4 KiB at depth 64 (cold, one H100): with 10 µs in place of 50 7 % faster, at 2 µs more of CPU a piece.
    /// Chosen between the two.
    pub(crate) const BUNCH_WAIT: Duration = Duration::from_micros(20);
    /// Wait for the kernel before the next look at device copies. With naps of 20 µs eight workers
    /// read 1 MiB pieces at 31 GB/s, waiting in the driver at 12.
    pub(crate) const COPY_LOOK: Duration = Duration::from_micros(20);
    /// The same where all that is copied is small pieces, which were read cold: batches of 4 KiB at depth 64 read 4 to 6 % faster, at no more
    /// CPU (one H100).
    pub(crate) const SMALL_COPY_LOOK: Duration = Duration::from_micros(5);
    /// The longest such wait, for copies that are to be written. Chosen.
    pub(crate) const MAX_COPY_LOOK: Duration = Duration::from_millis(1);
}

/// How many lanes work at once (`engines/staged/width.rs`). On one H200 VM 8 lanes copy 52 GB/s, on another 40, where 12
/// reach 51.5.
pub(crate) mod width {
    use std::time::Duration;

    /// Shortest time over which a rate is taken. Chosen: 100 chunks of 2 MiB at 50 GB/s, so that one more or less at its ends is 1 %.
    pub(crate) const PERIOD: Duration = Duration::from_millis(4);
    /// Fewest works of a period, unless they take [`MAX_PERIOD`]: one more or less at its ends is 1 %. Chosen.
    pub(crate) const MIN_WORKS: u64 = 96;
    /// Longest period with fewer works: a change is to be followed within a second. Chosen.
    pub(crate) const MAX_PERIOD: Duration = Duration::from_millis(30);
    /// Works after a change that are not counted: lanes end what they began, 16 with three slots each. Chosen.
    pub(crate) const SETTLE: u64 = 48;
    /// Works of fewer bytes are not counted: small ones cost calls rather than copies.
    pub(crate) const MIN_COUNTED_BYTES: u64 = 512 << 10;
    /// Lanes that are added stay if the rate grows by this part. Chosen: more than a period's error.
    pub(crate) const GAIN: f64 = 0.03;
    /// Lanes that are taken away stay away if the rate falls by less than this part of the best. Chosen: with [`GAIN`] less than 5 % is lost.
    pub(crate) const LOSS: f64 = 0.015;
    /// A rate that differs by this part, twice in a row, is another machine's: the search begins again. Chosen.
    pub(crate) const CHANGED: f64 = 0.12;
    /// After this time the search begins again without a changed rate: a link that others fill shows none. A search costs three
    /// periods. Chosen.
    pub(crate) const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
}

/// Works of a batch (`io/plan`).
pub(crate) mod plan {
    /// Longest piece that shares a slot with others, or uses a cell: for shorter ones the call costs more than the bytes.
    pub(crate) const CELL: usize = 64 << 10;
    /// Most pieces of a pack: bounds the kernel's list beside each slot. Chosen.
    pub(crate) const MAX_PACK_PIECES: usize = 256;
    /// Least pieces of a pack when a batch is spread over lanes: a launch (4.8 µs of CPU) is shared by that many.
    pub(crate) const MIN_PACK_PIECES: usize = 128;
    /// Least bytes of a chunk when a transfer is spread over lanes: cheap enough, and each lane still gets work. Chosen.
    pub(crate) const MIN_CHUNK: u64 = 1 << 20;
    /// Most bytes that a source without a descriptor is asked for at a time, straight into the caller's memory: those of a transfer
    /// that is cancelled are waited for. A request costs a lane some 2 000 instructions.
    pub(crate) const MAX_REQUEST: usize = 16 << 20;
    /// Neighbours of fewer bytes than this together are packed like others, which takes no slot.
    pub(crate) const MIN_RUN: u64 = CELL as u64;
    /// From this many neighbours on of at most that many bytes on average, reads are cut into whole slots, for fewer lanes. 5 000 tensors
    /// of 95 KB beside torch's allocations: 9.55 GB/s at 0.29 CPU s/GB in place of 8.15 at 0.40, then 20 at 0.22 in place of 16 at 0.29.
    pub(crate) const MIN_SMALL_RUN_PIECES: usize = 16;
    pub(crate) const MAX_SMALL_RUN_MEAN: usize = 512 << 10;
}

/// Reads of cached pages by lanes (`source/read_mapping.rs`). By one thread of a machine with two, from a tmpfs file of 4 KiB folios that was just
/// written: calls 0.19 CPU s/GB, the mapping 0.19; read again: 0.13 and 0.19.
pub(crate) mod reads {
    /// Shortest read that is measured: a chunk of a lane's.
    pub(crate) const MIN_MEASURED: usize = 1 << 20;
    /// The share of works that go the second way is counted in sixteenths.
    pub(crate) const SHARES: usize = 16;
    /// One of 64 works still goes a way that is not chosen, to measure it: if that takes 1.5 times as long, it costs 0.8 %.
    pub(crate) const EXPLORE_INTERVAL: usize = 64;
    /// Works between two steps of the share: lanes end what they began. Chosen.
    pub(crate) const STEP: usize = 8;
    /// The mapping is clearly faster if calls take longer by more than this part: an eighth. Chosen.
    pub(crate) const CLEAR_FRACTION: u64 = 8;
    /// Part of a pace that a new measurement makes: a quarter. Chosen.
    pub(crate) const NEW_VALUE_FRACTION: u64 = 4;
}

/// Kernel calls for a range (`io/segment.rs`).
pub(crate) mod segments {
    /// Aligned writes from this length on go by O_DIRECT (policy `auto`); smaller ones are cheaper through the page cache.
    pub(crate) const MIN_DIRECT_WRITE: usize = 64 << 10;
    /// Writes to memory files from this length on go through a mapping: 39 GB/s by all lanes;
    /// `pwrite` lets one lane write at a time, 6.6 GB/s.
    pub(crate) const MIN_MAPPED_WRITE: usize = 128 << 10;
    /// ECANCELED in a row before a call fails: a signal causes one. Chosen, so that no lane repeats a call forever.
    pub(crate) const MAX_CANCELLATIONS: u8 = 100;
}

/// A lane's io_uring (`io/ring.rs`).
pub(crate) mod ring {
    use std::time::Duration;

    /// Submission queue entries: four times the operations in flight. Chosen.
    pub(crate) const ENTRIES: u32 = 512;
    /// Files that a busy lane keeps registered: lanes do not fight over the reference counts
    /// of those.
    pub(crate) const FILES: u32 = 16;
    /// How long a ring that is given up may take to end its operations. Chosen.
    pub(crate) const SETTLES: Duration = Duration::from_secs(10);
    /// Milliseconds until the kernel's polling thread sleeps (`FOREBAY_IO=polled`). Chosen.
    pub(crate) const POLL_IDLE: u32 = 50;
}

/// Transfers in the order of a user's stream (`stream_order`).
pub(crate) mod streams {
    use std::time::Duration;

    /// From this many streams on, those without operations are forgotten: bounds pinned memory (76 KiB each). Chosen.
    pub(crate) const STREAMS_KEPT: usize = 512;
    /// Streams whose memory is pinned together: each pin is a driver call that holds up others.
    pub(crate) const STREAMS_AT_ONCE: usize = 16;
    /// Longest piece of a kernel's list: more pieces use more of the device.
    pub(crate) const PIECE: usize = 64 << 10;
    /// Bytes of a chunk, buffers of a ring, and the most rings, for each size: some 128 MiB and 96 MiB in all.
    pub(crate) const RINGS: [(usize, usize, usize); 2] = [(512 << 10, 2, 124), (4 << 20, 3, 8)];
    /// How long the server looks without a pause after something happened: an operation often follows another.
    pub(crate) const SPIN: Duration = Duration::from_micros(100);
    /// Where more streams than this are under way it looks for [`SPIN_MANY`] alone: something always happened just now, so that it would never stop looking, and
    /// the next look finds several that got further. Reads of 128 threads took a whole CPU for it. Chosen.
    pub(crate) const MANY_STREAMS: usize = 4;
    /// See [`MANY_STREAMS`].
    pub(crate) const SPIN_MANY: Duration = Duration::from_micros(10);
    /// Its shortest and longest naps after that: an eighth of the idle time between them.
    pub(crate) const NAPS: (Duration, Duration) = (Duration::from_micros(5), Duration::from_micros(200));
    /// Its naps after [`LONG`] without anything: few wake-ups for a stream that is held up. Chosen.
    pub(crate) const NAP_IDLE: Duration = Duration::from_millis(2);
    /// See [`NAP_IDLE`].
    pub(crate) const LONG: Duration = Duration::from_secs(10);
}

/// Waits (`runtime/wait.rs`, `runtime/traffic.rs`).
pub(crate) mod waits {
    use std::time::Duration;

    /// With fewer CPUs a thread that polls keeps others from working.
    pub(crate) const ENOUGH_CPUS: usize = 8;
    /// Looks of a polling thread between looks at the clock, which costs more than a look.
    pub(crate) const LOOKS: u32 = 16;
    /// Bytes that a device copies in a microsecond, as long as nothing else is known (PCIe 5 ×16).
    pub(crate) const BYTES_PER_MICROSECOND: usize = 50_000;
    /// Longer copies than this take longer than the driver's own sleep is late.
    pub(crate) const LONG_COPY: usize = 128 << 20;
    /// Shortest nap that is worth its system calls.
    pub(crate) const NAP: Duration = Duration::from_micros(20);
    /// Naps of a caller before it waits in the driver, which also knows errors: some milliseconds. Chosen.
    pub(crate) const NAPS: u32 = 32;
    /// Part of the time that copies took lately for which a caller sleeps before its first look: five eighths.
    pub(crate) const ASLEEP: (u64, u64) = (5, 8);
    /// A new wait replaces this fraction of what was learnt: an eighth.
    pub(crate) const NEW_VALUE_FRACTION: u64 = 8;
    /// A shorter sleep before the first look loses more by being woken late than it saves.
    pub(crate) const WORTH_SLEEPING: Duration = Duration::from_micros(100);
    /// Longest sleep before the first look. Chosen.
    pub(crate) const HORIZON: Duration = Duration::from_millis(500);
    /// Driver calls that wait for all streams are put off for this long at most: some programs always have operations queued.
    /// Chosen.
    pub(crate) const TRAFFIC_WAIT: Duration = Duration::from_secs(10);
    /// Sleep between looks whether operations are queued. Chosen.
    pub(crate) const TRAFFIC_LOOK: Duration = Duration::from_millis(2);
    /// Waiters of transfers up to this size sleep for half the expected time, then poll. Waiters of
    /// longer ones only sleep.
    pub(crate) const BRIEF_TRANSFER: usize = 64 << 20;
    /// Approximate bandwidth of the link to a device: 50 GB/s.
    pub(crate) const LINK_BYTES_PER_NS: u64 = 50;
}

/// Files and the page cache (`source`).
pub(crate) mod files {
    use std::time::Duration;

    /// How long an idle descriptor of a caller's file is kept for its next use. Chosen.
    pub(crate) const IDLE_AGE: Duration = Duration::from_secs(5);
    /// Most idle descriptors, if they can be closed. Chosen.
    pub(crate) const MAX_IDLE: usize = 64;
    /// Reads in a row that found their page in the page cache after which the file counts as warm until a read
    /// misses: saves a system call for each read.
    pub(crate) const TRUSTED: u8 = 32;
    /// Bytes of small reads of a file that a thread counts for itself before it tells of them. Chosen: eight of 4 KiB.
    pub(crate) const DEMAND_TOLD: u64 = 32 << 10;
    /// Samples of a batch, and of a single range, that tell whether it is warm. Chosen.
    pub(crate) const WARMTH_SAMPLES: usize = 4;
    /// Samples that measure residency where the kernel does not count pages. Chosen.
    pub(crate) const RESIDENCY_SAMPLES: u64 = 256;
    /// Longest wait for pages that samples made the kernel read, so that they are dropped again, and the time between two looks: a drive
    /// reads all of them at once in some ms. Chosen.
    pub(crate) const GIVE_BACK: Duration = Duration::from_millis(50);
    pub(crate) const GIVE_BACK_LOOK: Duration = Duration::from_micros(100);
    /// Samples that tell whether a whole window is resident where the kernel does not count pages. Chosen.
    pub(crate) const WINDOW_SAMPLES: u64 = 16;
    /// Bytes of a memory file that one `fallocate` makes: 12.7 GB/s on one thread, which holds the inode's lock, where 16 lanes
    /// that fault pages in make 6.
    pub(crate) const ALLOCATION_STEP: u64 = 16 << 20;
    /// A memory file's time of change is at most this old while it is written: reads in place ask that a file rested for longer.
    pub(crate) const FRESH: Duration = Duration::from_millis(5);
    /// `fallocate` calls in a row that signals undid before pages come as they are written. Chosen.
    pub(crate) const INTERRUPTIONS: usize = 3;
    /// Granularity in which a mapping knows what was written: a huge page.
    pub(crate) const VISITED_BLOCK: usize = 2 << 20;
}

/// How many lanes a batch is worth (`engines/staged/mod.rs`, `past_end.rs`).
pub(crate) mod lanes_for {
    /// Lanes that cold bulk reads use: a few keep a disk busy, more would only cost CPU.
    pub(crate) const COLD_LANES: usize = 2;
    /// Cold small pieces for which another lane is worth waking: one lane's ring keeps a disk busy.
    pub(crate) const COLD_PIECES_PER_LANE: usize = 512;
    /// From this many bytes on the profile of an earlier process is asked: it costs some ten system calls, once.
    pub(crate) const RECALLED: usize = 64 << 20;
    /// The first step into a source that does not tell its length.
    pub(crate) const PAST_END_STEP: u64 = 1 << 20;
}

/// The engine `mapped` (`engines/mapped`).
pub(crate) mod mapped {
    use std::time::Duration;

    /// Batches in flight at once on one device: more go through the copy thread.
    pub(crate) const BATCH_SLOTS: usize = 64;
    /// Pieces of one batch at most.
    pub(crate) const BATCH_PIECES: usize = 1024;
    /// Bytes of one batch at most.
    pub(crate) const BATCH_BYTES: usize = 4 << 20;
    /// How long a waiter polls before it sleeps: such a batch takes less.
    pub(crate) const BATCH_POLL: Duration = Duration::from_micros(50);
    /// Waiters at once that may poll: more would fight over the driver's lock with those that start batches.
    pub(crate) const BATCH_POLLERS: usize = 2;
    /// The shortest and the longest sleep between looks.
    pub(crate) const BATCH_NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
    /// Bytes of one copy. Several are in flight: others' work comes in between.
    pub(crate) const COPY_BYTES: u64 = 64 << 20;
    /// Copies and gathers in flight at once, and their bytes. Small ones need to be more for the bus to stay busy while a
    /// window is registered.
    pub(crate) const COPIES: usize = 16;
    /// Streams that copies take in turns: one begins while another ends.
    pub(crate) const COPY_STREAMS: usize = 2;
    /// Pieces of one gather.
    pub(crate) const GATHER_LIST: usize = 16 << 10;
    /// Bytes of one gather: the next list is written meanwhile.
    pub(crate) const GATHER_BYTES: u64 = 64 << 20;
    /// How long to leave the driver's turn to the thread that has it before the next look. Chosen.
    pub(crate) const TURN_LOOK: Duration = Duration::from_millis(2);
    /// How long to wait for pages that are being unregistered.
    pub(crate) const UNPIN_WAIT: Duration = Duration::from_millis(100);
    /// While another device registers its windows for longer, the lanes take this one's: four devices that registered theirs
    /// in turns read 18 GB/s together, where one registers and three are staged they read several times that.
    pub(crate) const CONTENDED: Duration = Duration::from_millis(2);
    /// How long the trial of one page may take; it takes well under a millisecond.
    pub(crate) const TRIAL_LIMIT: Duration = Duration::from_secs(2);
    /// How long a trial waits for streams that wait for transfers.
    pub(crate) const TRIAL_STREAM_WAIT: Duration = Duration::from_millis(100);
    /// Files below this are never worth pinning.
    pub(crate) const SMALLEST_FILE: u64 = 256 << 10;
    /// Registrations that must have been measured before the pace counts: one may be bad luck.
    pub(crate) const PACE_PIECES: u32 = 2;
    /// What is registered to find out the pace, before the rest of a window is: 3 ms at 10 GB/s, twice. By 16 MiB pages that
    /// register at 45 GB/s in whole windows look like ones of 33, and like others that do so at 31.
    pub(crate) const PROBE: u64 = 32 << 20;
    /// How long one registration beside copies may keep the driver from others: a copy of 4 MiB takes 80 µs, and sixteen
    /// callers have several in flight. Chosen.
    pub(crate) const PIECE_TIME: Duration = Duration::from_micros(300);
    /// Least bytes of such a registration. Copies do not cross two of them, and a copy of less takes as long on the link (80 µs)
    /// as some driver calls.
    pub(crate) const MIN_PIECE: u64 = 4 << 20;
    /// Beside copies one thread registers for this part of the time. Others wait meanwhile for the driver's lock: with an eighth
    /// lanes took 0.25 to 0.33 s of CPU for a GB, by process, with this 0.19 to 0.30. Registering without a pause leaves sixteen
    /// callers of 1 MiB 0.04 GB/s of 28.
    pub(crate) const SHARE_BESIDE: u32 = 32;
    /// The same for a window that was read sixteen times; from four on by the number of visits: a third load is not to wait. With 0.15 copies of 12 threads
    /// come to 45 GB/s of 48, and 2 GB/s are registered.
    pub(crate) const SHARE_LOOP: u32 = 8;
    /// The same where nothing of ours is copied: a quarter, since the program's own calls take the driver's lock, too. Chosen.
    pub(crate) const SHARE_IDLE: u32 = 4;
    /// GB/s of registering from which on a reader that is alone and asks for a window at most has it registered in its first visit:
    /// it keeps few lanes busy. One that waits for each 16 MiB gets 23 to 25 GB/s so where pages register at 45 and 14 where they
    /// do at 30, then 41 to 52; from the lanes 16 to 19 each time.
    pub(crate) const FAST_ALONE: f64 = 20.0;
    /// The same for its third visit: it gets back what that pass is slower.
    pub(crate) const FAST_ENOUGH: f64 = 15.0;
    /// So long after the last copy the next one is expected: callers come back sooner. Chosen.
    pub(crate) const QUIET: Duration = Duration::from_millis(20);
    /// A thread is the only reader if no other has asked for so long, while this one asked so often. Chosen.
    pub(crate) const ALONE: Duration = Duration::from_millis(100);
    pub(crate) const ALONE_ASKS: u32 = 4;
    /// The part of their time that readers of a file may lose to registrations of its pages, and once as much of a pass that was saved
    /// before. Pages that register at 30 GB/s are in place after five passes so (`credit.rs` has the arithmetic).
    pub(crate) const LOSS: f64 = 1.0 / 20.0;
    /// What callers read in place by long reads earns that many times as much: 16 of 4 MiB get 46 GB/s by reads of their own and 52 so.
    pub(crate) const PULLED_EARNS: u64 = 3;
    /// GB/s of registering where nothing was measured: the slowest pages that were seen.
    pub(crate) const UNKNOWN_PACE: f64 = 10.0;
    /// Registering counts as slow below this many times the lanes' pace: copies wait for it. Pages that register at 45 to 49 GB/s
    /// are read at 33 to 42 meanwhile, by lanes at 43 to 50.
    pub(crate) const AHEAD: f64 = 1.2;
    /// Longer pieces are cut: a block of the kernel takes one, and all should be busy for about as long.
    pub(crate) const GATHER_CUT: u64 = 64 << 10;
    /// Gathers of one map in flight at once.
    pub(crate) const GATHER_REPORTS: usize = 256;
    /// Offsets that the first kernel of a long list takes: copied in a few microseconds, while they keep the device busy until
    /// the next are there.
    pub(crate) const GATHER_FIRST: usize = 8 << 10;
    /// Each kernel takes this many times the offsets that the one before took, up to [`MAX_GATHER_OFFSETS`].
    pub(crate) const GATHER_GROWTH: usize = 8;
    /// Most offsets that one kernel takes.
    pub(crate) const MAX_GATHER_OFFSETS: usize = 512 << 10;
    /// Kernels of one list that are in flight while the next offsets are copied.
    pub(crate) const GATHERS_AHEAD: usize = 2;
    /// Rooms for offsets that a map keeps.
    pub(crate) const OFFSET_BUFFERS: usize = 6;
    /// Bytes of small reads, as a power of two, after which a window is asked for.
    pub(crate) const DEMAND_STEP: u32 = 20;
    /// Writes in place start here: less goes as fast through the page cache.
    pub(crate) const SMALLEST_WRITE: u64 = 1 << 20;
    /// Pins of closed files go after this.
    pub(crate) const PIN_LINGER: Duration = Duration::from_secs(10);
    /// Pins that were not used for so long give way to others.
    pub(crate) const PIN_IDLE: Duration = Duration::from_secs(30);
    /// How long a window that was declined is not looked at again.
    pub(crate) const WINDOW_RETRY: Duration = Duration::from_millis(100);
    /// How long to wait for others' unregistering.
    pub(crate) const UNREGISTER_WAIT: Duration = Duration::from_millis(500);
    /// How long nothing is pinned after memory ran short.
    pub(crate) const PRESSURE_HOLD_OFF: Duration = Duration::from_secs(30);
    /// How often memory is looked at, while anything is pinned.
    pub(crate) const MEMORY_LOOK: Duration = Duration::from_millis(250);
    /// Time in which threads waited for memory, as a part of all time, that counts as pressure.
    pub(crate) const MEMORY_STALLED: f64 = 0.40;
}
