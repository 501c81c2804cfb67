//! Whatever a safetensors header says, the ranges read lie within the file, without gaps or overlaps.
#![no_main]

use forebay_models::safetensors::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(header) = read(data) else { return };
    let mut at = header.data_start;
    for tensor in &header.tensors {
        assert_eq!(tensor.offset, at);
        assert_eq!(tensor.dtype.nbytes(&tensor.shape), Ok(tensor.nbytes));
        at += tensor.nbytes;
    }
    assert_eq!(at, data.len() as u64);
});
