//! Tuned constants, a line each: its effect, or why the value. At most 100: a test below counts them.
//!
//! Figures are of one machine unless a line names another: an H200 in a virtual machine with 16 CPUs, driver 580, kernel 6.18.
//! What halving and doubling each changed, and longer reasons, are in docs/decisions/063-constants-measured.md. "Chosen" marks a
//! value without a figure. A value that follows from another is calculated where it is used. Values that the kernel, the driver
//! or a protocol prescribes stay beside their code.

/// What the machine takes, and times that many rooms share.
pub(crate) mod machine {
    use std::time::Duration;

    /// Time between two looks; a shorter poll or sleep gains nothing: 8 lanes read 31 GB/s so, by waits in the driver 12.
    pub(crate) const LOOK: Duration = Duration::from_micros(20);
    /// The same where pieces are small and an answer is near: 4 KiB batches at depth 64, read cold, 4 to 6 % faster.
    pub(crate) const SHORT_LOOK: Duration = Duration::from_micros(5);
    /// Longest nap between looks at a copy. Chosen.
    pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(1);
    /// A caller's poll before it sleeps or lets others run: small pieces take 10 µs, a batch of 4 MiB some more.
    pub(crate) const POLL: Duration = Duration::from_micros(50);
    /// A shorter sleep loses more by being woken late than it saves; watchers poll as long.
    pub(crate) const WORTH_SLEEPING: Duration = Duration::from_micros(100);
    /// Time without work after which the resident kernel leaves the GPU to the user; a watcher's longest nap.
    pub(crate) const IDLE: Duration = Duration::from_micros(200);
    /// Nap where nothing is urgent; what others may hold the driver: 4 devices in turns read 18 GB/s together.
    pub(crate) const LONG_NAP: Duration = Duration::from_millis(2);
    /// Waits for other threads of the engine, and how long an answer of one holds. Chosen.
    pub(crate) const BRIEF_WAIT: Duration = Duration::from_millis(100);
    /// Waits for the program and the kernel before the engine does something else. Chosen.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
    /// An eighth: what a new measurement makes of what was learnt, and what has to end before a lane wakes up.
    pub(crate) const EIGHTH: u64 = 8;
    /// A huge page: memory of small pages is far slower for device and disk. Its copy (40 µs) is polled for.
    pub(crate) const HUGE_PAGE: usize = 2 << 20;
    /// The link to a device, as long as nothing else is known: PCIe 5 x16, 50 GB/s.
    pub(crate) const LINK_BYTES_PER_NS: u64 = 50;
    /// Bound of what no program was seen to reach. Chosen.
    pub(crate) const MANY: usize = 256;
}

/// Synchronous transfers on the caller's thread (`engines/staged/sync`).
pub(crate) mod callers {
    use std::time::Duration;

    /// Most bytes that a caller's thread moves by itself: halved, cuFile 1 MiB x 16 reads 27 in place of 41 GB/s.
    pub(crate) const MAX_CALLER_BYTES: usize = 1 << 20;
    /// Bytes whose copy starts while the next are read: larger ones overlap too little. Smaller files are not pinned.
    pub(crate) const PART: u64 = 256 << 10;
    /// Poll with `FOREBAY_OBJECTIVE=latency` before the driver spins. Chosen.
    pub(crate) const POLL_LONG: Duration = Duration::from_millis(10);
    /// Callers at once that poll or overlap parts: more hold the driver's lock against those that start copies.
    pub(crate) const MAX_POLLING_CALLERS: usize = 2;
    /// More callers use the resident kernel: 4 KiB by 4 threads 234 K IOPS without it and 139 with, by 6 331 and 462.
    pub(crate) const FEW_CALLERS: usize = 4;
    /// Longest copy that as many callers poll for as there are CPUs: a sleep costs more than the bytes.
    pub(crate) const MAX_CROWD_POLLED_BYTES: usize = 16 << 10;
    /// Stream slots of a device, their mailboxes, batches in flight. Bounds pinned memory: a huge page each, once needed.
    pub(crate) const STREAM_SLOTS: usize = 64;
    /// Further slots for small writes: by lanes 128 writers of 4 KiB wrote 31 K IOPS at 93 µs of CPU, by these 48 K at 53.
    pub(crate) const WRITE_SLOTS: usize = 192;
    /// Bytes of a part of a long read: 16 threads read 43 GB/s by parts of 2 MiB, 34 by 960 KiB. The link takes 80 µs.
    pub(crate) const LONG_PART: usize = 4 << 20;
    /// Poll for it where half of the CPUs are idle: 8 threads read 36 GB/s at 0.20 CPU s/GB, by looks 31 at 0.24 (H100).
    pub(crate) const LONG_POLL: Duration = Duration::from_micros(300);
    /// Long warm reads stay with callers from CPUs / 2 on: 16 threads 43 GB/s, by lanes 24; to CPUs / 4: 42.5, without 40.
    pub(crate) const CROWD: (usize, usize) = (2, 4);
}

