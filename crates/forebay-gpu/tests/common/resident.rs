//! The resident kernel, over any device that has it: what it copies, what it declines, when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use forebay_gpu::{Context, CopyPiece, Device, Resident, Stream, Wait, fill_pattern};

use super::{Pinned, Random};

const LEN: usize = 4 << 20;
const COUNT: usize = 5;
/// Bytes before the first mailbox: the word for the end.
const AT: usize = 256;

struct Mailboxes {
    pages: Pinned,
    /// The offset at which mailboxes are aligned.
    skip: usize,
    life: u32,
}

impl Mailboxes {
    fn new(device: &Arc<dyn Device>) -> Self {
        let pages = Pinned::new(device, AT + (COUNT + 1) * Resident::MAILBOX);
        let skip = pages.pointer().align_offset(Resident::MAILBOX);
        Self { pages, skip, life: 0 }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: in bounds, aligned, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(self.pages.pointer().add(self.skip + at).cast()) }
    }

    fn of(&self, mailbox: usize, at: usize) -> &AtomicU32 {
        self.word(AT + mailbox * Resident::MAILBOX + at)
    }

    fn post(&self, mailbox: usize, piece: CopyPiece) -> u32 {
        let number = self.of(mailbox, 0).load(Ordering::Relaxed).wrapping_add(1);
        for (index, value) in [piece.len, piece.src, piece.dst].into_iter().enumerate() {
            self.of(mailbox, 8 + 8 * index).store(value as u32, Ordering::Relaxed);
            self.of(mailbox, 12 + 8 * index).store((value >> 32) as u32, Ordering::Relaxed);
        }
        self.of(mailbox, 0).store(number, Ordering::Release);
        number
    }

    fn is_done(&self, mailbox: usize, number: u32) -> bool {
        self.of(mailbox, 132).load(Ordering::Acquire) == number
    }

    fn launch(&mut self, stream: &dyn Stream, idle: u32, life: u32) {
        self.life += 1;
        let ended = self.pages.device + self.skip as u64;
        let number = self.life;
        let resident =
            Resident { mailboxes: ended + AT as u64, count: COUNT as u32, idle, life, ended, number };
        // SAFETY: the mailboxes live until the life is over; so does what the test posts.
        unsafe { stream.resident(&resident) }.expect("launched");
    }

    fn is_over(&self) -> bool {
        self.word(0).load(Ordering::Acquire) == self.life
    }
}

