//! A trace is not trusted: whatever its contents, a plan of it is an error or can be run within the machine's
//! means, without a panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use forebay_replay::{Replay, ReplayPlan, Silent, run};
use forebay_trace::{Api, MemoryCode, Record, Trace, TraceReader};
use proptest::prelude::*;

/// The header of a trace without calls.
fn header() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::create(folder.path().join("t")).unwrap();
    trace.finish();
    std::fs::read(folder.path().join("t")).unwrap()[..4096].to_vec()
}

/// Numbers as they should not be, and some that may be.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..100_000_u64,
        Just(u64::MAX),
        Just(1 << 40),
        Just(1 << 62),
        Just(i64::MAX as u64)
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let numbers = (number(), number(), number(), number(), number(), number());
    (0..Api::ALL.len(), 0..MemoryCode::ALL.len(), any::<u8>(), 0..3_u32, 0..3_u32, numbers).prop_map(
        |(api, memory, gpu, file, group, (start, latency, offset, size, result, address))| Record {
            api: Api::ALL[api],
            memory: MemoryCode::ALL[memory],
            gpu: Some(gpu),
            thread: group,
            start,
            latency,
            file,
            group,
            offset: offset as i64,
            size,
            result: result as i64,
            address,
            ..Record::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_behind_a_header(bytes in proptest::collection::vec(any::<u8>(), 0..4096), cut in 0..4096_usize) {
        let mut all = header();
        all.extend(&bytes);
        let _ = TraceReader::new(&all[..]).and_then(ReplayPlan::of);
        let _ = TraceReader::new(&all[..cut]).map(drop).unwrap_err();
    }

    #[test]
    fn any_records(records in proptest::collection::vec(record(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let trace = Trace::create(&path).unwrap();
        let names = ["/proc/no", "/dev/null"];
        let _ = names.map(|name| trace.file(name));
        for record in &records {
            trace.record(record);
        }
        trace.finish();
        if let Ok(plan) = ReplayPlan::load(&path) {
            let replay = Replay { is_fast: true, folder: folder.path().to_owned(), ..Replay::default() };
            if let Ok(report) = run(&plan, &replay, &Silent) {
                let turn = &report.turns[0];
                prop_assert_eq!(turn.calls, report.recorded.turn.calls);
            }
        }
    }
}
