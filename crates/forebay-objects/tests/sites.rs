//! Several sites: reads move on to the next one, and never mix the bytes of two objects.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3, Fault, Place, fill_pattern};
use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};
use forebay_objects::{Bucket, Listed};
use proptest::prelude::*;

const BUCKET: &str = "bucket";
const KEY: &str = "key";
const LEN: u64 = (24 << 20) + 12_345;

/// Tests of a process take turns: the variables are the process's.
static TURN: Mutex<()> = Mutex::new(());

/// Two servers that the environment names.
struct Pair {
    near: FakeS3,
    far: FakeS3,
    _turn: MutexGuard<'static, ()>,
}

/// The same whose reads are given up after a while: tests that want the error do not wait for a minute.
fn pair() -> Pair {
    pair_that_gives_up_after(Duration::from_secs(2))
}

fn pair_that_gives_up_after(deadline: Duration) -> Pair {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    forebay_objects::give_up_after(deadline);
    forebay_objects::register();
    let (near, far) = (FakeS3::start(), FakeS3::start());
    let sites = format!("near={},far={}", near.endpoint(), far.endpoint());
    for (name, value) in near.environment().into_iter().chain([("FOREBAY_S3_ENDPOINTS", sites)]) {
        // SAFETY: other threads of tests wait for their turn; those of the client read variables when an object is opened.
        unsafe { std::env::set_var(name, value) };
    }
    for server in [&near, &far] {
        server.make_bucket(BUCKET);
    }
    Pair { near, far, _turn: turn }
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill_pattern(seed, 0, &mut bytes);
    bytes
}

fn refuse_all(server: &FakeS3) {
    server.faults(|_| Some(Fault::Reset(Place::BeforeHead)));
}

/// Dies behind this many further GETs, within the next one's body.
fn die_after(server: &FakeS3, gets: u64, bytes: u64) {
    let mut left = gets;
    let mut is_dead = false;
    server.faults(move |seen| {
        if is_dead {
            return Some(Fault::Reset(Place::BeforeHead));
        }
        if seen.asked != Asked::Get {
            return None;
        }
        if left > 0 {
            left -= 1;
            return None;
        }
        is_dead = true;
        Some(Fault::Reset(Place::InBody(bytes)))
    });
}

fn url(site: &str) -> String {
    format!("s3://{site}{BUCKET}/{KEY}")
}

fn open() -> Result<File> {
    File::open(url(""))
}

fn read(file: &File, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut memory = vec![0; len as usize];
    file.read_host(&mut memory, offset)?;
    Ok(memory)
}

/// The same object at both, by different ETags.
fn put_both(sites: &Pair, bytes: &[u8]) {
    for (server, etag) in [(&sites.near, "near-1"), (&sites.far, "far-1")] {
        server.put(BUCKET, KEY, bytes);
        server.tag(BUCKET, KEY, etag);
    }
}

/// What each site says is in the error.
fn names_both(error: &Error) -> bool {
    error
        .context()
        .iter()
        .any(|(name, value)| *name == "sites" && value.contains("near: ") && value.contains("far: "))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    /// The near site dies somewhere within a read: the same bytes come from the far one, or the read is an error.
    #[test]
    fn a_read_goes_on_with_the_same_bytes_or_not_at_all(
        gets in 0_u64..3,
        bytes in 0_u64..(8 << 20),
        has_same in any::<bool>(),
        offset in 0_u64..1000,
    ) {
        let sites = pair();
        let ours = pattern(1, LEN);
        put_both(&sites, &ours);
        if !has_same {
            sites.far.put(BUCKET, KEY, pattern(2, LEN));
        }
        let file = open().unwrap();
        die_after(&sites.near, gets, bytes);
        match read(&file, offset, LEN - offset) {
            Ok(got) => {
                prop_assert!(got == ours[offset as usize..], "other bytes");
                prop_assert!(has_same, "the near site died, and the far one has others");
                prop_assert!(file.bytes_by_site().iter().any(|(name, bytes)| name == "far" && *bytes > 0));
            }
            Err(error) => {
                prop_assert!(!has_same, "{error:?}");
                prop_assert!(names_both(&error), "{error:?}");
            }
        }
    }
}

