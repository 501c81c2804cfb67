//! TLS, with a certificate that is good for 100 years: `localhost`, `*.localhost`, `*.s3.fake.test`, 127.0.0.1 and ::1, and
//! buckets at AWS's hosts of two regions, for which the server is its own proxy. Its authority's key does not exist any more.

use std::io::{Error, Read, Result, Write};
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

/// Also behind a `CONNECT` in clear text, of a client for which this server is its own proxy.
pub(crate) fn accept(mut stream: TcpStream, config: &Arc<ServerConfig>) -> Result<Box<dyn Wire>> {
    let mut first = [0; 1];
    if stream.peek(&mut first)? == 1 && first == *b"C" {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut first)?;
            head.push(first[0]);
        }
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    }
    let connection = ServerConnection::new(config.clone()).map_err(Error::other)?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}
