//! The POSIX store through its trait: objects, conditions, listings.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_gateway::posix::{Options, PosixStore, User};
use forebay_gateway::store::{Checksum, Condition, Entry, ListAsk, Meta, Store, StoreError};
use proptest::prelude::*;

use crate::common::{abilities, put, put_if, read, store, store_with, variants};

#[test]
fn an_object_has_its_bytes_its_meta_and_an_etag_that_is_no_md5() {
    let (dir, store) = store();
    let meta = Meta {
        headers: BTreeMap::from([("content-type".into(), "text/plain".into())]),
        user: BTreeMap::from([("colour".into(), "blue".into())]),
        checksum: Some(Checksum { algorithm: "CRC64NVME".into(), value: "AAA=".into(), is_composite: false }),
        ..Meta::default()
    };
    let draft = store.begin("bucket", "a/b/c.txt", Some(11)).unwrap();
    draft.write_at(b"world", 6).unwrap();
    draft.write_at(b"hello ", 0).unwrap();
    let facts = draft.publish(11, meta.clone(), &Condition::None).unwrap();
    assert_eq!((facts.len, &facts.meta), (11, &meta));
    assert!(facts.etag.contains('-'), "{}", facts.etag);

    let mut opened = store.open("bucket", "a/b/c.txt").unwrap();
    let mut bytes = String::new();
    opened.file.read_to_string(&mut bytes).unwrap();
    assert_eq!((bytes.as_str(), &opened.facts), ("hello world", &facts));
    assert_eq!(std::fs::read(dir.path().join("bucket/a/b/c.txt")).unwrap(), b"hello world");
    let other = PosixStore::open(dir.path(), Options::default()).unwrap();
    assert_eq!(other.facts("bucket", "a/b/c.txt").unwrap(), facts);
}

#[test]
fn equal_bytes_written_one_after_the_other_have_different_etags() {
    let (_dir, store) = store();
    let etags: BTreeSet<String> = (0..200).map(|_| put(&store, "k", b"same").etag).collect();
    assert_eq!(etags.len(), 200);
}

#[test]
fn an_md5_that_the_client_sent_is_the_etag_in_facts_and_listings() {
    let (_dir, store) = store();
    let draft = store.begin("bucket", "k", None).unwrap();
    draft.write_at(b"hello", 0).unwrap();
    let md5 = "5d41402abc4b2a76b9719d911017c592";
    let meta = Meta { md5: Some(md5.into()), ..Meta::default() };
    assert_eq!(draft.publish(5, meta, &Condition::None).unwrap().etag, md5);
    assert_eq!(store.facts("bucket", "k").unwrap().etag, md5);
    let page = store.list("bucket", &ListAsk { max: 9, ..ListAsk::default() }).unwrap();
    assert!(matches!(&page.entries[..], [Entry::Object(object)] if object.etag == md5));
}

#[test]
fn a_file_that_another_program_writes_is_an_object_and_loses_only_what_is_said_of_the_bytes() {
    let (dir, store) = store();
    std::fs::write(dir.path().join("bucket/plain"), "of another").unwrap();
    let facts = store.facts("bucket", "plain").unwrap();
    assert_eq!((facts.len, facts.meta), (10, Meta::default()));

    let draft = store.begin("bucket", "k", None).unwrap();
    draft.write_at(b"hello", 0).unwrap();
    let meta = Meta {
        user: BTreeMap::from([("a".into(), "b".into())]),
        md5: Some("5d41402abc4b2a76b9719d911017c592".into()),
        parts: vec![5],
        checksum: Some(Checksum { algorithm: "CRC32".into(), value: "x".into(), is_composite: false }),
        ..Meta::default()
    };
    let first = draft.publish(5, meta.clone(), &Condition::None).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("bucket/k")).unwrap();
    file.write_all_at(b"J", 0).unwrap();
    let facts = store.facts("bucket", "k").unwrap();
    assert_eq!(facts.meta, Meta { user: meta.user, ..Meta::default() });
    assert_ne!(facts.etag, first.etag);
    assert!(facts.etag.contains('-'));
}

