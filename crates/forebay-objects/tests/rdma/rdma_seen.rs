//! What `forebay doctor` sees of a server's RDMA: its dialects, and whether bytes arrive.

use std::sync::Arc;

use fake_verbs::Fake;
use forebay_objects::{ArrivedBytes, ObjectRdma, ObjectUrl, rdma_of};
use forebay_verbs::Why;

use crate::common::pattern;
use crate::rdma_server::{Lie, Named};

const LEN: usize = 300_001;

fn named(wish: &str) -> Named {
    let server = Named::start(Fake::new(), wish);
    server.s3().put("bucket", "key", pattern(9, 0, LEN));
    server.s3().put("bucket", "empty", "");
    server
}

fn look(key: &str) -> Option<ObjectRdma> {
    rdma_of(&ObjectUrl::parse(format!("s3://bucket/{key}").as_ref()).unwrap()).unwrap()
}

fn spoken(seen: &ObjectRdma) -> Vec<&'static str> {
    seen.dialects.iter().filter(|(_, said)| said.is_ok()).map(|(name, _)| *name).collect()
}

#[test]
fn dialects_are_named_and_bytes_are_compared() {
    for (is_hipobj, dialect) in [(false, "rc1"), (true, "hipobj-rc-v2")] {
        let server = named("require");
        if is_hipobj {
            server.speak_hipobj();
        }
        let seen = look("key").unwrap();
        assert_eq!(spoken(&seen), [dialect], "{seen:?}");
        assert_eq!(seen.arrived.unwrap(), ArrivedBytes { dialect, bytes: 65536, nic: "fake0".to_owned() });
        assert!(seen.is_required);
        assert!(look("empty").is_none());
    }
}

#[test]
fn a_server_that_ignores_the_headers_or_lies_is_told_from_one_that_moves_bytes() {
    let server = named("prefer");
    server.lie(Lie::MovesNothing, 1000);
    let seen = look("key").unwrap();
    assert_eq!(spoken(&seen), ["rc1"]);
    assert!(seen.arrived.unwrap_err().to_string().contains("did not arrive in host memory"));
    drop(server);

    let server = named("prefer");
    server.name_s3();
    let seen = look("key").unwrap();
    assert_eq!((spoken(&seen), seen.dialects.len()), (vec![], 2), "{seen:?}");
    assert_eq!(Why::of(&seen.arrived.unwrap_err()), None);
}

#[test]
fn a_machine_s_causes_are_kept() {
    let _server = named("prefer");
    forebay_objects::use_fabric(Arc::new(Fake::with(Vec::new())));
    let seen = look("key").unwrap();
    assert!(seen.dialects.is_empty());
    assert!(Why::of(&seen.arrived.unwrap_err()).is_some());
}
