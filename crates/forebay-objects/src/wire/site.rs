//! Sites: where requests are sent to.

use std::fmt;

/// Where requests for a bucket are sent to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    pub(crate) tls: bool,
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// An HTTP proxy in front of it. Without TLS, heads are those of a proxy: whole URLs, and `proxy-authorization`.
    pub(crate) proxy: Option<Proxy>,
    /// A file with certificates in place of the system's.
    pub(crate) ca_file: Option<String>,
}

impl Site {
    /// The server as messages name it: its port, too, where that is not the scheme's own.
    pub(crate) fn name(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => format!("{open}{}{close}", self.host),
            (_, port) => format!("{open}{}{close}:{port}", self.host),
        }
    }

    /// The proxy as messages name it.
    pub(crate) fn proxy_name(&self) -> Option<String> {
        self.proxy.as_ref().map(|proxy| format!("{}:{}", proxy.host, proxy.port))
    }
}

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
