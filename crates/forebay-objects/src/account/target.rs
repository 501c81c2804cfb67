//! URLs of endpoints, and hosts of AWS.

use std::fmt;
use std::net::IpAddr;

use forebay_error::{Error, ErrorKind, Result};

/// Where requests go, before a bucket's name is put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) tls: bool,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// A path before all others, without a `/` at its end; percent-encoded.
    pub(super) base: String,
}

impl Target {
    /// That of a URL, which the setting `name` has.
    pub(super) fn parse(url: &str, name: &'static str) -> Result<Self> {
        Self::parts(url).ok_or_else(|| {
            let error = Error::new(ErrorKind::InvalidInput, "cannot read the URL of the endpoint");
            // A user before the host would be a secret.
            let shown = if url.contains('@') { "…" } else { url };
            error
                .with("setting", name)
                .with("url", shown)
                .hint("http://HOST:PORT or https://HOST, without keys")
        })
    }

    fn parts(url: &str) -> Option<Self> {
        let (scheme, rest) = url.trim().split_once("://")?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let (host, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let base = base.trim_end_matches('/');
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte);
        if !base.bytes().all(fits) || base.contains("//") {
            return None;
        }
        let (host, port) = host_and_port(host, if tls { 443 } else { 80 })?;
        Some(Self { tls, host, port, base: base.to_owned() })
    }

    /// A service of AWS in a region: `s3.eu-west-1.amazonaws.com`.
    pub(super) fn of_aws(service: &str, region: &str, dual_stack: bool) -> Self {
        let stack = if dual_stack { ".dualstack" } else { "" };
        let host = format!("{service}{stack}.{region}.{}", suffix(region));
        Self { tls: true, host, port: 443, base: String::new() }
    }

    /// A service that AWS has once for all regions.
    pub(super) fn of_aws_anywhere(service: &str) -> Self {
        Self { tls: true, host: format!("{service}.amazonaws.com"), port: 443, base: String::new() }
    }

    /// What `host` says of it: the port where it is not the scheme's own.
    pub(super) fn authority(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let port = match (self.tls, self.port) {
            (true, 443) | (false, 80) => String::new(),
            (_, port) => format!(":{port}"),
        };
        format!("{open}{}{close}{port}", self.host)
    }

    /// Whether the host is an address: it has no names below.
    pub(super) fn is_address(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.base)
    }
}

/// Host and port of `HOST[:PORT]`, `[ADDRESS][:PORT]`.
pub(super) fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => {
            let (host, rest) = inside.split_once(']')?;
            let _: std::net::Ipv6Addr = host.parse().ok()?;
            (host, rest)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None if rest.is_empty() => default,
        None => return None,
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    (!host.is_empty() && host.bytes().all(fits)).then(|| (host.to_ascii_lowercase(), port))
}

/// Ends of names of AWS's hosts, by the beginnings of their regions.
const SUFFIXES: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
];

/// The region of one of S3's hosts at AWS, also by older names: `bucket.s3.eu-west-1.amazonaws.com`, `s3-eu-west-1.amazonaws.com`.
pub(crate) fn region_of_aws(host: &str) -> Option<&str> {
    let mut suffixes = SUFFIXES.iter().map(|(_, suffix)| *suffix).chain(["amazonaws.com"]);
    let name = suffixes.find_map(|suffix| host.strip_suffix(suffix)?.strip_suffix('.'))?;
    let (before, last) = name.rsplit_once('.').unwrap_or(("", name));
    let service = before.rsplit('.').next().unwrap_or(before);
    match last {
        "s3" => Some("us-east-1"),
        _ if matches!(service, "s3" | "s3-fips" | "dualstack") => Some(last),
        _ => last.strip_prefix("s3-").filter(|region| region.matches('-').count() >= 2),
    }
}

/// The end of names of AWS's hosts in a region.
fn suffix(region: &str) -> &'static str {
    SUFFIXES.iter().find(|(begin, _)| region.starts_with(begin)).map_or("amazonaws.com", |(_, suffix)| suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, shown, port) in [
            ("http://localhost:9000/", "http://localhost:9000", 9000),
            ("HTTPS://S3.Example.com", "https://s3.example.com", 443),
            ("http://10.0.0.1", "http://10.0.0.1", 80),
            ("http://[::1]:7070", "http://[::1]:7070", 7070),
            ("https://h/storage/v1/s3/", "https://h/storage/v1/s3", 443),
            ("https://h:443", "https://h", 443),
        ] {
            let target = Target::parse(url, "x").unwrap();
            assert_eq!((target.to_string().as_str(), target.port), (shown, port), "{url}");
        }
    }

    #[test]
    fn wrong_urls() {
        for url in [
            "localhost:9000",
            "ftp://a",
            "http://",
            "http://a b",
            "http://a:0",
            "http://a:b",
            "http://a?x",
            "http://[::1",
        ] {
            assert!(Target::parse(url, "x").is_err(), "{url}");
        }
        let error = Target::parse("http://key:secret@host", "x").unwrap_err();
        assert!(!format!("{error:?}").contains("secret"));
    }

    #[test]
    fn regions_of_hosts_of_aws() {
        for (host, region) in [
            ("bucket.s3.eu-west-1.amazonaws.com", Some("eu-west-1")),
            ("s3.eu-west-1.amazonaws.com", Some("eu-west-1")),
            ("b.c.s3-us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3.dualstack.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("b.s3-fips.us-gov-west-1.amazonaws.com", Some("us-gov-west-1")),
            ("bucket.s3.amazonaws.com", Some("us-east-1")),
            ("bucket.s3-accelerate.amazonaws.com", None),
            ("sts.eu-west-1.amazonaws.com", None),
            ("bucket.s3.eu-west-1.amazonaws.com.evil.test", None),
            ("s3.eu-west-1.evilamazonaws.com", None),
            ("127.0.0.1", None),
            ("", None),
        ] {
            assert_eq!(region_of_aws(host), region, "{host}");
        }
    }

    #[test]
    fn hosts_of_aws() {
        assert_eq!(Target::of_aws("s3", "eu-west-1", false).host, "s3.eu-west-1.amazonaws.com");
        assert_eq!(Target::of_aws("s3", "cn-north-1", true).host, "s3.dualstack.cn-north-1.amazonaws.com.cn");
    }
}
