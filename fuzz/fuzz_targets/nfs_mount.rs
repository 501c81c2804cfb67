//! Lines of mountinfo, handles of the kernel and URLs: whatever they say, a handle lies within its bytes.
#![no_main]

use forebay_nfs::{NfsUrl, mount};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = mount::parse(text);
        let _ = mount::find(text, (0, 52));
        if let Ok(url) = NfsUrl::parse(text) {
            assert!(url.path.starts_with(b"/") && !url.server.is_empty());
        }
    }
    let Some((kind, bytes)) = data.split_first() else { return };
    if let Ok(handle) = mount::read_handle(bytes, i32::from(*kind), 7, 0o100_644) {
        assert!(handle.bytes().len() + 14 <= bytes.len());
    }
});
