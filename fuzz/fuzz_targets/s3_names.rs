//! URLs of objects, and profiles: a URL that is taken names the same object when it is written and read again.
#![no_main]

use std::path::Path;

use forebay_objects::{ObjectUrl, fuzz};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ObjectUrl::meant(Path::new(text));
    if let Ok(url) = ObjectUrl::parse(Path::new(text)) {
        assert!(!url.bucket.is_empty() && url.bucket.len() <= 255 && url.key.len() <= 1024);
        assert!(!url.bucket.contains(['/', '?', '#', '@', ' ']));
        let again = ObjectUrl::parse(Path::new(&url.to_string()));
        assert!(again.is_ok_and(|again| again == url));
    }
    if let Some((host, path)) = fuzz::place(text, "bucket") {
        assert!(!host.is_empty() && (host.contains("bucket") || path.ends_with("/bucket")));
    }
});
