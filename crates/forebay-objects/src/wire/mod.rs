//! HTTP/1.1: heads, bodies, TLS, proxies; connections of an endpoint, and the threads that serve them.

pub(crate) mod call;
pub(crate) mod site;

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use call::{Ask, Body, Heads, Resume, Sink};
use site::Site;

/// The connections to a site.
#[derive(Debug)]
pub(crate) struct Network {}

impl Network {
    /// None yet.
    pub(crate) fn new(_heads: Arc<dyn Heads>, _site: Site) -> Arc<Self> {
        Arc::new(Self {})
    }

    /// Starts a call. Its end is told to the sink, perhaps before this returns. A call that a server closed a kept connection on,
    /// before a byte of its reply came, is sent again on another one; all other errors are the sink's.
    pub(crate) fn start(&self, _ask: Ask, _body: Body, sink: Box<dyn Sink>) -> Arc<dyn Resume> {
        struct Nothing;
        impl Resume for Nothing {
            fn resume(&self) {}
        }
        let error: Result<()> = Err(Error::new(ErrorKind::Unsupported, "not written yet"));
        sink.end(error);
        Arc::new(Nothing)
    }
}
