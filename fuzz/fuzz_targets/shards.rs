//! Whatever an index says, its files lie inside the folder.
#![no_main]

use std::path::{Component, Path};

use forebay_models::shards::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(index) = parse(data) else { return };
    assert!(index.tensors.iter().all(|(_, file)| *file < index.files.len()));
    for file in &index.files {
        assert!(Path::new(file).components().all(|part| matches!(part, Component::Normal(_))));
    }
});
