//! At which step a connection failed.

use std::fmt;

/// The step at which a connection failed, as the source of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsFailed;

/// The proxy failed, or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyFailed;

impl fmt::Display for TlsFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection by TLS")
    }
}

impl fmt::Display for ProxyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection by the proxy")
    }
}

impl std::error::Error for TlsFailed {}
impl std::error::Error for ProxyFailed {}