/// Bytes that were kept at the opening count, too, and the sum of both is all.
#[test]
fn a_receipt_says_which_site_gave_how_many_bytes() {
    let sites = pair();
    let bytes = pattern(1, LEN);
    put_both(&sites, &bytes);
    let file = open().unwrap();
    die_after(&sites.near, 1, 1 << 20);
    let note = file.late_note().unwrap();
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    let by_site = file.bytes_by_site();
    assert_eq!(by_site.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["near", "far"]);
    assert!(
        by_site.iter().all(|(_, bytes)| *bytes > 0)
            && by_site.iter().map(|(_, bytes)| bytes).sum::<u64>() >= LEN
    );
    let text = note().unwrap();
    assert!(text.contains(&format!("near {}, far {}", by_site[0].1, by_site[1].1)), "{text}");
    assert!(file.facts().way.unwrap().contains("site far"), "it is read there now");
}

/// A length that differs is enough to know.
#[test]
fn objects_without_equal_checksums_are_not_mixed() {
    let sites = pair();
    let bytes = pattern(1, LEN);
    for (change, why) in
        [("length", "another length"), ("none", "no CRC-64/NVME"), ("absent", "no such object")]
    {
        put_both(&sites, &bytes);
        sites.near.no_faults();
        sites.far.no_faults();
        match change {
            "length" => drop(sites.far.put(BUCKET, KEY, &bytes[1..])),
            "none" => sites.far.put_pattern(BUCKET, KEY, LEN),
            _ => sites.far.remove(BUCKET, KEY),
        }
        wait_for("the near site is not asked", || {
            open().is_ok_and(|file| file.facts().way.unwrap().contains("site near"))
        });
        let file = open().unwrap();
        die_after(&sites.near, 1, 100);
        let error = read(&file, 0, LEN).unwrap_err();
        assert!(names_both(&error) && error.to_string().contains(why), "{change}: {error}");
        let hint = error.hints().join(" ");
        assert!(hint.contains("s3://near@bucket") && hint.contains("s3://far@bucket"), "{hint}");
    }
}

/// Bytes that come meanwhile say that it is there.
#[test]
fn connections_that_break_now_and_then_are_no_site_that_is_gone() {
    let sites = pair();
    let bytes = pattern(1, LEN);
    put_both(&sites, &bytes);
    let file = open().unwrap();
    let (mut first, mut is_second) = (None, true);
    sites.near.faults(move |seen| {
        if seen.asked != Asked::Get {
            return None;
        }
        let Some(began): Option<Instant> = first else {
            first = Some(Instant::now());
            return Some(Fault::Reset(Place::InBody(100)));
        };
        if began.elapsed() < Duration::from_millis(1200) {
            return Some(Fault::Slow(32 << 10, Duration::from_millis(20)));
        }
        std::mem::take(&mut is_second).then_some(Fault::Reset(Place::InBody(100)))
    });
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| read(&file, 2 << 20, 4 << 20).unwrap());
        std::thread::sleep(Duration::from_millis(1500));
        assert!(read(&file, 16 << 20, 1 << 20).unwrap() == bytes[16 << 20..17 << 20]);
        assert!(slow.join().unwrap() == bytes[2 << 20..6 << 20]);
    });
    let by_site = file.bytes_by_site();
    assert!(by_site.iter().all(|(name, _)| name == "near"), "{by_site:?}");
}

fn gone_for(server: &FakeS3, time: Duration) {
    let began = Instant::now();
    server.faults(move |_| (began.elapsed() < time).then_some(Fault::Reset(Place::BeforeHead)));
}

/// A second site that has not all objects makes no read fail that would wait for the first one.
#[test]
fn an_incomplete_site_ends_no_read_that_the_near_one_would_serve_later() {
    let sites = pair_that_gives_up_after(Duration::from_secs(30));
    let bytes = pattern(1, LEN);
    sites.near.put(BUCKET, KEY, bytes.clone());
    gone_for(&sites.near, Duration::from_secs(3));
    let file = open().unwrap();
    for other in [None, Some(pattern(2, LEN))] {
        if let Some(other) = other {
            sites.far.put(BUCKET, KEY, other);
        }
        gone_for(&sites.near, Duration::from_secs(3));
        assert!(read(&file, 0, LEN).unwrap() == bytes);
        assert!(file.bytes_by_site().iter().all(|(name, _)| name == "near"));
    }
    gone_for(&sites.near, Duration::from_secs(3));
    std::thread::sleep(Duration::from_millis(1100));
    file.state().unwrap();
}

