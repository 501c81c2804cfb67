//! Headers that lie, headers that do not, and files that the plans make.

use std::fmt::Write as _;

use forebay_models::Dtype;
use forebay_models::safetensors::{Header, Layout, MAX_HEADER, TensorSpec, plan, read};
use proptest::prelude::*;

/// A file of this header and `data` bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn tensor(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A file of these tensors.
fn of(tensors: &[String], data: usize) -> Vec<u8> {
    file(&format!("{{{}}}", tensors.join(",")), data)
}

fn said(bytes: &[u8]) -> String {
    let error = read(bytes).unwrap_err();
    error.hints().iter().fold(error.to_string(), |text, hint| text + "\n  hint: " + hint)
}

#[test]
fn lying_headers() {
    let a = |begin, end| tensor("a", "F32", "[2]", begin, end);
    let b = |begin, end| tensor("b", "F32", "[2]", begin, end);
    let one = |dtype: &str, shape: &str, end| of(&[tensor("a", dtype, shape, 0, end)], end as usize);
    let entry = |entry: &str| file(&format!("{{\"a\":{entry}}}"), 8);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty file", vec![]),
        ("seven bytes", vec![0; 7]),
        ("no header", vec![0; 8]),
        ("header beyond the end", [&100_u64.to_le_bytes()[..], b"{}"].concat()),
        ("header over the limit", [&(MAX_HEADER + 1).to_le_bytes()[..], b"{}"].concat()),
        ("header of all ones", vec![0xFF; 16]),
        ("zip", b"PK\x03\x04rest of it".to_vec()),
        ("pickle", b"\x80\x02}q\x00X\x01\x00\x00\x00a".to_vec()),
        ("Git LFS", b"version https://git-lfs.github.com/spec/v1".to_vec()),
        ("web page", b"<!DOCTYPE html><html>".to_vec()),
        ("list", file("[]", 0)),
        ("not JSON", file("{", 0)),
        ("text after it", file("{} x", 0)),
        ("zero after it", file("{}\0", 0)),
        ("not UTF-8", [&8_u64.to_le_bytes()[..], b"{\"\xFF\":{}}"].concat()),
        ("same name twice", of(&[a(0, 8), a(0, 8)], 8)),
        (
            "same name twice, escaped",
            file(&format!("{{{},{}}}", a(0, 8), a(8, 16).replace('a', "\\u0061")), 16),
        ),
        ("same key twice", entry(r#"{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}"#)),
        ("no offsets", entry(r#"{"dtype":"F32","shape":[2]}"#)),
        ("three offsets", entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}"#)),
        ("negative", entry(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#)),
        ("fraction", entry(r#"{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}"#)),
        ("beyond 64 bits", entry(r#"{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}"#)),
        ("null", entry("null")),
        ("unknown dtype", one("C128", "[1]", 16)),
        ("dtype in small letters", one("f32", "[1]", 4)),
        ("size overflows", one("F32", "[1099511627776,1099511627776]", 8)),
        ("bits overflow", one("U64", "[576460752303423488]", 8)),
        ("overflow times zero", one("F32", "[1099511627776,1099511627776,0]", 0)),
        ("half a byte", one("F4", "[3]", 2)),
        ("six bits", one("F6_E2M3", "[2]", 2)),
        ("too few bytes", one("F32", "[3]", 8)),
        ("too many dimensions", one("U8", &format!("[{}1]", "1,".repeat(256)), 1)),
        ("ends before it begins", of(&[a(8, 0)], 8)),
        ("beyond the end", of(&[a(0, 8), b(8, 16)], 12)),
        ("far beyond the end", of(&[a(u64::MAX - 8, u64::MAX)], 12)),
        ("overlap", of(&[a(0, 8), b(4, 12)], 12)),
        ("same place", of(&[a(0, 8), b(0, 8)], 8)),
        ("empty one inside another", of(&[a(0, 8), tensor("b", "F32", "[0]", 4, 4)], 8)),
        ("hole at the beginning", of(&[a(4, 12)], 12)),
        ("hole between", of(&[a(0, 8), b(12, 20)], 20)),
        ("bytes after the last", of(&[a(0, 8)], 9)),
        ("bytes and no tensor", file("{}", 4)),
        ("metadata twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)),
        ("metadata key twice", file(r#"{"__metadata__":{"a":"x","a":"y"}}"#, 0)),
        ("metadata with a number", file(r#"{"__metadata__":{"a":1}}"#, 0)),
        ("long name", of(&[tensor(&"n".repeat(1000), "U8", "[1]", 0, 1)], 2)),
        ("long name, bad", of(&[tensor(&"n".repeat(1000), "U8", "[2]", 0, 1)], 1)),
        ("deep", file(&format!("{{\"a\":{}", "[".repeat(100_000)), 0)),
    ];
    let mut text = String::new();
    for (name, bytes) in cases {
        writeln!(text, "{name}\n  {}", said(&bytes)).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_the_format_s_own_reader_accepts() {
    let a = tensor("a", "F32", "[2]", 8, 16);
    let b = tensor("b", "F32", "[2]", 0, 8);
    let header = read(&of(&[a.clone(), b], 16)).unwrap();
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["b", "a"], "in the order of their bytes");
    assert_eq!(header.tensors[0].offset, header.data_start);
    for (text, data) in [
        ("{}", 0),
        ("  {} \n ", 0),
        (r#"{"__metadata__":null}"#, 0),
        (r#"{"__metadata__":{}}"#, 0),
        (r#"{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#, 1),
        (r#"{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2],"more":[{}]}}"#, 2),
        (r#"{"a":{"dtype":"F32","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}}"#, 0),
        (
            r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
        ),
    ] {
        read(&file(text, data)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    for dtype in Dtype::ALL {
        let nbytes = dtype.bits();
        let header = read(&of(&[tensor("a", dtype.name(), "[2,4]", 0, nbytes)], nbytes as usize)).unwrap();
        assert_eq!((header.tensors[0].dtype, header.tensors[0].nbytes), (*dtype, nbytes));
    }
}

/// Plans, and reads what a file of the plan would say.
fn there_and_back(
    tensors: &[TensorSpec],
    metadata: Option<&[(String, String)]>,
    align: u64,
) -> (Layout, Header) {
    let layout = plan(tensors, metadata, align).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(layout.size as usize, 0);
    let header = read(&bytes).unwrap();
    (layout, header)
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    let dtype = prop::sample::select(Dtype::ALL);
    let one = ("[a-c\"\\\\é\n]{0,4}", dtype, prop::collection::vec(0_u64..5, 0..4));
    prop::collection::vec(one, 0..12).prop_map(|list| {
        let mut names = std::collections::HashSet::new();
        list.into_iter()
            .filter(|(name, dtype, shape)| dtype.nbytes(shape).is_ok() && names.insert(name.clone()))
            .map(|(name, dtype, shape)| TensorSpec { name, dtype, shape })
            .collect()
    })
}

proptest! {
    #[test]
    fn plans_are_read_back(tensors in specs(), power in 3_u32..15, key in ".{0,5}", value in ".{0,20}") {
        let metadata = [(key, value)];
        let align = 1 << power;
        let (layout, header) = there_and_back(&tensors, Some(&metadata), align);
        prop_assert_eq!(header.data_start % align, 0);
        prop_assert_eq!(header.size, layout.size);
        prop_assert_eq!(header.metadata.as_deref(), Some(&metadata[..]));
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (spec, (offset, nbytes)) in tensors.iter().zip(&layout.places) {
            let found = header.tensors.iter().find(|tensor| tensor.name == spec.name).unwrap();
            prop_assert_eq!((found.dtype, &*found.shape), (spec.dtype, &spec.shape[..]));
            prop_assert_eq!((found.offset, found.nbytes), (*offset, *nbytes));
            prop_assert_eq!(offset % spec.dtype.alignment(), 0);
        }
    }

    #[test]
    fn noise_is_refused_or_read(mut header in ".{0,60}", cut in 0_usize..80, data in 0_usize..9) {
        header.insert(0, '{');
        let mut bytes = file(&header, data);
        bytes.truncate(cut);
        // Neither panics nor believes: all that is read lies within the file.
        if let Ok(found) = read(&bytes) {
            prop_assert!(found.tensors.iter().all(|tensor| tensor.offset + tensor.nbytes <= found.size));
        }
    }
}

#[test]
fn plans_that_cannot_be() {
    let spec =
        |name: &str, dtype, shape: &[u64]| TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
    let pair = |key: &str| (key.to_owned(), String::new());
    let huge = spec("a", Dtype::U8, &[i64::MAX as u64]);
    let long = spec(&"x".repeat(100_000_001), Dtype::U8, &[1]);
    type Case = (Vec<TensorSpec>, Vec<(String, String)>, u64);
    let cases: Vec<Case> = vec![
        (vec![spec("a", Dtype::U8, &[1]), spec("a", Dtype::F32, &[1])], vec![], 8),
        (vec![spec("__metadata__", Dtype::U8, &[1])], vec![], 8),
        (vec![spec("a", Dtype::F4, &[1])], vec![], 8),
        (vec![spec("a", Dtype::U8, &[1 << 40, 1 << 40])], vec![], 8),
        (vec![spec("a", Dtype::U8, &[1; 300])], vec![], 8),
        (vec![huge.clone(), TensorSpec { name: "b".to_owned(), ..huge }], vec![], 8),
        (vec![], vec![pair("k"), pair("k")], 8),
        (vec![], vec![], 4),
        (vec![], vec![], 4097),
        (vec![long], vec![], 8),
    ];
    let mut text = String::new();
    for (tensors, metadata, align) in cases {
        writeln!(text, "{}", plan(&tensors, Some(&metadata), align).unwrap_err()).unwrap();
    }
    insta::assert_snapshot!(text);
}