#[test]
fn a_draft_that_is_dropped_leaves_nothing() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let draft = store.begin("bucket", "new/k", None).unwrap();
        draft.write_at(b"hello", 0).unwrap();
        drop(draft);
        assert!(!dir.path().join("bucket/new").exists());
        assert_eq!(crate::common::temporaries(dir.path()), Vec::<String>::new());
        assert!(matches!(store.facts("bucket", "new/k"), Err(StoreError::NoObject)));
    }
}

#[test]
fn an_object_replaced_while_it_is_read_stays_whole_for_the_reader() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        put(&store, "k", b"old");
        let mut opened = store.open("bucket", "k").unwrap();
        put(&store, "k", b"newer");
        let mut bytes = Vec::new();
        opened.file.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.as_slice(), opened.facts.len), (b"old".as_slice(), 3));
        assert_eq!(read(&store, "k"), b"newer");
        assert_eq!(crate::common::temporaries(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn conditions_hold_on_what_is_there() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let absent = Condition::Absent;
        let first = put_if(&store, "a/k", b"1", &absent).unwrap();
        assert!(matches!(put_if(&store, "a/k", b"2", &absent), Err(StoreError::Precondition)));
        let matches = |etag: &str| Condition::Matches(vec![etag.to_owned()]);
        if abilities.locks {
            assert!(matches!(put_if(&store, "a/k", b"2", &matches("x")), Err(StoreError::Precondition)));
            assert!(matches!(put_if(&store, "a/none", b"2", &matches("*")), Err(StoreError::NoObject)));
            let second = put_if(&store, "a/k", b"2", &matches(&first.etag)).unwrap();
            assert!(matches!(
                put_if(&store, "a/k", b"3", &matches(&first.etag)),
                Err(StoreError::Precondition)
            ));
            let remove = |etag: &str| store.remove("bucket", "a/k", &matches(etag));
            assert!(matches!(remove(&first.etag), Err(StoreError::Precondition)));
            remove(&second.etag).unwrap();
            assert!(matches!(remove(&second.etag), Err(StoreError::NoObject)));
        } else {
            assert!(matches!(put_if(&store, "a/k", b"2", &matches("*")), Err(StoreError::Other(_))));
            store.remove("bucket", "a/k", &Condition::None).unwrap();
        }
        assert!(!dir.path().join("bucket/a").exists(), "the empty directory goes");
        assert_eq!(crate::common::temporaries(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn a_key_and_a_key_below_it_cannot_both_be() {
    let (dir, store) = store();
    put(&store, "a/b", b"1");
    assert!(matches!(put_if(&store, "a", b"2", &Condition::None), Err(StoreError::Key(_))));
    assert!(matches!(put_if(&store, "a", b"2", &Condition::Absent), Err(StoreError::Key(_))));
    assert!(matches!(put_if(&store, "a/b/c", b"2", &Condition::None), Err(StoreError::Key(_))));
    assert!(matches!(store.facts("bucket", "a"), Err(StoreError::NoObject)));
    assert!(matches!(store.facts("bucket", "a/b/c"), Err(StoreError::NoObject)));
    store.remove("bucket", "a", &Condition::None).unwrap();
    assert_eq!(read(&store, "a/b"), b"1");
    // A directory that is empty, as a program that was killed leaves it, does not keep the key away. Others' stay.
    std::fs::create_dir(dir.path().join("bucket/empty")).unwrap();
    store.remove("bucket", "empty/never", &Condition::None).unwrap();
    assert!(dir.path().join("bucket/empty").exists());
    put_if(&store, "empty", b"3", &Condition::Absent).unwrap();
    assert_eq!(read(&store, "empty"), b"3");
}

#[test]
fn no_link_leads_out_of_a_bucket() {
    let (dir, store) = store();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let link =
        |name: &str, to: &Path| std::os::unix::fs::symlink(to, dir.path().join("bucket").join(name)).unwrap();
    link("dir", outside.path());
    link("file", &outside.path().join("secret"));
    link("loop", Path::new("loop"));
    link("up", Path::new(".."));
    std::os::unix::fs::symlink(outside.path(), dir.path().join("linked")).unwrap();
    for key in ["dir/secret", "file", "loop", "up/bucket/file", "dir/"] {
        assert!(matches!(store.open("bucket", key), Err(StoreError::NoObject)), "{key}");
    }
    assert!(matches!(put_if(&store, "dir/new", b"x", &Condition::None), Err(StoreError::Key(_))));
    assert!(!outside.path().join("new").exists());
    assert!(matches!(store.open("linked", "secret"), Err(StoreError::NoBucket)));
    assert_eq!(crate::common::keys(&store, &ListAsk { max: 99, ..ListAsk::default() }), Vec::<String>::new());
    // A PUT replaces the link itself.
    put(&store, "file", b"mine");
    assert_eq!(read(&store, "file"), b"mine");
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn what_is_no_file_is_no_object() {
    let (dir, store) = store();
    let path = dir.path().join("bucket");
    rustix::fs::mknodat(rustix::fs::CWD, path.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
    for key in ["fifo", "socket"] {
        assert!(matches!(store.open("bucket", key), Err(StoreError::NoObject)), "{key}");
    }
    assert_eq!(crate::common::keys(&store, &ListAsk { max: 9, ..ListAsk::default() }), Vec::<String>::new());
}

#[test]
fn a_key_that_ends_in_a_slash_is_a_directory_with_meta() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let meta = Meta { user: BTreeMap::from([("a".into(), "b".into())]), ..Meta::default() };
        let facts =
            store.begin("bucket", "d/e/", None).unwrap().publish(0, meta, &Condition::Absent).unwrap();
        assert_eq!(store.facts("bucket", "d/e/").unwrap(), facts);
        put(&store, "d/e/below", b"x");
        assert_eq!(store.facts("bucket", "d/e/").unwrap(), facts, "names in it do not change it");
        assert!(matches!(store.facts("bucket", "d/"), Err(StoreError::NoObject)));
        let all = ListAsk { max: 9, ..ListAsk::default() };
        assert_eq!(crate::common::keys(&store, &all), ["d/e/", "d/e/below"]);
        store.remove("bucket", "d/e/below", &Condition::None).unwrap();
        assert_eq!(
            crate::common::keys(&store, &all),
            ["d/e/"],
            "a directory that is an object stays when it is empty"
        );
        assert!(matches!(put_if(&store, "d/e/", b"bytes", &Condition::None), Err(StoreError::Key(_))));
        let again =
            store.begin("bucket", "d/e/", None).unwrap().publish(0, Meta::default(), &Condition::Absent);
        assert!(matches!(again, Err(StoreError::Precondition)));
        store.remove("bucket", "d/e/", &Condition::None).unwrap();
        assert!(!dir.path().join("bucket/d").exists());
    }
}

#[test]
fn meta_of_any_length_is_kept_and_does_not_describe_another_file() {
    for abilities in variants() {
        let (dir, store) = store_with(abilities);
        let long = Meta { user: BTreeMap::from([("long".into(), "x".repeat(30_000))]), ..Meta::default() };
        let draft = store.begin("bucket", "k", None).unwrap();
        draft.write_at(b"1", 0).unwrap();
        draft.publish(1, long.clone(), &Condition::None).unwrap();
        let other =
            PosixStore::open(dir.path(), Options { abilities: Some(abilities), ..Options::default() })
                .unwrap();
        assert_eq!(other.facts("bucket", "k").unwrap().meta, long);
        put(&other, "k", b"2");
        assert_eq!(store.facts("bucket", "k").unwrap().meta, Meta::default());
        // Said later of an object that is there.
        let facts = store.facts("bucket", "k").unwrap();
        let said = store.describe("bucket", "k", None, &|meta| meta.user.clone_from(&long.user)).unwrap();
        assert_eq!((&said.etag, &said.meta), (&facts.etag, &long));
        assert_eq!(other.facts("bucket", "k").unwrap(), said);
        let short = store.describe("bucket", "k", None, &|meta| meta.user.clear()).unwrap();
        assert_eq!((&other.facts("bucket", "k").unwrap(), &short.etag), (&short, &facts.etag));
        assert_eq!(read(&store, "k"), b"2");
    }
}

#[test]
fn buckets_are_directories() {
    let (dir, store) = store();
    assert!(matches!(store.make_bucket("bucket"), Err(StoreError::BucketExists)));
    assert!(matches!(store.make_bucket("No"), Err(StoreError::BucketName(_))));
    assert!(matches!(store.bucket("none"), Err(StoreError::NoBucket)));
    assert!(matches!(store.open("none", "k"), Err(StoreError::NoBucket)));
    assert!(matches!(store.begin("none", "k", None).map(drop), Err(StoreError::NoBucket)));
    assert!(matches!(store.remove("none", "k", &Condition::None), Err(StoreError::NoBucket)));
    assert!(matches!(
        store.list("none", &ListAsk { max: 1, ..ListAsk::default() }),
        Err(StoreError::NoBucket)
    ));
    std::fs::write(dir.path().join("a-file"), "x").unwrap();
    store.make_bucket("another").unwrap();
    let names: Vec<String> = store.buckets().unwrap().into_iter().map(|bucket| bucket.name).collect();
    assert_eq!(names, ["another", "bucket"]);
    put(&store, "a/b", b"x");
    assert!(matches!(store.remove_bucket("bucket"), Err(StoreError::BucketFull)));
    store.remove("bucket", "a/b", &Condition::None).unwrap();
    std::fs::create_dir_all(dir.path().join("bucket/empty/below")).unwrap();
    store.remove_bucket("bucket").unwrap();
    assert!(!dir.path().join("bucket").exists());
    assert!(matches!(store.remove_bucket("bucket"), Err(StoreError::NoBucket)));
}

#[test]
fn a_bucket_that_is_not_empty_stays_as_it_is() {
    let (dir, store) = store_with(abilities());
    let path = dir.path().join("bucket");
    let id = store.begin_upload("bucket", "k", Meta::default()).unwrap();
    for name in ["empty/below", "z/deep", ".forebay/tmp", ".forebay/meta"] {
        std::fs::create_dir_all(path.join(name)).unwrap();
    }
    std::fs::write(path.join(".forebay/tmp/temporary"), "x").unwrap();
    std::fs::write(path.join(".forebay/meta/record"), "x").unwrap();
    let stays = || {
        assert!(matches!(store.remove_bucket("bucket"), Err(StoreError::BucketFull)));
        for name in ["empty/below", "z/deep", ".forebay/tmp/temporary", ".forebay/meta/record"] {
            assert!(path.join(name).exists(), "{name}");
        }
        assert_eq!(store.upload("bucket", "k", &id).unwrap().id, id);
    };
    // An object; a thing that is none; a directory that is an object.
    put(&store, "z/object", b"x");
    stays();
    store.remove("bucket", "z/object", &Condition::None).unwrap();
    std::fs::create_dir_all(path.join("z/deep")).unwrap();
    std::os::unix::fs::symlink("nowhere", path.join("z/deep/link")).unwrap();
    stays();
    std::fs::remove_file(path.join("z/deep/link")).unwrap();
    let folder = store.begin("bucket", "z/deep/", None).unwrap();
    folder.publish(0, Meta::default(), &Condition::None).unwrap();
    stays();
    store.remove("bucket", "z/deep/", &Condition::None).unwrap();
    store.remove_bucket("bucket").unwrap();
    assert!(!path.exists());
}

#[test]
fn an_account_has_the_rights_of_its_user_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user's rights need root");
        return;
    }
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let (dir, root) = store();
    // The directory of the test itself must let another user through.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = User { uid: 12345, gid: 23456 };
    let theirs = PosixStore::open(dir.path(), Options { user: Some(user), ..Options::default() }).unwrap();
    put(&root, "of-root", b"secret");
    let path = dir.path().join("bucket");
    std::fs::set_permissions(path.join("of-root"), std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(theirs.open("bucket", "of-root"), Err(StoreError::Denied)));
    assert!(matches!(put_if(&theirs, "new", b"x", &Condition::None), Err(StoreError::Denied)));
    // A file that only the groups of root may read.
    std::fs::set_permissions(path.join("of-root"), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(theirs.open("bucket", "of-root"), Err(StoreError::Denied)));
    theirs.make_bucket("theirs").expect_err("the directory of buckets is root's");
    root.make_bucket("theirs").unwrap();
    chown(dir.path().join("theirs"), Some(user.uid), Some(user.gid)).unwrap();
    let draft = theirs.begin("theirs", "a/k", None).unwrap();
    draft.write_at(b"x", 0).unwrap();
    draft.publish(1, Meta::default(), &Condition::None).unwrap();
    for name in ["theirs/a", "theirs/a/k"] {
        let facts = std::fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!((facts.uid(), facts.gid()), (user.uid, user.gid), "{name}");
    }
    // This thread is root's again.
    assert_eq!(read(&root, "of-root"), b"secret");
}

#[test]
fn an_accounts_directory_is_reached_by_no_link() {
    let (dir, store) = store();
    put(&store, "k", b"x");
    std::os::unix::fs::symlink("bucket", dir.path().join("link")).unwrap();
    let open = |path: &str| PosixStore::open_below(dir.path(), path.as_ref(), crate::common::quick());
    assert!(open("bucket").is_ok());
    for path in ["link", "link/below", "bucket/../..", "/"] {
        assert!(open(path).is_err(), "{path}");
    }
}

#[test]
fn a_bucket_where_users_keep_their_own_files_has_a_directory_that_does_so_too() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, store) = store();
    let bucket = dir.path().join("bucket");
    std::fs::set_permissions(&bucket, std::fs::Permissions::from_mode(0o1777)).unwrap();
    put(&store, "k", b"x");
    // A second one, which has to be moved over the first.
    put(&store, "k", b"y");
    for path in [".forebay", ".forebay/tmp"] {
        let mode = std::fs::metadata(bucket.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777, "{path}");
    }
}

