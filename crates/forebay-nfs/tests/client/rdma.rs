//! Bytes by RDMA, over a fabric in the process: the server places them, by keys that end with their call; each fault ends right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Lie, Placing, Server};
use fake_verbs::{Fake, Fault as Cut, Side, What};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, RdmaOptions, open};
use forebay_verbs::Kind;

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const LEN: usize = 3_500_001;
const GUARD: usize = 64;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn options(fake: &Fake) -> NfsOptions {
    let rdma = RdmaOptions::by(Arc::new(fake.clone()), Placing::address());
    NfsOptions {
        connections: 2,
        depth: 4,
        silence: Duration::from_secs(4),
        deadline: Duration::from_secs(20),
        rdma: Some(rdma),
        ..NfsOptions::default()
    }
}

fn bed(bytes: &[u8]) -> (Fake, Arc<Server>, Placing) {
    let (fake, server) = (Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", bytes.to_vec());
    let placing = Placing::start(&fake, server.clone());
    (fake, server, placing)
}

fn opened(server: &Server, version: &str, fake: &Fake) -> NfsFile {
    open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options(fake)).unwrap()
}

fn read(file: &NfsFile, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 2 * GUARD];
    let got = file.read_at(&mut place[GUARD..GUARD + len], offset as u64);
    let guards = place[..GUARD].iter().chain(&place[GUARD + len..]);
    assert!(guards.into_iter().all(|byte| *byte == 0xAA), "bytes beside the range");
    Ok(place[GUARD..GUARD + got?].to_vec())
}

#[test]
fn the_server_places_every_byte_and_no_other() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&bytes);
        let file = opened(&server, version, &fake);
        let (tcp, mut asked) = (server.connections(), 0);
        for (offset, len) in
            [(0, 1), (1, 3), (4095, 4098), (7, 1 << 20), (0, LEN), (LEN - 5, 100), (LEN + 7, 9)]
        {
            let expected = &bytes[offset.min(LEN)..(offset + len).min(LEN)];
            assert!(read(&file, offset, len).unwrap() == expected, "{version} {offset} {len}");
            asked += expected.len() as u64;
        }
        // The fabric's own count: all by RDMA WRITE, none inline.
        assert_eq!(fake.counts().written, asked, "{version} {:?}", file.client().traffic());
        assert_eq!((file.client().traffic().read, fake.counts().refused), (asked, 0));
        assert_eq!(file.client().traffic().resent, 0);
        let new: Vec<_> = bytes.iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new[..LEN - 77], 50).unwrap(), LEN - 77);
        let found = server.durable("/export/file");
        assert!(
            found[50..LEN - 27] == new[..LEN - 77]
                && found[..50] == bytes[..50]
                && found[LEN - 27..] == bytes[LEN - 27..]
        );
        assert_eq!(fake.counts().read, LEN as u64 - 77);
        assert_eq!(server.connections(), tcp, "no other connection over TCP");
        assert_eq!(server.wrong_slots(), 0);
    }
}

#[test]
fn lies_cost_a_connection_and_no_byte() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for lie in [
            Lie::Placed,
            Lie::PlacedMore,
            Lie::Truncated(20),
            Lie::Truncated(60),
            Lie::Truncated(100),
            Lie::OtherNumber,
            Lie::Invalidate,
            Lie::NoCredits,
            Lie::ManyCredits,
            Lie::TwoNumbers,
            Lie::Noise,
            Lie::Twice,
            Lie::Beyond,
            Lie::Late,
        ] {
            let (fake, server, placing) = bed(&bytes);
            let options = NfsOptions { silence: Duration::from_millis(300), ..options(&fake) };
            let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
            placing.lie(lie);
            assert!(read(&file, 0, LEN).unwrap() == bytes, "{version} {lie:?}");
            if lie == Lie::Late {
                std::thread::sleep(Duration::from_millis(200));
            }
            assert!(read(&file, 0, LEN).unwrap() == bytes, "{version} {lie:?}");
            let refused = u64::from(matches!(lie, Lie::Beyond | Lie::Late | Lie::Invalidate));
            assert_eq!(fake.counts().refused, refused, "{version} {lie:?}");
        }
    }
}