/// The resident copy kernel (`engines/resident`). A bare probe: 4 KiB x 16 threads 1.47 M IOPS, by the driver's copies 0.6 M.
pub(crate) mod resident {
    use std::time::Duration;

    /// Longest piece: 16 threads read 1 MiB from registered pages at 46 GB/s by copies, from slots at 22 to 27 either way.
    pub(crate) const MAX_PIECE: usize = 512 << 10;
    /// Parts of longer warm reads from slots: doubled, cuFile 1 MiB x 16 reads 5 % less.
    pub(crate) const POSTED_PART: u64 = 128 << 10;
    /// Longest launch of the kernel, which is promised: a user's `cudaDeviceSynchronize` waits for no longer.
    pub(crate) const MAX_LAUNCH: Duration = Duration::from_millis(1);
    /// Most bytes of long pieces that are posted at once: 32 callers of 512 KiB. Further callers copy by themselves.
    pub(crate) const LONG_BYTES: u64 = 16 << 20;
    /// A launch that has not ended by then waits for room on the device, or was lost: the driver is asked. Chosen.
    pub(crate) const LAUNCH_LIMIT: Duration = Duration::from_millis(5);
    /// A piece not begun by then is copied by the driver, which needs no room beside the user's kernels.
    pub(crate) const START_LIMIT: Duration = Duration::from_millis(2);
    /// How long callers copy by themselves after a late launch, and at most between trials that fail. Chosen.
    pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(1));
    /// A caller's poll where callers share CPUs.
    pub(crate) const CROWDED_POLL: Duration = Duration::from_micros(2);
    /// Cold pieces in [`COLD_SPAN`] that cause a launch: a disk of 85 K IOPS is read faster by copies (66, not 59 K).
    pub(crate) const COLD_LAUNCH_PIECES: u32 = 240;
    /// Long enough for chance to even out. Chosen.
    pub(crate) const COLD_SPAN: Duration = Duration::from_millis(2);
    /// Looks on one CPU for each question to the clock, which costs about as much as a look. Chosen.
    pub(crate) const LONE_LOOKS: u32 = 4;
    /// How long the driver's word on a range of memory holds: a caller usually comes back with the same buffer.
    pub(crate) const MEMORY_CACHE_TIME: Duration = Duration::from_millis(1);
}

/// Lanes (`engines/staged/workers`).
pub(crate) mod lanes {
    use std::time::Duration;

    /// Lanes whose first slots are pinned at once, 5 ms for 16 MiB: these copy while the next are cleared.
    pub(crate) const GROUP: usize = 4;
    /// Slots of a lane for plain reads, at least 2: with 3 new tmpfs files at 36 GB/s, with two of 4 MiB 29 (H100).
    pub(crate) const PLAIN_SLOTS: usize = 3;
    /// First and longest time between two attempts to replace a lane that died. Chosen.
    pub(crate) const NEXT_LANE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
    /// Cells of a lane: its small cold reads in flight. Half of them ready are delivered: a launch costs 4.8 µs. Chosen.
    pub(crate) const CELLS: usize = 64;
    /// Operations in a ring at once: more make the kernel hand them to helper threads.
    pub(crate) const DEPTH: usize = 128;
    /// Lanes that cold bulk reads use: a few keep a disk busy, more would only cost CPU.
    pub(crate) const COLD_LANES: usize = 2;
    /// Bytes of a read that is announced, from which on lanes get their memory before it comes. Chosen.
    pub(crate) const EXPECTED_BYTES: u64 = 64 << 20;
}

/// How many lanes work at once (`engines/staged/width.rs`). On one H200 VM 8 copy 52 GB/s, on another 40 and 12 of them 51.5.
pub(crate) mod width {
    use std::time::Duration;

    /// Shortest time for a rate, 100 chunks: one more or less is 1 %; longest, with few works: a second follows it. Chosen.
    pub(crate) const PERIODS: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(30));
    /// Fewest works of a short period. Half as many after a change do not count: 16 lanes end 3 each. Chosen.
    pub(crate) const MIN_WORKS: u64 = 96;
    /// Added lanes stay if the rate grows by this part; fewer do if it falls by less than half of it. Chosen.
    pub(crate) const GAIN: f64 = 0.03;
    /// The search begins again after this time: a link that others fill shows none. It costs three periods. Chosen.
    pub(crate) const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
}

