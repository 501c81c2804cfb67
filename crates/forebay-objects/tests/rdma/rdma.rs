//! Objects by RDMA: a server in the process writes into the software GPU's memory and into host memory, over a fabric in the process. The
//! server and its lies: `rdma_server`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_verbs::{Fake, Fault, Side, What};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{EngineKind, File, Receipt, Session, Way};
use forebay_error::Result;
use forebay_verbs::Kind;

use crate::common::{allow_dma_bufs, config, install_gpu, pattern, soon, try_placed, turn};
use crate::rdma_server::{Lie, Named};

const KEY: u64 = 9;
pub const LEN: usize = 9_000_001;

pub fn named(wish: &str) -> Named {
    // Before a session of any test looks for the driver.
    install_gpu();
    let server = Named::start(Fake::new(), wish);
    server.s3().put("bucket", "key", pattern(KEY, 0, LEN));
    server
}

pub fn opened() -> File {
    File::open("s3://bucket/key").unwrap()
}

pub fn session() -> Session {
    install_gpu();
    Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap()
}

/// Reads all of the object into the GPU's memory, which has other bytes before.
fn read_gpu(session: &Session, file: &File) -> Result<Receipt> {
    let mut buffer = session.buffer(0, LEN + 64).unwrap();
    buffer.copy_from_slice(&vec![0xA5; LEN + 64]).unwrap();
    let receipt = session.read_into(file, 0, &mut buffer, 0..LEN)?;
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[..LEN] == pattern(KEY, 0, LEN), "wrong bytes: {receipt}");
    assert!(bytes[LEN..] == [0xA5; 64], "bytes beside the range");
    Ok(receipt)
}

fn refusal(receipt: &Receipt) -> String {
    let refused = receipt.election.refused.iter().find(|refusal| refusal.engine == EngineKind::Placed);
    refused.map(|refusal| refusal.reason.clone()).unwrap_or_default()
}

#[test]
fn a_server_writes_objects_into_gpu_memory_and_no_byte_crosses_the_host() {
    let turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_placed(&session, &file, 4096);
    let (copies, body) = (turn.fake.calls("cuMemcpyHtoDAsync_v2"), server.body_bytes());
    let receipt = read_gpu(&session, &file).unwrap();
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Placed, LEN as u64), "{receipt}");
    let text = receipt.to_string();
    let note = format!(
        "by RDMA into device memory: S3 by RDMA, rc1, server {}, not compared with a checksum, NIC fake0; keys: per buffer",
        server.environment()[0].1.trim_start_matches("http://")
    );
    assert!(text.contains(&note), "{text}");
    assert!(!text.contains("HTTP body") && refusal(&receipt).is_empty(), "{text}");
    assert_eq!(server.body_bytes(), body, "bytes came in a body");
    // What sets the buffer is one copy.
    assert!(turn.fake.calls("cuMemcpyHtoDAsync_v2") <= copies + 1);
    // Odd ranges.
    let mut buffer = session.buffer(0, 1 << 20).unwrap();
    for (offset, len) in [(0, 1), (1, 4095), (LEN as u64 - 3, 3), (4095, 700_001)] {
        let receipt = session.read_into(&file, offset, &mut buffer, 5..5 + len).unwrap();
        assert_eq!(receipt.moved[Way::Server], len as u64, "{receipt}");
        assert!(buffer.to_vec().unwrap()[5..5 + len] == pattern(KEY, offset, len));
    }
    assert_eq!(server.body_bytes(), body);
}

/// Lies, and what the receipt says of them.
const LIES: [(Lie, &str); 12] = [
    (Lie::Fewer, "other bytes than were asked for"),
    (Lie::More, "other bytes than were asked for"),
    (Lie::Half, "other bytes than were asked for"),
    (Lie::NoHeader, "does not move the bytes by RDMA (reason=unsaid"),
    (Lie::Declines, "does not move the bytes by RDMA (reason=dialect"),
    (Lie::Status501, "does not move the bytes by RDMA (reason=unsaid"),
    (Lie::OtherRange, "the bytes of another range"),
    (Lie::FirstBytes, "the bytes of another range"),
    (Lie::NoRange, "the bytes of another range"),
    (Lie::NoEtag, "there is no ETag"),
    (Lie::OtherEtag, "the object was replaced"),
    (Lie::SlowDown, "too much to do"),
];

