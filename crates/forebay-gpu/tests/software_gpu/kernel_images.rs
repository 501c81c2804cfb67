//! Which of the kernels' images the driver is given.

use std::sync::Arc;

use crate::common::device;
use fake_cuda::Fake;
use forebay_gpu::{Device, Result};

const CODE: &str = "cuModuleLoadData:cubin";
const TEXT: &str = "cuModuleLoadData:ptx";

/// Loads the kernels into a context of their own, since a context keeps them.
fn load(fake: &Fake, device: &Arc<dyn Device>) -> (Result<()>, u64, u64) {
    let before = (fake.calls(CODE), fake.calls(TEXT));
    let context = fake.create_context(0).unwrap();
    let memory = fake.allocate(4096).unwrap();
    let loaded = device.kernels(device.classify(memory).unwrap().context);
    fake.free(memory).unwrap();
    fake.destroy_context(context).unwrap();
    (loaded, fake.calls(CODE) - before.0, fake.calls(TEXT) - before.1)
}

#[test]
fn machine_code_first_and_ptx_where_it_does_not_do() {
    let (fake, device) = device();
    let (loaded, code, text) = load(fake, &device);
    loaded.unwrap();
    assert_eq!((code, text), (1, 0), "the code for this GPU will do");

    // 209: no binary for this GPU. 200: what an older driver says of a newer file.
    for refusal in [209, 200, 222] {
        fake.fail_next(CODE, refusal, 0, 1);
        let (loaded, code, text) = load(fake, &device);
        loaded.unwrap();
        assert_eq!((code, text), (1, 1), "{refusal}");
    }

    fake.fail_next(CODE, 209, 0, 1);
    fake.fail_next(TEXT, 222, 0, 1);
    let (loaded, ..) = load(fake, &device);
    let error = loaded.unwrap_err();
    assert_eq!(error.kind(), forebay_gpu::ErrorKind::Unsupported);
    assert!(error.hints().iter().any(|hint| hint.contains("checksum")), "{error:?}");
}
