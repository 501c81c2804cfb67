//! A driver whose library is newer than its kernel module.

use fake_cuda::install;
use forebay_gpu::{Devices, ErrorKind, cuda};

use crate::common::alone::is_alone;

#[test]
fn a_driver_mismatch_says_what_to_do() {
    if !is_alone() {
        return;
    }
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe { std::env::set_var("FAKE_CUDA_FAULTS", "cuInit:803@times=0") };
    install().unwrap();
    let error = cuda::devices().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DriverMissing);
    assert!(error.to_string().contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{error}");
    assert!(error.hints()[0].contains("reboot"));
    assert!(Devices::discover().get(0).unwrap().info().is_host);
    assert!(cuda::driver().is_ok(), "the doctor can still ask the version");
}