/// Works of a batch (`io/plan`).
pub(crate) mod plan {
    /// Longest small piece, which shares a slot or a kernel's block with others: for it a call costs more than the bytes.
    pub(crate) const CELL: usize = 64 << 10;
    /// Least pieces of a pack that is spread over lanes: they share a launch (4.8 µs of CPU). Twice as many at most.
    pub(crate) const MIN_PACK_PIECES: usize = 128;
    /// Least bytes of a lane's part, of a measurement, of a request, and of a write in place. Chosen.
    pub(crate) const CHUNK: u64 = 1 << 20;
    /// Most bytes of a request to a source without a descriptor: it costs 2 000 instructions, and a cancel waits for it.
    pub(crate) const MAX_REQUEST: usize = 16 << 20;
    /// Most bytes that a request says follow it: 8 to 16 MiB for each of some connections to a server. Chosen.
    pub(crate) const AHEAD: u64 = 64 << 20;
    /// From this many pieces on a pack uses the ring: 4 KiB by 8 lanes 6.6 to 6.9 M IOPS, by calls 3.8 to 4.7 M.
    pub(crate) const SHORT_BATCH: usize = 16;
    /// Longest mean of neighbours read by whole slots: 5 000 tensors of 95 KB 20 GB/s at 0.22 CPU s/GB, not 16 at 0.29.
    pub(crate) const MAX_SMALL_RUN_MEAN: usize = 512 << 10;
}

/// Reads and writes of files (`source`, `io`).
pub(crate) mod files {
    use std::time::Duration;

    /// The share of cached reads that go the second way, by calls or the mapping, is counted in sixteenths.
    pub(crate) const SHARES: usize = 16;
    /// One work of 64 goes a way that is not chosen: if that takes 1.5 times as long, it costs 0.8 %.
    pub(crate) const EXPLORE_INTERVAL: usize = 64;
    /// From here on writes to memory files go by a mapping: 39 GB/s by all lanes; `pwrite`, one lane at a time, 6.6.
    pub(crate) const MIN_MAPPED_WRITE: usize = 128 << 10;
    /// Files that a busy lane keeps registered in its ring: lanes do not fight over their reference counts.
    pub(crate) const FILES: u32 = 16;
    /// Most idle descriptors of callers' files, if they can be closed. Chosen.
    pub(crate) const MAX_IDLE: usize = 64;
    /// Reads in a row from the page cache after which a file counts as warm: saves a system call a read.
    pub(crate) const TRUSTED: u8 = 32;
    /// Samples that tell whether a batch or a range is warm; four times as many for a window. Chosen.
    pub(crate) const WARMTH_SAMPLES: usize = 4;
    /// Bytes of a memory file that one `fallocate` makes: 12.7 GB/s on one thread, 16 lanes that fault pages in make 6.
    pub(crate) const ALLOCATION_STEP: u64 = 16 << 20;
    /// A memory file's time of change is at most this old while it is written: reads in place ask for a longer rest.
    pub(crate) const FRESH: Duration = Duration::from_millis(5);
    /// `fallocate` calls in a row that signals undid before pages come as they are written. Chosen.
    pub(crate) const INTERRUPTIONS: usize = 3;
}

/// Transfers in the order of a user's stream (`stream_order`).
pub(crate) mod streams {
    use std::time::Duration;

    /// Streams whose memory is pinned together: each pin is a driver call that holds up others.
    pub(crate) const STREAMS_AT_ONCE: usize = 16;
    /// Bytes of a chunk, buffers of a ring, and the most rings, for each size: some 128 MiB and 96 MiB in all.
    pub(crate) const RINGS: [(usize, usize, usize); 2] = [(512 << 10, 2, 124), (4 << 20, 3, 8)];
    /// With more streams under way the server looks for [`SPIN_MANY`] alone: reads of 128 threads took a CPU. Chosen.
    pub(crate) const MANY_STREAMS: usize = 4;
    /// See [`MANY_STREAMS`].
    pub(crate) const SPIN_MANY: Duration = Duration::from_micros(10);
}

/// Waits (`runtime/wait.rs`).
pub(crate) mod waits {
    /// With fewer CPUs a thread that polls keeps others from working.
    pub(crate) const ENOUGH_CPUS: usize = 8;
    /// Looks of a polling thread between looks at the clock, which costs more than a look.
    pub(crate) const LOOKS: u32 = 16;
    /// Naps of a caller before it waits in the driver, which also knows errors: some milliseconds. Chosen.
    pub(crate) const NAPS: u32 = 32;
    /// Eighths of the time that copies took lately for which a caller sleeps before its first look.
    pub(crate) const ASLEEP: u64 = 5;
}

/// The engine `mapped` (`engines/mapped`).
pub(crate) mod mapped {
    use std::time::Duration;

