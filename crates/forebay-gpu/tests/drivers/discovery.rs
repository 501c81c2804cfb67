//! Finding devices: what they are called, and that finding them costs no context.

use fake_cuda::install;
use forebay_gpu::{AllocationKind, Context, DeviceRange, Devices, ErrorKind, MemoryKind, cuda};

use crate::common::alone::is_alone;

#[test]
fn devices_are_found_without_a_context() {
    if !is_alone() {
        return;
    }
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe {
        std::env::set_var("FAKE_CUDA_DEVICES", "2");
        std::env::set_var("FAKE_CUDA_MEMORY", (1 << 30).to_string());
    }
    let fake = install().unwrap();
    let devices = Devices::discover();
    assert!(devices.missing.is_none() && devices.gpus.len() == 2);
    let info = devices.gpus[1].info();
    assert_eq!((info.index, info.name.as_str(), info.pci.as_str()), (1, "Fake GPU", "fa4e:1c:00.0"));
    assert_eq!(&info.uuid, b"fake-cuda-gpu-01");
    assert_eq!((info.total_memory, info.driver_version, info.capability), (1 << 30, 13_000, (9, 0)));
    assert!(!info.is_host && info.numa_node.is_none());
    assert!(cuda::symbols_missing().unwrap().is_empty());
    assert_eq!(cuda::driver().unwrap().version().unwrap(), 13_000);
    assert_eq!(devices.get(2).unwrap_err().kind(), ErrorKind::NotFound);

    // None of this needs a context, so none may be made: it costs hundreds of megabytes of device memory.
    let gpu = &devices.gpus[1];
    let heap = gpu.allocate_kind(AllocationKind::HostHeap, 10).unwrap();
    assert_eq!(gpu.classify(heap).unwrap().kind, MemoryKind::Host);
    gpu.adopt_thread();
    // SAFETY: allocated above.
    unsafe { gpu.free_kind(AllocationKind::HostHeap, DeviceRange::new(heap, 10)) };
    assert_eq!(fake.leaks().contexts, 0);

    // Every device gives the device of a pointer.
    let memory = gpu.allocate(100).unwrap();
    let told = devices.gpus[0].classify(memory).unwrap();
    assert_eq!((told.device, told.context), (Some(1), Context::PRIMARY));
    assert_eq!(fake.leaks().contexts, 1);
    // SAFETY: allocated above.
    unsafe { gpu.free(memory) };
}
