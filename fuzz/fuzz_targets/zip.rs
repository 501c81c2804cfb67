//! Whatever a zip directory says, its entries lie within the file and apart from each other.
#![no_main]

use forebay_models::zip::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(mut entries) = read(data) else { return };
    entries.sort_by_key(|entry| entry.offset);
    let mut at = 0;
    for entry in &entries {
        assert!(entry.offset >= at);
        at = entry.offset + entry.packed;
    }
    assert!(at <= data.len() as u64);
});
