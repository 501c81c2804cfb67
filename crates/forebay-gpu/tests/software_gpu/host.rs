//! Host memory as a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_gpu::{
    AllocationKind, Context, CopyPiece, DeviceRange, ErrorKind, HostRange, MemoryKind, Wait, host,
};

#[test]
fn copies_scatters_and_patterns_work_at_once() {
    let device = host::device();
    assert!(device.info().is_host && device.info().total_memory > 0 && device.info().name == "host memory");
    assert!(device.memory_info().unwrap().0 > 0);
    let stream = device.stream(Context::PRIMARY).unwrap();
    let memory = device.allocate(10_000).unwrap();
    assert!(memory.is_multiple_of(4096));
    assert_eq!(device.classify(memory).unwrap().kind, MemoryKind::Host);
    let bytes: Vec<u8> = (0..100).collect();
    let mut back = [0; 100];
    // SAFETY: all ranges are alive, and done with when each call returns.
    unsafe {
        stream.copy_in(memory + 7, HostRange::new(bytes.as_ptr(), 100)).unwrap();
        stream.copy_out(HostRange::new(back.as_mut_ptr(), 100), memory + 7).unwrap();
        assert_eq!(back, bytes[..]);
        let pieces = [
            CopyPiece { src: bytes.as_ptr() as u64, dst: memory + 1, len: 3 },
            CopyPiece { src: bytes.as_ptr() as u64 + 50, dst: memory + 4, len: 50 },
        ];
        stream.scatter(pieces.as_ptr() as u64, 2, 50).unwrap();
        stream.copy_out(HostRange::new(back.as_mut_ptr(), 53), memory + 1).unwrap();
        assert_eq!((&back[..3], &back[3..53]), (&bytes[..3], &bytes[50..]));

        stream.fill_pattern(DeviceRange::new(memory + 3, 9_001), 7, 64).unwrap();
        assert_eq!(stream.check_pattern(DeviceRange::new(memory + 3, 9_001), 7, 64).unwrap().wrong_bytes, 0);
        *((memory + 3 + 17) as *mut u8) ^= 1;
        let check = stream.check_pattern(DeviceRange::new(memory + 3, 9_001), 7, 64).unwrap();
        assert_eq!((check.wrong_bytes, check.first_wrong), (1, 80));
        assert_eq!(
            stream.fill_pattern(DeviceRange::new(memory, 8), 7, 1).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        device.free(memory);
    }
    let called = Arc::new(AtomicBool::new(false));
    let mark = called.clone();
    stream.callback(Box::new(move || mark.store(true, Ordering::SeqCst))).unwrap();
    assert!(called.load(Ordering::SeqCst));
    let event = stream.event().unwrap();
    stream.record(&*event).unwrap();
    stream.wait_event(&*event).unwrap();
    assert!(event.is_done().unwrap());
    event.wait(Wait::Block).unwrap();
    stream.synchronize(Wait::Spin).unwrap();
}

#[test]
fn kinds_that_host_memory_lacks_are_refused() {
    let device = host::device();
    for kind in [AllocationKind::Device, AllocationKind::HostHeap, AllocationKind::HostMap] {
        let address = device.allocate_kind(kind, 5000).unwrap();
        // SAFETY: allocated above.
        unsafe {
            (address as *mut u8).add(4999).write(1);
            device.free_kind(kind, DeviceRange::new(address, 5000));
        }
    }
    for kind in [AllocationKind::Virtual, AllocationKind::PinnedHost, AllocationKind::Managed] {
        assert_eq!(device.allocate_kind(kind, 10).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(device.allocate(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.allocate(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
}