#[test]
fn a_mount_that_cannot_be_written_is_read() {
    let (dir, store) = store();
    put(&store, "a/k", b"bytes");
    let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    // The thread has mounts of its own, which go with it.
    let read_there = move || {
        let mount = |flags: libc::c_ulong| {
            // SAFETY: the path lives through the calls, which change this thread's mounts alone.
            let done = unsafe {
                libc::mount(path.as_ptr(), path.as_ptr(), std::ptr::null(), flags, std::ptr::null())
            };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        };
        // SAFETY: takes a flag, changes this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return eprintln!("skipped: mounts of its own need CAP_SYS_ADMIN");
        }
        // SAFETY: texts that live as long as the program.
        unsafe {
            libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            )
        };
        mount(libc::MS_BIND);
        mount(libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY);
        let store = PosixStore::open(dir.path(), Options::default()).unwrap();
        assert_eq!(read(&store, "a/k"), b"bytes");
        assert!(matches!(put_if(&store, "new", b"x", &Condition::None), Err(StoreError::Denied)));
        let all = store.list("bucket", &ListAsk { max: 10, ..ListAsk::default() }).unwrap();
        assert_eq!(all.entries.len(), 1);
    };
    std::thread::spawn(read_there).join().unwrap();
}

#[test]
fn delete_and_put_beside_each_other_in_one_directory_lose_nothing() {
    let (dir, _) = store();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = PosixStore::open(dir.path(), crate::common::quick()).unwrap();
            scope.spawn(move || {
                for round in 0..100 {
                    let key = format!("a/b/c{}/{writer}", round % 3);
                    put(&store, &key, key.as_bytes());
                    assert_eq!(read(&store, &key), key.as_bytes());
                    store.remove("bucket", &key, &Condition::None).unwrap();
                }
            });
        }
    });
    assert!(!dir.path().join("bucket/a").exists());
}

