//! `nfs://server[:port]/path[?version=3|4|4.0|4.1|4.2][&mountport=PORT]`. `vers` and `nfsvers` say the same as `version`.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::num::NonZeroU16;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

use crate::protocol::handle::NfsVersion;

/// A file of a server, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// The server's name or address.
    pub server: String,
    /// Its port.
    pub port: u16,
    /// The path on the server, from `/`: the bytes that the server has for it, of whatever encoding.
    pub path: Vec<u8>,
    /// Versions to try, in this order.
    pub versions: Vec<NfsVersion>,
    /// Where mountd listens, for version 3, if not asked of the portmapper.
    pub mount_port: Option<u16>,
}

/// What all URLs of this kind begin with.
pub const SCHEME: &str = "nfs://";

/// The port of servers over TCP.
pub const PORT: u16 = 2049;

/// Versions that are tried where none is named: sessions first, since they need one port only.
const ANY: [NfsVersion; 3] = [NfsVersion::V4(1), NfsVersion::V4(0), NfsVersion::V3];

const FORM: &str = "nfs://SERVER/EXPORT/PATH, nfs://SERVER:PORT/PATH?version=3&mountport=PORT";
const VERSIONS: &str = "version=3, 4.0, 4.1, 4.2, or 4 for 4.1 and then 4.0";
const MARK: &str =
    "write a ? in a name as %3F; after a ? come version=3|4|4.0|4.1|4.2 and mountport=PORT, joined by &";

impl NfsUrl {
    /// Whether a path is meant to be one.
    pub fn is_one(path: &Path) -> bool {
        let bytes = path.as_os_str().as_encoded_bytes();
        bytes.get(..SCHEME.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(SCHEME.as_bytes()))
    }

    /// The URL that a path which is not there is meant to be: `SERVER:/PATH`, as `mount` takes it, or `nfs:/SERVER/PATH`.
    pub fn meant(path: &Path) -> Option<String> {
        let bytes = path.as_os_str().as_encoded_bytes();
        let has_scheme = bytes.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case(b"nfs:"));
        let (server, path) = if has_scheme {
            let rest = bytes[4..].iter().position(|byte| *byte != b'/').filter(|_| !Self::is_one(path))?;
            split(&bytes[4 + rest..], b"/")?
        } else {
            split(bytes, b":/").filter(|(_, path)| !path.starts_with(b"/"))?
        };
        let server = std::str::from_utf8(server).ok()?;
        let server = server.rsplit('@').next().filter(|name| !name.is_empty() && !name.contains('/'))?;
        Some(format!("{SCHEME}{server}/{}", EscapedPath(path)))
    }

    /// Reads it.
    pub fn parse(text: &(impl AsRef<OsStr> + ?Sized)) -> Result<Self> {
        let text = typed(text.as_ref());
        let text = text.as_ref();
        let because = |why: &str, hint: &str| {
            let error = Error::new(ErrorKind::InvalidInput, format!("cannot read the URL: {why}"));
            error.with("url", text).hint(hint)
        };
        let wrong = |why: &str| because(why, FORM);
        if !Self::is_one(Path::new(text)) {
            return Err(wrong("it does not begin with nfs://"));
        }
        let whole = &text[SCHEME.len()..];
        let (rest, options) = whole.split_once('?').unwrap_or((whole, ""));
        let (host, path) = rest.split_once('/').ok_or_else(|| wrong("it has no path"))?;
        if let Some((user, _)) = host.rsplit_once('@') {
            let rest = &whole[user.len() + 1..];
            let hint = format!("{SCHEME}{rest}: the server sees the user and group of this process");
            let error = Error::new(ErrorKind::InvalidInput, "cannot read the URL: a user cannot be named");
            return Err(error.with("url", text).hint(hint));
        }
        let (server, port) = host_and_port(host).ok_or_else(|| wrong("its server or port"))?;
        let path = unescape(path).ok_or_else(|| {
            because(
                "its path has a % without two digits",
                "a % in a name is %25, a blank %20, a ? %3F, a # %23",
            )
        })?;
        let path = [b"/".as_slice(), &path].concat();
        let bad = |name: &[u8]| name == b".." || name == b"." || name.len() > 255 || name.contains(&0);
        if path.len() > 1024 || path.split(|byte| *byte == b'/').any(bad) {
            return Err(wrong("its path has .. or ., a zero byte, or too long a name"));
        }
        if options.is_empty() && whole.ends_with('?') {
            return Err(because("nothing follows its ?", MARK));
        }
        let mut url = Self { server, port, path, versions: ANY.to_vec(), mount_port: None };
        let mut seen = Vec::new();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            // As mount has it.
            let named = |name| if matches!(name, "vers" | "nfsvers") { "version" } else { name };
            let option = option.split_once('=').map(|(name, value)| (named(name), value));
            if let Some((name, _)) = option {
                if seen.contains(&name) {
                    return Err(wrong(&format!("{name} is given twice")));
                }
                seen.push(name);
            }
            match option {
                Some(("version", "4")) => url.versions = vec![NfsVersion::V4(1), NfsVersion::V4(0)],
                Some(("version", value)) => {
                    let version = NfsVersion::parse(value);
                    url.versions = vec![version.ok_or_else(|| because("its version", VERSIONS))?];
                }
                Some(("mountport", value)) => {
                    let port: NonZeroU16 = value.parse().map_err(|_| wrong("its mountport"))?;
                    url.mount_port = Some(port.get());
                }
                _ => return Err(because("an unknown option", MARK)),
            }
        }
        if url.mount_port.is_some() && !url.versions.contains(&NfsVersion::V3) {
            return Err(wrong("mountport is of version 3, and another one is named"));
        }
        Ok(url)
    }

    /// The names of the path.
    pub fn names(&self) -> Vec<&[u8]> {
        self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect()
    }
}

