//! All orders of a mailbox's words, tried out: no request is lost, carried out twice, or carried out after it was withdrawn.
//!
//! The kernel's side is written down here once more. What it copies stands for the payload: plain memory of the caller's, which
//! loom lets nobody touch while another may.

#![allow(clippy::duplicate_mod, reason = "the same file over other atomics")]

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "mailbox.rs"]
mod mailbox;

use forebay_gpu::CopyPiece;
use loom::cell::Cell;
use loom::sync::Arc;

use self::atomics::{AtomicU32, AtomicU64, Ordering, fence};
use self::mailbox::{Answer, DeviceLine, HostLine, Mailbox};

/// Requests of a test at most.
const REQUESTS: usize = 3;

struct Model {
    mailbox: Mailbox,
    /// The payload of each request: what it is, and where it goes.
    sources: [Cell<u64>; REQUESTS],
    targets: [Cell<u64>; REQUESTS],
}

impl Model {
    fn new() -> Self {
        let host = HostLine {
            posted: AtomicU32::new(0),
            withdrawn: AtomicU32::new(0),
            len: AtomicU64::new(0),
            src: AtomicU64::new(0),
            dst: AtomicU64::new(0),
        };
        let device = DeviceLine {
            claimed: AtomicU32::new(0),
            done: AtomicU32::new(0),
            declined: AtomicU32::new(0),
            serving: AtomicU32::new(0),
        };
        Self {
            mailbox: Mailbox { host, device },
            sources: std::array::from_fn(|_| Cell::new(0)),
            targets: std::array::from_fn(|_| Cell::new(0)),
        }
    }

    // ---- the kernel, as in `resident.cuh` ------------------------------------------------------------------------

    /// A launch: looks this many times, and answers each request that it finds.
    fn launch(&self, looks: usize) {
        let Mailbox { host, device } = &self.mailbox;
        device.serving.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut seen = device.claimed.load(Ordering::Relaxed);
        for _ in 0..looks {
            let number = host.posted.load(Ordering::Acquire);
            if number == seen {
                loom::thread::yield_now();
                continue;
            }
            seen = number;
            device.claimed.store(number, Ordering::Relaxed);
            // No order among these four.
            let (len, src, dst) = (
                host.len.load(Ordering::Relaxed),
                host.src.load(Ordering::Relaxed),
                host.dst.load(Ordering::Relaxed),
            );
            if (host.withdrawn.load(Ordering::Relaxed).wrapping_sub(number) as i32) >= 0 {
                device.declined.store(number, Ordering::Release);
                continue;
            }
            assert!(src == dst && len == src + 1, "fields of two requests: {len} {src} {dst}");
            let payload = self.sources[src as usize].get();
            let target = &self.targets[dst as usize];
            target.set(target.get() + payload);
            device.done.store(number, Ordering::Release);
        }
        device.serving.store(0, Ordering::Release);
    }

    // ---- the caller -----------------------------------------------------------------------------------------------

    /// Posts request `index`, whose payload nobody has seen before.
    fn post(&self, index: usize) -> u32 {
        self.sources[index].set(7);
        self.mailbox.post(CopyPiece { src: index as u64, dst: index as u64, len: index as u64 + 1 })
    }

    /// The caller has its memory back: how often it was copied. Loom fails if the kernel may still touch it.
    fn copies(&self, index: usize) -> u64 {
        self.sources[index].set(100);
        self.targets[index].get() / 7
    }

    fn wait(&self, number: u32) -> Answer {
        loop {
            match self.mailbox.answer(number) {
                Some(answer) => return answer,
                None => loom::thread::yield_now(),
            }
        }
    }

    /// Withdraws at once. Returns whether it was carried out.
    fn withdraw(&self, number: u32) -> bool {
        self.mailbox.withdraw(number);
        loop {
            match self.mailbox.outcome(number) {
                Some(answer) => return answer == Answer::Done,
                None => loom::thread::yield_now(),
            }
        }
    }
}

/// Runs a caller beside launches of the kernel, one after the other.
fn explore(launches: &'static [usize], caller: fn(&Model)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let model = Arc::new(Model::new());
        let kernel = model.clone();
        let thread = loom::thread::spawn(move || launches.iter().for_each(|looks| kernel.launch(*looks)));
        caller(&model);
        thread.join().unwrap();
        let Mailbox { host, device } = &model.mailbox;
        let last = host.posted.load(Ordering::Relaxed);
        let claimed = device.claimed.load(Ordering::Relaxed);
        let answered =
            [&device.done, &device.declined].iter().any(|word| word.load(Ordering::Relaxed) == claimed);
        assert!(claimed <= last && answered, "a claimed request is answered");
    });
}

#[test]
fn a_request_is_carried_out_once_or_never() {
    explore(&[2], |model| {
        let number = model.post(0);
        let carried = model.withdraw(number);
        assert_eq!(model.copies(0), u64::from(carried));
    });
}

#[test]
fn a_mailbox_is_used_again_after_a_withdrawal() {
    explore(&[3], |model| {
        for index in 0..2 {
            let number = model.post(index);
            let carried = model.withdraw(number);
            assert_eq!(model.copies(index), u64::from(carried));
        }
    });
}

#[test]
fn the_next_launch_goes_on_where_the_last_one_ended() {
    explore(&[1, 2], |model| {
        for index in 0..2 {
            let number = model.post(index);
            let carried = model.withdraw(number);
            assert_eq!(model.copies(index), u64::from(carried));
        }
    });
}

#[test]
fn nothing_is_lost_while_the_kernel_looks() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let model = Arc::new(Model::new());
        let kernel = model.clone();
        let thread = loom::thread::spawn(move || {
            // Until the last request is answered.
            while kernel.mailbox.device.done.load(Ordering::Relaxed) != 2 {
                kernel.launch(1);
                loom::thread::yield_now();
            }
        });
        for index in 0..2 {
            let number = model.post(index);
            assert_eq!(model.wait(number), Answer::Done);
            assert_eq!(model.copies(index), 1);
            assert!(!model.mailbox.is_open());
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_withdrawn_number_of_long_ago_means_nothing() {
    loom::model(|| {
        let model = Model::new();
        let mailbox = &model.mailbox;
        mailbox.host.withdrawn.store(5, Ordering::Relaxed);
        mailbox.host.posted.store(5u32.wrapping_add(1 << 31), Ordering::Relaxed);
        mailbox.device.claimed.store(5u32.wrapping_add(1 << 31), Ordering::Relaxed);
        let number = model.post(0);
        model.launch(1);
        assert_eq!(mailbox.answer(number), Some(Answer::Done));
    });
}
