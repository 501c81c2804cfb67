//! A driver that lacks functions: old ones still copy, and say what they cannot do.

use fake_cuda::install;
use forebay_gpu::{Context, ErrorKind, HostRange, Wait, cuda};

use crate::common::alone::is_alone;

const HIDDEN: &str = "cuStreamWaitValue32_v2,cuStreamWaitValue32,cuLaunchHostFunc,cuModuleLoadData,\
    cuThreadExchangeStreamCaptureMode,cuCtxGetId,cuDeviceGetUuid_v2,cuGetErrorName";

#[test]
fn a_missing_function_is_an_error_of_its_caller_only() {
    if !is_alone() {
        return;
    }
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe { std::env::set_var("FOREBAY_HIDE_SYMBOLS", HIDDEN) };
    let fake = install().unwrap();
    let device = cuda::devices().unwrap().remove(0);
    let mut missing = cuda::symbols_missing().unwrap();
    let mut hidden: Vec<_> = HIDDEN.split(',').collect();
    missing.sort_unstable();
    hidden.sort_unstable();
    assert_eq!(missing, hidden);
    assert_eq!(&device.info().uuid, b"fake-cuda-gpu-00", "the older form answers");

    let stream = device.stream(Context::PRIMARY).unwrap();
    let called = std::sync::Arc::new(());
    let held = called.clone();
    let error = stream.callback(Box::new(move || drop(held))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("cuLaunchHostFunc") && !error.hints().is_empty(), "{error:?}");
    assert_eq!(std::sync::Arc::strong_count(&called), 1, "the refused closure is freed");
    // SAFETY: refused before anything is queued.
    let error = unsafe { stream.wait_value(0, 1) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(device.kernels(Context::PRIMARY).unwrap_err().kind(), ErrorKind::Unsupported);
    fake.fail_next("cuMemAlloc_v2", 999, 0, 1);
    assert!(device.allocate(1).unwrap_err().to_string().contains("CUDA error 999"));

    let memory = device.allocate(8).unwrap();
    let mut bytes = *b"8 bytes.";
    let mut back = [0; 8];
    // SAFETY: both ranges live until the synchronisation.
    unsafe {
        device.pin(HostRange::new(bytes.as_mut_ptr(), 8)).unwrap();
        stream.copy_in(memory, HostRange::new(bytes.as_ptr(), 8)).unwrap();
        stream.copy_out(HostRange::new(back.as_mut_ptr(), 8), memory).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        device.unpin(bytes.as_mut_ptr());
        device.free(memory);
    }
    assert_eq!(back, bytes);
    assert_eq!(fake.unpinned_copies(), 1, "the copy out, on purpose");
}
