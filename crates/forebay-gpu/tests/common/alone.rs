//! Processes that run one test alone, for what holds for a process as a whole.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of tests; not each program has need of each"
)]

use std::process::Command;

const ALONE: &str = "FOREBAY_TEST_ALONE";

/// Starts this program for the running test alone.
pub fn this_test() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let thread = std::thread::current();
    // The test harness gives a test's name to its thread.
    command.args(["--exact", thread.name().unwrap(), "--nocapture"]);
    command
}

/// Whether this process runs the running test alone; otherwise one has been run that does.
pub fn is_alone() -> bool {
    let is_alone = std::env::var_os(ALONE).is_some();
    if !is_alone {
        let output = this_test().env(ALONE, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{output:?}");
    }
    is_alone
}
