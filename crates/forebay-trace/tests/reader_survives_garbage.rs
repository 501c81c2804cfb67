//! A reader survives whatever a file holds.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Cursor;
use std::sync::OnceLock;

use forebay_trace::{CSV_HEADER, Trace, TraceReader, TraceSummary, csv_line, json_line, text};
use proptest::prelude::*;

/// Reads bytes as a trace in every way there is.
fn devour(bytes: &[u8]) {
    let Ok(mut reader) = TraceReader::new(Cursor::new(bytes)) else { return };
    while let Some(record) = reader.next() {
        let record = record.unwrap();
        let path = reader.name(record.file).map(ToOwned::to_owned);
        assert!(csv_line(&record, path.as_deref()).matches(',').count() >= CSV_HEADER.matches(',').count());
        assert!(json_line(&record, path.as_deref()).is_object());
    }
    let summary = TraceSummary::of(TraceReader::new(Cursor::new(bytes)).unwrap()).unwrap();
    assert!(!text(&summary).is_empty());
    assert!(serde_json::to_string(&summary).is_ok());
}

/// A good header.
fn header() -> Vec<u8> {
    static HEADER: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let trace = Trace::create(folder.path().join("t")).unwrap();
        let path = trace.path().to_owned();
        drop(trace);
        std::fs::read(path).unwrap()
    };
    HEADER.get_or_init(make).clone()
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        devour(&bytes);
    }

    #[test]
    fn any_slots_after_a_good_header(
        slots in prop::collection::vec((prop::sample::select(vec![0_u8, 1, 5, 16, 26, 0x80, 0xff]), any::<[u8; 32]>(), any::<[u8; 31]>()), 0..40),
        cut in 0_usize..64,
    ) {
        let mut bytes = header();
        for (first, middle, rest) in slots {
            bytes.push(first);
            bytes.extend(middle);
            bytes.extend(rest);
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len() - 4096));
        devour(&bytes);
    }

    #[test]
    fn any_header(changes in prop::collection::vec((0_usize..128, any::<u8>()), 1..20)) {
        let mut bytes = header();
        bytes.extend([1; 64]);
        for (at, value) in changes {
            // The format's own numbers stay, or nothing else would be looked at.
            if !(0..20).contains(&at) {
                bytes[at] = value;
            }
        }
        devour(&bytes);
    }

    #[test]
    fn names_in_any_order(parts in prop::collection::vec((0_u8..60, 0_u16..90, 0_u32..3, 0_u32..5000), 0..60)) {
        let mut bytes = header();
        for (len, index, file, total) in parts {
            let mut slot = [b'a'; 64];
            (slot[0], slot[1]) = (0x80, len);
            slot[2..4].copy_from_slice(&index.to_le_bytes());
            slot[4..8].copy_from_slice(&file.to_le_bytes());
            slot[8..12].copy_from_slice(&total.to_le_bytes());
            bytes.extend(slot);
        }
        devour(&bytes);
    }
}
