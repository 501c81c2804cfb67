//! Servers that are killed, silent or cut off while memory is open to them. None of it stays registered.

use std::thread;
use std::time::{Duration, Instant};

use fake_verbs::{Fault, Side, What};
use forebay_engine::{File, Session};
use forebay_source::opener_of;
use forebay_verbs::Kind;

use crate::common::soon;
use crate::rdma::{LEN, named, opened, read_host, session, try_host};
use crate::rdma_server::{Lie, Named};
use crate::{rdma_hipobj, rdma_writes};

/// Servers of both dialects that have moved bytes.
fn each(act: impl Fn(&Named, &Session, &File)) {
    for is_rc1 in [true, false] {
        let server = if is_rc1 { named("prefer") } else { rdma_hipobj::named("prefer") };
        let (session, file) = (session(), opened());
        try_host(&session, &file);
        act(&server, &session, &file);
        assert!(soon(|| server.fabric.regions() == 0), "memory is registered");
    }
}

/// Does something while a server that is killed comes back some time later.
fn reviving(server: &Named, lie: Lie, act: impl FnOnce()) {
    server.lie(lie, 1);
    thread::scope(|scope| {
        let reviver = scope.spawn(|| {
            assert!(soon(|| server.is_dead()), "{lie:?}: it was not killed");
            thread::sleep(Duration::from_millis(300));
            server.revive();
        });
        act();
        reviver.join().unwrap();
    });
}

#[test]
fn a_server_that_is_killed_and_comes_back_costs_time_alone() {
    for lie in [Lie::DiesBefore, Lie::DiesBehind] {
        each(|server, session, file| {
            reviving(server, lie, || drop(read_host(session, file).unwrap()));
            read_host(session, file).unwrap();
        });
    }
}

#[test]
fn an_object_is_whole_behind_a_server_that_is_killed() {
    for lie in [Lie::DiesBefore, Lie::DiesBehind] {
        let server = named("prefer");
        rdma_writes::proven(&server);
        reviving(&server, lie, || rdma_writes::put(&server).unwrap());
        drop(server);
        let server = named("prefer");
        rdma_writes::proven(&server);
        reviving(&server, lie, || drop(rdma_writes::upload(&server, rdma_writes::LEN).unwrap()));
        drop(server);
        let server = rdma_hipobj::named("prefer");
        try_host(&session(), &opened());
        reviving(&server, lie, || rdma_hipobj::put(&server).unwrap());
    }
}

#[test]
fn where_rdma_is_required_a_killed_server_is_an_error() {
    for lie in [Lie::DiesBefore, Lie::DiesBehind] {
        let (server, session) = (named("require"), session());
        let file = opened();
        read_host(&session, &file).unwrap();
        server.lie(lie, 1);
        read_host(&session, &file).unwrap_err();
        assert!(soon(|| server.fabric.regions() == 0), "memory is registered");
    }
}

/// Servers may be silent for this long, until it is dropped.
struct Silence;

impl Silence {
    fn of(limit: Duration) -> Self {
        forebay_objects::silent_after(limit);
        Self
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        forebay_objects::silent_after(Duration::from_secs(30));
    }
}

/// The clock is shortened: it stands for a link that is cut for a minute.
#[test]
fn a_server_that_is_silent_for_too_long_does_not_reach_the_memory_any_more() {
    let silence = Silence::of(Duration::from_secs(1));
    each(|server, session, file| {
        server.lie(Lie::Late(Duration::from_secs(10)), 1);
        let text = read_host(session, file).unwrap().to_string();
        assert!(text.contains("bytes by HTTP body: the server is silent"), "{text}");
        // While the server is about to write.
        assert_eq!((server.fabric.regions(), server.is_late()), (0, true));
    });
    drop(silence);
}

#[test]
fn a_link_that_is_cut_for_two_seconds_is_waited_for() {
    // The NIC repeats lost packets.
    let cut = What::Delay(Duration::from_secs(2));
    each(|server, session, file| {
        server.fabric.inject(Fault::on(Side::Server, Kind::Write, cut));
        let began = Instant::now();
        let text = read_host(session, file).unwrap().to_string();
        assert!(began.elapsed() >= Duration::from_secs(2));
        assert!(text.contains(&format!("{LEN} bytes by RDMA into host memory")), "{text}");
    });
}

