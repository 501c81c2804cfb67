//! Certificates of the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, version};

/// Files in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, then those between it and a root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let wrong = |what: &str, path: &Path, why: String| {
        Error::new(ErrorKind::InvalidInput, format!("cannot read {what}: {why}")).with("path", path.display())
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| wrong("certificate", &files.certificate, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| wrong("private key", &files.key, error.to_string()))?;
    let made = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = made.map_err(|error| wrong("certificate", &files.certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
