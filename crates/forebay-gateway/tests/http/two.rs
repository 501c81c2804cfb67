//! Two gateways over one directory: each sees at once what the other did, and of many writers with a condition one wins.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::served::raw::Raw;
use crate::served::{Gateway, pattern};

const ROUNDS: usize = 50;
const WRITERS: usize = 8;

#[test]
fn what_one_gateway_does_the_other_sees() {
    let first = Gateway::start();
    first.bucket("bkt");
    let second = first.beside();
    let gateways = [first.raw(), second.raw()];
    let large = pattern(5 << 20);
    for round in 0..ROUNDS {
        // They change places.
        let (here, there) = (&gateways[round % 2], &gateways[(round + 1) % 2]);
        let place = format!("round {round}");
        written_and_read(here, there, &place);
        one_writer_wins(&gateways, &place);
        one_upload(here, there, &large, &place);
    }
}

fn written_and_read(here: &Raw, there: &Raw, place: &str) {
    let put = here.ask("PUT", "/bkt/dir/k", &[("x-amz-meta-at", place)], place.as_bytes());
    assert_eq!(put.status, 200, "{place}");
    let got = there.get("/bkt/dir/k");
    assert_eq!((got.text().as_str(), got.header("x-amz-meta-at").as_deref()), (place, Some(place)));
    assert_eq!(got.header("etag"), put.header("etag"), "{place}");
    assert!(there.get("/bkt?list-type=2&prefix=dir%2F").text().contains("<Key>dir/k</Key>"), "{place}");
    assert_eq!(there.ask("DELETE", "/bkt/dir/k", &[], b"").status, 204, "{place}");
    assert_eq!(here.get("/bkt/dir/k").status, 404, "{place}");
    assert!(!here.get("/bkt?list-type=2&prefix=dir%2F").text().contains("<Key>"), "{place}");
}

/// Eight writers of a name that is free, then eight that replace the winner's object.
fn one_writer_wins(gateways: &[Raw; 2], place: &str) {
    let write = |writer: usize, header: (&str, &str)| {
        let body = format!("{place} {writer}").repeat(500);
        let reply = gateways[writer % 2].ask("PUT", "/bkt/won", &[header], body.as_bytes());
        match reply.status {
            200 => Some((body, reply.header("etag").unwrap())),
            412 => None,
            status => panic!("{place}: {status} {}", reply.text()),
        }
    };
    let race = |header: (&str, &str)| {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || write(writer, header))).collect();
            let won: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
            let [(body, etag)] = won.try_into().unwrap_or_else(|won| panic!("{place} {header:?}: {won:?}"));
            for gateway in gateways {
                let got = gateway.get("/bkt/won");
                assert_eq!((got.text() == body, got.header("etag")), (true, Some(etag.clone())), "{place}");
            }
            etag
        })
    };
    let etag = race(("if-none-match", "*"));
    let etag = race(("if-match", &etag));
    assert_eq!(gateways[0].ask("DELETE", "/bkt/won", &[("if-match", &etag)], b"").status, 204, "{place}");
}

/// Begun at one, a part at each, ended at the other, and ended once more where it was begun.
fn one_upload(here: &Raw, there: &Raw, large: &[u8], place: &str) {
    let id = here.ask("POST", "/bkt/up?uploads", &[], b"").between("UploadId");
    let put = |gateway: &Raw, number: usize, bytes: &[u8]| {
        let reply = gateway.put(&format!("/bkt/up?partNumber={number}&uploadId={id}"), bytes);
        assert_eq!(reply.status, 200, "{place}: {}", reply.text());
        let etag = reply.header("etag").unwrap();
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let parts = [put(there, 1, large), put(here, 2, place.as_bytes())].concat();
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let end = |gateway: &Raw| gateway.ask("POST", &format!("/bkt/up?uploadId={id}"), &[], body.as_bytes());
    let done = end(there);
    assert_eq!(done.status, 200, "{place}: {}", done.text());
    assert_eq!(end(here).between("ETag"), done.between("ETag"), "{place}");
    let got = here.get("/bkt/up");
    assert!(got.body == [large, place.as_bytes()].concat(), "{place}");
    assert!(!here.get("/bkt?uploads").text().contains("<Upload>"), "{place}");
}

#[test]
fn a_reader_gets_one_whole_object_or_none_while_the_other_gateway_removes_and_writes() {
    let first = Gateway::start();
    first.bucket("bkt");
    let second = first.beside();
    let body = |round: usize| vec![round as u8; 300_000 + round];
    let ended = AtomicBool::new(false);
    let (mut found, mut missed) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(first.raw().put("/bkt/a/k", &body(round)).status, 200);
                assert_eq!(first.raw().put("/bkt/a/k", &body(round + 1)).status, 200);
                assert_eq!(first.raw().ask("DELETE", "/bkt/a/k", &[], b"").status, 204);
            }
            ended.store(true, Relaxed);
        });
        while !ended.load(Relaxed) {
            let got = second.raw().get("/bkt/a/k");
            match got.status {
                200 => {
                    assert!(got.body == body(got.body.len() - 300_000), "{} bytes", got.body.len());
                    found += 1;
                }
                404 => missed += 1,
                status => panic!("{status} {}", got.text()),
            }
        }
    });
    assert!(found > 0, "{found} found, {missed} missed");
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_comes_whole() {
    let first = Gateway::start();
    first.bucket("bkt");
    let second = first.beside();
    let (old, new) = (pattern(16 << 20), vec![7; 1 << 20]);
    for change in ["replaced", "removed"] {
        assert_eq!(first.raw().put("/bkt/k", &old).status, 200);
        let raw = second.raw();
        let mut socket = raw.connect();
        socket.write_all(raw.head("GET", "/bkt/k", &[], 0, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
        // The head, and the first bytes; the rest waits in the server.
        let mut got = vec![0; 64 << 10];
        socket.read_exact(&mut got).unwrap();
        if change == "replaced" {
            assert_eq!(first.raw().put("/bkt/k", &new).status, 200);
            assert!(second.raw().get("/bkt/k").body == new);
        } else {
            assert_eq!(first.raw().ask("DELETE", "/bkt/k", &[], b"").status, 204);
            assert_eq!(second.raw().get("/bkt/k").status, 404);
        }
        let head = got.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let begin = got.len();
        got.resize(head + old.len(), 0);
        socket.read_exact(&mut got[begin..]).unwrap();
        assert!(got[head..] == old, "{change}");
    }
}
