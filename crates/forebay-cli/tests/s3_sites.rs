//! `forebay s3` with two sites.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use fake_s3::{Asked, FakeS3, Fault, Place};
use serde_json::Value;
use support::objects::Here;
use support::{Done, finish, sample};

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
