//! Uploads by parts: through several stores, in any order, finished once.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use forebay_gateway::posix::{Options, PosixStore};
use forebay_gateway::store::{
    Checksum, Condition, Facts, Meta, Store, StoreError, StoreResult, Swept, UploadsAsk,
};

use crate::common::{put, read, store_with, variants};

const MIB: usize = 1 << 20;

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn begin(store: &PosixStore, key: &str) -> String {
    let meta = Meta { user: BTreeMap::from([("a".into(), "b".into())]), ..Meta::default() };
    store.begin_upload("bucket", key, meta).unwrap()
}

fn part(store: &PosixStore, key: &str, id: &str, number: u32, bytes: &[u8]) -> (u32, String) {
    let len = bytes.len() as u64;
    let draft = store.begin_part("bucket", key, id, number, Some(len)).unwrap();
    draft.write_at(bytes, 0).unwrap();
    (number, draft.publish(len, Meta::default(), &Condition::None).unwrap().etag)
}

fn finish(store: &PosixStore, key: &str, id: &str, parts: &[(u32, String)]) -> StoreResult<Facts> {
    store.finish_upload("bucket", key, id, parts, None, &Condition::None)
}

#[test]
fn an_upload_goes_on_at_other_stores_and_equal_parts_are_not_copied() {
    for abilities in variants() {
        let (dir, first) = store_with(abilities);
        let options = Options { abilities: Some(abilities), ..Options::default() };
        let [second, third] = [(); 2].map(|()| PosixStore::open(dir.path(), options).unwrap());
        let id = begin(&first, "deep/k");
        let all = bytes(12 * MIB, 3);
        // The last part comes in the middle.
        let one = part(&first, "deep/k", &id, 1, &all[..5 * MIB]);
        let three = part(&second, "deep/k", &id, 3, &all[10 * MIB..]);
        let two = part(&third, "deep/k", &id, 2, &all[5 * MIB..10 * MIB]);
        let known = third.parts("bucket", "deep/k", &id, 0, usize::MAX).unwrap();
        let known: Vec<_> = known.iter().map(|part| (part.number, part.facts.len)).collect();
        assert_eq!(known, [(1, 5 << 20), (2, 5 << 20), (3, 2 << 20)]);
        let data = dir.path().join(format!("bucket/.forebay/uploads/{id}/data"));
        let ino = std::fs::metadata(&data).unwrap().ino();

        let checksum = Checksum { algorithm: "CRC64NVME".into(), value: "x".into(), is_composite: false };
        let parts = [one, two, three];
        let finish = |store: &PosixStore| {
            store.finish_upload("bucket", "deep/k", &id, &parts, Some(checksum.clone()), &Condition::None)
        };
        let facts = finish(&third).unwrap();
        assert_eq!(
            (facts.len, facts.meta.parts.as_slice()),
            (12 << 20, [5 << 20, 5 << 20, 2 << 20].as_slice())
        );
        assert_eq!((facts.meta.user["a"].as_str(), &facts.meta.checksum), ("b", &Some(checksum.clone())));
        assert_eq!(read(&first, "deep/k"), all);
        assert_eq!(first.facts("bucket", "deep/k").unwrap(), facts);
        let is_renamed = std::fs::metadata(dir.path().join("bucket/deep/k")).unwrap().ino() == ino;
        assert_eq!(is_renamed, abilities.locks);

        assert_eq!(finish(&second).unwrap(), facts, "the same again");
        put(&first, "deep/k", b"other");
        assert!(matches!(finish(&second), Err(StoreError::NoUpload)));
        assert_eq!(read(&first, "deep/k"), b"other");
        assert_eq!(std::fs::read_dir(dir.path().join("bucket/.forebay/uploads")).unwrap().count(), 0);
    }
}

