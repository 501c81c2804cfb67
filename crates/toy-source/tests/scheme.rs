//! One `register`, and `mem://` is read wherever a path is.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_contract::{KEY, LEN, Subject, lists_nothing, pattern, run, uploads};
use forebay_engine::{File, Session};

/// A file with these bytes.
fn made(url: &str, bytes: &[u8]) -> File {
    toy_source::register();
    let session = Session::open().unwrap();
    let file = File::options().write(true).create(true).open(url).unwrap();
    let mut buffer = session.host_buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes).unwrap();
    session.write(&file, 0, &buffer).unwrap();
    file
}

/// A URL that names nothing yet.
fn new_url() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("mem://contract/{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn it_keeps_the_contract() {
    run(|| {
        let url = new_url();
        let file = made(&url, &pattern(KEY, 0, LEN));
        let outside = Box::new(move || toy_source::snapshot(&url).unwrap());
        Subject { name: "mem", file, outside, is_slow: false }
    });
}

#[test]
fn its_new_files_keep_the_contract() {
    toy_source::register();
    uploads(new_url);
    lists_nothing(&new_url());
}

#[test]
fn the_command_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let bytes = pattern(3, 0, 5_000_001);
    made("mem://command", &bytes);
    for line in [
        format!("forebay cp mem://command {} --verify", copy.display()),
        format!("forebay cp {} mem://copy --verify", copy.display()),
        "forebay cp mem://copy mem://copy-of-copy --verify".to_owned(),
        "forebay verify -f mem://command -o 7 -n 5".to_owned(),
        "forebay bench -P mem://command -w 2 -s 4M -i 256K -I 0".to_owned(),
        "forebay bench -f mem://command -s 4M -i 64K -x 5".to_owned(),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = line.split(' ').map(Into::into).collect();
        let code = forebay_cli::main_with(args, &mut out, &mut err);
        let [out, err] = [out, err].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(code, 0, "{line}\n{out}\n{err}");
    }
    assert!(std::fs::read(copy).unwrap() == bytes);
    assert!(toy_source::snapshot("mem://copy-of-copy").unwrap() == bytes);
}

#[test]
fn what_is_not_there_is_said() {
    toy_source::register();
    let error = File::open("mem://nothing").unwrap_err();
    assert_eq!(error.to_string(), "no such bytes (url=mem://nothing)");
}
