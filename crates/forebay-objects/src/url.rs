//! Names of objects: `s3://[site@]bucket/key[?versionId=…]`.

use std::fmt::{self, Write};
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// The begin of all URLs of objects.
pub(crate) const SCHEME: &str = "s3://";

/// Bytes of the longest key.
const LONGEST_KEY: usize = 1024;

const FORM: &str = "s3://BUCKET/KEY, s3://BUCKET/KEY?versionId=ID";
const MARK: &str = "write a ? in a key as %3F; after a ? comes versionId=ID";
const ESCAPES: &str = "a % in a key is %25, a blank %20, a ? %3F, a # %23";

/// The name of an object, or of a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectUrl {
    /// The site that is asked, and no other: one that `FOREBAY_S3_ENDPOINTS` names.
    pub site: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// The key as S3 has it; empty for the bucket itself.
    pub key: String,
    /// One version of the object: `?versionId=…`.
    pub version: Option<String>,
}

impl ObjectUrl {
    /// Whether a path is meant to be one.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        let bytes = path.as_os_str().as_encoded_bytes();
        bytes.get(..SCHEME.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(SCHEME.as_bytes()))
    }

    /// The URL that a path which is no URL is meant to be: `s3:/bucket/key`, or one of the schemes of Hadoop.
    #[must_use]
    pub fn meant(path: &Path) -> Option<String> {
        let text = path.to_str().filter(|_| !Self::is_one(path))?;
        let rest = ["s3:/", "s3a://", "s3n://"].iter().find_map(|begin| text.strip_prefix(begin))?;
        let rest = rest.trim_start_matches('/');
        (!rest.is_empty() && !rest.contains('@')).then(|| format!("{SCHEME}{rest}"))
    }

    /// Takes a URL apart. In keys, `%` and two hexadecimal digits stand for a byte, and a `?` begins options: write `%25`, `%3F`.
    ///
    /// # Errors
    /// `InvalidInput` where it is no URL of an object: the bucket's name, a key that is too long or is no UTF-8, an unknown option.
    pub fn parse(url: &Path) -> Result<Self> {
        let shown = url.to_string_lossy();
        let wrong = |why: &str, hint: &str| {
            let error = Error::new(ErrorKind::InvalidInput, format!("cannot read the URL: {why}"));
            error.with("url", &shown).hint(hint)
        };
        if !Self::is_one(url) {
            return Err(wrong("it does not begin with s3://", FORM));
        }
        let rest = &url.as_os_str().as_encoded_bytes()[SCHEME.len()..];
        let (names, options) =
            split_once(rest, b'?').map_or((rest, None), |(names, options)| (names, Some(options)));
        let (bucket, key) = split_once(names, b'/').unwrap_or((names, b""));
        let (site, bucket) =
            split_once(bucket, b'@').map_or((None, bucket), |(site, bucket)| (Some(site), bucket));
        let site = site.map(|site| std::str::from_utf8(site).ok().filter(|site| is_name(site)));
        if site == Some(None) || bucket.contains(&b'@') {
            // It may have a secret in it: not shown.
            let error =
                Error::new(ErrorKind::InvalidInput, "cannot read the URL: keys do not belong into a URL");
            return Err(error
                .hint("s3://BUCKET/KEY, and AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
        }
        let bucket = bucket_name(bucket).map_err(|(why, hint)| wrong(why, hint))?;
        let key = unescape(key).ok_or_else(|| wrong("its key has a % without two digits", ESCAPES))?;
        let key = String::from_utf8(key)
            .map_err(|_| wrong("its key is no UTF-8, and keys of S3 are", "name a key: s3://BUCKET/KEY"))?;
        if key.len() > LONGEST_KEY {
            return Err(wrong("its key has more than 1024 bytes", "S3 takes no longer keys"));
        }
        let version = options.map(version).transpose().map_err(|why| wrong(why, MARK))?;
        if version.is_some() && key.is_empty() {
            return Err(wrong("a version without a key", FORM));
        }
        let site = site.flatten().map(str::to_owned);
        Ok(Self { site, bucket, key, version })
    }

    /// Takes a URL apart that stands for the newest version of its object, as what removes or lists objects does.
    ///
    /// # Errors
    /// `InvalidInput` where it names a version, and as [`ObjectUrl::parse`].
    pub fn parse_newest(url: &Path) -> Result<Self> {
        let url = Self::parse(url)?;
        if url.version.is_none() {
            return Ok(url);
        }
        let error = Error::new(ErrorKind::InvalidInput, "one version of an object cannot be given here");
        Err(error.with("url", &url).hint("leave ?versionId= out; forebay cp reads a version"))
    }

    /// Whether it names the bucket or a folder: its key is empty or ends in `/`.
    #[must_use]
    pub fn is_prefix(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// The key as the name of a folder: with a `/` at its end, but for the bucket itself.
    #[must_use]
    pub fn prefix(&self) -> String {
        if self.is_prefix() { self.key.clone() } else { format!("{}/", self.key) }
    }

    /// Another key of the same bucket, in its newest version.
    #[must_use]
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { site: self.site.clone(), bucket: self.bucket.clone(), key: key.into(), version: None }
    }

    /// The last part of the key, without `/`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(site) = &self.site {
            write!(f, "{site}@")?;
        }
        write!(f, "{}/{}", self.bucket, Escaped(&self.key))?;
        match &self.version {
            Some(version) => write!(f, "?versionId={}", Escaped(version)),
            None => Ok(()),
        }
    }
}