#[test]
fn chunks_that_are_refused_end_the_call() {
    let (fake, server, placing) = bed(&pattern(10_000));
    for version in VERSIONS {
        let file = opened(&server, version, &fake);
        for (lie, kind) in [(Lie::WrongChunks, ErrorKind::Io), (Lie::OtherVersions, ErrorKind::Unsupported)] {
            placing.lie(lie);
            assert_eq!(read(&file, 0, 10_000).unwrap_err().kind(), kind, "{version}");
            assert!(read(&file, 0, 10_000).unwrap() == pattern(10_000));
        }
    }
}

#[test]
fn every_word_of_a_message_may_lie() {
    let lies = |version| {
        let bytes = pattern(100_000);
        let (fake, server, placing) = bed(&bytes);
        let short = Duration::from_millis(200);
        let options = NfsOptions { connections: 1, silence: short, deadline: short * 4, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        for at in (0..200).step_by(4) {
            for more in [1, u32::MAX, 0x8000_0000] {
                placing.lie(Lie::Word(at, more));
                // A lie that looks like the truth (an error's number, fewer bytes) is believed. `read` checks the guards.
                let _ = read(&file, 0, bytes.len());
                assert!(read(&file, 0, bytes.len()).unwrap() == bytes, "{version} {at} {more:#x}");
            }
        }
        assert_eq!(fake.counts().refused, 0);
    };
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || lies(version));
        }
    });
}

#[test]
fn no_more_calls_are_under_way_than_the_server_takes() {
    let bytes = pattern(8 << 20);
    for version in VERSIONS {
        let (fake, server, placing) = bed(&bytes);
        let options = NfsOptions { connections: 1, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        assert!(read(&file, 0, bytes.len()).unwrap() == bytes);
        for (granted, most) in [(3, 3), (1, 1), (0, 1)] {
            // From the reply to this call on.
            placing.grant(granted);
            assert!(read(&file, 0, 1).unwrap() == bytes[..1]);
            placing.grant(granted);
            assert!(read(&file, 0, bytes.len()).unwrap() == bytes, "{version} {granted}");
            assert!((1..=most).contains(&placing.most_at_once()), "{version} {granted}");
        }
        assert_eq!(file.client().traffic().resent, 0, "{version}");
    }
}

#[test]
fn a_server_without_room_for_what_it_granted_costs_a_connection() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, placing) = bed(&bytes);
        // It grants four calls, and has room for one.
        placing.receives(1);
        let options = NfsOptions { connections: 1, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        assert!(read(&file, 0, LEN).unwrap() == bytes, "{version}");
        assert!(file.client().traffic().connections > 1, "{version}");
        placing.receives(64);
        assert_eq!(file.write_at(&bytes[7..], 0).unwrap(), LEN - 7, "{version}");
        assert!(server.durable("/export/file")[..LEN - 7] == bytes[7..], "{version}");
    }
}

#[test]
fn replies_that_come_twice_after_a_reconnect_are_taken_once() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, placing) = bed(&bytes);
        let file = opened(&server, version, &fake);
        fake.inject(Cut::on(Side::Server, Kind::Send, What::Disconnect));
        placing.lie(Lie::Twice);
        assert!(read(&file, 0, LEN).unwrap() == bytes, "{version}");
        placing.lie(Lie::Twice);
        assert!(read(&file, 0, LEN).unwrap() == bytes, "{version}");
        assert!(file.client().traffic().resent > 0 && file.client().traffic().strange > 0, "{version}");
    }
}

