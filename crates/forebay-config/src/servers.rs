//! Further addresses of servers: `nas1=10.0.0.11,10.0.0.12,nas2=fd00::21`. There is nothing in it that a shell would take for its own.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};

/// Further addresses of a server, at most: with the first, as many as it has connections.
pub const MOST_ADDRESSES: usize = 15;

/// Servers, at most.
const MOST_SERVERS: usize = 64;

/// How it is written.
const FORM: &str =
    "FOREBAY_NFS_SERVERS=NAME=ADDRESS,ADDRESS,NAME2=ADDRESS: NAME as in nfs://NAME/… or in the mount";

/// Servers with their further addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers(Vec<(String, Vec<String>)>);

impl Servers {
    /// The further addresses of a server, by any of its names.
    pub fn of(&self, names: &[&str]) -> Vec<String> {
        let found = self.0.iter().find(|(name, _)| names.iter().any(|other| is_same(name, other)));
        found.map(|(_, addresses)| addresses.clone()).unwrap_or_default()
    }

    /// The names that stand there.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Names are alike in any case, addresses however they are written.
fn is_same(name: &str, other: &str) -> bool {
    match (name.parse::<IpAddr>(), other.parse::<IpAddr>()) {
        (Ok(name), Ok(other)) => name == other,
        _ => name.eq_ignore_ascii_case(other),
    }
}

/// A name, or a numeric address, which may stand in brackets if it is one of version 6.
fn host(text: &str) -> Result<String> {
    let wrong = |why: &str| Error::new(ErrorKind::InvalidInput, format!("{why}: {text:?}")).hint(FORM);
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let number = bare.split_once('%').map_or(bare, |(number, _)| number);
    if number.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6() || bare == text) {
        return Ok(bare.to_owned());
    }
    if text.contains(':') {
        return Err(wrong("an address of a server has no port, it is that of the URL or the mount"));
    }
    let is_letter = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    let is_number = |text: &str| text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    if text.is_empty() || text.len() > 253 || !text.chars().all(is_letter) || is_number(text) {
        return Err(wrong("not a name or an address of a server"));
    }
    Ok(text.to_owned())
}

impl FromStr for Servers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidInput, why).hint(FORM);
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        for word in text.split(',') {
            let (name, address) =
                word.split_once('=').map_or((None, word), |(name, rest)| (Some(name), rest));
            if let Some(name) = name {
                let name = host(name)?;
                if all.iter().any(|(known, _)| is_same(known, &name)) {
                    return Err(wrong(format!("a server is named twice: {name}")));
                }
                all.push((name, Vec::new()));
            }
            let address = host(address)?;
            let Some((name, addresses)) = all.last_mut() else {
                return Err(wrong(format!("no server is named before its address: {address:?}")));
            };
            if addresses.iter().any(|known| is_same(known, &address)) {
                return Err(wrong(format!("an address of {name} is named twice: {address}")));
            }
            addresses.push(address);
            if addresses.len() > MOST_ADDRESSES {
                return Err(wrong(format!("more than {MOST_ADDRESSES} further addresses of {name}")));
            }
        }
        if all.len() > MOST_SERVERS {
            return Err(wrong(format!("more than {MOST_SERVERS} servers")));
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, addresses)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}={}", addresses.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_addresses_of_their_own() {
        let text = "nas1=10.0.0.11,10.0.0.12,fd00::7=[fd00::8],fe80::1%eth0,nas_2.example=vip-2";
        let servers: Servers = text.parse().unwrap();
        assert_eq!(servers.of(&["NAS1"]), ["10.0.0.11", "10.0.0.12"]);
        assert_eq!(servers.of(&["other", "fd00:0::7"]), ["fd00::8", "fe80::1%eth0"]);
        assert_eq!(servers.of(&["nas_2.example"]), ["vip-2"]);
        assert!(servers.of(&["nas", "10.0.0.11"]).is_empty());
        assert_eq!(servers.to_string().parse::<Servers>().unwrap(), servers);
    }

    #[test]
    fn nonsense_is_refused_with_the_form() {
        let many = format!("a={}", (0..16).map(|at| format!("10.0.0.{at}")).collect::<Vec<_>>().join(","));
        let servers = (0..65).map(|at| format!("a{at}=b")).collect::<Vec<_>>().join(",");
        for (text, words) in [
            ("10.0.0.11", "no server is named"),
            ("nas1=", "not a name or an address"),
            ("=10.0.0.1", "not a name or an address"),
            ("nas1=a,,b", "not a name or an address"),
            ("nas1=10.0.0.300", "not a name or an address"),
            ("nas1=10.0.0.1;nas2=10.0.0.2", "not a name or an address"),
            ("nas1=a/b", "not a name or an address"),
            ("nas1=[10.0.0.1]", "not a name or an address"),
            ("nas1=a=b", "not a name or an address"),
            ("nas1=10.0.0.1:2049", "no port"),
            ("nas1=[fd00::1]:2049", "no port"),
            ("nas1=a,NAS1=b", "a server is named twice: NAS1"),
            ("nas1=fd00::1,fd00:0::1", "an address of nas1 is named twice"),
            (many.as_str(), "more than 15"),
            (servers.as_str(), "more than 64"),
        ] {
            let error = text.parse::<Servers>().unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert_eq!(error.hints(), [FORM]);
        }
    }
}
