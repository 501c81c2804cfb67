//! Functions that only tests call: faults, delays, counts, a look into device memory.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use crate::access;
use crate::driver_lock;
use crate::environment;
use crate::fault::{self, DriverFault};
use crate::memory::{MemoryRegion, RegionKind};
use crate::state::state;
use crate::stream::{StreamOrder, set_default_stream_delay, set_delay};

/// What is alive. All zero after a tidy program, apart from contexts: a primary one stays.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Device, managed, pool and mapped virtual memory.
    pub device_allocations: u64,
    /// Memory of `cuMemHostAlloc`.
    pub pinned_allocations: u64,
    /// Registered host memory.
    pub registrations: u64,
    /// Reserved address ranges.
    pub reservations: u64,
    /// Streams created by the program.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Contexts that exist, the primary ones included.
    pub contexts: u64,
}

/// # Safety
/// `name` is a C string.
unsafe fn text(name: *const c_char) -> String {
    // SAFETY: the caller promises it.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Lets the call of `name` after the next `after` ones fail with `code`, and `times - 1` more (0: all of them).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail_next(name: *const c_char, code: c_int, after: u64, times: u64) {
    // SAFETY: the caller passes a C string.
    let name = unsafe { text(name) };
    state().faults.push(DriverFault { name, code, after, times });
}

/// Forgets faults, hangs, broken GPUs, counts, delays and attributes. Allocations stay.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_reset() {
    set_delay(None);
    set_default_stream_delay(None);
    driver_lock::set_cost(None);
    fault::let_go();
    let mut state = state();
    state.faults.clear();
    state.calls.clear();
    state.unpinned_copies = 0;
    state.pin_limit = None;
    state.hazards = 0;
    state.hangs.clear();
    state.attributes = environment::attributes();
    for gpu in &mut state.gpus {
        gpu.life += u64::from(gpu.error.take().is_some());
    }
}

/// Sets the greatest delay before each piece of queued work.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_delay_us(micros: u64) {
    set_delay(Some(micros));
}

/// Sets the delay before each piece of work on a default stream, beside that.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_default_stream_delay_us(micros: u64) {
    set_default_stream_delay(Some(micros));
}

/// Sets how long registering a MiB takes, in which no other call begins.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_register_us(micros: u64) {
    driver_lock::set_cost(Some(micros));
}

/// Microseconds in which registrations kept other calls waiting since then.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_registering_us() -> u64 {
    driver_lock::held().0
}

/// Those of the longest.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_longest_register_us() -> u64 {
    driver_lock::held().1
}

/// Lets that many bytes more be registered for every GPU, and no others.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_limit_pins(more: usize) {
    let mut state = state();
    state.pin_limit = Some(state.pinned() + more);
}

/// How often a function was called since the last reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller passes a C string.
    let name = unsafe { text(name) };
    state().calls.get(&name).copied().unwrap_or(0)
}

/// How many copies had a host end that was not pinned, since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_unpinned_copies() -> u64 {
    state().unpinned_copies
}

/// Sets a device attribute to another value, on all GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_attribute(name: c_int, value: c_int) {
    state().attributes.insert(name, value);
}

/// Lets the next call of `name` sleep before it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_hang_next(name: *const c_char, millis: u64) {
    // SAFETY: the caller passes a C string.
    let name = unsafe { text(name) };
    state().hangs.insert(name, Duration::from_millis(millis));
}

/// How many calls hang now.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_hanging() -> u64 {
    fault::hanging()
}

/// Lets all calls that hang go on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_let_go() {
    fault::let_go();
}

/// Bytes registered now for one GPU only.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_registered_bytes() -> u64 {
    let state = state();
    let of_one = |region: &&MemoryRegion| region.registration.as_ref().is_some_and(|found| !found.portable);
    state.regions.values().filter(of_one).map(|region| region.len as u64).sum()
}

/// How many registrations the real driver would never have come back from, since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_hazards() -> u64 {
    state().hazards
}

/// Counts what is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_leaks(out: *mut Leaks) {
    let state = state();
    let regions = |kinds: &[RegionKind]| {
        state.regions.values().filter(|region| kinds.contains(&region.kind)).count() as u64
    };
    let leaks = Leaks {
        device_allocations: regions(&[
            RegionKind::Device,
            RegionKind::Managed,
            RegionKind::Pool,
            RegionKind::Virtual,
        ]),
        pinned_allocations: regions(&[RegionKind::Pinned]),
        registrations: regions(&[RegionKind::Registered]),
        reservations: state.reservations.len() as u64,
        streams: state
            .streams
            .values()
            .filter(|stream| !matches!(stream.order, StreamOrder::Legacy | StreamOrder::PerThread))
            .count() as u64,
        events: state.events.len() as u64,
        contexts: state.contexts.len() as u64,
    };
    // SAFETY: the caller passes a valid place.
    unsafe { out.write(leaks) };
}

/// Copies between known memory at `address` and `bytes`, past all streams. Answers 1 if it is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_peek(address: u64, bytes: *mut u8, len: usize, write: c_int) -> c_int {
    // SAFETY: the caller passes memory of that length.
    c_int::from(unsafe { access::peek(address, bytes, len, write != 0) }.is_none())
}
