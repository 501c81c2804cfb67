//! The resident kernel over the fake driver. `real_gpu.rs` does the same on a GPU.

use crate::common::{device, resident, tidy};
use forebay_gpu::{AllocationKind, Context, DeviceRange, ErrorKind, Resident};

const LEN: usize = 4 << 20;

#[test]
fn it_copies_what_is_posted_and_ends() {
    let (fake, device) = device();
    let memory = device.allocate(LEN).unwrap();
    let stream = device.stream(Context::PRIMARY).unwrap();
    resident::copies(&device, stream.as_ref(), memory);
    resident::new_bytes_in_one_life(&device, stream.as_ref(), memory, 100);
    resident::withdrawals(&device, stream.as_ref(), memory);
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop(stream);
    tidy(fake);
}

#[test]
fn only_plain_device_memory_is_for_kernels() {
    let (fake, device) = device();
    for kind in [AllocationKind::Device, AllocationKind::Virtual] {
        let memory = device.allocate_kind(kind, LEN).unwrap();
        resident::memory_of_kernels(&device, memory, LEN);
        // SAFETY: nothing uses it.
        unsafe { device.free_kind(kind, DeviceRange::new(memory, LEN)) };
        assert_eq!(device.kernels_memory(Context::PRIMARY, memory), None, "it was freed");
    }
    let managed = device.allocate_kind(AllocationKind::Managed, LEN).unwrap();
    assert_eq!(device.kernels_memory(Context::PRIMARY, managed), None, "it may be elsewhere");
    // SAFETY: nothing uses it.
    unsafe { device.free_kind(AllocationKind::Managed, DeviceRange::new(managed, LEN)) };
    tidy(fake);
}

#[test]
fn of_reserved_addresses_one_mapping_is_for_kernels() {
    const PART: u64 = LEN as u64;
    let (fake, device) = device();
    let start = fake.map_parts(3 * LEN, &[LEN, LEN]).unwrap();
    let ask = |at: u64| device.kernels_memory(Context::PRIMARY, start + at);
    assert_eq!(
        device.classify(start).unwrap().range,
        Some(DeviceRange::new(start, 3 * LEN)),
        "the driver's word"
    );
    assert_eq!(ask(5), Some(DeviceRange::new(start, PART as usize)));
    assert_eq!(ask(PART), Some(DeviceRange::new(start + PART, PART as usize)));
    assert_eq!(ask(2 * PART), None, "reserved alone");
    fake.fail_next("cuMemGetAddressRange_v2", 1, 0, 1);
    assert_eq!(ask(0), None, "where it ends is not known");
    fake.unmap_parts(start, 3 * LEN, &[LEN, LEN]).unwrap();
    tidy(fake);
}

#[test]
fn memory_of_another_context_is_not_this_ones() {
    let (fake, device) = device();
    let second = fake.create_context(0).unwrap();
    let theirs = fake.allocate(4096).unwrap();
    fake.set_current_context(0).unwrap();
    let info = device.classify(theirs).unwrap();
    assert_eq!(device.kernels_memory(Context::PRIMARY, theirs), None);
    assert_eq!(device.kernels_memory(info.context, theirs), Some(DeviceRange::new(theirs, 4096)));
    fake.set_current_context(second).unwrap();
    fake.free(theirs).unwrap();
    fake.set_current_context(0).unwrap();
    fake.destroy_context(second).unwrap();
}

#[test]
fn host_memory_has_no_kernel() {
    let device = forebay_gpu::host::device();
    let stream = device.stream(Context::PRIMARY).unwrap();
    let nothing = Resident { mailboxes: 0, count: 0, idle: 0, life: 0, ended: 0, number: 0 };
    // SAFETY: it is refused.
    let refused = unsafe { stream.resident(&nothing) }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert_eq!(device.kernels_memory(Context::PRIMARY, (&raw const nothing) as u64), None);
}
