//! Servers that are gone for some seconds, or for good.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3, Fault, Place};
use forebay_error::ErrorKind;

use super::Bucket;
use super::upload::ObjectUpload;
use crate::account::Account;
use crate::account::testing::account;
use crate::endpoint::Endpoint;
use crate::pace::{Budget, DEADLINE};

/// More than a part.
const LONG: usize = 17 << 20;

/// A bucket whose calls may fail for so long.
fn bucket(url: &str, deadline: Duration) -> Bucket {
    let variables = [
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", fake_s3::ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", fake_s3::SECRET_KEY),
    ];
    let account = Arc::new(account(&variables, "", "").unwrap().account);
    let site = account.site("bucket").unwrap();
    let mut endpoint = Endpoint::new(account, site);
    Arc::get_mut(&mut endpoint).unwrap().budget = Budget::new(deadline);
    Bucket::of_endpoint(endpoint, "bucket")
}

fn server() -> FakeS3 {
    let server = FakeS3::start();
    server.put("bucket", "key", "bytes");
    server
}

fn took<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    (act(), began.elapsed())
}

#[test]
fn a_server_that_always_fails_is_given_up_at_the_deadline() {
    let (server, deadline) = (server(), Duration::from_secs(2));
    let bucket = bucket(&server.endpoint(), deadline);
    server.faults(|_| Some(Fault::Error(503, "SlowDown", None)));
    let (error, time) = took(|| bucket.head("key", None).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!((deadline..deadline * 4).contains(&time), "{time:?}");
    let requests = server.requests(Asked::Head);
    assert!((5..=12).contains(&requests), "{requests}");
    // The next call does not wait as long as the first one.
    bucket.list("", true).next().unwrap().unwrap_err();
    assert_eq!(server.requests(Asked::List), 1);
    server.no_faults();
    assert_eq!(bucket.head("key", None).unwrap().len, 5);
}

#[test]
fn an_upload_to_a_server_that_always_fails_ends_and_leaves_nothing() {
    let (server, deadline) = (server(), Duration::from_secs(2));
    let bucket = bucket(&server.endpoint(), deadline);
    server.fault_always(Asked::Part, Fault::Error(503, "SlowDown", None));
    let (error, time) = took(|| ObjectUpload::write_whole(bucket, "new", &vec![7; LONG]).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!((deadline..deadline * 4).contains(&time), "{time:?}");
    assert_eq!((server.open_uploads(), server.size("bucket", "new")), (0, None));
}

/// A gateway that restarts: each kind of call, and uploads, hold out.
#[test]
fn calls_and_parts_hold_out_an_outage_of_five_seconds() {
    let outage = Duration::from_secs(5);
    let gone = [Fault::Error(503, "SlowDown", None), Fault::Reset(Place::BeforeHead)];
    std::thread::scope(|scope| {
        for fault in gone {
            scope.spawn(move || {
                let server = server();
                let bucket = bucket(&server.endpoint(), DEADLINE);
                let began = Instant::now();
                server.faults(move |_| (began.elapsed() < outage).then(|| fault.clone()));
                let bytes = vec![7; LONG];
                std::thread::scope(|calls| {
                    calls.spawn(|| bucket.head("key", None).unwrap());
                    calls.spawn(|| bucket.list("", true).next().unwrap().unwrap());
                    calls.spawn(|| bucket.put("small", b"bytes").unwrap());
                    calls.spawn(|| ObjectUpload::write_whole(bucket.clone(), "new", &bytes).unwrap());
                });
                assert!(began.elapsed() >= outage);
                assert!(server.get("bucket", "new").unwrap() == bytes);
                assert!(bucket.delete_many(&["new".into(), "small".into()]).unwrap().is_empty());
                assert_eq!(server.keys("bucket"), ["key"]);
            });
        }
    });
}

/// A name or a port that is wrong is an error before a minute is over.
#[test]
fn a_server_that_never_took_a_connection_is_given_up_earlier() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let bucket = bucket(&format!("http://{address}"), DEADLINE);
    let (error, time) = took(|| bucket.head("key", None).unwrap_err());
    assert!((10..20).contains(&time.as_secs()), "{time:?}");
    let (text, hints) = (error.to_string(), error.hints().join(" "));
    assert!(text.contains("url=s3://bucket/key") && text.contains(&format!("server={address}")), "{text}");
    assert!(hints.contains("AWS_ENDPOINT_URL") && hints.contains("nc -vz 127.0.0.1 "), "{hints}");
}

/// Nothing is written to another site without a word.
#[test]
fn a_write_to_a_site_that_is_gone_names_it_and_says_how_to_write_to_another() {
    let server = server();
    let mut bucket = bucket(&server.endpoint(), Duration::from_millis(100));
    let endpoint = Arc::get_mut(&mut bucket.endpoint).unwrap();
    endpoint.account = Account::of_test_site(&endpoint.account, "near");
    server.faults(|_| Some(Fault::Reset(Place::BeforeHead)));
    let error = bucket.put("key", b"new").unwrap_err();
    assert!(error.to_string().contains("site=near"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("s3://SITE@bucket/KEY")), "{error:?}");
}
