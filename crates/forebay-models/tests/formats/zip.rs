//! Archives against a naive model, and archives that lie.

use std::fmt::Write as _;

use forebay_error::Result;
use forebay_models::ReadAt;
use forebay_models::zip::{Method, Plan, crc32, crc32_combine, read};
use proptest::prelude::*;

/// The archive of a plan.
fn archive(entries: &[(String, Vec<u8>)], align: u64) -> (Plan, Vec<u8>) {
    let sizes = entries.iter().map(|(name, data)| (name.clone(), data.len() as u64));
    let plan = Plan::new(sizes, align).unwrap();
    let crcs: Vec<u32> = entries.iter().map(|(_, data)| crc32(0, data)).collect();
    let mut bytes = vec![0xEE; plan.size() as usize];
    let mut put = |at: u64, part: &[u8]| bytes[at as usize..][..part.len()].copy_from_slice(part);
    for (index, place) in plan.places().iter().enumerate() {
        put(place.data, &entries[index].1);
        let header = plan.header(index, crcs[index]);
        assert_eq!(place.header + header.len() as u64, place.data);
        put(place.header, &header);
    }
    put(plan.end_of_data(), &plan.directory(&crcs).unwrap());
    (plan, bytes)
}

fn pair() -> Vec<u8> {
    archive(&[("a".to_owned(), b"hello".to_vec()), ("b".to_owned(), b"world!".to_vec())], 1).1
}

proptest! {
    #[test]
    fn plans_are_read_back(
        names in prop::collection::hash_set("[a-zé/.]{1,8}", 0..8),
        data in prop::collection::vec(any::<u8>(), 0..300),
        power in 0_u32..16,
    ) {
        let entries: Vec<(String, Vec<u8>)> = names
            .into_iter()
            .enumerate()
            .map(|(index, name)| (name, data[index * data.len() / 8..].to_vec()))
            .collect();
        let (plan, bytes) = archive(&entries, 1 << power);
        let found = read(&bytes).unwrap();
        prop_assert_eq!(found.len(), entries.len());
        for ((entry, (name, data)), place) in found.iter().zip(&entries).zip(plan.places()) {
            prop_assert_eq!(&entry.name, name);
            prop_assert_eq!((entry.offset, entry.method), (place.data, Method::Stored));
            prop_assert_eq!(entry.offset % (1 << power), 0);
            prop_assert_eq!(&bytes[entry.offset as usize..][..entry.packed as usize], &data[..]);
            prop_assert_eq!(entry.crc32, crc32(0, data));
        }
        // Nothing of the room is left over.
        prop_assert!(!plan.places().windows(2).any(|pair| pair[0].data + pair[0].size != pair[1].header));
    }

    #[test]
    fn damage_does_not_panic(at in 0_usize..1000, value: u8, cut in 0_usize..1000) {
        let mut bytes = pair();
        let len = bytes.len();
        bytes[at % len] = value;
        let _ = read(&bytes);
        bytes.truncate(cut % len);
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn parts_of_a_crc(data in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
        let (first, second) = data.split_at(cut.min(data.len()));
        let whole = crc32(0, &data);
        prop_assert_eq!(crc32(crc32(0, first), second), whole);
        prop_assert_eq!(crc32_combine(crc32(0, first), crc32(0, second), second.len() as u64), whole);
    }
}

/// A large archive of which only headers and directory exist.
struct Hollow {
    parts: Vec<(u64, Vec<u8>)>,
    size: u64,
}

impl ReadAt for Hollow {
    fn len(&self) -> Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        let end = offset + into.len() as u64;
        for (begin, bytes) in &self.parts {
            let (from, to) = (offset.max(*begin), end.min(begin + bytes.len() as u64));
            if from < to {
                into[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - begin) as usize..(to - begin) as usize]);
            }
        }
        Ok(())
    }
}