/// The bucket's name, or why it is none. Stores beside AWS have longer names, capitals and `_`.
fn bucket_name(name: &[u8]) -> Result<String, (&'static str, &'static str)> {
    const RULE: &str = "a bucket has 3 to 63 letters in lower case, digits, - and .";
    if name.starts_with(b"arn:") {
        return Err((
            "an ARN is no bucket",
            "the alias of an access point is a bucket's name: s3://ALIAS/KEY",
        ));
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let ends = name.first().is_some_and(u8::is_ascii_alphanumeric)
        && name.last().is_some_and(u8::is_ascii_alphanumeric);
    match std::str::from_utf8(name) {
        Ok("") => Err(("it has no bucket", FORM)),
        Ok(text)
            if name.iter().all(plain) && ends && !text.contains("..") && (3..=255).contains(&name.len()) =>
        {
            Ok(text.to_owned())
        }
        _ => Err(("its bucket cannot be the name of one", RULE)),
    }
}

fn version(options: &[u8]) -> Result<String, &'static str> {
    let mut version = None;
    for option in options.split(|byte| *byte == b'&').filter(|option| !option.is_empty()) {
        let value = option.strip_prefix(b"versionId=").ok_or("an unknown option")?;
        if version.is_some() {
            return Err("versionId is given twice");
        }
        let value = unescape(value).and_then(|value| String::from_utf8(value).ok());
        version = Some(value.filter(|value| !value.is_empty()).ok_or("its versionId")?);
    }
    version.ok_or("nothing follows its ?")
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let found = bytes.iter().position(|byte| *byte == at)?;
    Some((&bytes[..found], &bytes[found + 1..]))
}

/// Bytes without `%20`; `None`: a `%` without two digits behind it.
pub(crate) fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        bytes.push(if *byte == b'%' {
            let mut digit = || (*rest.next()? as char).to_digit(16);
            (digit()? << 4 | digit()?) as u8
        } else {
            *byte
        });
    }
    Some(bytes)
}