#[test]
fn memory_that_was_given_back_is_not_reached_any_more() {
    for version in VERSIONS {
        let (fake, server, placing) = bed(&pattern(LEN));
        let (silence, deadline) = (Duration::from_millis(100), Duration::from_millis(300));
        let options = NfsOptions { silence, deadline, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        // The server writes when the caller has given up.
        let late = What::Delay(Duration::from_secs(1));
        fake.inject(Cut::on(Side::Server, Kind::Write, late).times(1000));
        let mut place = vec![0xAA; LEN];
        assert_eq!(file.read_at(&mut place, 0).unwrap_err().kind(), ErrorKind::Timeout, "{version}");
        assert!(place.iter().all(|byte| *byte == 0xAA), "{version}");
        place.fill(0xBB);
        // Ends when all that it had to write was tried.
        drop(placing);
        assert!(place.iter().all(|byte| *byte == 0xBB), "{version}");
        assert_eq!(fake.counts().written, 0, "{version}");
    }
}

/// The fabric refuses memory that a child would get too. Bytes go by pages of the client's own; they are right at odd places all the same.
#[test]
fn where_a_fork_would_take_memory_away_no_other_than_own_pages_are_registered() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, placing) = bed(&bytes);
        fake.copy_at_fork(false);
        let file = opened(&server, version, &fake);
        for (offset, len) in [(0, 1), (4095, 4098), (7, 1 << 20), (0, LEN), (LEN - 5, 100)] {
            let expected = &bytes[offset..(offset + len).min(LEN)];
            assert!(read(&file, offset, len).unwrap() == expected, "{version} {offset} {len}");
        }
        placing.lie(Lie::Inline);
        assert!(read(&file, 3, 501).unwrap() == bytes[3..504], "{version}");
        let new: Vec<_> = bytes.iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new[1..], 50).unwrap(), LEN - 1, "{version}");
        assert!(server.durable("/export/file")[50..] == new[1..], "{version}");
        assert_eq!((fake.counts().refused, file.client().traffic().resent), (0, 0), "{version}");
    }
}

/// The device does not end a key: its connection ends before the caller has the memory back, and no late byte comes.
#[test]
fn a_key_that_cannot_be_ended_costs_the_connection() {
    let len = 100_000;
    for version in VERSIONS {
        let (fake, server, placing) = bed(&pattern(LEN));
        let options = NfsOptions { connections: 1, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        // The attempt behind the connection's end fails, too: the key stays for good.
        fake.refuse_deregistrations(2);
        placing.lie(Lie::Late);
        let mut place = vec![0xAA; len];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), len, "{version}");
        assert!(place == pattern(LEN)[..len], "{version}");
        place.fill(0xBB);
        std::thread::sleep(Duration::from_millis(300));
        assert!(place.iter().all(|byte| *byte == 0xBB), "{version}: written behind the answer");
        assert_eq!((fake.refusals_left(), fake.counts().written), (0, len as u64), "{version}");
        // The next one makes a new connection; what another call wants is sent there.
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
        assert_eq!(file.client().traffic().connections, 2, "{version}");
        drop(placing);
    }
}

/// Calls that are under way on such a connection are sent again.
#[test]
fn calls_beside_a_key_that_cannot_be_ended_lose_no_byte() {
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&pattern(LEN));
        let file = opened(&server, version, &fake);
        fake.refuse_deregistrations(3);
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
        fake.refuse_deregistrations(3);
        let new: Vec<_> = pattern(LEN).iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new, 0).unwrap(), LEN, "{version}");
        assert!(server.durable("/export/file") == new, "{version}");
        assert!(file.client().traffic().connections > 2, "{version}");
    }
}

#[test]
fn memory_that_may_not_be_locked_is_told_at_once() {
    let (fake, server, _placing) = bed(&pattern(LEN));
    for version in VERSIONS {
        let file = opened(&server, version, &fake);
        fake.limit_locked(4096);
        let error = read(&file, 0, LEN).unwrap_err();
        assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Memlock), "{error:?}");
        assert_eq!(error.hints(), ["ulimit -l unlimited"]);
        fake.limit_locked(u64::MAX);
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
        // Calls that were never sent took no number of the session's.
        assert_eq!(server.wrong_slots(), 0, "{version}");
    }
}

/// Room for one call's memory, and that of three connections.
const ROOM_FOR_ONE: u64 = 3 << 19;

