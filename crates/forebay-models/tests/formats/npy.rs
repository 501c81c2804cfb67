//! The .npy format.

use std::fmt::Write as _;

use forebay_models::npy::{header, itemsize, read};
use proptest::prelude::*;

fn file(version: u8, text: &str, data: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend_from_slice(&[version, 0]);
    match version {
        1 => bytes.extend_from_slice(&(text.len() as u16).to_le_bytes()),
        _ => bytes.extend_from_slice(&(text.len() as u32).to_le_bytes()),
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

const GOOD: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n";

#[test]
fn all_versions_and_spellings() {
    for version in 1..=3 {
        let found = read(&file(version, GOOD, 24), 0, u64::MAX).unwrap();
        assert_eq!(
            (found.descr.as_str(), found.fortran_order, &found.shape[..], found.nbytes),
            ("<f4", false, &[2, 3][..], 24)
        );
    }
    for (text, shape) in [
        ("{\"shape\":(),\"fortran_order\":True,\"descr\":\"|u1\"}", vec![]),
        ("{'shape': (5L,), 'fortran_order': False, 'descr': '|u1'}", vec![5]),
        ("{'shape': (0, 7, 3), 'fortran_order': False, 'descr': '|u1'}", vec![0, 7, 3]),
    ] {
        assert_eq!(read(&file(1, text, 9), 0, u64::MAX).unwrap().shape, shape, "{text}");
    }
}

#[test]
fn an_array_inside_of_a_file() {
    let mut bytes = vec![1; 100];
    let inner = file(1, GOOD, 24);
    bytes.extend_from_slice(&inner);
    let end = bytes.len() as u64;
    bytes.extend_from_slice(&[2; 100]);
    assert_eq!(read(&bytes, 100, end).unwrap().offset, end - 24);
    assert!(read(&bytes, 100, end - 1).is_err());
    assert!(read(&bytes, 101, end).is_err());
    assert!(read(&bytes, u64::MAX, u64::MAX).is_err());
}

#[test]
fn lying_headers() {
    let shape =
        |shape: &str| file(1, &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"), 24);
    let descr =
        |descr: &str| file(1, &format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}"), 64);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("a zip", b"PK\x03\x04 and so on".to_vec()),
        ("a pickle", b"\x80\x04 and so on...".to_vec()),
        ("magic alone", b"\x93NUMPY".to_vec()),
        ("version 9", file(9, GOOD, 24)),
        ("header cut off", file(1, GOOD, 0)[..40].to_vec()),
        ("header of 4 GB", [&b"\x93NUMPY\x02\x00"[..], &[0xFF; 4]].concat()),
        ("data cut off", file(1, GOOD, 23)),
        ("not ASCII", {
            let mut bytes = file(1, GOOD, 24);
            bytes[12] = 0xE9;
            bytes
        }),
        ("no dict", file(1, "[1]", 0)),
        ("code", file(1, "{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}", 9)),
        ("code after it", file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()} or exit()", 9)),
        ("key twice", file(1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", 9)),
        ("unknown key", file(1, "{'x': 1}", 9)),
        ("key missing", file(1, "{'descr': '<f4', 'shape': ()}", 9)),
        ("escape", file(1, "{'desc\\x72': '<f4'}", 9)),
        ("no end", file(1, "{'descr", 9)),
        ("negative", shape("(-1,)")),
        ("not a tuple", shape("(3)")),
        ("number", shape("3")),
        ("too large a number", shape("(99999999999999999999,)")),
        ("overflow", shape("(4294967296, 4294967296, 4)")),
        ("nested", shape(&"(".repeat(10_000))),
        ("many dimensions", shape(&format!("({})", "1,".repeat(65)))),
        ("objects", descr("'|O'")),
        ("objects with a size", descr("'|O8'")),
        ("structure", descr("[('a', '<f4')]")),
        ("subarray", descr("('<f4', (3,))")),
        ("unknown type", descr("'<q8'")),
        ("no type", descr("''")),
        ("odd size", descr("'<f5'")),
        ("huge size", descr("'|S99999999999'")),
    ];
    let mut text = String::new();
    for (name, bytes) in cases {
        let error = read(&bytes, 0, u64::MAX).expect_err(name);
        let hints = error.hints().iter().fold(String::new(), |text, hint| text + "\n  hint: " + hint);
        writeln!(text, "{name}\n  {error}{hints}").unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn item_sizes() {
    for (descr, size) in [
        ("<f4", 4),
        ("|b1", 1),
        (">i8", 8),
        ("<c16", 16),
        ("<M8[ns]", 8),
        ("<m8[25s]", 8),
        ("<U3", 12),
        ("|S5", 5),
        ("|V2", 2),
    ] {
        assert_eq!(itemsize(descr).unwrap(), size, "{descr}");
    }
    assert!(itemsize("<M8[']").is_err() && itemsize("<M8[").is_err());
}

proptest! {
    #[test]
    fn headers_are_read_back(
        shape in prop::collection::vec(0_u64..9, 0..6),
        order: bool,
        descr in prop::sample::select(vec!["<f4", "|b1", "<c16", "<U7", "|V2"]),
        power in 4_u32..13,
    ) {
        let align = 1 << power;
        let mut bytes = header(descr, order, &shape, align).unwrap();
        prop_assert_eq!(bytes.len() as u64 % align, 0);
        let start = bytes.len() as u64;
        bytes.resize(bytes.len() + (shape.iter().product::<u64>() * itemsize(descr).unwrap()) as usize, 0);
        let found = read(&bytes, 0, u64::MAX).unwrap();
        prop_assert_eq!((found.descr.as_str(), found.fortran_order, found.shape, found.offset), (descr, order, shape, start));
    }

    #[test]
    fn noise_does_not_panic(text in "[{}()'a-f,: 0-9TrueFalsdcp]{0,60}") {
        let _ = read(&file(1, &text, 5), 0, u64::MAX);
        let _ = itemsize(&text);
    }
}
