//! Memory used by a long header. The only test of its program: the peak is that of the process.
#![allow(clippy::unwrap_used, reason = "tests")]

use forebay_models::safetensors::{MAX_HEADER, read};

/// The worst that a header can make of itself takes a few times its bytes: a tenth of the longest, for the time of it.
#[test]
fn a_long_header() {
    let most = MAX_HEADER as usize / 10 - 2;
    let mut text = String::with_capacity(most + 2);
    text.push('{');
    let mut count = 0;
    loop {
        let next = format!(r#""{count:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        if text.len() + next.len() + 2 > most {
            break;
        }
        if count > 0 {
            text.push(',');
        }
        text.push_str(&next);
        count += 1;
    }
    text.push('}');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    drop(text);
    let before = peak();
    let started = std::time::Instant::now();
    assert_eq!(read(&bytes).unwrap().tensors.len(), count);
    let grown = peak().saturating_sub(before);
    println!("{count} tensors in {:?}, {} MB", started.elapsed(), grown >> 20);
    assert!(grown < 60 << 20, "{} MB", grown >> 20);
}

/// The most memory that this process had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