#[test]
fn one_of_eight_conditional_writers_through_two_stores_wins() {
    for abilities in variants() {
        let (dir, first) = store_with(abilities);
        let options = Options { abilities: Some(abilities), ..crate::common::quick() };
        let stores: Vec<_> = (0..2).map(|_| PosixStore::open(dir.path(), options).unwrap()).collect();
        let mut etag = None;
        for round in 0..50 {
            let condition = match &etag {
                Some(etag) if abilities.locks && round % 2 == 1 => {
                    Condition::Matches(vec![String::clone(etag)])
                }
                _ => Condition::Absent,
            };
            if condition == Condition::Absent {
                first.remove("bucket", "deep/k", &Condition::None).unwrap();
            }
            let winners: Vec<(usize, String)> = std::thread::scope(|scope| {
                let (stores, condition) = (&stores, &condition);
                let write = |writer: usize| {
                    let bytes = format!("{round} {writer}").repeat(1000);
                    match put_if(&stores[writer % 2], "deep/k", bytes.as_bytes(), condition) {
                        Ok(facts) => Some((writer, facts.etag)),
                        Err(StoreError::Precondition) => None,
                        Err(error) => panic!("{error}"),
                    }
                };
                let threads: Vec<_> = (0..8).map(|writer| scope.spawn(move || write(writer))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(winners.len(), 1, "round {round} {condition:?}: {winners:?}");
            let (writer, won) = &winners[0];
            assert_eq!(read(&first, "deep/k"), format!("{round} {writer}").repeat(1000).as_bytes());
            assert_eq!(first.facts("bucket", "deep/k").unwrap().etag, *won);
            etag = Some(won.clone());
        }
    }
}

/// Names that meet at the borders of directories.
fn keys() -> impl Strategy<Value = BTreeSet<String>> {
    let name = prop::sample::select(vec![
        "a", "a-", "a.", "a0", "b", "ab", "-", "ü", ".x", "a b", "~", "aa", "\u{1}",
    ]);
    let key = prop::collection::vec(name, 1..5).prop_map(|names| names.join("/"));
    let marked = (key, prop::bool::weighted(0.15))
        .prop_map(|(key, is_folder)| if is_folder { key + "/" } else { key });
    prop::collection::btree_set(marked, 0..40).prop_map(|keys| possible(&keys))
}

/// Without the keys that another key has as a directory.
fn possible(keys: &BTreeSet<String>) -> BTreeSet<String> {
    let is_above = |key: &str, other: &str| other.starts_with(&format!("{key}/"));
    keys.iter().filter(|key| !keys.iter().any(|other| is_above(key, other))).cloned().collect()
}

/// What S3 says that a listing has: the definition, over a sorted set.
fn expected(keys: &BTreeSet<String>, ask: &ListAsk) -> Vec<String> {
    let mut entries = BTreeSet::new();
    for key in keys.iter().filter(|key| key.starts_with(&ask.prefix)) {
        let delimiter = ask.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let at =
            delimiter.and_then(|delimiter| Some(key[ask.prefix.len()..].find(delimiter)? + delimiter.len()));
        let entry = at.map_or(key.clone(), |at| key[..ask.prefix.len() + at].to_owned());
        if entry > ask.after {
            entries.insert(entry);
        }
    }
    entries.into_iter().collect()
}

/// The prefixes of a bucket with `/`.
fn prefixes(store: &dyn Store) -> Vec<String> {
    let ask = ListAsk { delimiter: Some("/".into()), max: 1000, ..ListAsk::default() };
    let entries = store.list("bucket", &ask).unwrap().entries.into_iter();
    entries.filter_map(|entry| if let Entry::Prefix(prefix) = entry { Some(prefix) } else { None }).collect()
}

/// A directory that had a key is not opened again while it stays as it is, and is looked at again when it does not.
#[test]
fn a_prefix_is_listed_while_there_is_a_key_below_it() {
    let (dir, store) = store();
    let at = |path: &str| dir.path().join("bucket").join(path);
    for path in ["file", "deep/er", "empty", "none/below", "marked"] {
        std::fs::create_dir_all(at(path)).unwrap();
    }
    for path in ["file/k", "deep/er/k"] {
        std::fs::write(at(path), "").unwrap();
    }
    put(&store, "marked/", b"");
    // Directories that changed a moment ago are looked at each time.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    for _ in 0..2 {
        assert_eq!(prefixes(&store), ["deep/", "file/", "marked/"]);
    }
    std::fs::remove_file(at("file/k")).unwrap();
    std::fs::remove_file(at("deep/er/k")).unwrap();
    std::fs::write(at("empty/k"), "").unwrap();
    assert_eq!(prefixes(&store), ["empty/", "marked/"]);
    // A directory in place of another one.
    std::fs::rename(at("file"), at("empty-too")).unwrap();
    std::fs::rename(at("empty"), at("file")).unwrap();
    store.remove("bucket", "marked/", &Condition::None).unwrap();
    assert_eq!(prefixes(&store), ["file/"]);
}

/// Many names are looked at by several threads: each stays at its place, and with its own record.
#[test]
fn long_pages_are_those_of_short_ones() {
    let (dir, store) = store();
    let at = |path: &str| dir.path().join("bucket").join(path);
    let mut keys = BTreeSet::new();
    for number in 0..900 {
        let name = format!("{:03}", number * 7 % 900);
        match number % 5 {
            0 => {
                std::fs::create_dir(at(&name)).unwrap();
                std::fs::write(at(&format!("{name}/k")), "").unwrap();
                keys.insert(format!("{name}/k"));
            }
            1 => std::fs::create_dir(at(&name)).unwrap(),
            2 => std::os::unix::fs::symlink("elsewhere", at(&name)).unwrap(),
            _ => {
                put(&store, &name, name.as_bytes());
                keys.insert(name);
            }
        }
    }
    for delimiter in [None, Some("/".to_owned()), Some("7".to_owned())] {
        for (max, after) in [(1000, ""), (1000, "333"), (400, "12"), (7, "5")] {
            let ask =
                ListAsk { delimiter: delimiter.clone(), max, after: after.into(), ..ListAsk::default() };
            let page = store.list("bucket", &ask).unwrap();
            let expected: Vec<String> = expected(&keys, &ask).into_iter().take(max).collect();
            assert_eq!(crate::common::entries(&page), expected, "{ask:?}");
            for entry in &page.entries {
                let Entry::Object(object) = entry else { continue };
                let facts = store.open("bucket", &object.key).unwrap().facts;
                assert_eq!((&object.etag, object.len), (&facts.etag, facts.len), "{}", object.key);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn listings_are_those_of_a_sorted_set_of_keys(
        keys in keys(),
        prefix in prop::sample::select(vec!["", "a", "a/", "a/a", "a-", "a/a-/", "ü", "b/", "x", "a//", "../", ".forebay/"]),
        delimiter in prop::sample::select(vec![None, Some("/"), Some("a"), Some("-/"), Some("a/a"), Some("ü"), Some(" ")]),
        after in prop::sample::select(vec!["", "a", "a/", "a-", "a/a/", "a/a/zz", "a0", "b", "~~", "a/b"]),
        max in 1usize..6,
    ) {
        let (dir, store) = crate::common::quick_store(abilities());
        for key in &keys {
            store.begin("bucket", key, None).unwrap().publish(0, Meta::default(), &Condition::None).unwrap();
        }
        // Directories without keys are nobody's prefix.
        let _ = std::fs::create_dir_all(dir.path().join("bucket/a-empty/below"));
        let _ = std::fs::create_dir_all(dir.path().join("bucket/zz"));
        let mut ask = ListAsk { prefix: prefix.into(), delimiter: delimiter.map(Into::into), after: after.into(), max: 1000 };
        let expected = expected(&keys, &ask);
        prop_assert_eq!(&crate::common::keys(&store, &ask), &expected);
        ask.max = max;
        let mut paged = Vec::new();
        loop {
            let page = store.list("bucket", &ask).unwrap();
            let entries = crate::common::entries(&page);
            prop_assert!(entries.len() <= max);
            prop_assert!(page.next.is_none() || entries.len() == max);
            paged.extend(entries);
            match page.next {
                Some(next) => ask.after = next,
                None => break,
            }
        }
        prop_assert_eq!(paged, expected);
    }
}
