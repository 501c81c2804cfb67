//! Our calls leave stream captures alone, our own thread's and others'.

use crate::common::{Pinned, device, tidy};
use forebay_gpu::{AllocationKind, Context, Device, DeviceRange, HostRange, Wait, cuda};

const GLOBAL: i32 = 0;
const OF_THREAD: i32 = 1;
const RELAXED: i32 = 2;

/// One of everything that a transfer may call.
fn transfer(device: &std::sync::Arc<dyn Device>) {
    let stream = device.stream(Context::PRIMARY).unwrap();
    let memory = device.allocate(4096).unwrap();
    let pinned = device.allocate_kind(AllocationKind::PinnedHost, 4096).unwrap();
    let bytes = Pinned::new(device, 4096);
    let event = stream.event().unwrap();
    // SAFETY: all ranges live until the synchronisation.
    unsafe {
        stream.copy_in(memory, HostRange::new(bytes.pointer(), 4096)).unwrap();
        stream.copy_out(HostRange::new(pinned as *mut u8, 4096), memory).unwrap();
        stream.fill_pattern(DeviceRange::new(memory, 4096), 1, 0).unwrap();
        assert_eq!(stream.check_pattern(DeviceRange::new(memory, 4096), 1, 0).unwrap().wrong_bytes, 0);
    }
    stream.record(&*event).unwrap();
    stream.callback(Box::new(|| ())).unwrap();
    for wait in [Wait::Spin, Wait::Block] {
        event.wait(wait).unwrap();
        stream.synchronize(wait).unwrap();
    }
    device.classify(memory).unwrap();
    device.memory_info().unwrap();
    // SAFETY: unused by now.
    unsafe {
        device.free(memory);
        device.free_kind(AllocationKind::PinnedHost, DeviceRange::new(pinned, 4096));
    }
}

#[test]
fn a_capture_survives_our_calls() {
    let (fake, device) = device();
    let primary = fake.retain_primary(0).unwrap();
    fake.set_current_context(primary).unwrap();
    let captured = fake.create_stream(1).unwrap();
    for mode in [GLOBAL, OF_THREAD] {
        fake.begin_capture(captured, mode).unwrap();
        transfer(&device);
        for adopted in [false, true] {
            let device = device.clone();
            let other = std::thread::spawn(move || {
                if adopted {
                    device.adopt_thread();
                }
                transfer(&device);
            });
            other.join().unwrap();
        }
        assert_eq!(fake.end_capture(captured).unwrap(), 0, "no work of the engine was captured");
        assert_eq!(fake.capture_mode(), GLOBAL, "the thread's mode is what it was");
    }
    // A foreign allocator at work in another thread, in the middle of a transfer.
    fake.begin_capture(captured, GLOBAL).unwrap();
    let other = std::thread::spawn(move || {
        let before = cuda::exchange_capture_mode(RELAXED);
        assert_eq!(before, Some(GLOBAL));
        fake.set_current_context(primary).unwrap();
        fake.free(fake.allocate(64).unwrap()).unwrap();
        assert_eq!(cuda::exchange_capture_mode(GLOBAL), Some(RELAXED));
    });
    other.join().unwrap();
    assert_eq!(fake.end_capture(captured).unwrap(), 0, "an allocation in a relaxed thread");
    // The same calls without our care do break one: the fake is strict enough to tell.
    fake.begin_capture(captured, GLOBAL).unwrap();
    fake.allocate(64).unwrap_err();
    fake.end_capture(captured).unwrap_err();
    fake.destroy_stream(captured).unwrap();
    fake.set_current_context(0).unwrap();
    tidy(fake);
}
