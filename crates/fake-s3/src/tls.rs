//! TLS, with a certificate that is good for 100 years: `localhost`, `*.localhost`, `*.s3.fake.test`, 127.0.0.1 and ::1. Its
//! authority's key does not exist any more.

use std::io::{Error, Result};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::Wire;

/// The certificate of the authority, in PEM: what `AWS_CA_BUNDLE` names a file of.
pub const CA: &str = include_str!("../certificates/ca.pem");

/// # Panics
/// If the certificates of this crate are none.
#[allow(clippy::expect_used, reason = "fixed files of this crate")]
pub(crate) fn config() -> Arc<ServerConfig> {
    let certificate =
        CertificateDer::from_pem_slice(include_bytes!("../certificates/server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../certificates/server.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a key of the certificate");
    Arc::new(config)
}

pub(crate) fn accept(stream: TcpStream, config: &Arc<ServerConfig>) -> Result<Box<dyn Wire>> {
    let connection = ServerConnection::new(config.clone()).map_err(Error::other)?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}