    /// Pieces of one batch of a caller's at most.
    pub(crate) const BATCH_PIECES: usize = 1024;
    /// Bytes of a copy or gather, of which several are in flight: others come in between. Waiters poll for no longer ones.
    pub(crate) const COPY_BYTES: u64 = 64 << 20;
    /// Copies and gathers in flight at once: small ones keep the bus busy while a window is registered.
    pub(crate) const COPIES: usize = 16;
    /// Streams that copies take in turns: one begins while another ends.
    pub(crate) const COPY_STREAMS: usize = 2;
    /// Pieces of one gather.
    pub(crate) const GATHER_LIST: usize = 16 << 10;
    /// How long the trial of one page may take; it takes well under a millisecond.
    pub(crate) const TRIAL_LIMIT: Duration = Duration::from_secs(2);
    /// Registrations that must have been measured before the pace counts: one may be bad luck.
    pub(crate) const PACE_PIECES: u32 = 2;
    /// Registered first to find the pace: by 16 MiB pages of 45 GB/s look like ones of 33, and like others of 31.
    pub(crate) const PROBE: u64 = 32 << 20;
    /// How long a registration beside copies may keep the driver from others: a copy of 4 MiB takes 80 µs. Chosen.
    pub(crate) const PIECE_TIME: Duration = Duration::from_micros(300);
    /// Beside copies 1 / so much of the time registers: without pauses 16 callers of 1 MiB keep 0.04 GB/s of 28.
    pub(crate) const SHARE_BESIDE: u32 = 32;
    /// The same after 16 visits: 12 threads copy 45 GB/s of 48 while 2 GB/s are registered. Twice that where none copies.
    pub(crate) const SHARE_LOOP: u32 = 8;
    /// GB/s of registering for a lone reader's first visit: 16 MiB reads 41 to 52 GB/s then, from lanes 16 to 19 each time.
    pub(crate) const FAST_ALONE: f64 = 20.0;
    /// The same for its third visit: it gets back what that pass is slower.
    pub(crate) const FAST_ENOUGH: f64 = 15.0;
    /// So long after the last copy the next one is expected: callers come back sooner. Chosen.
    pub(crate) const QUIET: Duration = Duration::from_millis(20);
    /// A thread that asked so often, and no other for a while, is the only reader. Chosen.
    pub(crate) const ALONE_ASKS: u32 = 4;
    /// Part of readers' time that registrations may take: pages of 30 GB/s are in place after five passes (`credit.rs`).
    pub(crate) const LOSS: f64 = 1.0 / 20.0;
    /// Long reads in place earn as many times as much: 16 callers of 4 MiB get 46 GB/s by reads of their own and 52 so.
    pub(crate) const PULLED_EARNS: u64 = 3;
    /// GB/s of registering where nothing was measured: the slowest pages that were seen.
    pub(crate) const UNKNOWN_PACE: f64 = 10.0;
    /// Registering is slow below 1.2 times the lanes' pace: pages of 45 GB/s are read at 38, by lanes at 46.
    pub(crate) const AHEAD: f64 = 1.2;
    /// Offsets of a long list's first kernel: soon copied, and the device is busy until the next are there.
    pub(crate) const GATHER_FIRST: usize = 8 << 10;
    /// Each kernel takes 8 times the offsets of the one before, twice.
    pub(crate) const GATHER_GROWTH: usize = 8;
    /// Kernels of one list that are in flight while the next offsets are copied.
    pub(crate) const GATHERS_AHEAD: usize = 2;
    /// How often memory is looked at, while anything is pinned.
    pub(crate) const MEMORY_LOOK: Duration = Duration::from_millis(250);
    /// Time in which threads waited for memory, as a part of all time, that counts as pressure.
    pub(crate) const MEMORY_STALLED: f64 = 0.40;
}

#[cfg(test)]
mod tests {
    /// A constant is weight: a new one takes the place of one that has no effect (`bench/constants.py` tells which).
    #[test]
    fn constants_are_few_and_have_a_line_each() {
        let lines: Vec<&str> = include_str!("tuning.rs").lines().map(str::trim).collect();
        let of_constants = |at: &usize| lines[*at].starts_with("pub(crate) const ");
        let constants: Vec<usize> = (0..lines.len()).filter(of_constants).collect();
        assert!(constants.len() <= 100, "{} constants", constants.len());
        for at in constants {
            let [above, doc, line] = [lines[at - 2], lines[at - 1], lines[at]];
            assert!(line.ends_with(';'), "one line each: {line}");
            assert!(
                doc.starts_with("/// ") && doc.chars().count() <= 120,
                "one line of at most 120 characters: {doc}"
            );
            assert!(!above.starts_with("///"), "one line: {above}");
        }
    }
}