#[test]
fn no_wrong_reply_is_believed_and_the_bytes_are_right() {
    let _turn = turn();
    allow_dma_bufs();
    for (lie, said) in LIES {
        let (server, session) = (named("prefer"), session());
        let file = opened();
        try_placed(&session, &file, 4096);
        let (connects, body) = (server.connects(), server.body_bytes());
        server.lie(lie, 1000);
        let receipt = read_gpu(&session, &file).unwrap();
        assert_eq!(receipt.moved[Way::Server], 0, "{lie:?}: {receipt}");
        let why = refusal(&receipt);
        assert!(why.contains(said) && why.contains("were staged"), "{lie:?}: {receipt}");
        // The first bytes came when it was opened.
        assert!(server.body_bytes() >= body + LEN as u64 - (256 << 10), "{lie:?}");
        let is_remembered = !matches!(lie, Lie::OtherEtag | Lie::SlowDown);
        if is_remembered {
            let (connects, transfers) = (server.connects(), server.transfers());
            let receipt = read_gpu(&session, &file).unwrap();
            assert!(refusal(&receipt).contains(said), "{lie:?}: {receipt}");
            assert_eq!(
                (server.connects(), server.transfers()),
                (connects, transfers),
                "asked again: {lie:?}"
            );
        }
        assert!(server.connects() <= connects + 8);
    }
}

#[test]
fn a_server_that_moves_nothing_is_found_out_before_it_is_used() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    server.lie(Lie::MovesNothing, 1000);
    let file = opened();
    try_placed(&session, &file, 4096);
    let receipt = read_gpu(&session, &file).unwrap();
    assert!(refusal(&receipt).contains("its bytes did not arrive"), "{receipt}");
    assert_eq!(receipt.moved[Way::Server], 0, "{receipt}");
}

#[test]
fn a_session_that_the_server_has_lost_is_made_again_once() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_placed(&session, &file, 4096);
    read_gpu(&session, &file).unwrap();
    for lie in [Lie::Forgets, Lie::Silent] {
        let (connects, ended) = (server.connects(), server.disconnects());
        server.lie(lie, 1);
        let receipt = read_gpu(&session, &file).unwrap();
        assert_eq!(receipt.moved[Way::Server], LEN as u64, "{lie:?}: {receipt}");
        // Another one may be idle.
        assert!(soon(|| server.connects() > connects || server.disconnects() > ended), "{lie:?}");
    }
    server.restart();
    let receipt = read_gpu(&session, &file).unwrap();
    assert_eq!(receipt.moved[Way::Server], LEN as u64, "{receipt}");
    // It never has one.
    server.lie(Lie::Forgets, 1000);
    let receipt = read_gpu(&session, &file).unwrap();
    assert!(refusal(&receipt).contains("reason=session"), "{receipt}");
}

#[test]
fn bytes_that_come_behind_the_end_of_an_operation_are_refused_by_the_fabric() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_placed(&session, &file, 4096);
    read_gpu(&session, &file).unwrap();
    // Each of its two attempts, of each of the two ranges.
    server.lie(Lie::WritesLater, 4);
    let refused = server.refused();
    let receipt = read_gpu(&session, &file).unwrap();
    assert_eq!(receipt.moved[Way::Server], 0, "{receipt}");
    assert!(soon(|| server.refused() == refused + 4), "{}", server.refused());
}

#[test]
fn a_reply_that_is_late_or_comes_twice_is_no_other() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_placed(&session, &file, 4096);
    server.lie(Lie::Late(Duration::from_millis(600)), 2);
    let began = Instant::now();
    let receipt = read_gpu(&session, &file).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(receipt.moved[Way::Server], LEN as u64, "{receipt}");
    server.lie(Lie::Twice, 1000);
    for _ in 0..3 {
        read_gpu(&session, &file).unwrap();
    }
}

#[test]
fn a_write_beside_the_window_ends_the_session_and_reaches_nothing() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_placed(&session, &file, 4096);
    server.fabric.inject(Fault::on(Side::Server, Kind::Write, What::Unreachable).times(1000));
    let receipt = read_gpu(&session, &file).unwrap();
    assert!(refusal(&receipt).contains("reason=transfer"), "{receipt}");
}

#[test]
fn a_server_that_does_not_take_it_is_asked_once() {
    let _turn = turn();
    allow_dma_bufs();
    for status in [403, 404, 405, 501] {
        let (server, session) = (named("prefer"), session());
        server.answer_connect(status);
        let file = opened();
        for _ in 0..3 {
            let receipt = read_gpu(&session, &file).unwrap();
            let text = receipt.to_string();
            let line = format!("the server does not take RDMA (status={status}");
            assert_eq!(text.matches(&line).count(), 1, "{text}");
            assert_eq!(receipt.moved[Way::Server], 0, "{text}");
        }
        assert_eq!((server.connects(), server.transfers()), (1, 0));
    }
}

