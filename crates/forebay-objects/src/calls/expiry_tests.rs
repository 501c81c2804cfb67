//! Keys that end while calls are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fake_s3::FakeS3;
use forebay_error::ErrorKind;

use super::bucket::ask;
use super::exchange::exchange;
use crate::account::testing::{KeyServer, account, in_seconds, json_reply};
use crate::endpoint::Endpoint;
use crate::wire::call::{Body, Method};

/// A server that knows keys AKIA0, AKIA1, …, and one that gives them, each for some seconds; and an endpoint with them.
struct Pair {
    objects: FakeS3,
    keys: KeyServer,
    endpoint: Arc<Endpoint>,
}

fn pair(seconds: i64) -> Pair {
    let objects = FakeS3::start();
    objects.put("bucket", "key", "bytes");
    objects.require_signatures();
    for number in 0..10 {
        let id = format!("AKIA{number}");
        objects.add_keys(&id, "wJalrSecret", Some(&format!("token of {id}")));
    }
    let given = AtomicUsize::new(0);
    let keys = KeyServer::new(move |_| {
        (200, json_reply(&format!("AKIA{}", given.fetch_add(1, Relaxed)), &in_seconds(seconds)))
    });
    let url = objects.endpoint();
    let variables = [
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &keys.url),
    ];
    let account = Arc::new(account(&variables, "", "").unwrap().account);
    let endpoint = Endpoint::of_account(account, "bucket").unwrap();
    Pair { objects, keys, endpoint }
}

fn get(endpoint: &Endpoint) -> Result<Vec<u8>, super::Refusal> {
    exchange(endpoint, &ask(Method::Get, "bucket", "key"), &Body::None).map(|reply| reply.body)
}

#[test]
fn keys_that_a_server_refuses_are_asked_for_anew() {
    let Pair { objects, keys, endpoint } = pair(3600);
    assert_eq!(get(&endpoint).unwrap(), b"bytes");
    objects.expire_keys("AKIA0");
    // Newer keys are not given up for a refusal of those before.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(get(&endpoint).unwrap(), b"bytes");
    assert_eq!(keys.came().len(), 2);
}

#[test]
fn keys_of_variables_are_refused_once() {
    let objects = FakeS3::start();
    objects.put("bucket", "key", "bytes");
    objects.expire_keys(fake_s3::ACCESS_KEY);
    let environment = objects.environment();
    let variables: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let account = Arc::new(account(&variables, "", "").unwrap().account);
    let refusal = get(&Endpoint::of_account(account, "bucket").unwrap()).unwrap_err();
    assert_eq!((refusal.error.kind(), refusal.code.as_str()), (ErrorKind::PermissionDenied, "ExpiredToken"));
    assert_eq!(objects.all_requests(), 1);
}

#[test]
fn keys_are_renewed_while_calls_are_under_way() {
    // Keys count as over 10 seconds before their end.
    let Pair { objects: _objects, keys, endpoint } = pair(12);
    let begin = Instant::now();
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while begin.elapsed() < Duration::from_millis(2500) {
                    assert_eq!(get(&endpoint).unwrap(), b"bytes");
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let (calls, asked) = (calls.into_inner(), keys.came().len());
    assert!(calls > 100 && (2..=4).contains(&asked), "{calls} calls, {asked} keys");
}