fn host_and_port(host: &str) -> Option<(String, u16)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok())?;
    // Brackets are of an address of version 6, and stand around it.
    (!name.is_empty() && !name.contains(['[', ']']) && port != 0).then(|| (name.to_owned(), port))
}

/// A URL as it can be typed anywhere: bytes that are no text by their numbers.
fn typed(url: &OsStr) -> Cow<'_, str> {
    if let Some(text) = url.to_str() {
        return Cow::Borrowed(text);
    }
    let mut text = String::new();
    for chunk in url.as_encoded_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    Cow::Owned(text)
}

/// What stands before and behind the first place of some bytes.
fn split<'a>(bytes: &'a [u8], by: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(by.len()).position(|part| part == by)?;
    Some((&bytes[..at], &bytes[at + by.len()..]))
}

fn unescape(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
            (digit(rest.next())? << 4 | digit(rest.next())?) as u8
        } else {
            byte
        });
    }
    Some(bytes)
}

/// A path as a URL has it: bytes that mean something to a URL or a shell, print badly, or are no text, by their numbers.
pub(crate) struct EscapedPath<'a>(pub(crate) &'a [u8]);

impl fmt::Display for EscapedPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if letter.is_alphanumeric() || "/-._~+,:=@".contains(letter) {
                    write!(f, "{letter}")?;
                    continue;
                }
                for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                    write!(f, "%{byte:02X}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl NfsUrl {
    /// The same with a word in place of the port, for hints.
    pub(crate) fn with_port(&self, port: &str) -> String {
        let open = if self.server.contains(':') { ("[", "]") } else { ("", "") };
        let port = if port.is_empty() { String::new() } else { format!(":{port}") };
        let path = EscapedPath(&self.path);
        format!("{SCHEME}{}{}{}{port}{path}{}", open.0, self.server, open.1, self.options())
    }

    /// What is behind `?`, with it.
    fn options(&self) -> String {
        let version = match &self.versions[..] {
            versions if *versions == ANY => None,
            [NfsVersion::V3] => Some("3".to_owned()),
            [NfsVersion::V4(minor)] => Some(format!("4.{minor}")),
            _ => Some("4".to_owned()),
        };
        let mount_port = self.mount_port.filter(|_| self.versions.contains(&NfsVersion::V3));
        let options = [
            version.map(|version| format!("version={version}")),
            mount_port.map(|port| format!("mountport={port}")),
        ];
        let options: Vec<_> = options.into_iter().flatten().collect();
        if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) }
    }
}

