//! Stores over temporary directories.

#![allow(dead_code)]

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use forebay_gateway::posix::{Abilities, Options, PosixStore, probe};
use forebay_gateway::store::{
    Condition, Entry, Facts, ListAsk, ListPage, Meta, Store, StoreResult, UploadFacts, UploadsAsk,
};
use tempfile::TempDir;

/// Of the file system of temporary directories.
pub(crate) fn abilities() -> Abilities {
    static PROBED: OnceLock<Abilities> = OnceLock::new();
    *PROBED.get_or_init(|| probe(tempfile::tempdir().unwrap().path()).unwrap())
}

/// The file system as it is, and as poorer ones are: `O_TMPFILE` is missing, attributes have little room or none, locks are missing.
pub(crate) fn variants() -> Vec<Abilities> {
    let full = abilities();
    assert!(full.locks && full.link_refuses, "the temporary directory's file system: {full}");
    vec![
        full,
        Abilities { unnamed_files: false, attribute_room: full.attribute_room.min(200), ..full },
        Abilities { attribute_room: 0, copies: false, ..full },
        Abilities { unnamed_files: false, attribute_room: 0, locks: false, ..full },
    ]
}

/// A store with the bucket `bucket`.
pub(crate) fn store() -> (TempDir, PosixStore) {
    store_with(abilities())
}

pub(crate) fn store_with(abilities: Abilities) -> (TempDir, PosixStore) {
    open(Options { abilities: Some(abilities), ..Options::default() })
}

/// Without syncs: for tests with thousands of objects.
pub(crate) fn quick() -> Options {
    Options { sync: false, abilities: Some(abilities()), ..Options::default() }
}

pub(crate) fn quick_store(abilities: Abilities) -> (TempDir, PosixStore) {
    open(Options { sync: false, abilities: Some(abilities), ..Options::default() })
}

fn open(options: Options) -> (TempDir, PosixStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), options).unwrap();
    store.make_bucket("bucket").unwrap();
    (dir, store)
}

pub(crate) fn put(store: &PosixStore, key: &str, bytes: &[u8]) -> Facts {
    put_if(store, key, bytes, &Condition::None).unwrap()
}

pub(crate) fn put_if(
    store: &PosixStore,
    key: &str,
    bytes: &[u8],
    condition: &Condition,
) -> StoreResult<Facts> {
    let draft = store.begin("bucket", key, Some(bytes.len() as u64))?;
    draft.write_at(bytes, 0)?;
    draft.publish(bytes.len() as u64, Meta::default(), condition)
}

pub(crate) fn read(store: &PosixStore, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.open("bucket", key).unwrap().file.read_to_end(&mut bytes).unwrap();
    bytes
}

pub(crate) fn keys(store: &PosixStore, ask: &ListAsk) -> Vec<String> {
    entries(&store.list("bucket", ask).unwrap())
}

pub(crate) fn entries(page: &ListPage) -> Vec<String> {
    let name = |entry: &Entry| match entry {
        Entry::Object(object) => object.key.clone(),
        Entry::Prefix(prefix) => prefix.clone(),
    };
    page.entries.iter().map(name).collect()
}

/// All uploads that were begun.
pub(crate) fn uploads(store: &PosixStore) -> Vec<UploadFacts> {
    let ask = UploadsAsk { max: 1000, ..UploadsAsk::default() };
    store.uploads("bucket", &ask).unwrap().uploads
}

/// What lies in the bucket's `.forebay/tmp`.
pub(crate) fn temporaries(dir: &Path) -> Vec<String> {
    let Ok(names) = std::fs::read_dir(dir.join("bucket/.forebay/tmp")) else { return Vec::new() };
    names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
}
