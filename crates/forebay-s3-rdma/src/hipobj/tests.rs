//! Heads as a server writes them, and round trips.

use forebay_verbs::{QueueEnd, Remote, gid_of};
use proptest::prelude::*;

use super::*;
use crate::headers::{BYTES, REPLY, TOKEN};
use crate::{Operation, Refusal};

type Heads = Vec<(&'static str, String)>;

fn get<'a>(heads: &'a Heads) -> impl Fn(&str) -> Option<&'a str> {
    move |name| heads.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

fn end() -> QueueEnd {
    let gid = gid_of(std::net::Ipv4Addr::new(10, 9, 0, 1).into());
    QueueEnd { number: 0x12, first: 0x00ab_cdef, gid, lid: 0, port: 1, mtu: 4096 }
}

fn prepare() -> Prepare {
    Prepare {
        operation: Operation::Get,
        target: "/bucket/a%20key".into(),
        offset: 5,
        bytes: 1 << 20,
        end: end(),
        cookie: 0xcafe,
    }
}

fn changed(heads: &Heads, name: &'static str, value: Option<&str>) -> Heads {
    let mut heads = heads.clone();
    heads.retain(|(known, _)| *known != name);
    heads.extend(value.map(|value| (name, value.to_owned())));
    heads
}

/// The layout: kind, queue pair, GID, key, address, bytes, port, lid.
#[test]
fn a_token_byte_by_byte() {
    let text = "0112000000\
                00000000000000000000ffff0a090001\
                a5201800\
                0000004a7c7f0000\
                0000100000000000\
                01\
                0000";
    let token = EndToken::parse(text).unwrap();
    assert_eq!(token.memory, Remote { key: 0x18_20a5, address: 0x7f7c_4a00_0000 });
    assert_eq!((token.bytes, token.port, token.lid), (1 << 20, 1, 0));
    assert_eq!(token.end(0x00ab_cdef, 4096), end());
    assert_eq!(token.text(), text);
    assert_eq!(EndToken::parse(&text.to_uppercase()), Some(token));
    let shown = format!("{token:?}");
    assert!(!shown.contains("7f7c") && !shown.contains("1581221"), "{shown}");
    for wrong in ["", &text[2..], &text.replacen("01", "00", 1), &text.replacen("01", "02", 1)] {
        assert_eq!(EndToken::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn prepare_as_it_is_sent_and_what_servers_refuse() {
    let heads = prepare().headers();
    let sent: Vec<String> = heads.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        sent[..7],
        [
            "x-amz-rdma-protocol: hipobj-rc-v2",
            "x-amz-rdma-op: GET",
            "x-amz-rdma-target: /bucket/a%20key",
            "x-amz-rdma-offset: 5",
            "x-amz-rdma-size: 1048576",
            "x-amz-rdma-psn: abcdef",
            "x-amz-rdma-cookie: 0000cafe",
        ]
    );
    assert_eq!(Prepare::parse(4096, get(&heads)), Ok(prepare()));
    let wrong = [
        (header::PROTOCOL, Some("hipobj-rc-v1")),
        (header::PROTOCOL, None),
        (header::OPERATION, Some("get")),
        (header::TARGET, Some("bucket/key")),
        (header::OFFSET, None),
        (header::OFFSET, Some("-1")),
        (header::SIZE, Some("0")),
        (header::SIZE, Some("2147483648")),
        (header::SIZE, Some("+5")),
        (header::FIRST, Some("000000")),
        (header::FIRST, Some("1000000")),
        (header::COOKIE, Some("00000000")),
        (header::COOKIE, Some("123456789")),
        (TOKEN, Some("00")),
        (TOKEN, None),
    ];
    for (name, value) in wrong {
        let heads = changed(&heads, name, value);
        let refused = Prepare::parse(4096, get(&heads));
        assert!(matches!(refused, Err(Refusal::Malformed(_))), "{name}: {value:?}: {refused:?}");
    }
}

/// As vgwrdma 1.8.0 answers: PSN in capitals, the queue pair not padded, memory for GET, too.
#[test]
fn a_recorded_answer_to_prepare() {
    let token = format!("011200000000000000000000000000ffff0a090001{}010000", "0".repeat(40));
    let heads: Heads = vec![
        (header::PROTOCOL, NAME.into()),
        (REPLY, format!("200:{token}")),
        (header::SESSION, "3f2a0c5be1d94e6f8a7b6c5d4e3f2a1b".into()),
        (header::FIRST, "00001A".into()),
        (header::NUMBER, "12".into()),
        (header::ADDRESS, "7f2b48000000".into()),
        (header::KEY, "1a2b".into()),
    ];
    let parse = |operation, status, heads: &Heads| Prepared::parse(operation, 1024, status, get(heads));
    let prepared = parse(Operation::Put, 200, &heads).unwrap();
    assert_eq!((prepared.end.number, prepared.end.first, prepared.end.mtu), (0x12, 0x1a, 1024));
    assert_eq!(prepared.memory, Remote { key: 0x1a2b, address: 0x7f2b_4800_0000 });
    let without = changed(&heads, header::ADDRESS, None);
    assert!(parse(Operation::Get, 200, &without).is_ok());
    assert!(matches!(parse(Operation::Put, 200, &without), Err(Refused::Wrong(_))));
    for (name, value) in [
        (REPLY, None),
        (REPLY, Some("501")),
        (header::SESSION, None),
        (header::SESSION, Some("a b")),
        (header::FIRST, None),
        (header::FIRST, Some("0")),
    ] {
        let heads = changed(&heads, name, value);
        assert!(matches!(parse(Operation::Get, 200, &heads), Err(Refused::Wrong(_))), "{name}: {value:?}");
    }
}

#[test]
fn refusals_say_what_to_do_next() {
    let ours: Heads = vec![(header::PROTOCOL, NAME.into())];
    let table = [
        (501, &ours, Refused::Unsupported),
        (501, &vec![], Refused::Unsupported),
        (413, &ours, Refused::NotNow(413)),
        (503, &ours, Refused::NotNow(503)),
        (429, &vec![], Refused::NotNow(429)),
        (404, &vec![], Refused::Unsupported),
        (405, &vec![], Refused::Unsupported),
        (404, &ours, Refused::Status(404)),
        (403, &vec![], Refused::Status(403)),
        (400, &vec![], Refused::Status(400)),
        (200, &vec![], Refused::Unsupported),
    ];
    for (status, heads, refused) in table {
        assert_eq!(Prepared::parse(Operation::Get, 1024, status, get(heads)), Err(refused), "{status}");
    }
}

#[test]
fn an_answer_is_believed_only_as_a_whole() {
    let done =
        Finished { bytes: 1 << 20, cookie: 0xcafe, etag: Some("\"e\"".into()), version: None, sum: Some(7) };
    let heads = done.headers();
    let parse = |status, heads: &Heads| Finished::parse((1 << 20, 0xcafe), status, get(heads));
    assert_eq!(parse(200, &heads), Ok(done));
    assert!(parse(206, &heads).is_err());
    let wrong = [
        (header::PROTOCOL, None),
        (BYTES, None),
        (BYTES, Some("1048575")),
        (BYTES, Some("1048577")),
        (header::COOKIE, None),
        (header::COOKIE, Some("0000caff")),
        (header::SUM, Some("none")),
    ];
    for (name, value) in wrong {
        assert!(parse(200, &changed(&heads, name, value)).is_err(), "{name}: {value:?}");
    }
    assert!(parse(200, &changed(&heads, header::COOKIE, Some("0000CAFE"))).is_ok());
}

#[test]
fn memory_is_not_printed() {
    let memory = Remote { key: 0x1820_a5aa, address: 0x7f7c_4a00_0000 };
    let ready = Ready { session: "5ec0".into(), cookie: 1, number: 2, memory };
    let prepared = Prepared { session: "5ec0".into(), end: end(), memory };
    let shown = format!("{ready:?} {prepared:?}");
    for secret in ["5ec0", "7f7c", "1820", &0x1820_a5aa_u32.to_string(), &memory.address.to_string()] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

proptest! {
    #[test]
    fn both_sides_read_what_the_other_writes(
        number in 2_u32..1 << 24, first in 1_u32..1 << 24, gid: [u8; 16], lid: u16, port: u8,
        cookie in 1_u32.., bytes in 1..=MOST_BYTES, offset: u64, address in 1_u64.., key: u32, put: bool,
    ) {
        let end = QueueEnd { number, first, gid, lid, port, mtu: 1024 };
        prop_assume!(end.check().is_ok());
        let operation = if put { Operation::Put } else { Operation::Get };
        let asked = Prepare { operation, target: "/b/k".into(), offset, bytes, end, cookie };
        prop_assert_eq!(Prepare::parse(1024, get(&asked.headers())), Ok(asked));
        let session = format!("{address:032x}");
        let memory = Remote { key, address };
        let prepared = Prepared { session: session.clone(), end, memory };
        prop_assert_eq!(Prepared::parse(operation, 1024, 200, get(&prepared.headers())), Ok(prepared));
        let ready = Ready { session, cookie, number, memory };
        prop_assert_eq!(Ready::parse(get(&ready.headers())), Ok(ready));
    }

    #[test]
    fn any_head_is_read_or_refused(values in proptest::collection::vec("[ -~]{0,100}", 8)) {
        let names = [header::PROTOCOL, header::SESSION, header::FIRST, header::COOKIE, TOKEN, REPLY, header::SIZE, header::OFFSET];
        let mut heads: Heads = names.into_iter().zip(values).collect();
        heads[0].1 = NAME.into();
        let _ = Prepare::parse(1024, get(&heads));
        let _ = Prepared::parse(Operation::Put, 1024, 200, get(&heads));
        let _ = Ready::parse(get(&heads));
        let _ = Finished::parse((1, 1), 200, get(&heads));
    }
}