/// As it can be typed again, in quotes where it has options: read, it is the same.
impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = if self.port == PORT { String::new() } else { self.port.to_string() };
        f.write_str(&self.with_port(&port))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn paths() -> impl Strategy<Value = Vec<u8>> {
        let text = "[^/\\x00]{1,9}|a b|a\\?b|a%b|a#b&c'|\u{e4}\u{1F600}|\n".prop_map(String::into_bytes);
        // As another encoding has it, and bytes of none.
        let bytes = proptest::collection::vec(1_u8.., 1..9).prop_map(|mut bytes| {
            bytes.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = 0xE9);
            bytes
        });
        proptest::collection::vec(prop_oneof![text, bytes], 0..5)
            .prop_map(|names| [b"/".to_vec(), names.join(&b'/')].concat())
            .prop_filter("names that are refused", |path| {
                !path.split(|byte| *byte == b'/').any(|name| [b".".as_slice(), b".."].contains(&name))
            })
    }

    fn urls() -> impl Strategy<Value = NfsUrl> {
        let servers =
            prop_oneof!["[a-z][a-z0-9.-]{0,12}", Just("fd00::1".to_owned()), Just("fe80::1%eth0".to_owned())];
        let versions = prop_oneof![
            Just(ANY.to_vec()),
            Just(vec![NfsVersion::V4(1), NfsVersion::V4(0)]),
            (0u8..3).prop_map(|minor| vec![NfsVersion::V4(minor)]),
            Just(vec![NfsVersion::V3]),
        ];
        let port = prop_oneof![Just(PORT), 1u16..];
        (servers, port, paths(), versions, proptest::option::of(1u16..)).prop_map(
            |(server, port, path, versions, mount_port)| {
                let mount_port = mount_port.filter(|_| versions.contains(&NfsVersion::V3));
                NfsUrl { server, port, path, versions, mount_port }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_typed_again(url in urls()) {
            let printed = url.to_string();
            prop_assert!(!printed.contains([' ', '\n', '\'', '#', '$']), "{printed:?}");
            prop_assert_eq!(NfsUrl::parse(&printed).unwrap(), url, "{}", printed);
        }

        /// What `mount` takes, too.
        #[test]
        fn what_is_meant_can_be_typed(path in paths()) {
            let given = [b"server:", path.as_slice()].concat();
            let meant = NfsUrl::meant(Path::new(OsStr::from_bytes(&given)));
            let is_one = !path.starts_with(b"//");
            prop_assert_eq!(meant.map(|url| NfsUrl::parse(&url).unwrap().path), is_one.then_some(path));
        }

        #[test]
        fn what_is_read_is_printed_so_that_it_is_read_alike(text in "nfs://\\PC{0,40}") {
            if let Ok(url) = NfsUrl::parse(&text) {
                prop_assert_eq!(NfsUrl::parse(&url.to_string()).unwrap(), url);
            }
        }
    }

    #[test]
    fn urls_are_printed_with_all_that_they_say() {
        for text in [
            "nfs://server/export/a%20b",
            "nfs://server/a%3Fb%25c?version=4",
            "nfs://[fd00::1]:111/x?version=3&mountport=20048",
            "nfs://server/x?mountport=7",
            "nfs://server/",
        ] {
            assert_eq!(NfsUrl::parse(text).unwrap().to_string(), text);
        }
        let url = NfsUrl::parse("nfs://[fd00::1]/a%20b?version=4.1").unwrap();
        assert_eq!(url.with_port("PORT"), "nfs://[fd00::1]:PORT/a%20b?version=4.1");
    }

    #[test]
    fn urls_are_read() {
        let url = NfsUrl::parse("nfs://server/export/a%20file").unwrap();
        assert_eq!(
            (url.server.as_str(), url.port, url.path.as_slice()),
            ("server", 2049, &b"/export/a file"[..])
        );
        assert_eq!(url.names(), [&b"export"[..], b"a file"]);
        assert_eq!(url.versions, ANY);
        let url = NfsUrl::parse("nfs://[fe80::1]:111/x?version=3&mountport=20048").unwrap();
        assert_eq!((url.server.as_str(), url.port), ("fe80::1", 111));
        assert_eq!((url.versions, url.mount_port), (vec![NfsVersion::V3], Some(20048)));
        assert_eq!(NfsUrl::parse("nfs://[fe80::1]:111/x").unwrap().to_string(), "nfs://[fe80::1]:111/x");
    }

    #[test]
    fn any_name_that_a_server_has_is_named() {
        let printed = "nfs://server/export/caf%E9";
        let url = NfsUrl::parse(printed).unwrap();
        assert_eq!((url.path.as_slice(), url.to_string().as_str()), (&b"/export/caf\xE9"[..], printed));
        let raw = OsStr::from_bytes(b"nfs://server/export/caf\xE9");
        assert_eq!(NfsUrl::parse(raw).unwrap(), url);
        let meant = OsStr::from_bytes(b"server:/export/caf\xE9");
        assert_eq!(NfsUrl::meant(Path::new(meant)).as_deref(), Some(printed));
        let wrong = NfsUrl::parse("nfs://server/%2").unwrap_err();
        assert!(wrong.message().contains("% without two digits"), "{wrong}");
    }

    #[test]
    fn versions_are_named_as_mount_names_them() {
        for (text, version) in [("vers=4.0", "4.0"), ("vers=3", "3"), ("nfsvers=4.2", "4.2"), ("vers=4", "4")]
        {
            let url = NfsUrl::parse(&format!("nfs://server/x?{text}")).unwrap();
            assert_eq!(url.to_string(), format!("nfs://server/x?version={version}"));
        }
        let twice = NfsUrl::parse("nfs://server/x?vers=3&version=4").unwrap_err();
        assert!(twice.message().contains("given twice"), "{twice}");
    }

    /// RFC 3986 §3.1: schemes are written in any case.
    #[test]
    fn schemes_are_taken_in_any_case() {
        assert!(NfsUrl::is_one(Path::new("NFS://a/b")) && !NfsUrl::is_one(Path::new("nfs:/a")));
        assert_eq!(NfsUrl::parse("Nfs://Server/B").unwrap(), NfsUrl::parse("nfs://Server/B").unwrap());
    }

    #[test]
    fn what_is_meant_to_be_a_url_is_told() {
        for (path, url) in [
            ("server:/export/a file", "nfs://server/export/a%20file"),
            ("root@[fd00::1]:/x?y", "nfs://[fd00::1]/x%3Fy"),
            ("nfs:/server/export", "nfs://server/export"),
            ("NFS:server/export", "nfs://server/export"),
        ] {
            assert_eq!(NfsUrl::meant(Path::new(path)).as_deref(), Some(url));
        }
        for path in ["a:b", "/mnt/a:/b", "http://a/b", ":/b", "nfs:///x", "nfs:/a", "x"] {
            assert_eq!(NfsUrl::meant(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_user_is_refused_with_the_url_without_it() {
        let error = NfsUrl::parse("nfs://root@server/export/file").unwrap_err();
        assert!(error.hints()[0].starts_with("nfs://server/export/file: "), "{error:?}");
        let error = NfsUrl::parse("nfs://root@[fd00::1]:7/a%20b?version=3").unwrap_err();
        assert!(error.hints()[0].starts_with("nfs://[fd00::1]:7/a%20b?version=3: "), "{error:?}");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let wrong = [
            "http://a/b",
            "nfs://",
            "nfs://a",
            "nfs:///b",
            "nfs://a:0/b",
            "nfs://[[a]/b",
            "nfs://a]/b",
            "nfs://a:x/b",
            "nfs://a/../b",
            "nfs://a/%2",
            "nfs://a/b?version=2",
            "nfs://a/b?tls=1",
            "nfs://a/%00",
            "nfs://a/b?version=4&version=3",
            "nfs://a/b?mountport=1&version=3&mountport=1",
            "nfs://a/b?version=4.1&mountport=20048",
            "nfs://a/b?version=3&mountport=0",
            "nfs://root@a/b",
        ];
        for text in wrong {
            let error = NfsUrl::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(!error.hints().is_empty());
        }
    }
}