/// Others wait for it, of whichever connection or client they are.
#[test]
fn calls_wait_for_each_others_locked_memory() {
    let (fake, server, _placing) = bed(&pattern(LEN));
    for version in VERSIONS {
        // Other options make another client.
        let (options, mut other) = (options(&fake), options(&fake));
        (other.rdma, other.connections) = (options.rdma.clone(), 1);
        let url = NfsUrl::parse(&server.url("/export/file", version)).unwrap();
        let files = [open(&url, &options).unwrap(), open(&url, &other).unwrap()];
        fake.limit_locked(ROOM_FOR_ONE);
        std::thread::scope(|scope| {
            for file in &files {
                scope.spawn(move || {
                    for _ in 0..4 {
                        assert!(read(file, 0, LEN).unwrap() == pattern(LEN), "{version}");
                    }
                });
            }
        });
        fake.limit_locked(u64::MAX);
    }
}

/// What others hold stays held: the call ends with that reason when its patience does.
#[test]
fn a_call_does_not_wait_for_locked_memory_for_ever() {
    let (fake, server, _placing) = bed(&pattern(LEN));
    let (patient, mut hasty) = (options(&fake), options(&fake));
    (hasty.rdma, hasty.silence) = (patient.rdma.clone(), Duration::from_millis(500));
    let url = NfsUrl::parse(&server.url("/export/file", "3")).unwrap();
    let (holder, starved) = (open(&url, &patient).unwrap(), open(&url, &hasty).unwrap());
    assert!(read(&starved, 0, 9).unwrap() == pattern(LEN)[..9]);
    fake.limit_locked(ROOM_FOR_ONE);
    // An answer is lost: the call keeps what it has locked until it is sent again.
    fake.inject(Cut::on(Side::Server, Kind::Send, What::Lose));
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| read(&holder, 0, 1 << 20).unwrap());
        while fake.counts().written <= 9 {
            std::thread::yield_now();
        }
        let error = read(&starved, 0, LEN).unwrap_err();
        assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Memlock), "{error:?}");
        assert!(holder.join().unwrap() == pattern(LEN)[..1 << 20]);
    });
}

/// Room for calls, one at a time, and for no connection.
const ROOM_FOR_CALLS: u64 = 100_000;

#[test]
fn a_connection_without_locked_memory_leaves_its_calls_to_the_others() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&bytes);
        server.limit(64 << 10);
        let idle = Duration::from_secs(1);
        let options = NfsOptions { connections: 4, idle, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        assert!(read(&file, 0, 9).unwrap() == bytes[..9]);
        fake.limit_locked(ROOM_FOR_CALLS);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert!(read(&file, 0, LEN).unwrap() == bytes, "{version}"));
            }
        });
        assert_eq!(file.client().traffic().connections, 1, "{version}");
        assert_eq!(file.write_at(&bytes[1..], 0).unwrap(), LEN - 1, "{version}");
        // Later they are tried again.
        fake.limit_locked(u64::MAX);
        let began = Instant::now();
        while file.client().traffic().connections < 4 {
            assert!(read(&file, 0, LEN - 1).unwrap() == bytes[1..], "{version}");
            assert!(began.elapsed() < 10 * idle, "{version}");
        }
        assert_eq!((file.client().traffic().resent, server.wrong_slots()), (0, 0), "{version}");
    }
}

#[test]
fn where_no_connection_has_locked_memory_that_is_told_at_once() {
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&pattern(LEN));
        let options = NfsOptions { connections: 4, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        let domain = file.client().domain().unwrap();
        fake.limit_locked(1000);
        let began = Instant::now();
        let error = read(&file, 0, LEN).unwrap_err();
        assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Memlock), "{error:?}");
        assert!(began.elapsed() < options.silence / 2, "{version}");
        fake.limit_locked(u64::MAX);
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
        // Memory registered there is still usable.
        assert!(Arc::ptr_eq(&domain, &file.client().domain().unwrap()), "{version}");
    }
}