#[test]
fn parts_of_any_length_and_parts_that_come_again_are_copied_to_their_place() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let id = begin(&store, "k");
        let [a, b, c] = [bytes(6 * MIB, 1), bytes(5 * MIB, 2), bytes(3, 3)];
        part(&store, "k", &id, 7, &bytes(6 * MIB, 9));
        let last = part(&store, "k", &id, 9, &c);
        part(&store, "k", &id, 2, &bytes(6 * MIB, 8));
        let first = part(&store, "k", &id, 2, &a);
        let second = part(&store, "k", &id, 5, &b);
        finish(&store, "k", &id, &[first, second, last]).unwrap();
        assert_eq!(read(&store, "k"), [a, b, c].concat());
        assert_eq!(std::fs::read_dir(dir.path().join("bucket/.forebay/uploads")).unwrap().count(), 0);
        assert_eq!(crate::common::temporaries(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn a_part_that_broke_off_and_came_again_is_whole_in_the_object() {
    for abilities in variants() {
        let (_dir, store) = store_with(abilities);
        let id = begin(&store, "k");
        let [a, b] = [bytes(5 * MIB, 1), bytes(5 * MIB, 2)];
        let broken = store.begin_part("bucket", "k", &id, 1, Some(5 << 20)).unwrap();
        broken.write_at(&[0xff; 1000], 77).unwrap();
        // It still hangs while the client sends the part again and finishes.
        let first = part(&store, "k", &id, 1, &a);
        let second = part(&store, "k", &id, 2, &b);
        finish(&store, "k", &id, &[first, second]).unwrap();
        // Writes that come late reach nothing.
        let _ = broken.write_at(&[0xff; 1000], 99);
        assert!(matches!(
            broken.publish(5 << 20, Meta::default(), &Condition::None),
            Err(StoreError::NoUpload)
        ));
        assert!(read(&store, "k") == [a, b].concat());
    }
}

#[test]
fn what_is_asked_wrongly_is_refused_and_the_upload_stays() {
    let (_dir, store) = store_with(crate::common::abilities());
    assert!(matches!(store.begin_upload("none", "k", Meta::default()), Err(StoreError::NoBucket)));
    assert!(matches!(store.begin_upload("bucket", "a//b", Meta::default()), Err(StoreError::Key(_))));
    let id = begin(&store, "k");
    for (key, id) in [("other", id.as_str()), ("k", "../../x"), ("k", "0123"), ("k", "")] {
        assert!(matches!(store.upload("bucket", key, id), Err(StoreError::NoUpload)), "{key} {id}");
        assert!(matches!(store.begin_part("bucket", key, id, 1, None).map(drop), Err(StoreError::NoUpload)));
        assert!(matches!(store.abort_upload("bucket", key, id), Err(StoreError::NoUpload)));
    }
    let one = part(&store, "k", &id, 1, &bytes(5 * MIB, 1));
    let short = part(&store, "k", &id, 2, b"short");
    let three = part(&store, "k", &id, 3, &bytes(5 * MIB, 3));
    let try_parts = |parts: &[&(u32, String)]| {
        let parts: Vec<_> = parts.iter().map(|part| (*part).clone()).collect();
        finish(&store, "k", &id, &parts)
    };
    assert!(matches!(try_parts(&[]), Err(StoreError::PartOrder)));
    assert!(matches!(try_parts(&[&three, &one]), Err(StoreError::PartOrder)));
    assert!(matches!(try_parts(&[&one, &one]), Err(StoreError::PartOrder)));
    assert!(matches!(try_parts(&[&one, &(2, one.1.clone())]), Err(StoreError::NoPart(2))));
    assert!(matches!(try_parts(&[&one, &(4, one.1.clone())]), Err(StoreError::NoPart(4))));
    assert!(matches!(try_parts(&[&one, &short, &three]), Err(StoreError::PartLength(2))));
    assert!(matches!(store.facts("bucket", "k"), Err(StoreError::NoObject)));
    let ids: Vec<_> =
        crate::common::uploads(&store).into_iter().map(|upload| (upload.key, upload.id)).collect();
    assert_eq!(ids, [("k".to_owned(), id.clone())]);
    store.abort_upload("bucket", "k", &id).unwrap();
    assert!(matches!(try_parts(&[&one]), Err(StoreError::NoUpload)));
}

#[test]
fn a_bucket_goes_with_its_unfinished_uploads() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let id = begin(&store, "k");
        let one = part(&store, "k", &id, 1, b"bytes");
        let late = store.begin_part("bucket", "k", &id, 2, None).unwrap();
        store.remove_bucket("bucket").unwrap();
        assert!(!dir.path().join("bucket").exists());
        assert!(matches!(finish(&store, "k", &id, std::slice::from_ref(&one)), Err(StoreError::NoBucket)));
        store.make_bucket("bucket").unwrap();
        assert!(matches!(finish(&store, "k", &id, &[one]), Err(StoreError::NoUpload)));
        assert!(matches!(late.publish(0, Meta::default(), &Condition::None), Err(StoreError::NoUpload)));
    }
}

