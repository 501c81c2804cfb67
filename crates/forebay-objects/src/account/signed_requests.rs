//! Random requests that are signed here and verified by another implementation: that of fake-s3.

use std::time::Duration;

use fake_s3::verify_head;

use super::head::Signing;
use super::keys::Keys;
use super::place::Place;
use crate::wire::call::{Ask, Body, Method};
use crate::wire::site::Site;

/// Numbers that are the same in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// Text of all that is hard in keys, and of all of Unicode.
    fn text(&mut self, most: usize) -> String {
        const HARD: [&str; 16] = [
            "//",
            "/../",
            "/./",
            "+",
            "%",
            "%2F",
            "%%",
            " ",
            "  ",
            "?",
            "#",
            "&",
            "=",
            "~",
            "*",
            "\u{10FFFF}",
        ];
        let len = self.below(most);
        let mut made = String::new();
        while made.len() < len {
            match self.below(4) {
                0 => made.push_str(self.one(&HARD)),
                1 => made.extend(char::from_u32(self.below(0x11_0000) as u32)),
                _ => made.push((b' ' + self.below(95) as u8) as char),
            }
        }
        // Keys have 1024 bytes at most.
        made.truncate(made.floor_char_boundary(len));
        made
    }

    fn pairs(&mut self, names: &[&str], most: usize) -> Vec<(String, String)> {
        let mut made: Vec<(String, String)> = Vec::new();
        for _ in 0..self.below(most) {
            let name = self.one(names).to_owned();
            if !made.iter().any(|(known, _)| *known == name) {
                made.push((name, self.text(40)));
            }
        }
        made
    }

    fn ask(&mut self) -> Ask {
        let methods = [Method::Get, Method::Head, Method::Put, Method::Post, Method::Delete];
        let query = ["uploads", "uploadId", "prefix", "a b", "list-type", "Z", "ä", "x+y", "delimiter"];
        let headers = ["range", "if-match", "x-amz-meta-a", "x-amz-checksum-crc64nvme", "content-type"];
        let mut ask = Ask {
            method: methods[self.below(5)],
            bucket: "bucket".to_owned(),
            key: if self.below(20) == 0 { "a".repeat(1024) } else { self.text(200) },
            query: self.pairs(&query, 5),
            headers: self.pairs(&headers, 4),
        };
        let clean = |value: &str| value.chars().filter(|one| !one.is_control()).collect();
        ask.headers.iter_mut().for_each(|(_, value)| *value = clean(value));
        ask
    }

    fn body(&mut self) -> Body {
        match self.below(3) {
            0 => Body::None,
            _ => Body::Bytes(self.text(100).into_bytes().into()),
        }
    }

    fn keys(&mut self) -> Keys {
        let token = (self.below(2) == 0).then(|| format!("token{}+/=", self.next()));
        Keys::new(format!("AKIA{}", self.next()), format!("secret/+{}", self.next()), token, None)
    }

    fn place(&mut self) -> Place {
        let (host, path) = [("h", "/bucket"), ("bucket.s3.h", ""), ("h", "/base/bucket")][self.below(3)];
        let site = Site { tls: false, host: host.to_owned(), port: 9000, proxy: None, ca_file: None };
        Place { site, authority: format!("{host}:9000"), path: path.to_owned() }
    }
}

fn check(seed: u64) {
    let mut random = Random(seed);
    let (ask, body, keys, place) = (random.ask(), random.body(), random.keys(), random.place());
    let now = std::time::UNIX_EPOCH + Duration::from_secs(random.next() % 4_000_000_000);
    let requester_pays = random.below(2) == 0;
    let signing =
        Signing { keys: Some(&keys), region: random.one(&["us-east-1", "eu-west-9"]), requester_pays, now };
    let head = signing.head(&place, &ask, &body).unwrap();
    let wrong = |why: String| panic!("seed {seed}: {ask:?}\n{}\n{why}", String::from_utf8_lossy(&head));
    verify_head(&head, &keys.secret).unwrap_or_else(wrong);
    assert!(verify_head(&head, "another").is_err(), "seed {seed}");
    let url =
        signing.url(&place, &Ask { headers: Vec::new(), ..ask.clone() }, Duration::from_mins(1)).unwrap();
    let path = url.strip_prefix(&format!("http://{}", place.authority)).unwrap();
    let head = format!("{} {path} HTTP/1.1\r\nhost: {}\r\n\r\n", ask.method.as_str(), place.authority);
    verify_head(head.as_bytes(), &keys.secret).unwrap_or_else(wrong);
}

#[test]
fn thousands_of_signatures_are_those_of_another_implementation() {
    (0..3_000).for_each(check);
    // A blank of Unicode's in a header, which is none of HTTP's.
    check(12_925);
}

/// For `make nightly`.
#[test]
#[ignore = "100 000 requests take a minute"]
fn a_hundred_thousand_signatures_are_those_of_another_implementation() {
    (3_000..103_000).for_each(check);
}