fn soon(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        if is_so() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Pieces of any length and alignment in both directions, posted before the life begins and within it.
pub fn copies(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64) {
    let (source, back) = (Pinned::new(device, LEN), Pinned::new(device, LEN));
    let mut mailboxes = Mailboxes::new(device);
    let mut random = Random(5);
    fill_pattern(source.slice(), 8, 0);
    for round in 0..200 {
        let most = [600, 5000, 100_000, 1 << 20][round % 4];
        let (mailbox, len) = (random.below(COUNT), 1 + random.below(most));
        let (from, to, at) = (random.below(LEN - len), random.below(LEN - len), random.below(LEN - len));
        back.slice().fill(0xEE);
        if round % 2 == 0 {
            mailboxes.launch(stream, 50_000_000, 100_000_000);
        }
        let piece = CopyPiece { src: source.device + from as u64, dst: memory + to as u64, len: len as u64 };
        let number = mailboxes.post(mailbox, piece);
        if round % 2 == 1 {
            mailboxes.launch(stream, 50_000_000, 100_000_000);
        }
        assert!(soon(|| mailboxes.is_done(mailbox, number)), "round {round}: not done");
        let piece = CopyPiece { src: memory + to as u64, dst: back.device + at as u64, len: len as u64 };
        let number = mailboxes.post(mailbox, piece);
        assert!(soon(|| mailboxes.is_done(mailbox, number)), "round {round}: not back");
        let mut wanted = vec![0xEE; LEN];
        wanted[at..at + len].copy_from_slice(&source.slice()[from..from + len]);
        assert!(back.slice() == wanted, "round {round}: {len} bytes from {from} by {to} to {at}");
        // A piece that cannot end in time ends the life.
        let long = CopyPiece { len: 1 << 40, ..piece };
        let number = mailboxes.post(mailbox, long);
        assert!(soon(|| mailboxes.is_over()), "round {round}: the life goes on");
        assert_ne!(mailboxes.of(mailbox, 128).load(Ordering::Acquire), number, "it was begun");
        mailboxes.of(mailbox, 4).store(number, Ordering::SeqCst);
    }
    stream.synchronize(Wait::Block).expect("all is over");
}

/// The same place with new bytes, many times within one life; prints what one piece takes.
pub fn new_bytes_in_one_life(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64, rounds: u32) {
    const PIECE: usize = 4096;
    let (source, back) = (Pinned::new(device, PIECE), Pinned::new(device, PIECE));
    let mut mailboxes = Mailboxes::new(device);
    mailboxes.launch(stream, 100_000_000, 2_000_000_000);
    let mut took = Vec::new();
    for round in 0..rounds {
        fill_pattern(source.slice(), u64::from(round), 0);
        for piece in [
            CopyPiece { src: source.device, dst: memory, len: PIECE as u64 },
            CopyPiece { src: memory, dst: back.device, len: PIECE as u64 },
        ] {
            let begun = Instant::now();
            let number = mailboxes.post(1, piece);
            assert!(soon(|| mailboxes.is_done(1, number) || mailboxes.is_over()), "round {round}");
            assert!(!mailboxes.is_over(), "round {round}: the life ended early");
            took.push(begun.elapsed());
        }
        assert!(back.slice() == source.slice(), "round {round}");
    }
    took.sort_unstable();
    println!(
        "resident kernel, 4 KiB: median {:?}, 99 % {:?}",
        took[took.len() / 2],
        took[took.len() * 99 / 100]
    );
    assert!(soon(|| mailboxes.is_over()), "the life never ends");
    stream.synchronize(Wait::Block).expect("all is over");
}

/// A withdrawn request is declined, whenever the kernel comes to it; the next one in its mailbox is carried out.
pub fn withdrawals(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64) {
    let (source, back) = (Pinned::new(device, 4096), Pinned::new(device, 4096));
    let mut mailboxes = Mailboxes::new(device);
    let (mut carried, mut never) = (0, 0);
    for round in 0..3000u32 {
        if round == 0 || mailboxes.is_over() {
            mailboxes.launch(stream, 2_000_000, 20_000_000);
        }
        fill_pattern(source.slice(), u64::from(round), 0);
        let piece = CopyPiece { src: source.device, dst: back.device, len: 4096 };
        let number = mailboxes.post(2, piece);
        (0..round % 700).for_each(|_| std::hint::spin_loop());
        mailboxes.of(2, 4).store(number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A block that serves answers, or ends.
        let serves = || mailboxes.of(2, 140).load(Ordering::Acquire) != 0;
        let declined = || mailboxes.of(2, 136).load(Ordering::Acquire) == number;
        let known = || !serves() || mailboxes.is_done(2, number) || declined();
        assert!(soon(known), "round {round}: no answer");
        if mailboxes.is_done(2, number) {
            carried += 1;
        } else {
            // The kernel must not touch it any more, whatever it was about to do.
            never += 1;
            back.slice().fill(0xEE);
            (0..2000).for_each(|_| std::hint::spin_loop());
            assert!(
                back.slice().iter().all(|byte| *byte == 0xEE),
                "round {round}: withdrawn and carried out"
            );
        }
    }
    println!("{carried} requests carried out, {never} withdrawn in time");
    let piece = CopyPiece { src: source.device, dst: memory, len: 4096 };
    let number = mailboxes.post(2, piece);
    if mailboxes.is_over() {
        mailboxes.launch(stream, 2_000_000, 20_000_000);
    }
    assert!(soon(|| mailboxes.is_done(2, number)) || mailboxes.is_over());
    assert!(soon(|| mailboxes.is_over()), "the life never ends");
    stream.synchronize(Wait::Block).expect("all is over");
}

/// Which memory may be posted.
pub fn memory_of_kernels(device: &Arc<dyn Device>, memory: u64, len: usize) {
    let range = device.kernels_memory(Context::PRIMARY, memory + 5).expect("plain memory");
    assert!(range.start == memory && range.end() >= memory + len as u64, "{range:?}");
    let pinned = Pinned::new(device, 4096);
    assert_eq!(device.kernels_memory(Context::PRIMARY, pinned.device), None, "host memory");
    assert_eq!(device.kernels_memory(Context::PRIMARY, pinned.pointer() as u64), None, "host memory");
}