/// A key as a URL has it: what means something to a URL or a shell, or prints badly, by the numbers of its bytes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            if letter.is_alphanumeric() || "/-._~+,:=@".contains(letter) {
                f.write_char(letter)?;
                continue;
            }
            for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Whether it can be the name of a site.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=32).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(url: &str) -> ObjectUrl {
        ObjectUrl::parse(Path::new(url)).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn refused(url: &str) -> Error {
        ObjectUrl::parse(Path::new(url)).expect_err(url)
    }

    #[test]
    fn keys_are_bytes_of_urls() {
        for (url, key) in [
            ("s3://bucket/a/b", "a/b"),
            ("s3://bucket", ""),
            ("S3://bucket/", ""),
            ("s3://bucket//a//", "/a//"),
            ("s3://bucket/../.", "../."),
            ("s3://bucket/a+b c", "a+b c"),
            ("s3://bucket/a%20b%25%3f%2B", "a b%?+"),
            ("s3://bucket/%C3%BCñ", "üñ"),
            ("s3://bucket/a@b#c", "a@b#c"),
        ] {
            assert_eq!(parsed(url).key, key, "{url}");
        }
    }

    #[test]
    fn versions() {
        let url = parsed("s3://bucket/a%3Fb?versionId=x%2Fy");
        assert_eq!((url.key.as_str(), url.version.as_deref()), ("a?b", Some("x/y")));
        assert_eq!(url.to_string(), "s3://bucket/a%3Fb?versionId=x/y");
    }

    #[test]
    fn sites() {
        let url = parsed("s3://far@bucket/a");
        assert_eq!(
            (url.site.as_deref(), url.bucket.as_str(), url.key.as_str()),
            (Some("far"), "bucket", "a")
        );
        assert_eq!(url.with_key("b").to_string(), "s3://far@bucket/b");
        for url in ["s3://@bucket/a", "s3://a@b@bucket/a", "s3://a b@bucket/a"] {
            assert!(refused(url).message().contains("keys do not belong"), "{url}");
        }
    }

    #[test]
    fn wrong_urls_have_hints() {
        for (url, why) in [
            ("s3:/bucket/a", "does not begin with s3://"),
            ("s3://", "it has no bucket"),
            ("s3:///a", "it has no bucket"),
            ("s3://a b/c", "its bucket cannot be the name of one"),
            ("s3://-ab/c", "its bucket cannot be the name of one"),
            ("s3://a..b/c", "its bucket cannot be the name of one"),
            ("s3://bücher/c", "its bucket cannot be the name of one"),
            ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "an ARN is no bucket"),
            ("s3://bucket/a%2", "a % without two digits"),
            ("s3://bucket/a%gg", "a % without two digits"),
            ("s3://bucket/%FF", "its key is no UTF-8"),
            ("s3://bucket/a?", "nothing follows its ?"),
            ("s3://bucket/a?version=3", "an unknown option"),
            ("s3://bucket/a?versionId=", "its versionId"),
            ("s3://bucket/a?versionId=1&versionId=2", "given twice"),
            ("s3://bucket?versionId=1", "a version without a key"),
        ] {
            let error = refused(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(why), "{url}: {error}");
            assert!(!error.hints().is_empty(), "{url}");
        }
        assert!(refused(&format!("s3://bucket/{}", "k".repeat(1025))).to_string().contains("1024"));
        assert_eq!(parsed(&format!("s3://bucket/{}", "k".repeat(1024))).key.len(), 1024);
    }

    #[test]
    fn secrets_in_urls_are_not_repeated() {
        let error = refused("s3://AKIA123:wJalrXUtnFEMI@bucket/key");
        assert!(!format!("{error:?} {error}").contains("wJal"), "{error}");
    }

    #[test]
    fn meant_urls() {
        assert_eq!(ObjectUrl::meant(Path::new("s3:/b/k")).as_deref(), Some("s3://b/k"));
        assert_eq!(ObjectUrl::meant(Path::new("s3a://b/k")).as_deref(), Some("s3://b/k"));
        assert_eq!(ObjectUrl::meant(Path::new("s3://b/k")), None);
        assert_eq!(ObjectUrl::meant(Path::new("/s3/b/k")), None);
    }

    #[test]
    fn folders() {
        for (url, is_prefix, prefix, name) in [
            ("s3://bucket", true, "", ""),
            ("s3://bucket/a/", true, "a/", "a"),
            ("s3://bucket/a/b", false, "a/b/", "b"),
            ("s3://bucket//", true, "/", ""),
        ] {
            let url = parsed(url);
            assert_eq!((url.is_prefix(), url.prefix().as_str(), url.name()), (is_prefix, prefix, name));
        }
    }

    proptest! {
        #[test]
        fn shown_urls_are_read_back(
            key in any::<String>(),
            version in proptest::option::of(".+"),
            site in any::<bool>(),
        ) {
            let key: String = key.chars().take(200).collect();
            let version = version.filter(|_| !key.is_empty());
            let url = ObjectUrl { site: site.then(|| "far".into()), bucket: "bucket".into(), key, version };
            prop_assert_eq!(ObjectUrl::parse(Path::new(&url.to_string())).unwrap(), url);
        }

        #[test]
        fn no_url_panics(text in any::<String>()) {
            let _ = ObjectUrl::parse(Path::new(&format!("s3://{text}")));
            let _ = ObjectUrl::meant(Path::new(&text));
        }
    }
}
