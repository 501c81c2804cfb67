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