#[test]
fn memory_of_an_operation_that_has_ended_is_reached_no_more() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    let mut kept = session.host_buffer(LEN).unwrap();
    session.read_into(&file, 0, &mut kept, 0..LEN).unwrap();
    let before = kept.to_vec().unwrap();
    server.lie(Lie::Replays, 1000);
    let refused = server.refused();
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(text.contains(&format!("{LEN} bytes by HTTP body: ")) && server.refused() > refused, "{text}");
    assert!(kept.to_vec().unwrap() == before);
}

/// The answer has no word of RDMA, and the object is all there: it is not sent again.
#[test]
fn an_object_that_is_stored_without_a_word_is_compared() {
    let server = named("prefer");
    rdma_writes::proven(&server);
    let body = server.body_bytes();
    server.lie(Lie::NoWord, 1);
    rdma_writes::put(&server).unwrap();
    assert_eq!(server.body_bytes(), body);
    // It is not written to by RDMA any more.
    let transfers = server.transfers();
    rdma_writes::put(&server).unwrap();
    assert_eq!((server.transfers(), server.body_bytes()), (transfers, body + rdma_writes::SHORT as u64));
}

#[test]
fn half_an_object_is_sent_again_or_an_error() {
    let server = rdma_hipobj::named("prefer");
    try_host(&session(), &opened());
    server.lie(Lie::TruncatesWithWords, 1);
    rdma_hipobj::put(&server).unwrap();
    drop(server);
    for lie in [Lie::Truncates, Lie::TruncatesWithWords] {
        let server = named("require");
        rdma_writes::put(&server).unwrap();
        server.lie(lie, 1000);
        rdma_writes::put(&server).unwrap_err();
        rdma_writes::upload(&server, rdma_writes::LEN).unwrap_err();
        assert_eq!(server.body_bytes(), 0, "{lie:?}");
    }
}

#[test]
fn a_device_that_is_removed_while_an_object_is_written() {
    for kind in [Kind::Read, Kind::Write] {
        let server = if kind == Kind::Read { named("prefer") } else { rdma_hipobj::named("prefer") };
        try_host(&session(), &opened());
        let side = if kind == Kind::Read { Side::Server } else { Side::Client };
        server.fabric.inject(Fault::on(side, kind, What::RemoveDevice));
        let put = if kind == Kind::Read { rdma_writes::put } else { rdma_hipobj::put };
        put(&server).unwrap();
        put(&server).unwrap();
        assert!(soon(|| server.fabric.regions() == 0), "memory is registered");
    }
}

/// A short object goes to its server when it is finished: the note says how.
#[test]
fn short_objects_say_by_which_way_they_went() {
    let server = named("prefer");
    rdma_writes::proven(&server);
    let written = |lie: Option<Lie>| {
        if let Some(lie) = lie {
            server.lie(lie, 1);
        }
        let url = "s3://bucket/note";
        let upload = opener_of(url).unwrap().make(url.as_ref(), 0o644).unwrap();
        let (session, file) = (Session::open().unwrap(), File::from_source(upload.source()).unwrap());
        let mut buffer = session.host_buffer(rdma_writes::SHORT).unwrap();
        buffer.copy_from_slice(&rdma_writes::pattern(rdma_writes::SHORT)).unwrap();
        session.write(&file, 0, &buffer).unwrap();
        let note = file.late_note().unwrap();
        assert_eq!(note(), None);
        upload.finish(true).unwrap();
        note().unwrap()
    };
    let by_rdma = format!("{} bytes by RDMA from host memory: S3 by RDMA, rc1, server", rdma_writes::SHORT);
    let note = written(None);
    assert!(note.contains(&by_rdma) && note.contains("keys: per operation"), "{note}");
    let note = written(Some(Lie::Fewer));
    assert!(note.contains(&format!("{} bytes by HTTP body: ", rdma_writes::SHORT)), "{note}");
    assert!(!note.contains("by RDMA from host memory"), "{note}");
}
