//! `forebay s3` with two sites.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::objects::Here;
use crate::support::{Done, finish, sample};
use fake_s3::{Asked, FakeS3, Fault, Place};
use serde_json::Value;

/// Two servers, and a folder.
struct Two {
    near: Here,
    far: FakeS3,
}

impl Two {
    fn new() -> Self {
        let far = FakeS3::start();
        far.make_bucket("bkt");
        Self { near: Here::new(), far }
    }

    fn command(&self, args: &str) -> std::process::Command {
        let mut command = self.near.command(&args.split_whitespace().collect::<Vec<_>>());
        let sites = format!("near={},far={}", self.near.server.endpoint(), self.far.endpoint());
        command.env("FOREBAY_S3_ENDPOINTS", sites);
        command
    }

    fn run(&self, args: &str) -> Done {
        finish(self.command(args))
    }

    fn near_is_gone(&self) {
        self.near.server.faults(|_| Some(Fault::Reset(Place::BeforeHead)));
    }
}

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_copy_goes_on_at_the_far_site_and_says_so() {
    let two = Two::new();
    let bytes = std::fs::read(sample(two.near.path(), "sample", 20 << 20)).unwrap();
    for server in [&two.near.server, &two.far] {
        server.put("bkt", "key", bytes.clone());
    }
    two.far.tag("bkt", "key", "another");
    let said = two.run("s3 cp s3://bkt/key copy --json").ok();
    assert_eq!(json(&said.out)[0]["sites"], serde_json::json!({ "near": bytes.len() }));
    assert!(
        said.err.contains("site near, 127.0.0.1:") && !said.err.contains("bytes by site"),
        "{}",
        said.err
    );
    let mut gets = 0;
    two.near.server.faults(move |seen| {
        gets += u64::from(seen.asked == Asked::Get);
        (gets > 1).then_some(Fault::Reset(Place::InBody(1 << 20)))
    });
    let said = two.run("s3 cp s3://bkt/key copy --json").ok();
    assert!(two.near.read("copy") == bytes);
    let sites = &json(&said.out)[0]["sites"];
    let [near, far] = ["near", "far"].map(|name| sites[name].as_u64().unwrap());
    assert!(near > 0 && far > 0 && near + far >= bytes.len() as u64, "{sites}");
    assert!(said.err.contains(&format!("bytes by site: near {near}, far {far}\n")), "{}", said.err);
}

#[test]
fn listings_and_trees_come_from_the_far_site_with_a_note() {
    let two = Two::new();
    two.far.put("bkt", "a/small", "small");
    two.far.put("bkt", "a/long", vec![7; 5 << 20]);
    two.near_is_gone();
    let said = two.run("s3 ls s3://bkt/a/ --recursive").ok();
    assert!(said.out.contains("a/small"), "{}", said.out);
    assert_eq!(said.err, "note: site near is gone, or has not the bucket: site far gives the listing\n");
    let said = two.run("s3 sync s3://bkt/a here --json").ok();
    let lines = json(&said.out);
    assert!(
        lines.len() == 2 && lines.iter().all(|line| line["sites"]["far"] == line["bytes"]),
        "{}",
        said.out
    );
    assert_eq!(two.near.read("here/small"), b"small");
    // New objects go to the near site, or nowhere.
    two.near.write("new", b"new");
    let mut command = two.command("s3 cp new s3://bkt/new");
    // A server that was never there is given up after 10 s.
    command.env("FOREBAY_S3_ENDPOINTS", format!("near=http://127.0.0.1:1,far={}", two.far.endpoint()));
    let said = finish(command).fails(1, "s3://SITE@bkt/KEY");
    assert!(said.err.contains("site=near") && two.far.get("bkt", "new").is_none(), "{}", said.err);
    two.run("s3 cp new s3://far@bkt/new").ok();
    assert_eq!(two.far.get("bkt", "new").unwrap(), b"new");
}

#[test]
fn nothing_is_removed_by_the_listing_of_another_site() {
    let two = Two::new();
    two.far.put("bkt", "a/one", "1");
    std::fs::create_dir(two.near.path().join("down")).unwrap();
    std::fs::write(two.near.path().join("down/two"), "2").unwrap();
    let mut command = two.command("s3 sync s3://bkt/a/ down --delete");
    // Nobody listens at the nearest site.
    command.env("FOREBAY_S3_ENDPOINTS", format!("near=http://127.0.0.1:1,far={}", two.far.endpoint()));
    let done = finish(command);
    assert_ne!(done.code, Some(0), "{}", done.out);
    assert!(two.near.read("down/two") == b"2" && !two.near.path().join("down/one").exists(), "{}", done.err);
}

