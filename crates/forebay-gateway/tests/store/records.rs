//! What the store keeps beside bytes: records that cannot be read, directories that it made, objects that are directories.

use std::collections::BTreeMap;

use forebay_gateway::posix::{Abilities, Options, PosixStore};
use forebay_gateway::store::{Condition, ListAsk, Meta, Store, StoreError};

use crate::common::{abilities, put, store, store_with, variants};

fn meta() -> Meta {
    Meta { user: BTreeMap::from([("a".into(), "b".into())]), ..Meta::default() }
}

#[test]
fn a_record_that_cannot_be_read_is_not_taken_for_none() {
    let (dir, store) = store_with(Abilities { attribute_room: 0, ..abilities() });
    store.begin("bucket", "k", None).unwrap().publish(0, meta(), &Condition::None).unwrap();
    let records = dir.path().join("bucket/.forebay/meta");
    let record = std::fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
    let aside = dir.path().join("aside");
    std::fs::rename(&record, &aside).unwrap();
    // Reading it is an error, as of a disk.
    std::fs::create_dir(&record).unwrap();
    assert!(matches!(store.facts("bucket", "k"), Err(StoreError::Later(_))));
    let said = store.describe("bucket", "k", None, &|meta| meta.tags.clear());
    assert!(matches!(said, Err(StoreError::Later(_))));
    let all = ListAsk { max: 9, ..ListAsk::default() };
    assert!(matches!(store.list("bucket", &all), Err(StoreError::Later(_))));
    std::fs::remove_dir(&record).unwrap();
    std::fs::rename(&aside, &record).unwrap();
    assert_eq!(store.facts("bucket", "k").unwrap().meta, meta());
}

#[test]
fn what_is_said_of_an_object_is_said_of_the_one_that_was_meant() {
    let (_dir, store) = store();
    let old = put(&store, "k", b"old");
    let new = put(&store, "k", b"new");
    let say = |etag: &str| store.describe("bucket", "k", Some(etag), &|meta| meta.user = self::meta().user);
    assert!(matches!(say(&old.etag), Err(StoreError::Conflict)));
    assert_eq!(store.facts("bucket", "k").unwrap(), new);
    assert_eq!(say(&new.etag).unwrap().meta.user, meta().user);
}

#[test]
fn directories_that_other_programs_made_stay_when_the_last_object_goes() {
    let (dir, store) = store();
    let path = dir.path().join("bucket");
    std::fs::create_dir_all(path.join("theirs")).unwrap();
    put(&store, "theirs/ours/below/k", b"x");
    store.remove("bucket", "theirs/ours/below/k", &Condition::None).unwrap();
    assert!(path.join("theirs").exists());
    assert!(!path.join("theirs/ours").exists());
}

#[test]
fn of_writers_of_a_directory_that_must_be_new_one_wins() {
    for abilities in variants() {
        let (dir, _) = store_with(abilities);
        let options = Options { abilities: Some(abilities), ..crate::common::quick() };
        let stores: Vec<_> = (0..8).map(|_| PosixStore::open(dir.path(), options).unwrap()).collect();
        for round in 0..20 {
            let key = format!("d{round}/");
            let make = |store: &PosixStore| {
                let draft = store.begin("bucket", &key, None).unwrap();
                match draft.publish(0, meta(), &Condition::Absent) {
                    Ok(_) => 1,
                    Err(StoreError::Precondition) => 0,
                    Err(error) => panic!("{error}"),
                }
            };
            let won: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = stores.iter().map(|store| scope.spawn(|| make(store))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(won, 1, "{abilities}");
            assert_eq!(stores[0].facts("bucket", &key).unwrap().meta, meta());
        }
    }
}

#[test]
fn where_times_are_coarse_etags_differ_all_the_same() {
    let coarse = Abilities { fine_times: false, ..abilities() };
    let (dir, store) = store_with(coarse);
    let first = put(&store, "k", b"x");
    // The same file at the same time, as far as the file system can tell: another object.
    let path = dir.path().join("bucket/k");
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    let other =
        PosixStore::open(dir.path(), Options { abilities: Some(coarse), ..crate::common::quick() }).unwrap();
    assert_eq!(other.facts("bucket", "k").unwrap(), first, "the same from each gateway");
    rustix::fs::removexattr(&path, "user.forebay.s3").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    assert_ne!(store.facts("bucket", "k").unwrap().etag, first.etag);
}
