//! Bytes of an object go from the kernel to where they belong: a count of those that are copied once more.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fake_s3::FakeS3;
use forebay_source::{Direction, HostRange, Request};

use super::{ObjectFetch, Target};
use crate::account::testing::account;
use crate::endpoint::Endpoint;

const REQUEST: usize = 2 << 20;
const REQUESTS: usize = 24;

#[test]
fn bytes_are_received_where_they_belong() {
    let server = FakeS3::start();
    server.make_bucket("bucket");
    server.put_pattern("bucket", "key", (REQUEST * REQUESTS) as u64);
    let environment = server.environment();
    let variables: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let made = account(&variables, "", "").unwrap();
    let site = made.account.site("bucket").unwrap();
    let endpoint = Endpoint::new(Arc::new(made.account), site);
    let target = Target {
        bucket: "bucket".to_owned(),
        key: "key".to_owned(),
        version: None,
        etag: server.etag("bucket", "key").map(|etag| format!("\"{etag}\"")),
        len: (REQUEST * REQUESTS) as u64,
    };
    let fetch = ObjectFetch::new(endpoint.clone(), target, Vec::new(), None);
    let mut memory = vec![0; REQUEST * REQUESTS];
    let (whole, (tell, told)) = (HostRange::of_mut(&mut memory), channel());
    for number in 0..REQUESTS {
        let tell = tell.clone();
        let offset = number * REQUEST;
        let request = Request {
            direction: Direction::Read,
            offset: offset as u64,
            memory: whole.after(offset).first(REQUEST),
            ahead: (whole.len - offset - REQUEST) as u64,
        };
        // SAFETY: the memory lives until all requests are answered.
        unsafe { fetch.start(request, Box::new(move |result| tell.send(result).unwrap())) };
    }
    for _ in 0..REQUESTS {
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap(), REQUEST);
    }
    assert!(server.get("bucket", "key").unwrap() == memory);
    // Bytes that came with the head of a reply: of ranges of 8 MiB a thousandth.
    let copied = endpoint.network.copied();
    assert!(copied <= memory.len() as u64 / 500, "{copied} bytes of {} were copied", memory.len());
}