#[test]
fn what_32_and_16_bits_do_not_hold() {
    let large = vec![("a".to_owned(), 5 << 30), ("b".to_owned(), (1 << 32) - 1), ("c".to_owned(), 7)];
    let many = (0..70_000).map(|index| (format!("{index}"), 1)).collect::<Vec<_>>();
    for entries in [large, many] {
        let plan = Plan::new(entries.clone(), 64).unwrap();
        let crcs: Vec<u32> = (0..entries.len() as u32).collect();
        let directory = plan.directory(&crcs).unwrap();
        assert_eq!(plan.end_of_data() + directory.len() as u64, plan.size());
        let headers = plan
            .places()
            .iter()
            .enumerate()
            .map(|(index, place)| (place.header, plan.header(index, crcs[index])));
        let mut parts: Vec<(u64, Vec<u8>)> = if entries.len() < 10 { headers.collect() } else { vec![] };
        if parts.is_empty() {
            // One part: looking through 70 000 for each read takes long.
            let mut whole = vec![0; plan.end_of_data() as usize];
            for (at, header) in plan
                .places()
                .iter()
                .zip(0..)
                .map(|(place, index)| (place.header, plan.header(index, crcs[index])))
            {
                whole[at as usize..][..header.len()].copy_from_slice(&header);
            }
            parts.push((0, whole));
        }
        parts.push((plan.end_of_data(), directory));
        let found = read(&Hollow { parts, size: plan.size() }).unwrap();
        assert_eq!(found.len(), entries.len());
        for ((entry, (name, size)), place) in found.iter().zip(&entries).zip(plan.places()) {
            assert_eq!((&entry.name, entry.size, entry.offset), (name, *size, place.data));
        }
    }
}

#[test]
fn a_comment_that_looks_like_an_end() {
    let mut bytes = pair();
    let end = bytes[bytes.len() - 22..].to_vec();
    let at = bytes.len() - 2;
    bytes[at] = 30;
    bytes.extend_from_slice(&end);
    bytes.extend_from_slice(b"8 more..");
    assert_eq!(read(&bytes).unwrap().len(), 2);
}

#[test]
fn lying_archives() {
    let good = pair();
    let size = good.len();
    let (second, directory) = (36, 73);
    assert_eq!(
        (&good[second..second + 2], &good[directory..directory + 4]),
        (&b"PK"[..], &b"PK\x01\x02"[..])
    );
    let with = |changes: &[(usize, &[u8])]| {
        let mut bytes = good.clone();
        for (at, new) in changes {
            bytes[*at..*at + new.len()].copy_from_slice(new);
        }
        bytes
    };
    let next = directory + 47;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("noise", vec![0x55; 200]),
        ("cut off", good[..size - 1].to_vec()),
        ("bytes in front", [b"#!/bin/sh\n", &good[..]].concat()),
        ("bytes in the middle", [&good[..directory], b"xx", &good[directory..]].concat()),
        ("more entries than there are", with(&[(size - 14, &[3, 0, 3, 0])])),
        ("fewer entries than there are", with(&[(size - 14, &[1, 0, 1, 0])])),
        ("several disks", with(&[(size - 18, &[1, 0])])),
        ("entries on several disks", with(&[(size - 14, &[1, 0])])),
        ("directory beyond the end", with(&[(size - 6, &[0xFF, 0, 0, 0])])),
        ("encrypted", with(&[(directory + 8, &[1])])),
        ("encrypted by its own header", with(&[(6, &[1])])),
        ("two sizes", with(&[(directory + 20, &[4])])),
        ("other size in its own header", with(&[(22, &[9])])),
        ("other CRC in its own header", with(&[(14, &[0, 0, 0, 0])])),
        ("other name in its own header", with(&[(30, b"x")])),
        ("other packing in its own header", with(&[(8, &[8])])),
        ("no header there", with(&[(0, b"x")])),
        ("header beyond the data", with(&[(next + 42, &[70])])),
        ("data beyond the data", with(&[(second + 28, &[9])])),
        ("same entry twice", with(&[(next + 42, &[0]), (next + 46, b"a")])),
        ("same bytes twice", with(&[(next + 42, &[0])])),
        ("same name twice", with(&[(next + 46, b"a"), (second + 30, b"a")])),
        ("wide size missing", with(&[(directory + 20, &[0xFF; 8])])),
        ("no UTF-8", with(&[(directory + 46, &[0xFF])])),
        ("zero in a name", with(&[(directory + 46, &[0])])),
        ("name of 64 KiB", with(&[(next + 28, &[0xFF, 0xFF])])),
    ];
    let mut text = String::new();
    for (name, bytes) in cases {
        let error = read(&bytes).expect_err(name);
        let hints = error.hints().iter().fold(String::new(), |text, hint| text + "\n  hint: " + hint);
        writeln!(text, "{name}\n  {error}{hints}").unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn plans_that_cannot_be() {
    let entry = |name: &str, size| (name.to_owned(), size);
    for (entries, align, word) in [
        (vec![entry("a", 1), entry("a", 1)], 1, "twice"),
        (vec![entry("", 1)], 1, "name"),
        (vec![entry("a\0b", 1)], 1, "name"),
        (vec![entry("a", u64::MAX)], 1, "larger"),
        (vec![], 3, "power"),
        (vec![], 1 << 16, "power"),
    ] {
        let error = Plan::new(entries, align).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(Plan::new([entry("a", 1)], 1).unwrap().directory(&[]).is_err());
}
