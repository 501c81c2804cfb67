//! `nfs://server[:port]/path[?version=3|4|4.0|4.1|4.2][&mountport=PORT]`.

use std::fmt;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

use crate::handle::Version;

/// A file of a server, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The server's name or address.
    pub server: String,
    /// Its port.
    pub port: u16,
    /// The path on the server, from `/`.
    pub path: String,
    /// Versions to try, in this order.
    pub versions: Vec<Version>,
    /// Where mountd listens, for version 3, if not asked of the portmapper.
    pub mount_port: Option<u16>,
}

/// What all URLs of this kind begin with.
pub const SCHEME: &str = "nfs://";

/// The port of servers over TCP.
pub const PORT: u16 = 2049;

/// Versions that are tried where none is named: sessions first, since they need one port only.
const ANY: [Version; 3] = [Version::V4(1), Version::V4(0), Version::V3];

impl Url {
    /// Whether a path is meant to be one.
    pub fn is_one(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().starts_with(SCHEME.as_bytes())
    }

    /// Reads it.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(ErrorKind::InvalidInput, format!("cannot read the URL: {why}"))
                .with("url", text)
                .hint("nfs://SERVER/EXPORT/PATH, nfs://SERVER:PORT/PATH?version=3&mountport=PORT")
        };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("it does not begin with nfs://"))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = rest.split_once('/').ok_or_else(|| wrong("it has no path"))?;
        let (server, port) = host_and_port(host).ok_or_else(|| wrong("its server or port"))?;
        let path =
            format!("/{}", unescape(path).ok_or_else(|| wrong("its path has a % without two digits"))?);
        let bad = |name: &str| name == ".." || name == "." || name.len() > 255 || name.contains('\0');
        if path.len() > 1024 || path.split('/').any(bad) {
            return Err(wrong("its path has .. or ., a zero byte, or too long a name"));
        }
        let mut url = Self { server, port, path, versions: ANY.to_vec(), mount_port: None };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("version", "4")) => url.versions = vec![Version::V4(1), Version::V4(0)],
                Some(("version", value)) => {
                    url.versions = vec![Version::parse(value).ok_or_else(|| wrong("its version"))?];
                }
                Some(("mountport", value)) => {
                    url.mount_port = Some(value.parse().map_err(|_| wrong("its mountport"))?);
                }
                _ => return Err(wrong("an unknown option")),
            }
        }
        Ok(url)
    }

    /// The names of the path.
    pub fn names(&self) -> Vec<&str> {
        self.path.split('/').filter(|name| !name.is_empty()).collect()
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
    (!name.is_empty() && port != 0).then(|| (name.to_owned(), port))
}

fn unescape(path: &str) -> Option<String> {
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
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = if self.server.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{SCHEME}{}{}{}", open.0, self.server, open.1)?;
        if self.port != PORT {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let url = Url::parse("nfs://server/export/a%20file").unwrap();
        assert_eq!((url.server.as_str(), url.port, url.path.as_str()), ("server", 2049, "/export/a file"));
        assert_eq!(url.names(), ["export", "a file"]);
        assert_eq!(url.versions, ANY);
        let url = Url::parse("nfs://[fe80::1]:111/x?version=3&mountport=20048").unwrap();
        assert_eq!((url.server.as_str(), url.port), ("fe80::1", 111));
        assert_eq!((url.versions, url.mount_port), (vec![Version::V3], Some(20048)));
        assert_eq!(Url::parse("nfs://[fe80::1]:111/x").unwrap().to_string(), "nfs://[fe80::1]:111/x");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let wrong = [
            "http://a/b",
            "nfs://",
            "nfs://a",
            "nfs:///b",
            "nfs://a:0/b",
            "nfs://a:x/b",
            "nfs://a/../b",
            "nfs://a/%2",
            "nfs://a/b?version=2",
            "nfs://a/b?tls=1",
            "nfs://a/%00",
        ];
        for text in wrong {
            let error = Url::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(!error.hints().is_empty());
        }
    }
}