#[test]
fn nobody_is_asked_where_it_is_off_or_no_nic_leads_there() {
    let _turn = turn();
    allow_dma_bufs();
    for (fabric, wish) in [(Fake::new(), "off"), (Fake::with(Vec::new()), "prefer")] {
        // The server's own device is on another fabric.
        let (server, session) = (named(wish), session());
        forebay_objects::use_fabric(Arc::new(fabric));
        let receipt = read_gpu(&session, &opened()).unwrap();
        assert!(!receipt.to_string().contains("RDMA"), "{receipt}");
        assert_eq!((server.connects(), server.transfers()), (0, 0));
    }
}

/// Reads all of the object into host memory, which has other bytes before.
pub fn read_host(session: &Session, file: &File) -> Result<Receipt> {
    let mut buffer = session.host_buffer(LEN + 64).unwrap();
    buffer.copy_from_slice(&vec![0xA5; LEN + 64]).unwrap();
    let receipt = session.read_into(file, 0, &mut buffer, 0..LEN)?;
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[..LEN] == pattern(KEY, 0, LEN), "wrong bytes: {receipt}");
    assert!(bytes[LEN..] == [0xA5; 64], "bytes beside the range");
    Ok(receipt)
}

/// Reads until the server's RDMA was tried: the first reads go by HTTP.
pub fn try_host(session: &Session, file: &File) -> Receipt {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let receipt = read_host(session, file).unwrap();
        if receipt.to_string().contains("by RDMA into host memory") {
            return receipt;
        }
        assert!(Instant::now() < until, "{receipt}");
    }
}

#[test]
fn host_memory_is_written_by_the_server_by_a_key_of_each_operation() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    let body = server.body_bytes();
    let receipt = read_host(&session, &file).unwrap();
    let text = receipt.to_string();
    let note = format!("{LEN} bytes by RDMA into host memory: S3 by RDMA, rc1, server 127.0.0.1:");
    let ranges = format!("NIC fake0; keys: per operation; {LEN} bytes not compared with a checksum");
    assert!(text.contains(&note) && text.contains(&ranges), "{text}");
    assert_eq!(server.body_bytes(), body, "{text}");
    // One for each of its two ranges, where these were under way at the same time.
    assert!(server.connects() <= 2, "{}", server.connects());
    // Nothing stays registered: of a limit that one read needs, all is left.
    server.fabric.limit_locked(64 << 20);
    for _ in 0..10 {
        assert!(read_host(&session, &file).unwrap().to_string().contains(&note));
    }
}

#[test]
fn where_rdma_is_required_no_body_has_bytes_and_a_refusal_is_an_error() {
    let (server, session) = (named("require"), session());
    let receipt = read_host(&session, &opened()).unwrap();
    assert_eq!(server.body_bytes(), 0, "{receipt}");
    // An odd range, shorter than those that are worth it otherwise.
    let mut short = [0; 99];
    opened().read_host(&mut short, 4097).unwrap();
    assert!(short[..] == pattern(KEY, 4097, 99) && server.body_bytes() == 0);
    server.lie(Lie::Declines, 1000);
    let error = read_host(&session, &opened()).unwrap_err();
    assert!(error.to_string().contains("reason=dialect"), "{error}");
    drop(server);
    let server = named("require");
    server.answer_connect(405);
    let error = read_host(&session, &opened()).unwrap_err();
    assert!(error.to_string().contains("does not take RDMA (status=405"), "{error}");
    assert_eq!((error.hints(), server.body_bytes()), (&["FOREBAY_S3_RDMA=prefer".to_owned()][..], 0));
    drop(server);
    let server = named("require");
    forebay_objects::use_fabric(Arc::new(Fake::with(Vec::new())));
    let error = read_host(&session, &opened()).unwrap_err();
    assert!(error.to_string().contains("RDMA device"), "{error}");
    assert_eq!(server.body_bytes(), 0);
}