#[test]
fn pages_of_uploads_and_of_parts() {
    let (_dir, store) = store_with(crate::common::abilities());
    let keys = ["a/1", "a/2", "b", "b", "c/1", "d"];
    let ids: Vec<String> = keys.iter().map(|key| begin(&store, key)).collect();
    // A page as S3 shows it, and each of the next ones.
    let pages = |delimiter: Option<&str>, prefix: &str, max: usize| {
        let mut ask = UploadsAsk {
            delimiter: delimiter.map(Into::into),
            prefix: prefix.into(),
            max,
            ..UploadsAsk::default()
        };
        let mut all = Vec::new();
        loop {
            let page = store.uploads("bucket", &ask).unwrap();
            let mut names: Vec<String> = page.prefixes.clone();
            names.extend(page.uploads.iter().map(|upload| {
                let at = ids.iter().position(|id| *id == upload.id).unwrap();
                assert_eq!(upload.key, keys[at]);
                format!("{} {at}", upload.key)
            }));
            names.sort();
            assert!(names.len() <= max);
            all.push(names.join(","));
            let Some((key, id)) = page.next else { return all.join(" | ") };
            (ask.after, ask.after_id) = (key, Some(id));
        }
    };
    assert_eq!(pages(None, "", 9), "a/1 0,a/2 1,b 2,b 3,c/1 4,d 5");
    assert_eq!(pages(None, "", 3), "a/1 0,a/2 1,b 2 | b 3,c/1 4,d 5");
    assert_eq!(pages(Some("/"), "", 2), "a/,b 2 | b 3,c/ | d 5");
    assert_eq!(pages(Some("/"), "a/", 1), "a/1 0 | a/2 1");
    for number in [3, 1, 20] {
        part(&store, "d", &ids[5], number, b"x");
    }
    let parts = |behind, max| {
        let parts = store.parts("bucket", "d", &ids[5], behind, max).unwrap();
        parts.iter().map(|part| part.number).collect::<Vec<_>>()
    };
    assert_eq!((parts(0, 9), parts(1, 1), parts(20, 9)), (vec![1, 3, 20], vec![3], vec![]));
}

#[test]
fn a_condition_that_does_not_hold_leaves_object_and_upload() {
    let (_dir, store) = store_with(crate::common::abilities());
    let old = put(&store, "k", b"old");
    let id = begin(&store, "k");
    let [a, b] = [bytes(5 * MIB, 1), bytes(MIB, 2)];
    let parts = [part(&store, "k", &id, 1, &a), part(&store, "k", &id, 2, &b)];
    let finish = |condition: &Condition| store.finish_upload("bucket", "k", &id, &parts, None, condition);
    assert!(matches!(finish(&Condition::Absent), Err(StoreError::Precondition)));
    assert!(matches!(finish(&Condition::Matches(vec!["x".into()])), Err(StoreError::Precondition)));
    assert_eq!(read(&store, "k"), b"old");
    finish(&Condition::Matches(vec![old.etag])).unwrap();
    assert!(read(&store, "k") == [a, b].concat());
}

#[test]
fn a_sweep_goes_by_the_last_part_of_an_upload() {
    let (dir, store) = store_with(crate::common::abilities());
    let id = begin(&store, "k");
    let upload = dir.path().join(format!("bucket/.forebay/uploads/{id}"));
    let two_days_ago = std::time::SystemTime::now() - Duration::from_hours(48);
    let age = || std::fs::File::open(&upload).unwrap().set_modified(two_days_ago).unwrap();
    age();
    part(&store, "k", &id, 1, b"x");
    assert_eq!(store.sweep(Duration::from_hours(24)).unwrap().uploads, 0);
    age();
    // Two gateways at once.
    let other = PosixStore::open(dir.path(), crate::common::quick()).unwrap();
    let swept: usize = std::thread::scope(|scope| {
        let run = |store: &PosixStore| store.sweep(Duration::from_hours(24)).unwrap().uploads;
        let threads = [&store, &other].map(|store| scope.spawn(move || run(store)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(swept, 1);
    assert!(!upload.exists());
}

#[test]
fn a_sweep_takes_what_is_old_and_what_nobody_holds() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let id = begin(&store, "k");
        part(&store, "k", &id, 1, b"x");
        let long = Meta { user: BTreeMap::from([("long".into(), "x".repeat(30_000))]), ..Meta::default() };
        let write =
            |key: &str| store.begin("bucket", key, None).unwrap().publish(0, long.clone(), &Condition::None);
        write("replaced").unwrap();
        put(&store, "replaced", b"new");
        write("stays").unwrap();
        write("folder/").unwrap();
        // Alive: a draft that is open. Dead: a file that nobody holds.
        let draft = store.begin("bucket", "draft", None).unwrap();
        let _ = std::fs::create_dir(dir.path().join("bucket/.forebay/tmp"));
        std::fs::write(dir.path().join("bucket/.forebay/tmp/dead"), "x").unwrap();
        let day = Duration::from_hours(24);
        let young = store.sweep(day).unwrap();
        assert_eq!(young, Swept { temporaries: usize::from(abilities.locks), ..Swept::default() });
        assert!(store.upload("bucket", "k", &id).is_ok());
        draft.publish(0, Meta::default(), &Condition::None).unwrap();

        let old = store.sweep(Duration::ZERO).unwrap();
        assert_eq!((old.uploads, old.records), (1, usize::from(abilities.attribute_room < 31_000)));
        assert!(matches!(store.upload("bucket", "k", &id), Err(StoreError::NoUpload)));
        for key in ["stays", "folder/"] {
            assert_eq!(store.facts("bucket", key).unwrap().meta, long, "{key}");
        }
        assert_eq!(crate::common::temporaries(dir.path()), Vec::<String>::new());
    }
}
