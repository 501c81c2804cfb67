//! A server that is silent for longer than the client waits, amid a body and before a head. For `make nightly`: the client waits for 30
//! seconds.

use std::time::{Duration, Instant};

use fake_s3::{Asked, Fault};

use crate::servers::{LEN, opened, pattern, read, started};

#[test]
#[ignore = "a minute"]
fn a_server_that_is_silent_for_a_minute_costs_half_a_minute() {
    let bytes = pattern(LEN);
    let minute = Duration::from_mins(1);
    std::thread::scope(|scope| {
        for fault in [Fault::Late(minute), Fault::Pause(0, minute), Fault::Pause(1_000_000, minute)] {
            let bytes = &bytes;
            scope.spawn(move || {
                let server = started(bytes);
                let file = opened(&server);
                server.fault_once(Asked::Get, 1, fault.clone());
                let begin = Instant::now();
                assert!(read(&file, 0, LEN).unwrap() == *bytes, "{fault:?}");
                assert!(begin.elapsed() < Duration::from_secs(45), "{fault:?}: {:?}", begin.elapsed());
            });
        }
    });
}
