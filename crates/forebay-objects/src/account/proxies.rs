//! HTTP proxies that variables name, and what goes past them.

use std::net::IpAddr;

use forebay_error::{Error, ErrorKind, Result};
use reqsign_core::hash::base64_encode;

use super::target::host_and_port;
use super::variables::Variables;
use crate::url::unescape;
use crate::wire::site::Proxy;

/// The proxies of both schemes, and hosts that are reached without.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    none_for: Vec<String>,
}

impl Proxies {
    pub(super) fn read(variables: &Variables) -> Result<Self> {
        let proxy = |names: [&'static str; 4]| {
            let found = names.iter().find_map(|name| Some((*name, variables.get(name)?)));
            found.map(|(name, url)| parse(name, url)).transpose()
        };
        let none_for = variables.first(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        let none_for = none_for.split([',', ' ']).map(str::trim).filter(|name| !name.is_empty());
        Ok(Self {
            http: proxy(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])?,
            https: proxy(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            none_for: none_for.map(str::to_ascii_lowercase).collect(),
        })
    }

    /// The proxy before a host.
    pub(super) fn before(&self, tls: bool, host: &str, port: u16) -> Option<Proxy> {
        let proxy = if tls { self.https.as_ref() } else { self.http.as_ref() };
        proxy.filter(|_| !self.none_for.iter().any(|name| covers(name, host, port))).cloned()
    }
}

/// Whether an entry of `NO_PROXY` means a host: `*`, a name and all below it, an address, a network, each perhaps with a port.
fn covers(entry: &str, host: &str, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let (Some((network, bits)), Ok(address)) = (entry.split_once('/'), host.parse::<IpAddr>()) {
        return in_network(network, bits, address).unwrap_or(false);
    }
    let Some((name, wanted)) = host_and_port(entry, port).or_else(|| Some((entry.to_owned(), port))) else {
        return false;
    };
    let name = name.trim_start_matches("*.").trim_start_matches('.');
    let is_below = host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    wanted == port && is_below
}

fn in_network(network: &str, bits: &str, address: IpAddr) -> Option<bool> {
    let bits: u32 = bits.parse().ok()?;
    Some(match (network.parse().ok()?, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let shift = 32_u32.checked_sub(bits)?;
            u64::from(network.to_bits()) >> shift == u64::from(address.to_bits()) >> shift
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let shift = 128_u32.checked_sub(bits)?;
            network.to_bits().checked_shr(shift) == address.to_bits().checked_shr(shift)
        }
        _ => false,
    })
}

fn parse(name: &'static str, url: &str) -> Result<Proxy> {
    let wrong = |why: &str| {
        // The URL may have a password: not shown.
        let error = Error::new(ErrorKind::InvalidInput, format!("cannot read the proxy: {why}"));
        error.with("setting", name).hint(format!("{name}=http://[USER:PASSWORD@]HOST:PORT"))
    };
    let rest = match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some(_) => return Err(wrong("only proxies of http:// are known")),
        None => url,
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (user, host) = rest.rsplit_once('@').map_or((None, rest), |(user, host)| (Some(user), host));
    let (host, port) = host_and_port(host, 80).ok_or_else(|| wrong("its host or port"))?;
    let user = user
        .map(|user| unescape(user.as_bytes()).ok_or_else(|| wrong("its user or password")))
        .transpose()?;
    let authorization = user.map(|user| format!("Basic {}", base64_encode(&user)));
    Ok(Proxy { host, port, authorization })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_of_schemes() {
        let proxies = Proxies::read(&Variables::from([
            ("http_proxy", "http://a:1"),
            ("HTTP_PROXY", "http://b:2"),
            ("HTTPS_PROXY", "c:3/"),
        ]));
        let proxies = proxies.unwrap();
        assert_eq!(proxies.before(false, "x", 80).unwrap().host, "a");
        assert_eq!(proxies.before(true, "x", 443).unwrap().port, 3);
        let all = Proxies::read(&Variables::from([("ALL_PROXY", "http://a:1")])).unwrap();
        assert!(all.before(true, "x", 443).is_some() && all.before(false, "x", 80).is_some());
    }

    #[test]
    fn hosts_without() {
        let list = "localhost, .example.com,10.0.0.0/8,*.aws,h:9000,fd00::/8";
        let proxies = Proxies::read(&Variables::from([("http_proxy", "p:1"), ("NO_PROXY", list)])).unwrap();
        for (host, port, past) in [
            ("localhost", 1, true),
            ("notlocalhost", 1, false),
            ("example.com", 1, true),
            ("s3.example.com", 1, true),
            ("badexample.com", 1, false),
            ("10.2.3.4", 1, true),
            ("11.2.3.4", 1, false),
            ("b.aws", 1, true),
            ("h", 9000, true),
            ("h", 9001, false),
            ("fd00::1", 1, true),
            ("fe80::1", 1, false),
        ] {
            assert_eq!(proxies.before(false, host, port).is_none(), past, "{host}");
        }
        let all = Proxies::read(&Variables::from([("http_proxy", "p:1"), ("no_proxy", "*")])).unwrap();
        assert!(all.before(false, "x", 1).is_none());
    }

    #[test]
    fn users_are_encoded_and_not_shown() {
        let proxies = Proxies::read(&Variables::from([("http_proxy", "http://me:p%40ss@h:3128")])).unwrap();
        let proxy = proxies.before(false, "x", 80).unwrap();
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert!(!format!("{proxies:?}").contains("bWU6"));
    }

    #[test]
    fn wrong_proxies() {
        for url in ["socks5://a:1", "http://", "http://a:x", "http://u%4:p@a:1"] {
            let error = Proxies::read(&Variables::from([("https_proxy", url)])).unwrap_err();
            assert!(error.hints()[0].starts_with("https_proxy="), "{url}");
        }
    }
}