#[test]
fn sync_between_sites_goes_by_checksums_and_moves_nothing_twice() {
    let two = Two::new();
    let long = std::fs::read(sample(two.near.path(), "sample", 36 << 20)).unwrap();
    let near = &two.near.server;
    for (key, bytes) in [("a/small", b"small".to_vec()), ("a/empty", Vec::new()), ("a/long", long.clone())] {
        near.put("bkt", key, bytes);
    }
    near.describe("bkt", "a/small", &[("x-amz-meta-who", "me"), ("content-type", "text/plain")]);
    let said = two.run("s3 sync s3://near@bkt/a s3://far@bkt/b --json").ok();
    let lines = json(&said.out);
    assert!(
        lines.len() == 3 && lines.iter().all(|line| line["sites"]["near"] == line["bytes"]),
        "{}",
        said.out
    );
    assert!(two.far.get("bkt", "b/long").unwrap() == long);
    assert_eq!(two.far.get("bkt", "b/empty").unwrap(), b"");
    assert!(two.far.metadata("bkt", "b/small").contains(&("x-amz-meta-who".to_owned(), "me".to_owned())));
    let moves = || two.far.requests(Asked::Put) + two.far.requests(Asked::Part) + near.requests(Asked::Get);
    let before = moves();
    // Newer, and the same.
    two.far.age("bkt", "b/small", 1000);
    assert_eq!(two.run("s3 sync s3://near@bkt/a s3://far@bkt/b").ok().out, "");
    assert_eq!(moves(), before, "a second run moves nothing");
    // Other bytes of the same length and time.
    near.put("bkt", "a/small", b"SMALL".to_vec());
    near.age("bkt", "a/small", 5000);
    let said = two.run("s3 sync s3://near@bkt/a s3://far@bkt/b").ok();
    assert_eq!(said.out, "copy: s3://near@bkt/a/small to s3://far@bkt/b/small\n");
    assert_eq!(two.far.get("bkt", "b/small").unwrap(), b"SMALL");
    // Without checksums: by time.
    near.put_pattern("bkt", "a/plain", 1000);
    two.run("s3 sync s3://near@bkt/a s3://far@bkt/b").ok();
    two.far.age("bkt", "b/plain", -1000);
    assert_eq!(two.run("s3 sync s3://near@bkt/a s3://far@bkt/b").ok().out, "");
    two.far.age("bkt", "b/plain", 5000);
    assert!(two.run("s3 sync s3://near@bkt/a s3://far@bkt/b").ok().out.contains("a/plain"));
    two.run("s3 cp s3://near@bkt/a/small s3://far@bkt/one").ok();
    assert_eq!(two.far.get("bkt", "one").unwrap(), b"SMALL");
}