#[test]
fn no_wrong_reply_is_believed_for_host_memory() {
    for (lie, _) in
        LIES.into_iter().chain([(Lie::WritesLater, ""), (Lie::Beside, ""), (Lie::MovesNothing, "")])
    {
        let (server, session) = (named("prefer"), session());
        let file = opened();
        if lie == Lie::MovesNothing {
            server.lie(lie, 1000);
            for _ in 0..5 {
                read_host(&session, &file).unwrap();
            }
            assert!(soon(|| {
                let receipt = read_host(&session, &file).unwrap();
                receipt.to_string().contains("by HTTP body: the server says that bytes moved")
            }));
            continue;
        }
        try_host(&session, &file);
        server.lie(lie, 1000);
        let refused = server.refused();
        let text = read_host(&session, &file).unwrap().to_string();
        assert!(text.contains(&format!("{LEN} bytes by HTTP body: ")), "{lie:?}: {text}");
        assert!(!text.contains("by RDMA into host memory"), "{lie:?}: {text}");
        if matches!(lie, Lie::WritesLater | Lie::Beside) {
            assert!(soon(|| server.refused() > refused), "{lie:?}");
        }
        assert!(soon(|| server.fabric.regions() == 0), "{lie:?}: memory is registered");
    }
}

#[test]
fn where_no_memory_can_be_locked_bytes_come_in_the_body_and_the_receipt_says_so() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    server.fabric.limit_locked(4096);
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(text.contains("bytes by HTTP body: cannot register memory"), "{text}");
    server.fabric.limit_locked(u64::MAX);
    server.fabric.copy_at_fork(false);
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(text.contains(&format!("{LEN} bytes by RDMA into host memory")), "{text}");
}

#[test]
fn operations_are_no_longer_than_the_server_takes() {
    let (server, session) = (named("prefer"), session());
    server.limit(1_048_579);
    let file = opened();
    try_host(&session, &file);
    let transfers = server.transfers();
    read_host(&session, &file).unwrap();
    assert!(server.transfers() - transfers >= 9);
    assert!(server.sessions() <= 8);
}

#[test]
fn a_device_that_is_removed_ends_operations_and_others_begin_anew() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    server.fabric.remove_device("fake0");
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(!text.contains("by RDMA into host memory"), "{text}");
}

/// Who removes a device waits for all that have it open.
#[test]
fn idle_sessions_end_with_their_device() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    let (made, ended) = (server.sessions(), server.disconnects());
    assert!(made > 0);
    server.fabric.remove_device("fake0");
    assert!(soon(|| server.sessions() == 0), "{} sessions", server.sessions());
    assert!(server.disconnects() >= ended + made as u64);
}

#[test]
fn a_probe_compares_bytes_that_come_both_ways() {
    let url = forebay_objects::ObjectUrl::parse("s3://bucket/key".as_ref()).unwrap();
    let rdma = || {
        let found = forebay_objects::probe(&url, false).unwrap();
        found.trials.into_iter().find(|trial| trial.name == "rdma")
    };
    let server = named("prefer");
    let trial = rdma().unwrap();
    assert_eq!(trial.seen, "rc1: 65536 bytes arrived in host memory by NIC fake0");
    assert!(trial.works && trial.hint.is_none());
    server.lie(Lie::MovesNothing, 1000);
    let trial = rdma().unwrap();
    assert!(!trial.works && trial.seen.contains("did not arrive in host memory"), "{trial:?}");
    server.answer_connect(405);
    let trial = rdma().unwrap();
    assert!(!trial.works && trial.seen.contains("does not take RDMA (status=405"), "{trial:?}");
    assert!(trial.hint.unwrap().contains("--rdma"));
    forebay_objects::use_fabric(Arc::new(Fake::with(Vec::new())));
    assert_eq!(rdma(), None);
}

#[test]
fn a_server_that_gives_few_sessions_is_not_asked_for_more_at_once() {
    let (server, session) = (named("prefer"), session());
    server.limit(1 << 20);
    server.limit_sessions(2);
    let file = opened();
    try_host(&session, &file);
    let connects = server.connects();
    for _ in 0..5 {
        let text = read_host(&session, &file).unwrap().to_string();
        assert!(text.contains(&format!("{LEN} bytes by RDMA into host memory")), "{text}");
    }
    assert!(server.sessions() <= 2 && server.connects() <= connects + 1, "{}", server.connects());
    // None at all: bytes go by HTTP, and the receipt says why.
    server.limit_sessions(0);
    server.restart();
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(text.contains("bytes by HTTP body: the server does not take RDMA (status=503"), "{text}");
}

