//! Pages that a program will read again are registered after its first read, whether or not that pays by itself.

use std::time::{Duration, Instant};

use crate::common::{disk, pattern, soon, turn};
use crate::pages::{MIB, config, fetch, memory, open, pins, settle, subject};
use forebay_config::{CachePolicy, Config};
use forebay_engine::Way;
use forebay_error::ErrorKind;

const KEY: u64 = 0xA77;

#[test]
fn a_file_that_is_read_again_is_in_place_by_then() {
    let _turn = turn();
    for directory in [disk(), memory()] {
        // By itself it registers nothing that registers slower than this.
        let session = open(Config { pin_pace: 1_000_000, ..config() });
        let (device, len) = (session.device(0).unwrap(), 140 * MIB + 5000);
        let budget = pins(&session).budget;
        if budget.bytes < (len + 64 * MIB) as u64 {
            return eprintln!("skipped: {} MiB may be pinned ({})", budget.bytes >> 20, budget.limiter);
        }
        let (_scratch, file) = subject(&directory, KEY, len);
        settle();
        let (bytes, receipt) = fetch(&session, &file, 0, len).unwrap();
        assert!(bytes == pattern(KEY, 0, len));
        assert_eq!(
            receipt.moved[Way::Mapped],
            0,
            "the first read does not wait for registrations: {receipt}"
        );

        let began = Instant::now();
        session.pin_later(&file, &device, (0, u64::MAX)).unwrap();
        session.pin_later(&file, &device, (0, len as u64)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "it waits for nothing");
        let whole = len.next_multiple_of(4096) as u64;
        assert!(soon(|| pins(&session).bytes == whole), "{:?}", pins(&session));

        let (bytes, receipt) = fetch(&session, &file, 0, len).unwrap();
        assert!(bytes == pattern(KEY, 0, len));
        assert_eq!(receipt.moved[Way::Mapped], len as u64, "{receipt}");
        assert_eq!(session.trim(), whole);
    }
}

#[test]
fn a_range_that_is_announced_is_registered_alone() {
    let _turn = turn();
    let session = open(Config { pin_pace: 1_000_000, ..config() });
    let device = session.device(0).unwrap();
    let (_scratch, file) = subject(&disk(), KEY, 200 * MIB);
    settle();
    session.pin_later(&file, &device, (70 << 20, 1)).unwrap();
    session.pin_later(&file, &device, (1 << 40, 10)).unwrap();
    assert!(soon(|| pins(&session).bytes == 64 << 20), "{:?}", pins(&session));
    session.trim();
}

#[test]
fn why_nothing_is_registered_is_told() {
    let _turn = turn();
    let (_scratch, file) = subject(&disk(), KEY, MIB);
    settle();
    let told = |config: Config| {
        let session = open(config);
        let refused = session.pin_later(&file, &session.device(0).unwrap(), (0, 1 << 20)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(pins(&session).bytes, 0);
        refused.to_string()
    };
    assert!(
        told(Config { cache: CachePolicy::Bypass, ..config() }).contains("the page cache is to be bypassed")
    );
    assert!(
        told(Config { engine: Some("staged".to_owned()), ..config() })
            .contains("the engine staged was asked for")
    );
    assert!(
        told(Config { pin_budget: Some(1), ..config() })
            .contains("the budget of pinned page cache is used up")
    );
}
