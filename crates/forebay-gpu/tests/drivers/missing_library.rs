//! A machine without a driver.

use forebay_gpu::{Devices, ErrorKind, cuda};

use crate::common::alone::is_alone;

#[test]
fn a_missing_library_is_told_with_its_reason() {
    if !is_alone() {
        return;
    }
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe { std::env::set_var("FOREBAY_LIBCUDA", "/nonexistent/libcuda.so.1") };
    let error = cuda::devices().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DriverMissing);
    let text = error.to_string();
    assert!(text.contains("/nonexistent/libcuda.so.1") && text.contains("No such file"), "{text}");
    assert!(error.hints().iter().any(|hint| hint.contains("--gpus all")));
    assert_eq!(cuda::driver().unwrap_err().kind(), ErrorKind::DriverMissing);
    assert_eq!(cuda::symbols_missing().unwrap_err().kind(), ErrorKind::DriverMissing);

    let devices = Devices::discover();
    assert!(devices.gpus.is_empty() && devices.missing.is_some());
    assert!(devices.get(0).unwrap().info().is_host);
    assert!(devices.get(1).unwrap_err().hints()[0].contains("cannot load the GPU driver"));
}