/// It would go on at no other site, and nobody would know before the first one is gone.
#[test]
fn a_site_that_cannot_be_used_is_an_error_at_the_first_call() {
    let sites = pair();
    let value = format!("near={},far={};profile=nobody", sites.near.endpoint(), sites.far.endpoint());
    // SAFETY: as in `pair`.
    unsafe { std::env::set_var("FOREBAY_S3_ENDPOINTS", value) };
    sites.near.put(BUCKET, KEY, b"bytes".to_vec());
    let error = open().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("profile=nobody") && text.contains("site=far"), "{text}");
    assert!(Bucket::of(BUCKET).unwrap().anywhere().is_err());
    // A site by its name has nothing to do with the other one.
    assert_eq!(read(&File::open(url("near@")).unwrap(), 0, 5).unwrap(), b"bytes");
}

#[test]
fn an_object_without_a_checksum_says_that_it_stays_at_its_site() {
    let sites = pair();
    sites.near.put_pattern(BUCKET, KEY, LEN);
    let facts = open().unwrap().facts();
    let (note, hint) = facts.left_out.last().unwrap();
    assert!(note.contains("do not go on at another site"), "{note}");
    assert!(hint.contains(&format!("s3://near@{BUCKET}/{KEY}")), "{hint}");
    sites.near.put(BUCKET, KEY, pattern(1, LEN));
    assert!(open().unwrap().facts().left_out.is_empty());
}

#[test]
fn a_site_that_is_gone_is_asked_again() {
    let sites = pair();
    let bytes = pattern(1, LEN);
    put_both(&sites, &bytes);
    refuse_all(&sites.near);
    let began = Instant::now();
    let file = open().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert_eq!(file.bytes_by_site(), [("far".to_owned(), LEN)]);
    // The next ones do not wait.
    let began = Instant::now();
    drop(open().unwrap());
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    sites.near.no_faults();
    wait_for("new objects are opened at the near site again", || {
        open().is_ok_and(|file| file.facts().way.unwrap().contains("site near"))
    });
    wait_for("an object that is open is read there again", || {
        assert!(read(&file, 1 << 20, 4 << 20).unwrap() == bytes[1 << 20..5 << 20]);
        file.bytes_by_site().iter().any(|(name, bytes)| name == "near" && *bytes > 0)
    });
    // Its state is the one by which it was opened.
    let state = file.state().unwrap();
    assert!(state.is_some() && state == file.state().unwrap());
}

#[test]
fn an_object_that_the_near_site_has_not_is_read_at_the_far_one() {
    let sites = pair();
    sites.far.put(BUCKET, KEY, b"bytes".to_vec());
    assert_eq!(read(&open().unwrap(), 0, 5).unwrap(), b"bytes");
    sites.far.remove(BUCKET, KEY);
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("no such object"), "{error}");
}

/// It may be there: that is no "not found".
#[test]
fn an_object_that_a_site_which_is_gone_may_have_is_not_missing() {
    let sites = pair();
    refuse_all(&sites.near);
    let error = open().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(names_both(&error), "{error}");
}

#[test]
fn a_site_is_named_in_the_url() {
    let sites = pair();
    sites.near.put(BUCKET, KEY, b"near".to_vec());
    sites.far.put(BUCKET, KEY, b"far!".to_vec());
    for (site, bytes) in [("", b"near"), ("near@", b"near"), ("far@", b"far!")] {
        let file = File::open(url(site)).unwrap();
        assert_eq!(read(&file, 0, 4).unwrap(), bytes, "{site}");
    }
    let error = File::open(url("other@")).unwrap_err();
    assert!(error.hints()[0].contains("near, far"), "{error:?}");
    // It is written there, and nowhere else.
    let there = forebay_objects::ObjectUrl::parse(url("far@").as_ref()).unwrap();
    Bucket::of_url(&there).unwrap().put(KEY, b"new").unwrap();
    assert_eq!((sites.near.size(BUCKET, KEY), sites.far.size(BUCKET, KEY)), (Some(4), Some(3)));
}

#[test]
fn the_far_site_lists_where_the_near_one_is_gone() {
    let sites = pair();
    for (server, keys) in [(&sites.near, 1), (&sites.far, 3)] {
        (0..keys).for_each(|key| drop(server.put(BUCKET, &format!("a/{key}"), b"x".to_vec())));
    }
    let bucket = || Bucket::of(BUCKET).unwrap().anywhere().unwrap();
    let count = |list: &mut forebay_objects::List| {
        list.map(|one| assert!(matches!(one.unwrap(), Listed::Object(_)))).count()
    };
    let mut list = bucket().list("a/", true);
    assert_eq!((count(&mut list), list.elsewhere()), (1, None));
    refuse_all(&sites.near);
    sites.far.faults(|seen| (seen.asked == Asked::List).then_some(Fault::Page(1)));
    let mut list = bucket().list("a/", true);
    assert_eq!((count(&mut list), list.elsewhere()), (3, Some("far")));
}
