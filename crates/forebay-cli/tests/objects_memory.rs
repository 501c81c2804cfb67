//! What `forebay` keeps in memory does not grow with objects. The server makes the bytes when it sends them, and forgets those that it
//! gets.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fake_s3::FakeS3;
use support::forebay;

const GIB: u64 = 1 << 30;
/// KiB that a run may have: 8 slots of 2 MiB for each of 8 lanes, and 64 MiB.
const MOST: u64 = (128 + 64) << 10;

/// Runs a command line to its end. Returns the most memory that it had, in KiB.
fn resident(server: &FakeS3, folder: &Path, line: &str) -> u64 {
    let mut command = forebay();
    command.args(line.split(' ')).current_dir(folder).envs(server.environment());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(most);
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            return most;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn check(len: u64) {
    let server = FakeS3::start();
    server.put_pattern("bucket", "large", len);
    server.forget_bodies();
    // Not in memory: folders of tests may be.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let down = resident(&server, folder.path(), "cp s3://bucket/large copy");
    assert_eq!(fs::metadata(folder.path().join("copy")).unwrap().len(), len);
    let up = resident(&server, folder.path(), "cp copy s3://bucket/copy");
    assert_eq!((server.size("bucket", "copy"), server.open_uploads()), (Some(len), 0));
    println!("{len} bytes: {down} KiB for reading, {up} KiB for writing");
    assert!(down <= MOST && up <= MOST, "{down} KiB for reading, {up} KiB for writing, of {MOST}");
}

#[test]
fn an_object_of_a_gibibyte_takes_no_more_memory_than_slots() {
    check(GIB);
}

/// For `make nightly`.
#[test]
#[ignore = "20 GiB on disk"]
fn an_object_of_twenty_gibibytes_takes_no_more_memory_than_slots() {
    check(20 * GIB);
}
