//! A GPU of a generation that there is no machine code for.

use fake_cuda::install;
use forebay_gpu::{Context, cuda};

use crate::common::alone::is_alone;

#[test]
fn a_gpu_of_another_generation_compiles_the_ptx() {
    if !is_alone() {
        return;
    }
    // Compute capability 13.4.
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe { std::env::set_var("FAKE_CUDA_ATTRIBUTES", "75=13,76=4") };
    let fake = install().unwrap();
    let device = cuda::devices().unwrap().remove(0);
    assert_eq!(device.info().capability, (13, 4));
    device.kernels(Context::PRIMARY).unwrap();
    assert_eq!(fake.calls("cuModuleLoadData:cubin"), 0);
    assert_eq!(fake.calls("cuModuleLoadData:ptx"), 1);
}
