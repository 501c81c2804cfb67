//! `pthread_cancel` in the middle of calls: the thread ends between calls, the process and the library go on.

use std::ffi::c_void;
use std::mem::{transmute, zeroed};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bytes::{difference, make, open};
use crate::cufile::{CuFile, Handle, cufile};
use crate::gpu::gpu;
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const LEN: u64 = 16 << 20;
const KEY: u64 = 9;

/// What a thread is given. It is leaked: a cancelled thread runs no destructors.
struct Work {
    library: &'static CuFile,
    handle: Handle,
    address: u64,
    most: u64,
    /// By batches of one entry.
    batches: bool,
    calls: AtomicU64,
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Calls until it is cancelled. Nothing here has a destructor: the thread is unwound through it.
extern "C-unwind" fn work(argument: *mut c_void) -> *mut c_void {
    // SAFETY: the work lives as long as the process.
    let work: &Work = unsafe { &*argument.cast() };
    let mut number = 0u64;
    loop {
        let (at, len) = (crate::random::mix(number) % (LEN / 2), 1 + crate::random::mix(!number) % work.most);
        if work.batches {
            one_batch(work, at, len);
        } else if number.is_multiple_of(4) {
            // SAFETY: memory of the GPU, by its address.
            unsafe {
                (work.library.raw_write)(work.handle, work.address, len as usize, (LEN + at) as i64, 0)
            };
        } else {
            // SAFETY: as above.
            unsafe { (work.library.raw_read)(work.handle, work.address, len as usize, at as i64, 0) };
        }
        number += 1;
        work.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: nothing here has a destructor.
        unsafe { cancel_point() };
    }
}

/// # Safety
/// No caller up to the start of the thread has a destructor.
unsafe fn cancel_point() {
    // SAFETY: the function unwinds, unlike its type here says.
    let test: unsafe extern "C-unwind" fn() = unsafe { transmute(pthread_testcancel as *const c_void) };
    // SAFETY: by the caller.
    unsafe { test() };
}

fn one_batch(work: &Work, at: u64, len: u64) {
    let mut batch = std::ptr::null_mut();
    let mut entry = crate::cufile::Params::new(work.handle, true, work.address, len as usize, at, 0);
    let (mut event, mut count) = (crate::cufile::Event::default(), 1);
    // SAFETY: all places are valid for the calls.
    unsafe {
        if (work.library.batch_set_up)(&raw mut batch, 1).code == 0 {
            (work.library.batch_submit)(batch, 1, &raw mut entry, 0);
            (work.library.batch_status)(batch, 1, &raw mut count, &raw mut event, std::ptr::null_mut());
            (work.library.batch_destroy)(batch);
        }
    }
}

pub fn run(trial: &'static Trial) -> Outcome {
    let mut random = trial.random("cancel");
    let place = trial.place(&mut random).join("file");
    make(&place, KEY, 2 * LEN);
    let file =
        open(&place, random.one_of(&[0, libc::O_DIRECT])).or_else(|_| open(&place, 0)).expect("a file");
    let handle = cufile().register(std::os::fd::AsRawFd::as_raw_fd(&file)).expect("a registered file");
    while !trial.is_over() {
        cancel(trial, handle, &mut random);
    }
    cufile().deregister(handle);
    Ok(())
}

fn cancel(trial: &'static Trial, handle: Handle, random: &mut Random) {
    let gpu = gpu();
    let memories: Vec<_> = (0..2).map(|_| gpu.memory(LEN as usize)).collect();
    let start: extern "C-unwind" fn(*mut c_void) -> *mut c_void = work;
    let threads: Vec<_> = memories
        .iter()
        .map(|memory| {
            let most = random.one_of(&[4096, 1 << 20, LEN / 2]);
            let (library, address, calls) = (cufile(), memory.address, AtomicU64::new(0));
            let batches = random.once_in(3);
            let work: &Work = Box::leak(Box::new(Work { library, handle, address, most, batches, calls }));
            // SAFETY: the function has the type of a start routine that may unwind, as cancelled ones do.
            let thread = unsafe {
                let mut thread = zeroed();
                let start = transmute::<
                    extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                    extern "C" fn(*mut c_void) -> *mut c_void,
                >(start);
                let rc = libc::pthread_create(
                    &raw mut thread,
                    std::ptr::null(),
                    start,
                    std::ptr::from_ref(work).cast_mut().cast(),
                );
                assert_eq!(rc, 0, "pthread_create");
                thread
            };
            (thread, work)
        })
        .collect();
    std::thread::sleep(Duration::from_micros(random.below(20_000)));
    for (thread, work) in threads {
        trial.call(
            || "the end of a cancelled thread".to_owned(),
            || {
                // SAFETY: the thread was not joined yet.
                unsafe {
                    libc::pthread_cancel(thread);
                    libc::pthread_join(thread, std::ptr::null_mut());
                }
            },
        );
        trial.add("threads cancelled", 1);
        trial.add("calls", work.calls.load(Ordering::Relaxed));
    }
    // The library is still good.
    let (at, len) = (random.below(LEN / 2), random.len(LEN / 2));
    let memory = &memories[0];
    let found = trial.call(
        || "cuFileRead afterwards".to_owned(),
        || cufile().read(handle, memory.address, len as usize, at),
    );
    let is_all = trial
        .check(found == len as isize, || format!("after a cancellation cuFileRead of {len} gave {found}"));
    let wrong = if is_all { difference(&memory.get(0, len as usize), KEY, at) } else { None };
    trial.check(wrong.is_none(), || {
        format!("after a cancellation cuFileRead at {at}: byte {wrong:?} is wrong")
    });
    trial.add("bytes compared", len);
}