#[test]
fn a_sync_that_is_broken_off_goes_on() {
    let two = Two::new();
    for number in 0..60 {
        two.near.server.put("bkt", &format!("a/{number:02}"), vec![number; 1 << 20]);
    }
    // The far site takes its time: the command is interrupted under way.
    two.far.faults(|seen| {
        (seen.asked == Asked::Put || seen.asked == Asked::Part)
            .then_some(Fault::Late(std::time::Duration::from_millis(200)))
    });
    let mut child = two.command("s3 sync s3://near@bkt/a s3://far@bkt/a");
    crate::support::as_in_a_terminal(&mut child);
    child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = child.spawn().unwrap();
    let began = std::time::Instant::now();
    while two.far.keys("bkt").len() < 10 {
        assert!(began.elapsed().as_secs() < 60, "nothing was copied");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // SAFETY: the child is not waited for yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(two.far.open_uploads(), 0);
    let done = two.far.keys("bkt").len();
    assert!((10..60).contains(&done), "{done}");
    two.far.no_faults();
    let said = two.run("s3 sync s3://near@bkt/a s3://far@bkt/a").ok();
    assert_eq!(said.out.lines().count(), 60 - done, "those that were done are not moved again");
    for number in 0..60 {
        assert!(two.far.get("bkt", &format!("a/{number:02}")).unwrap() == vec![number; 1 << 20], "{number}");
    }
}

#[test]
fn bytes_that_change_on_the_way_are_no_object() {
    let two = Two::new();
    let long = std::fs::read(sample(two.near.path(), "sample", 36 << 20)).unwrap();
    for (key, bytes) in [("long", long), ("short", vec![7; 5 << 20])] {
        two.near.server.put("bkt", key, bytes);
        two.near.server.faults(|seen| (seen.asked == Asked::Get).then_some(Fault::Flip(1000)));
        let said = two.run(&format!("s3 cp s3://near@bkt/{key} s3://far@bkt/{key}"));
        said.fails(1, "others than those of");
        assert!(two.far.get("bkt", key).is_none() && two.far.open_uploads() == 0, "{key}");
    }
}

/// The near site's times are not the far one's.
#[test]
fn a_sync_from_the_other_site_downloads_nothing_that_is_there() {
    let two = Two::new();
    for (key, bytes) in [("a/small", vec![1; 100]), ("a/long", vec![2; 5 << 20])] {
        two.near.server.put("bkt", key, bytes.clone());
        two.far.put("bkt", key, bytes);
        two.far.age("bkt", key, 1000);
    }
    assert_eq!(two.run("s3 sync s3://bkt/a here").ok().out.lines().count(), 2);
    let gets = two.far.requests(Asked::Get);
    two.near_is_gone();
    let said = two.run("s3 sync s3://bkt/a here").ok();
    assert_eq!((said.out.as_str(), two.far.requests(Asked::Get)), ("", gets), "{}", said.err);
    // Other bytes of the same length.
    two.far.put("bkt", "a/small", vec![3; 100]);
    two.far.age("bkt", "a/small", 2000);
    let said = two.run("s3 sync s3://bkt/a here").ok();
    assert!(said.out.contains("a/small") && !said.out.contains("a/long"), "{}", said.out);
    assert_eq!(two.near.read("here/small"), vec![3; 100]);
}

#[test]
fn an_empty_listing_of_the_far_site_is_no_empty_prefix_while_the_near_one_is_gone() {
    let two = Two::new();
    two.near.server.put("bkt", "a/key", "bytes");
    two.near_is_gone();
    for command in ["s3 ls s3://bkt/a/key", "s3 ls s3://bkt/a/ --recursive", "s3 sync s3://bkt/a/ here"] {
        let done = two.run(command).fails(1, "site near is gone");
        assert!(!done.err.contains("no key begins"), "{command}: {}", done.err);
    }
    two.near.server.no_faults();
    two.run("s3 ls s3://bkt/b").fails(1, "no key begins");
}

#[test]
fn copies_say_what_was_not_compared() {
    let two = Two::new();
    two.near.server.put_pattern("bkt", "plain", 1000);
    two.near.server.put("bkt", "summed", "bytes");
    let said = two.run("s3 cp s3://near@bkt/summed s3://far@bkt/summed").ok();
    assert!(!said.err.contains("note:"), "{}", said.err);
    let said = two.run("s3 cp s3://near@bkt/plain s3://far@bkt/plain").ok();
    assert!(said.err.contains("note: the source keeps no CRC-64/NVME"), "{}", said.err);
    two.far.faults(|_| Some(Fault::Without("x-amz-checksum-crc64nvme")));
    let said = two.run("s3 cp s3://near@bkt/summed s3://far@bkt/again").ok();
    assert!(said.err.contains("note: the target computes no CRC-64/NVME"), "{}", said.err);
    let said = two.run("s3 sync s3://near@bkt/ s3://far@bkt/all").ok();
    assert!(said.err.contains("note: 2 files: "), "{}", said.err);
}

/// Bytes that changed on the way are seen also where the target takes no checksums.
#[test]
fn a_target_without_checksums_gets_no_other_bytes() {
    let two = Two::new();
    let long = std::fs::read(sample(two.near.path(), "sample", 36 << 20)).unwrap();
    two.near.server.put("bkt", "long", long);
    two.near.server.faults(|seen| (seen.asked == Asked::Get).then_some(Fault::Flip(1000)));
    let mut command = two.command("s3 cp s3://near@bkt/long s3://far@bkt/long");
    command.env("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required");
    finish(command).fails(1, "others than those of");
    assert!(two.far.get("bkt", "long").is_none() && two.far.open_uploads() == 0);
}
