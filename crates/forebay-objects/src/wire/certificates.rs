//! Which certificates of servers are trusted, and why one is not.

use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_error::{Error, ErrorKind, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::failed::TlsFailed;
use super::site::Site;
use crate::lock;

/// What makes connections by TLS: trusted certificates, and sessions that go on.
#[derive(Debug)]
pub(super) struct TlsClient {
    pub(super) config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

impl TlsClient {
    /// By the site's file of certificates, else by those of the system. Reads them.
    pub(super) fn new(site: &Site) -> Result<Self> {
        let (provider, roots) =
            (Arc::new(ring::default_provider()), Arc::new(roots(site.ca_file.as_deref())?));
        let none = |error: &dyn std::fmt::Display| unusable(site.ca_file.as_deref()).with("reason", error);
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| none(&error))?;
        let verifier = Arc::new(Verifier { inner, issuer: Mutex::default() });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| none(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config), verifier })
    }

    /// The name that the server's certificate is to have.
    pub(super) fn name(host: &str) -> Result<ServerName<'static>> {
        ServerName::try_from(host.to_owned()).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, "the server's name cannot stand in a certificate")
                .with("server", host)
                .with("reason", error)
        })
    }

    /// Why a connection failed.
    pub(super) fn failed(&self, error: &rustls::Error, site: &Site) -> Error {
        self.reason(error, site).source(TlsFailed)
    }

    fn reason(&self, error: &rustls::Error, site: &Site) -> Error {
        let refused = |what: &str| Error::new(ErrorKind::PermissionDenied, what).with("server", site.name());
        match error {
            rustls::Error::InvalidCertificate(why) => self.distrusted(why, site),
            rustls::Error::InvalidMessage(_) => {
                Error::new(ErrorKind::Corrupt, "the server does not speak TLS on this port")
                    .with("server", site.name())
                    .with("port", site.port)
                    .hint(format!("AWS_ENDPOINT_URL=http://{}:{}", site.host, site.port))
            }
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
                refused("the server wants a certificate of the client, which forebay has none of")
            }
            error => Error::new(ErrorKind::Io, format!("the connection by TLS failed: {error}"))
                .with("server", site.name()),
        }
    }

    fn distrusted(&self, why: &CertificateError, site: &Site) -> Error {
        let refused = |what: &str| Error::new(ErrorKind::PermissionDenied, what).with("server", site.name());
        let issuer = lock(&self.verifier.issuer).clone();
        match why {
            CertificateError::NotValidForNameContext { presented, .. } => {
                let error = refused("the server's certificate is for another name")
                    .with("names", presented.join(", "));
                let has_wildcard = presented.iter().any(|name| name.starts_with("DnsName(\"*."));
                error.hint(if has_wildcard {
                    "AWS_S3_ADDRESSING_STYLE=path, where the bucket's name has a dot"
                } else {
                    "give the endpoint by a name of its certificate: AWS_ENDPOINT_URL=https://NAME"
                })
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                refused("the server's certificate is not valid at this time")
                    .with("reason", why)
                    .hint("date -u")
            }
            CertificateError::UnknownIssuer => {
                let error =
                    refused("the issuer of the server's certificate is not trusted").with("issuer", issuer);
                error.hint("AWS_CA_BUNDLE=FILE, with the issuer's certificate (PEM)")
            }
            why => {
                // Its name alone: the rest are numbers of algorithms.
                let why = format!("{why:?}");
                let name = why.split(|letter: char| !letter.is_ascii_alphanumeric()).next();
                refused("the server's certificate is not valid")
                    .with("reason", name.unwrap_or_default())
                    .with("issuer", issuer)
                    .hint("where the server signs for itself: AWS_CA_BUNDLE=FILE, with its issuer's certificate (PEM)")
            }
        }
    }
}

/// Certificates that are trusted.
fn roots(file: Option<&str>) -> Result<RootCertStore> {
    let found = match file {
        Some(file) => rustls_native_certs::load_certs_from_paths(Some(Path::new(file)), None),
        None => rustls_native_certs::load_native_certs(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match (roots.is_empty(), found.errors.first()) {
        (false, _) => Ok(roots),
        (true, Some(error)) => Err(unusable(file).with("reason", error)),
        (true, None) => Err(unusable(file)),
    }
}

fn unusable(file: Option<&str>) -> Error {
    let error = match file {
        Some(file) => Error::new(ErrorKind::InvalidInput, "the file has no certificate to trust")
            .with("path", file)
            .hint("AWS_CA_BUNDLE=FILE, with certificates in PEM"),
        None => Error::new(ErrorKind::NotFound, "this system has no certificates to trust servers by")
            .hint("install the package ca-certificates")
            .hint("AWS_CA_BUNDLE=FILE, with certificates in PEM"),
    };
    error.source(TlsFailed)
}

/// The usual verifier; it keeps the issuer of the certificate that it refused last.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    issuer: Mutex<String>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let done = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        if done.is_err() {
            let last = intermediates.last().unwrap_or(end_entity);
            *lock(&self.issuer) = issuer(last).unwrap_or_else(|| "unnamed".to_owned());
        }
        done
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Tag and content of the first element of DER, and the elements behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        ..=0x7F => (usize::from(first), rest),
        0x81..=0x83 => {
            let (len, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, behind) = rest.split_at_checked(len)?;
    Some((tag, content, behind))
}

/// The names of a certificate's issuer: its common name, else all parts.
fn issuer(der: &[u8]) -> Option<String> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xA0;
    const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    // Number, algorithm, issuer.
    let (tag, mut sets, _) = element(element(element(fields)?.2)?.2)?;
    if tag != SEQUENCE {
        return None;
    }
    let (mut all, mut common) = (Vec::new(), None);
    while let Some((_, set, behind)) = element(sets) {
        sets = behind;
        let (_, part, _) = element(set)?;
        let (_, id, value) = element(part)?;
        let (_, value, _) = element(value)?;
        let value = String::from_utf8_lossy(value).into_owned();
        if id == COMMON_NAME {
            common = Some(value.clone());
        }
        all.push(value);
    }
    common.or_else(|| (!all.is_empty()).then(|| all.join(", ")))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// The reasons of the verifier have numbers of algorithms in them.
    #[test]
    fn a_certificate_of_another_issuer_with_a_trusted_name_says_what_to_trust() {
        let site = Site { tls: true, host: "h".into(), port: 443, proxy: None, ca_file: None };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, include_bytes!("tests/pem/ca.pem")).unwrap();
        let trusting = Site { ca_file: file.to_str().map(ToOwned::to_owned), ..site.clone() };
        let client = TlsClient::new(&trusting).unwrap();
        let why = CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: vec![6, 8, 42],
            public_key_algorithm_id: vec![6, 9],
        };
        let error = client.failed(&rustls::Error::InvalidCertificate(why), &site);
        assert!(
            error.to_string().contains("reason=UnsupportedSignatureAlgorithmForPublicKeyContext, "),
            "{error}"
        );
        assert!(error.hints()[0].contains("AWS_CA_BUNDLE=FILE"), "{error:?}");
        assert!(error.is_caused_by::<TlsFailed>());
    }

    #[test]
    fn a_certificate_names_its_issuer() {
        let pem = include_bytes!("tests/pem/server.pem");
        let der = CertificateDer::from_pem_slice(pem).unwrap();
        assert_eq!(issuer(&der).as_deref(), Some("forebay test CA"));
        for cut in 0..der.len() {
            let _ = issuer(&der[..cut]);
        }
        for at in 0..200 {
            let mut bad = der.to_vec();
            bad[at] ^= 0x85;
            let _ = issuer(&bad);
        }
    }
}
