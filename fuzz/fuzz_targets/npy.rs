//! Whatever a .npy header says, the array lies within the file; an array read can be written.
#![no_main]

use forebay_models::npy::{header, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(found) = read(data, 0, u64::MAX) else { return };
    assert!(found.offset + found.nbytes <= data.len() as u64);
    let mut again = header(&found.descr, found.fortran_order, &found.shape, 64).unwrap();
    again.resize(again.len() + found.nbytes as usize, 0);
    let again = read(&again, 0, u64::MAX).unwrap();
    assert_eq!((again.descr, again.shape, again.nbytes), (found.descr, found.shape, found.nbytes));
});
