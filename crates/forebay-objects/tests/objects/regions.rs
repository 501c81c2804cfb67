//! Buckets that turn out to be in another region while their objects are read: ranges go on there, and no key goes to a host that a
//! server names.

use std::path::Path;

use fake_s3::{Asked, FakeS3, Fault};
use forebay_engine::File;
use forebay_error::ErrorKind;

use crate::servers::{LEN, opened, pattern, read, started, with};

/// The redirects that S3 has: of a bucket that moved, of a new one, and of a store with other words.
const STATUSES: [u16; 3] = [301, 307, 308];

fn signed_for<'a>(heads: &'a [String], region: &str) -> Vec<&'a String> {
    let scope = format!("/{region}/s3/aws4_request");
    heads.iter().filter(|head| head.starts_with("GET ") && head.contains(&scope)).collect()
}

#[test]
fn ranges_go_on_in_the_region_that_a_redirect_names() {
    let bytes = pattern(LEN);
    for status in STATUSES {
        let server = started(&bytes);
        let file = opened(&server);
        server.forget_counts();
        // The others are refused for their signatures.
        server.fault_once(Asked::Get, 0, Fault::Redirect(status, "eu-west-1", None));
        server.set_region("eu-west-1");
        assert!(read(&file, 0, LEN).unwrap() == bytes, "{status}");
        let heads = server.heads();
        // Each range is asked for once there, and before at most once.
        let (there, before) = (signed_for(&heads, "eu-west-1").len(), signed_for(&heads, "us-east-1").len());
        assert!(there == 3 && (1..=3).contains(&before), "{status}: {there} {before}");
        assert!(read(&file, 5, 1000).unwrap() == bytes[5..1005], "{status}");
    }
}

/// Without a redirect: a store that changed its region says so of signatures.
#[test]
fn ranges_go_on_where_signatures_are_of_the_wrong_region() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let (file, other) = (opened(&server), opened(&server));
    server.set_region("eu-west-1");
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    server.forget_counts();
    // The region of the bucket is known by now.
    assert!(read(&other, 0, LEN).unwrap() == bytes);
    assert_eq!(signed_for(&server.heads(), "us-east-1").len(), 0);
}

#[test]
fn redirects_without_an_end_are_an_error() {
    let server = started(&pattern(LEN));
    let file = opened(&server);
    for region in ["eu-west-1", "eu-west-2"] {
        server.forget_counts();
        server.fault_always(Asked::Get, Fault::Redirect(307, region, None));
        let error = read(&file, 0, LEN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        assert!(error.hints().contains(&format!("export AWS_REGION={region}")), "{error:?}");
        assert!(server.requests(Asked::Get) <= 6, "{}", server.requests(Asked::Get));
    }
    // Two regions that send requests to each other.
    let server = started(&pattern(LEN));
    let file = opened(&server);
    server.forget_counts();
    server.faults(|seen| {
        let region = if seen.before % 2 == 0 { "eu-west-1" } else { "eu-west-2" };
        (seen.asked == Asked::Get).then_some(Fault::Redirect(301, region, None))
    });
    assert_eq!(read(&file, 0, LEN).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(server.requests(Asked::Get) <= 6, "{}", server.requests(Asked::Get));
}

#[test]
fn no_request_goes_to_a_host_that_a_server_names() {
    let there = started(&pattern(LEN));
    for status in STATUSES {
        for region in ["", "eu-west-1", "us-east-1", "evil.test/", "a b"] {
            let server = started(&pattern(LEN));
            let file = opened(&server);
            server.fault_always(Asked::Get, Fault::Redirect(status, region, Some(there.endpoint())));
            let error = read(&file, 0, LEN).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{status} {region}: {error:?}");
            let host = there.address().to_string();
            assert!(error.to_string().contains(&format!("redirect={host}")), "{status} {region}: {error}");
            let hint = |hint: &String| hint.contains("AWS_ENDPOINT_URL") && hint.contains(&host);
            assert!(error.hints().iter().any(hint), "{status} {region}: {error:?}");
        }
    }
    assert_eq!((there.connections(), there.all_requests()), (0, 0));
}

/// Names of AWS's hosts, for which the server is its own proxy.
fn at_aws(server: &FakeS3, folder: &Path) -> Vec<(&'static str, String)> {
    let authority = folder.join("ca.pem");
    std::fs::write(&authority, fake_s3::CA).unwrap();
    let mut variables = server.environment();
    variables.retain(|(name, _)| *name != "AWS_ENDPOINT_URL");
    variables.extend([
        ("HTTPS_PROXY", format!("http://{}", server.address())),
        ("AWS_CA_BUNDLE", authority.to_str().unwrap().to_owned()),
    ]);
    variables
}

fn hosts(server: &FakeS3, asked: &str) -> Vec<String> {
    let of = |head: &String| {
        let host = head.lines().find_map(|line| line.strip_prefix("host: "))?;
        head.starts_with(asked).then(|| host.to_owned())
    };
    server.heads().iter().filter_map(of).collect()
}

const EAST: &str = "bucket.s3.us-east-1.amazonaws.com";
const WEST: &str = "bucket.s3.eu-west-1.amazonaws.com";

#[test]
fn a_region_that_is_learnt_at_aws_leads_to_its_host() {
    forebay_objects::register();
    let (folder, bytes) = (tempfile::tempdir().unwrap(), pattern(LEN));
    let server = FakeS3::start_tls();
    server.put("bucket", "key", &*bytes);
    server.require_signatures();
    let east = at_aws(&server, folder.path());
    // When it is opened, by the answer to the first call.
    server.set_region("eu-west-1");
    let file = with(&east, || File::open("s3://bucket/key")).unwrap();
    let asked = hosts(&server, "");
    assert_eq!((asked[0].as_str(), asked[1].as_str()), (EAST, WEST), "{asked:?}");
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert!(hosts(&server, "GET ").iter().skip(1).all(|host| host == WEST));
    assert!(
        file.facts().way.unwrap().contains("eu-west-1.amazonaws.com, region eu-west-1"),
        "{:?}",
        file.facts()
    );
}

/// The redirect of a new bucket names a host of AWS, by an older form, and no region.
#[test]
fn a_redirect_to_a_host_of_aws_leads_to_its_region() {
    forebay_objects::register();
    let (folder, bytes) = (tempfile::tempdir().unwrap(), pattern(LEN));
    let server = FakeS3::start_tls();
    server.put("bucket", "key", &*bytes);
    let mut east = at_aws(&server, folder.path());
    // An account of its own: regions of buckets are kept by account.
    east.push(("AWS_REQUEST_PAYER", "requester".to_owned()));
    let file = with(&east, || File::open("s3://bucket/key")).unwrap();
    server.forget_counts();
    let named = "http://bucket.s3-eu-west-1.amazonaws.com".to_owned();
    server.fault_once(Asked::Get, 0, Fault::Redirect(307, "", Some(named)));
    server.set_region("eu-west-1");
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    let asked = hosts(&server, "GET ");
    assert_eq!(asked.iter().filter(|host| *host == WEST).count(), 3, "{asked:?}");
    assert!(asked.iter().all(|host| host == EAST || host == WEST), "{asked:?}");
    assert!(file.facts().way.unwrap().contains(WEST), "{:?}", file.facts());
}
