//! Two GPUs over the fake driver: each other's memory, and registrations that are one GPU's own.

use std::sync::Arc;

use forebay_gpu::{
    Access, Context, Device, DeviceRange, ErrorKind, HostRange, Result, Stream, Wait, cuda, first_mismatch,
    host,
};

use crate::common::alone::is_alone;
use crate::common::{Mapped, on_device, tidy};

const LEN: usize = 1 << 16;

/// Runs some work of one stream and waits for it.
fn run(device: &Arc<dyn Device>, work: impl FnOnce(&dyn Stream) -> Result<()>) -> Result<()> {
    let stream = device.stream(Context::PRIMARY)?;
    work(&*stream)?;
    stream.synchronize(Wait::Block)
}

/// One test: peer access stays for as long as the contexts.
#[test]
fn gpus_reach_each_other_only_when_told() {
    if !is_alone() {
        return;
    }
    // SAFETY: no other thread of this test uses the environment.
    unsafe { std::env::set_var("FAKE_CUDA_DEVICES", "2") };
    let fake = fake_cuda::install().unwrap();
    let [first, second] = <[_; 2]>::try_from(cuda::devices().unwrap()).unwrap();
    let (here, there) = (first.allocate(LEN).unwrap(), second.allocate(LEN).unwrap());
    // SAFETY: the ranges live until each synchronisation.
    unsafe {
        run(&second, |stream| stream.fill_pattern(DeviceRange::new(there, LEN), 5, 0)).unwrap();
        let error = run(&first, |stream| stream.copy_across(here, DeviceRange::new(there, LEN))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        fake.reset();
        for _ in 0..2 {
            first.enable_peer(&*second).unwrap();
        }
        assert_eq!(fake.calls("cuCtxEnablePeerAccess"), 2);
        first.enable_peer(&*first).unwrap();
        run(&first, |stream| stream.copy_across(here, DeviceRange::new(there, LEN))).unwrap();
        assert_eq!(first_mismatch(&on_device(fake, here, LEN), 5, 0), None);
        run(&first, |stream| stream.zero(DeviceRange::new(there, LEN))).unwrap();
        assert!(on_device(fake, there, LEN).iter().all(|byte| *byte == 0));
        run(&second, |stream| stream.copy_across(there, DeviceRange::new(here, LEN))).unwrap_err();
        fake.reset();
    }
    let error = first.enable_peer(&*host::device()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    host::device().enable_peer(&*first).unwrap_err();

    let mapped = Mapped::on_disk(LEN, 8);
    // SAFETY: mapped until it is unregistered; the ranges live until each synchronisation.
    unsafe {
        first.register(HostRange::new(mapped.address, LEN), Access::ReadOnly).unwrap();
        run(&first, |stream| stream.copy_in(here, HostRange::new(mapped.address, LEN))).unwrap();
        assert_eq!(first_mismatch(&on_device(fake, here, LEN), 8, 0), None);
        let error =
            run(&second, |stream| stream.copy_in(there, HostRange::new(mapped.address, LEN))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        fake.reset();
        first.unregister(mapped.address).unwrap();
        // Memory pinned as before belongs to all.
        let pinned = vec![3u8; LEN];
        let reach = first.pin(HostRange::new(pinned.as_ptr().cast_mut(), LEN)).unwrap();
        assert_eq!(fake.registered_bytes(), 0);
        run(&second, |stream| stream.copy_in(there, HostRange::new(reach as *const u8, LEN))).unwrap();
        first.unpin(pinned.as_ptr().cast_mut());
        assert_eq!(on_device(fake, there, LEN), pinned);
        first.free(here);
        second.free(there);
    }
    drop(mapped);
    tidy(fake);
}