/// A call waits for the memory of another one, which the server does not answer.
#[test]
fn a_silent_server_is_told_as_such_where_calls_wait_for_memory() {
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&pattern(LEN));
        let (silence, deadline) = (Duration::from_millis(300), Duration::from_millis(900));
        let options = NfsOptions { connections: 1, silence, deadline, ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        assert!(read(&file, 0, 9).unwrap() == pattern(9), "{version}");
        fake.limit_locked(ROOM_FOR_ONE);
        server.faults(|seen| (seen.asked == Asked::Read).then_some(fake_nfs::Fault::NoReply));
        let error = read(&file, 0, LEN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{version} {error:?}");
        server.faults(|_| None);
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
    }
}

#[test]
fn messages_to_calls_that_were_not_made_are_no_sign_of_life() {
    for pause in [Duration::from_millis(30), Duration::ZERO] {
        for version in VERSIONS {
            let (fake, server, _placing) = bed(&pattern(1000));
            let (silence, deadline) = (Duration::from_millis(400), Duration::from_millis(1500));
            let options = NfsOptions { connections: 1, silence, deadline, ..options(&fake) };
            let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
            server.faults(move |seen| (seen.asked == Asked::Read).then_some(fake_nfs::Fault::Flood(pause)));
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let reads = file.clone();
            std::thread::spawn(move || tell.send(read(&reads, 0, 1000)));
            let Ok(result) = told.recv_timeout(Duration::from_secs(15)) else {
                // The server would flood the connection for ever.
                eprintln!("{version} {pause:?}: no end");
                std::process::abort();
            };
            let kind = result.unwrap_err().kind();
            assert!([ErrorKind::Timeout, ErrorKind::Io].contains(&kind), "{version} {pause:?} {kind:?}");
            server.faults(|_| None);
            assert!(read(&file, 0, 1000).unwrap() == pattern(1000), "{version} {pause:?}");
        }
    }
}

/// The call has arrived: nothing is left to be repeated, and what the server says of its end is lost.
#[test]
fn a_server_that_is_gone_without_a_word_is_noticed_before_it_is_silent() {
    let bytes = pattern(LEN);
    let gone = |version, kind| {
        let (fake, server, _placing) = bed(&bytes);
        let options = NfsOptions { silence: Duration::from_secs(12), ..options(&fake) };
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        fake.inject(Cut::on(Side::Server, kind, What::Vanish).after(1));
        let began = Instant::now();
        assert!(read(&file, 0, LEN).unwrap() == bytes, "{version} {kind:?}");
        assert!(began.elapsed() < options.silence, "{version} {kind:?}");
        assert!(file.client().traffic().resent > 0, "{version} {kind:?}");
    };
    std::thread::scope(|scope| {
        for version in VERSIONS {
            for kind in [Kind::Send, Kind::Write] {
                scope.spawn(move || gone(version, kind));
            }
        }
    });
}

/// It is asked for a sign of life, and answers late.
#[test]
fn a_server_that_takes_its_time_keeps_its_connections() {
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&pattern(LEN));
        let file = opened(&server, version, &fake);
        let late = What::Delay(Duration::from_millis(2500));
        fake.inject(Cut::on(Side::Server, Kind::Send, late).after(1));
        assert!(read(&file, 0, LEN).unwrap() == pattern(LEN), "{version}");
        let traffic = file.client().traffic();
        assert_eq!((traffic.connections, traffic.resent), (2, 0), "{version}");
    }
}

/// Its queue pairs take no writes, not even of no bytes.
#[test]
fn a_server_that_refuses_to_be_asked_for_a_sign_of_life_is_not_asked_again() {
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&pattern(1000));
        let file = opened(&server, version, &fake);
        let late = What::Delay(Duration::from_millis(2500));
        fake.inject(Cut::on(Side::Server, Kind::Send, late).times(2));
        fake.inject(Cut::on(Side::Client, Kind::Write, What::Refuse).times(1000));
        assert!(read(&file, 0, 1000).unwrap() == pattern(1000), "{version}");
        let traffic = file.client().traffic();
        assert_eq!((traffic.connections, traffic.resent), (2, 1), "{version}");
    }
}

