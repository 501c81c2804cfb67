//! Small reads from a disk by many callers: they use a launch of the resident kernel that is under way, and start none unless there are
//! very many. Every byte is compared.

use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Random, Scratch, Turn, config, disk, pattern, turn};
use forebay_config::{CachePolicy, IoBackend, allowed_cpus};
use forebay_engine::source::Calls;
use forebay_engine::{Direction, File, Session, Transfer};
use forebay_gpu::HostRange;

const KEY: u64 = 71;
const LEN: usize = 4 << 20;
const PIECE: usize = 4096;
const CALLERS: u64 = 8;

/// A disk that takes its time: each read another one.
#[derive(Debug)]
struct Disk {
    bytes: std::fs::File,
    least: Duration,
    reads: AtomicU64,
}

impl Calls for Disk {
    unsafe fn read(&self, _: RawFd, memory: HostRange, offset: u64, _: bool) -> isize {
        let number = self.reads.fetch_add(1, Ordering::Relaxed) as u32;
        if !self.least.is_zero() {
            std::thread::sleep(self.least + self.least * (number % 16) / 8);
        }
        // SAFETY: as the caller promises.
        let buffer = unsafe { memory.bytes_mut() };
        self.bytes.read_at(buffer, offset).unwrap() as isize
    }

    unsafe fn write(&self, _: RawFd, _: HostRange, _: u64) -> isize {
        -(libc::EBADF as isize)
    }
}

struct Subject {
    turn: Turn,
    _scratch: Scratch,
    file: File,
    /// The same bytes by the page cache.
    warm: File,
    session: Session,
}

/// A file that bypasses the page cache, and a session whose kernel was tried out.
fn subject(least: Duration) -> Subject {
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let bytes = std::fs::File::open(scratch.path()).unwrap();
    let calls = Box::new(Disk { bytes, least, reads: AtomicU64::new(0) });
    let file = File::options().cache(CachePolicy::Bypass).calls(calls).open(scratch.path()).unwrap();
    let warm = File::open(scratch.path()).unwrap();
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Keep)).unwrap();
    let subject = Subject { turn, _scratch: scratch, file, warm, session };
    subject.crowd(&subject.file, 10);
    // The trial, and what it costs to begin.
    std::thread::sleep(Duration::from_millis(100));
    subject
}

impl Subject {
    /// Each caller reads so often; bytes by the kernel.
    fn crowd(&self, file: &File, rounds: u64) -> u64 {
        let resident = AtomicU64::new(0);
        let buffers: Vec<_> = (0..CALLERS).map(|_| self.session.buffer(0, PIECE).unwrap()).collect();
        std::thread::scope(|scope| {
            for (caller, buffer) in buffers.iter().enumerate() {
                let resident = &resident;
                scope.spawn(move || {
                    let mut random = Random(caller as u64 + 1);
                    for _ in 0..rounds {
                        let offset = random.below((LEN / PIECE) as u64) * PIECE as u64;
                        let (file, memory) = (file.clone(), buffer.memory());
                        let (len, direction) = (PIECE, Direction::Read);
                        assert!(self.turn.fake.write(memory.address, &[0xA5; PIECE]));
                        let address = memory.address;
                        let transfer = Transfer { file, offset, memory, len, direction, allow_short: false };
                        // SAFETY: the buffer is this thread's, and lives until the end.
                        let receipt = unsafe { self.session.run(&transfer) }.unwrap();
                        let found = self.turn.fake.read(address, PIECE).unwrap();
                        assert!(found == pattern(KEY, offset, PIECE), "offset {offset}");
                        resident.fetch_add(receipt.moved.resident, Ordering::Relaxed);
                    }
                });
            }
        });
        resident.into_inner()
    }
}

#[test]
fn reads_that_come_one_by_one_start_no_kernel() {
    if allowed_cpus() == 1 {
        println!("skipped: callers on one CPU share launches");
        return;
    }
    const ROUNDS: u64 = 40;
    let subject = subject(Duration::from_micros(300));
    let calls = || ["cuLaunchKernel", "cuPointerGetAttributes"].map(|name| subject.turn.fake.calls(name));
    let before = calls();
    subject.crowd(&subject.file, ROUNDS);
    let [launched, asked] = [0, 1].map(|at| calls()[at] - before[at]);
    // What a kernel could reach matters to a launch alone. Each question is two calls.
    assert!(asked < CALLERS * ROUNDS / 4, "{asked} questions for {} reads", CALLERS * ROUNDS);
    assert!(launched < CALLERS * ROUNDS / 8, "{launched} launches for {} reads", CALLERS * ROUNDS);
}

#[test]
fn reads_that_find_a_launch_under_way_use_it() {
    let subject = subject(Duration::ZERO);
    let is_used = || {
        let before = subject.turn.fake.calls("cuLaunchKernel");
        let (cold, warm) = std::thread::scope(|scope| {
            let warm = scope.spawn(|| subject.crowd(&subject.warm, 400));
            (subject.crowd(&subject.file, 400), warm.join().unwrap())
        });
        let launched = subject.turn.fake.calls("cuLaunchKernel") - before;
        let [cold, warm] = [cold, warm].map(|bytes| bytes / PIECE as u64);
        println!("{cold} cold and {warm} warm pieces by {launched} launches");
        cold > CALLERS * 100 && cold + warm > 4 * launched
    };
    assert!((0..30).any(|_| is_used()), "nothing cold went by the kernel");
}

#[test]
fn the_calls_of_one_read_enter_their_context_once() {
    const READS: u64 = 50;
    let subject = subject(Duration::ZERO);
    // The kernel's thread rests.
    std::thread::sleep(Duration::from_millis(50));
    let mut buffer = subject.session.buffer(0, PIECE).unwrap();
    let calls = || subject.turn.fake.calls("cuThreadExchangeStreamCaptureMode");
    let before = calls();
    for _ in 0..READS {
        subject.session.read(&subject.file, 0, &mut buffer).unwrap();
    }
    assert_eq!(calls() - before, 2 * READS, "there and back");
}
