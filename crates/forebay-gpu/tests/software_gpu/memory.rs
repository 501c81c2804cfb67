//! Kinds of memory and of contexts over the fake driver.

use crate::common::{Pinned, device, on_device, tidy};
use forebay_gpu::{
    AllocationKind, Context, DeviceRange, ErrorKind, HostRange, MemoryKind, Wait, fill_pattern,
    first_mismatch,
};

#[test]
fn every_kind_is_told_apart() {
    let (fake, device) = device();
    use AllocationKind as A;
    for (kind, wanted) in [
        (A::Device, MemoryKind::Device),
        (A::Virtual, MemoryKind::Device),
        (A::PinnedHost, MemoryKind::Pinned),
        (A::Managed, MemoryKind::Managed),
        (A::HostHeap, MemoryKind::Host),
        (A::HostMap, MemoryKind::Host),
    ] {
        const LEN: usize = 3 << 20;
        let address = device.allocate_kind(kind, LEN).unwrap();
        for skip in [0, LEN as u64 - 1] {
            let info = device.classify(address + skip).unwrap();
            assert_eq!(info.kind, wanted, "{kind:?}");
            assert_eq!(info.context, Context::PRIMARY, "{kind:?}");
            assert_eq!(info.device, (wanted != MemoryKind::Host).then_some(0), "{kind:?}");
            match info.range {
                Some(range) => assert!(range.start == address && range.len >= LEN, "{kind:?}"),
                None => assert_eq!(wanted, MemoryKind::Host),
            }
        }
        // SAFETY: allocated above, unused.
        unsafe { device.free_kind(kind, DeviceRange::new(address, LEN)) };
    }
    let registered = Pinned::new(&device, 100);
    assert_eq!(device.classify(registered.pointer() as u64).unwrap().kind, MemoryKind::Pinned);
    for garbage in [0, 1, u64::MAX, 0xDEAD_BEEF_0000] {
        assert_eq!(device.classify(garbage).unwrap().kind, MemoryKind::Host);
    }
    drop(registered);
    tidy(fake);
}

#[test]
fn pool_memory_has_no_context_of_its_own() {
    let (fake, device) = device();
    let primary = fake.retain_primary(0).unwrap();
    fake.set_current_context(primary).unwrap();
    let address = fake.allocate_from_pool(4096).unwrap();
    let info = device.classify(address).unwrap();
    assert_eq!((info.kind, info.context, info.device), (MemoryKind::Device, Context::PRIMARY, Some(0)));
    fake.free(address).unwrap();
    fake.set_current_context(0).unwrap();
    tidy(fake);
}

#[test]
fn work_runs_in_the_pointer_s_own_context() {
    let (fake, device) = device();
    let other = fake.create_context(0).unwrap();
    let theirs = fake.allocate(8192).unwrap();
    // The thread's own context must come back as it was, whatever it is.
    for current in [other, 0, fake.retain_primary(0).unwrap()] {
        fake.set_current_context(current).unwrap();
        let info = device.classify(theirs).unwrap();
        assert_ne!(info.context, Context::PRIMARY);
        let stream = device.stream(info.context).unwrap();
        let bytes = Pinned::new(&device, 8192);
        fill_pattern(bytes.slice(), 1, 0);
        // SAFETY: all ranges live until the synchronisation, which `check_pattern` is.
        unsafe {
            stream.copy_in(theirs, HostRange::new(bytes.pointer(), 8192)).unwrap();
            assert_eq!(stream.check_pattern(DeviceRange::new(theirs, 8192), 1, 0).unwrap().wrong_bytes, 0);
        }
        drop((stream, bytes));
        assert_eq!(fake.current_context(), current);
    }
    // A stream of theirs, wrapped, still works in its own context and is not destroyed.
    fake.set_current_context(other).unwrap();
    let handle = fake.create_stream(0).unwrap();
    fake.set_current_context(0).unwrap();
    let bytes = Pinned::new(&device, 8192);
    fill_pattern(bytes.slice(), 2, 0);
    // SAFETY: the stream is destroyed below, after its wrapper; the ranges live until the synchronisation.
    unsafe {
        let stream = device.foreign_stream(handle).unwrap();
        stream.copy_in(theirs, HostRange::new(bytes.pointer(), 8192)).unwrap();
        stream.synchronize(Wait::Block).unwrap();
    }
    assert_eq!(first_mismatch(&on_device(fake, theirs, 8192), 2, 0), None);
    assert_eq!(fake.leaks().streams, 1);
    fake.set_current_context(other).unwrap();
    fake.destroy_stream(handle).unwrap();
    fake.free(theirs).unwrap();
    fake.destroy_context(other).unwrap();
    drop(bytes);
    tidy(fake);
}

#[test]
fn the_default_stream_is_that_of_the_current_context() {
    let (fake, device) = device();
    let memory = device.allocate(64).unwrap();
    let bytes = Pinned::new(&device, 64);
    fill_pattern(bytes.slice(), 8, 0);
    // SAFETY: stream 0 lives as long as its context; the ranges live until the synchronisation.
    unsafe {
        let stream = device.foreign_stream(0).unwrap();
        stream.copy_in(memory, HostRange::new(bytes.pointer(), 64)).unwrap();
        stream.synchronize(Wait::Block).unwrap();
    }
    assert_eq!(first_mismatch(&on_device(fake, memory, 64), 8, 0), None);
    // SAFETY: unused.
    unsafe { device.free(memory) };
    drop(bytes);
    tidy(fake);
}

#[test]
fn memory_that_runs_out_says_how_much_there_was() {
    let (fake, device) = device();
    let (free, total) = device.memory_info().unwrap();
    assert_eq!(free, total);
    let error = device.allocate(total as usize + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceOutOfMemory);
    let keys: Vec<_> = error.context().iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, ["asked", "device", "free", "total"]);
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY") && !error.hints().is_empty(), "{error:?}");
    for (call, kind, wanted) in [
        ("cuMemCreate", AllocationKind::Virtual, ErrorKind::DeviceOutOfMemory),
        ("cuMemSetAccess", AllocationKind::Virtual, ErrorKind::DeviceOutOfMemory),
        ("cuMemHostAlloc", AllocationKind::PinnedHost, ErrorKind::OutOfMemory),
    ] {
        fake.fail_next(call, 2, 0, 1);
        assert_eq!(device.allocate_kind(kind, 4096).unwrap_err().kind(), wanted, "{call}");
    }
    assert_eq!(device.allocate(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.memory_info().unwrap(), (free, total));
    tidy(fake);
}

#[test]
fn pinning_twice_is_refused_and_a_half_done_pin_undone() {
    let (fake, device) = device();
    let mut bytes = vec![0u8; 8192];
    // SAFETY: unpinned below, before the memory is freed.
    unsafe {
        device.pin(HostRange::new(bytes.as_mut_ptr(), 8192)).unwrap();
        let again = device.pin(HostRange::new(bytes.as_mut_ptr(), 100)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again:?}");
        device.unpin(bytes.as_mut_ptr());
        fake.fail_next("cuMemHostGetDevicePointer_v2", 1, 0, 1);
        device.pin(HostRange::new(bytes.as_mut_ptr(), 8192)).unwrap_err();
    }
    tidy(fake);
}