#[test]
fn a_server_whose_sessions_are_of_no_use_is_asked_once() {
    for (seconds, bytes, said) in [
        (0, 1 << 30, "too short a time"),
        (5, 1 << 30, "idle_seconds=5"),
        (10, 1 << 30, "idle_seconds=10"),
        (300, 1, "operation_bytes=1"),
        (300, (1 << 20) - 1, "operations by RDMA are too short"),
    ] {
        let (server, session) = (named("prefer"), session());
        server.say_idle(seconds);
        server.limit(bytes);
        let file = opened();
        assert!(soon(|| read_host(&session, &file).unwrap().to_string().contains("RDMA")), "{said}");
        let text = read_host(&session, &file).unwrap().to_string();
        assert!(text.contains(said), "{said}: {text}");
        assert_eq!((server.connects(), server.transfers()), (1, 0), "{said}");
        assert!(soon(|| server.sessions() == 0), "{said}");
    }
}

#[test]
fn sessions_that_end_at_once_are_not_asked_for_without_end() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    server.end_sessions(true);
    server.restart();
    let connects = server.connects();
    let text = read_host(&session, &file).unwrap().to_string();
    assert!(text.contains("bytes by HTTP body: "), "{text}");
    assert!(server.connects() <= connects + 10, "{} connects", server.connects() - connects);
}

#[test]
fn refused_requests_take_no_session_of_the_server() {
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    for lie in [Lie::SlowDown, Lie::NotFound, Lie::OtherSize] {
        let (connects, most) = (server.connects(), server.sessions());
        server.lie(lie, 1000);
        for _ in 0..5 {
            // A server that finds nothing is believed: the object was replaced.
            let _ = read_host(&session, &file);
        }
        // Sessions live on, and no other takes their place.
        assert!(server.connects() <= connects + 1, "{lie:?}: {}", server.connects() - connects);
        assert!(server.sessions() >= most.min(1), "{lie:?}");
    }
    // A wrong reply ends the session at both sides.
    let (made, ended) = (server.sessions(), server.disconnects());
    server.lie(Lie::Fewer, 1000);
    read_host(&session, &file).unwrap();
    assert!(soon(|| server.disconnects() > ended && server.sessions() < made));
}

/// Bytes of an object that is read whole by one operation.
const SHORT: usize = 1_000_003;

#[test]
fn an_object_that_is_read_whole_is_compared_with_its_checksum() {
    let (server, session) = (named("prefer"), session());
    server.s3().put("bucket", "short", pattern(KEY, 0, SHORT));
    let file = File::open("s3://bucket/short").unwrap();
    let read = || {
        let mut buffer = session.host_buffer(SHORT).unwrap();
        let receipt = session.read_into(&file, 0, &mut buffer, 0..SHORT).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, SHORT), "wrong bytes: {receipt}");
        receipt.to_string()
    };
    assert!(soon(|| read().contains("by RDMA into host memory")));
    let text = read();
    assert!(text.contains("by RDMA into host memory") && !text.contains("not compared"), "{text}");
    server.lie(Lie::OtherBytes, 1);
    let text = read();
    assert!(text.contains("bytes by HTTP body: ") && text.contains("another checksum"), "{text}");
}

/// A key that lives on is good for all sessions of its domain.
#[test]
fn memory_whose_key_cannot_be_ended_is_free_behind_all_sessions() {
    const LATE: Duration = Duration::from_millis(1500);
    let (server, session) = (named("prefer"), session());
    let file = opened();
    try_host(&session, &file);
    server.lie(Lie::Late(LATE), 1);
    std::thread::scope(|scope| {
        let began = Instant::now();
        let read = |offset: u64| {
            let mut buffer = session.host_buffer(1 << 20).unwrap();
            let receipt = session.read_into(&file, offset, &mut buffer, 0..1 << 20).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, 1 << 20), "wrong bytes: {receipt}");
            receipt.to_string()
        };
        let first = scope.spawn(move || read(0));
        std::thread::sleep(Duration::from_millis(300));
        server.fabric.refuse_deregistrations(2);
        let text = read(2 << 20);
        assert!(began.elapsed() >= LATE, "the other session was there: {text}");
        assert!(text.contains("1048576 bytes by HTTP body: "), "{text}");
        first.join().unwrap();
    });
    assert_eq!(server.fabric.refusals_left(), 0);
    // A domain of its own again.
    try_host(&session, &file);
    server.fabric.limit_locked(64 << 20);
    for _ in 0..10 {
        let text = read_host(&session, &file).unwrap().to_string();
        assert!(text.contains(&format!("{LEN} bytes by RDMA into host memory")), "{text}");
    }
}