#[test]
fn a_server_may_put_few_bytes_into_the_message() {
    for version in VERSIONS {
        let (fake, server, placing) = bed(&pattern(501));
        let file = opened(&server, version, &fake);
        placing.lie(Lie::Inline);
        assert!(read(&file, 0, 501).unwrap() == pattern(501));
        assert_eq!(fake.counts().written, 0);
    }
}

#[test]
fn connections_that_break_cost_no_byte() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for (side, kind, what) in [
            (Side::Client, Kind::Send, What::Disconnect),
            (Side::Client, Kind::Send, What::Unreachable),
            (Side::Client, Kind::Send, What::Lose),
            (Side::Client, Kind::Send, What::Delay(Duration::from_millis(100))),
            (Side::Server, Kind::Send, What::Disconnect),
            (Side::Server, Kind::Send, What::Lose),
            (Side::Server, Kind::Send, What::Hold(1)),
            (Side::Server, Kind::Send, What::Delay(Duration::from_millis(600))),
            (Side::Server, Kind::Write, What::Disconnect),
            (Side::Server, Kind::Write, What::Delay(Duration::from_millis(600))),
        ] {
            for after in [0, 2] {
                let (fake, server, _placing) = bed(&bytes);
                let options = NfsOptions { silence: Duration::from_millis(300), ..options(&fake) };
                let file =
                    open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
                fake.inject(Cut::on(side, kind, what).after(after));
                let got = read(&file, 0, LEN);
                assert!(got.is_ok_and(|got| got == bytes), "{version} {side:?} {kind:?} {what:?} {after}");
                assert!(read(&file, 0, LEN).unwrap() == bytes);
            }
        }
    }
}

#[test]
fn writes_survive_what_breaks() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for (side, kind) in
            [(Side::Client, Kind::Send), (Side::Server, Kind::Read), (Side::Server, Kind::Send)]
        {
            let (fake, server, _placing) = bed(&vec![0; LEN]);
            let file = opened(&server, version, &fake);
            fake.inject(Cut::on(side, kind, What::Disconnect).after(1));
            assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN);
            assert!(server.durable("/export/file") == bytes, "{version} {side:?} {kind:?}");
        }
        let (fake, server, _placing) = bed(&vec![0; LEN]);
        let file = opened(&server, version, &fake);
        server.faults(|seen| {
            (seen.asked == Asked::Commit && seen.before == 0).then_some(fake_nfs::Fault::Forget)
        });
        assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN);
        assert!(server.durable("/export/file") == bytes);
    }
}

#[test]
fn a_device_that_is_removed_ends_the_request_in_time() {
    let (fake, server, _placing) = bed(&pattern(LEN));
    let options = NfsOptions { deadline: Duration::from_millis(800), ..options(&fake) };
    let file = open(&NfsUrl::parse(&server.url("/export/file", "3")).unwrap(), &options).unwrap();
    assert!(read(&file, 0, LEN).unwrap() == pattern(LEN));
    fake.remove_device("fake0");
    assert_eq!(read(&file, 0, LEN).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_server_without_rdma_is_told_when_the_file_is_opened() {
    let (fake, server) = (Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", pattern(100));
    let _placing = Placing::start(&fake, server.clone());
    let mut options = options(&fake);
    if let Some(rdma) = &mut options.rdma {
        rdma.port = 1;
    }
    let error = open(&NfsUrl::parse(&server.url("/export/file", "3")).unwrap(), &options).unwrap_err();
    assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Rejected), "{error:?}");
    assert!(error.hints().iter().any(|hint| hint == "FOREBAY_NFS=tcp"));
    // The error is that of the version that the server speaks, not of those that were tried before it.
    server.versions(true, None);
    let port = server.address().port();
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/export/file?mountport={port}")).unwrap();
    let error = open(&url, &options).unwrap_err();
    assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Rejected), "{error:?}");
}
