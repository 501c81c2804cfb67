//! Which buckets and keys a directory tree can have.

use crate::store::{StoreError, StoreResult};

/// The gateway's own directory in each bucket, and in the directory of buckets.
pub(super) const OWN: &str = ".forebay";

/// S3's limit of a key, in bytes.
pub(super) const LONGEST_KEY: usize = 1024;

/// The limit of one component in every file system that is served.
const LONGEST_NAME: usize = 255;

/// A key as a path below its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPath {
    /// Without a `/` at its end.
    pub(super) path: String,
    /// The key ends in `/`: the object is a directory.
    pub(super) is_folder: bool,
}

impl KeyPath {
    pub(super) fn new(key: &str) -> StoreResult<Self> {
        let (path, is_folder) = key.strip_suffix('/').map_or((key, false), |path| (path, true));
        if key.len() > LONGEST_KEY {
            return Err(StoreError::Key("it is longer than 1 024 bytes"));
        }
        if key.contains('\0') {
            return Err(StoreError::Key("it has a zero byte"));
        }
        if key.starts_with('/') {
            return Err(StoreError::Key("it begins with /"));
        }
        for name in path.split('/') {
            check_name(name)?;
        }
        // At any depth: the bucket of another account may lie in a directory of this one.
        if path.split('/').any(is_own) {
            return Err(StoreError::Key(".forebay is the gateway's own"));
        }
        Ok(Self { path: path.to_owned(), is_folder })
    }

    /// The path of the directory that it lies in, `""` in the bucket's own, and its last name.
    pub(super) fn split(&self) -> (&str, &str) {
        self.path.rsplit_once('/').unwrap_or(("", &self.path))
    }

    /// The key itself.
    pub(super) fn key(&self) -> String {
        if self.is_folder { format!("{}/", self.path) } else { self.path.clone() }
    }
}

/// Whether a name is that of a gateway's own directory, also where names are equal in any case.
pub(super) fn is_own(name: &str) -> bool {
    name.eq_ignore_ascii_case(OWN)
}

fn check_name(name: &str) -> StoreResult<()> {
    match name {
        "" => Err(StoreError::Key("it has an empty name between two /")),
        "." | ".." => Err(StoreError::Key("it has . or .. between two /")),
        _ if name.len() > LONGEST_NAME => Err(StoreError::Key("a name in it is longer than 255 bytes")),
        _ => Ok(()),
    }
}

/// Whether a key in a listing can be asked for: other programs make names of any kind.
pub(super) fn is_key(key: &str) -> bool {
    key.len() <= LONGEST_KEY
}

/// The rules of S3 for a bucket's name.
pub(super) fn check_bucket(name: &str) -> StoreResult<()> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| is_plain(*byte));
    let bytes = name.as_bytes();
    if !(3..=63).contains(&bytes.len()) {
        return Err(StoreError::BucketName("it has 3 to 63 bytes"));
    }
    if !bytes.iter().all(|byte| is_plain(*byte) || matches!(byte, b'.' | b'-')) {
        return Err(StoreError::BucketName("it has only a-z, 0-9, . and -"));
    }
    if !ends(bytes.first()) || !ends(bytes.last()) || name.contains("..") {
        return Err(StoreError::BucketName("it begins and ends with a letter or digit and has no .."));
    }
    if name.parse::<std::net::Ipv4Addr>().is_ok() {
        return Err(StoreError::BucketName("it is no IP address"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(key: &str) -> &'static str {
        match KeyPath::new(key) {
            Err(StoreError::Key(why)) => why,
            other => panic!("{key:?}: {other:?}"),
        }
    }

    #[test]
    fn names_that_no_tree_can_have_are_refused_with_the_reason() {
        assert!(why("").contains("empty"));
        assert!(why("/a").contains("begins"));
        assert!(why("a//b").contains("empty"));
        assert!(why("a//").contains("empty"));
        assert!(why("a/./b").contains(".."));
        assert!(why("..").contains(".."));
        assert!(why("a/../../b").contains(".."));
        assert!(why("a\0b").contains("zero"));
        assert!(why(&"n".repeat(256)).contains("255"));
        assert!(why(&"abcdefg/".repeat(129)).contains("1 024"));
        assert!(why(".forebay/tmp/x").contains("own"));
        assert!(why(".forebay").contains("own"));
        assert!(why("bucket/.forebay/lock").contains("own"));
        assert!(why("a/.Forebay/").contains("own"));
    }

    #[test]
    fn other_names_are_paths() {
        for key in ["a", "a/b", ".hidden", "a/.forebay2", "a b/ü", "...", "-", "a\nb"] {
            let path = KeyPath::new(key).unwrap();
            assert_eq!((path.path.as_str(), path.is_folder, path.key().as_str()), (key, false, key));
        }
        let folder = KeyPath::new("a/b/").unwrap();
        assert_eq!((folder.path.as_str(), folder.is_folder, folder.split()), ("a/b", true, ("a", "b")));
        assert_eq!(folder.key(), "a/b/");
        assert!(KeyPath::new(&"n".repeat(255)).is_ok());
    }

    #[test]
    fn buckets_have_the_names_that_s3_allows() {
        for name in ["abc", "a-b.c", "123", "a".repeat(63).as_str()] {
            check_bucket(name).unwrap();
        }
        for name in ["ab", "Abc", "-abc", "abc-", "a..b", "a_b", "127.0.0.1", "a/b", "..", &"a".repeat(64)] {
            assert!(matches!(check_bucket(name), Err(StoreError::BucketName(_))), "{name}");
        }
    }
}
