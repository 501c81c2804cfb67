//! The engine `mapped`: what a device reads in place.

use std::time::Duration;

use crate::common::{Scratch, disk, pattern, turn};
use forebay_config::Config;
use forebay_engine::{Buffer, EngineKind, File, Offsets, Session, Way};

const KEY: u64 = 5;
const MIB: usize = 1 << 20;

fn session() -> Session {
    Session::with_config(config()).unwrap()
}

fn config() -> Config {
    Config { lanes: 2, pin_settle: Duration::from_millis(20), pin_pace: 0, ..Config::default() }
}

/// A file that was left alone long enough.
fn warm_file(len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(&disk(), KEY, len);
    let file = File::open(scratch.path()).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    (scratch, file)
}

fn read(session: &Session, file: &File, offset: u64, len: usize) -> (Vec<u8>, forebay_engine::Receipt) {
    let mut buffer: Buffer = session.buffer(0, len).unwrap();
    let receipt = session.read(file, offset, &mut buffer).unwrap();
    (buffer.to_vec().unwrap(), receipt)
}

#[test]
fn a_warm_file_is_read_in_place() {
    let _turn = turn();
    let session = session();
    let len = 70 * MIB + 12_345;
    let (_scratch, file) = warm_file(len);
    for _ in 0..2 {
        let (bytes, receipt) = read(&session, &file, 0, len);
        assert!(bytes == pattern(KEY, 0, len), "wrong bytes");
        println!("{receipt}");
        assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
        assert_eq!(receipt.moved[Way::Mapped], len as u64);
    }
    // Small ones too, now that the pages are there.
    let (bytes, receipt) = read(&session, &file, 777, 4096);
    assert!(bytes == pattern(KEY, 777, 4096));
    assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
    let held = session.pins(&session.device(0).unwrap()).unwrap();
    assert_eq!((held.bytes, held.files), (len.next_multiple_of(4096) as u64, 1));
    assert_eq!(session.trim(), held.bytes);
    assert_eq!(session.pins(&session.device(0).unwrap()).unwrap().bytes, 0);
}

#[test]
fn a_map_gathers() {
    let _turn = turn();
    let session = session();
    let len = 9 * MIB + 5;
    let (_scratch, file) = warm_file(len);
    let map = session.map(&file, &session.device(0).unwrap()).unwrap();
    let offsets: Vec<u64> = (0..1000u64).map(|i| i * 7919 % (len as u64 - 512)).collect();
    let mut out = session.buffer(0, 1000 * 512).unwrap();
    let receipt = map.gather(Offsets::Host(&offsets), 512, &mut out).unwrap();
    println!("{receipt}");
    let bytes = out.to_vec().unwrap();
    for (index, offset) in offsets.iter().enumerate() {
        assert!(bytes[index * 512..][..512] == pattern(KEY, *offset, 512), "piece {index}");
    }
    map.check().unwrap();
}

/// Where bytes differ, and whose are there instead.
fn difference(found: &[u8], wanted: &[u8]) -> String {
    let differs: Vec<usize> = (0..wanted.len()).filter(|at| found.get(*at) != Some(&wanted[*at])).collect();
    let (Some(&first), Some(&last)) = (differs.first(), differs.last()) else {
        return format!("{} bytes, and {} wanted", found.len(), wanted.len());
    };
    let end = (first + 16).min(found.len());
    let of = |round: u64| found[first..end] == pattern(KEY + round, first as u64, end - first);
    let whose = (0..4).find(|round| of(*round));
    format!(
        "{} bytes from {first} to {last} differ, as in round {whose:?}: {:02x?}",
        differs.len(),
        &found[first..end]
    )
}

#[test]
fn a_memory_file_is_written_in_place() {
    let _turn = turn();
    let session = session();
    let len = 20 * MIB;
    let scratch = Scratch::with_pattern(std::path::Path::new("/dev/shm"), KEY, len);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    for round in 1..4u64 {
        let bytes = pattern(KEY + round, 0, len);
        let mut buffer = session.buffer(0, len).unwrap();
        buffer.copy_from_slice(&bytes).unwrap();
        let receipt = session.write(&file, 0, &buffer).unwrap();
        println!("{receipt}");
        assert_eq!(receipt.moved[Way::Mapped], len as u64, "{receipt}");
        let found = std::fs::read(scratch.path()).unwrap();
        assert!(found == bytes, "round {round}: {}", difference(&found, &bytes));
        let (back, receipt) = read(&session, &file, 0, len);
        assert!(back == bytes, "{receipt}");
        std::thread::sleep(Duration::from_millis(40));
    }
}
