//! HTTP for providers of keys: few small requests, on a thread that may wait.

use std::sync::Arc;
use std::time::Duration;

use ::reqsign_core::hash::base64_decode;
use ::reqsign_core::{Error, HttpSend};
use bytes::Bytes;
use rustls::crypto::ring;
use ureq::config::Config;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, ProxyProtocol};

use super::super::proxies::Proxies;
use super::super::settings::Settings;

/// Bytes of the longest reply.
const LONGEST: u64 = 1 << 20;

/// The pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(200);

/// How long servers are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) whole: Duration,
    pub(super) attempts: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), whole: Duration::from_secs(20), attempts: 3 }
    }
}

/// Sends requests of providers.
#[derive(Clone, Debug)]
pub(super) struct Http {
    proxies: Proxies,
    ca_file: Option<String>,
    patience: Patience,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            proxies: settings.proxies.clone(),
            ca_file: settings.ca_file.clone(),
            patience: Patience::default(),
        }
    }

    /// For servers of this machine: no proxy.
    pub(super) fn nearby(patience: Patience) -> Self {
        Self { proxies: Proxies::default(), ca_file: None, patience }
    }

    /// Sends a request until it is answered. An error says why, in a few words.
    pub(super) fn send(&self, request: &http::Request<Bytes>) -> Result<http::Response<Bytes>, String> {
        let agent = self.agent(request.uri())?;
        for attempt in 1.. {
            let answer = exchange(&agent, request);
            let again = match &answer {
                Ok(reply) => reply.status().is_server_error() || reply.status().as_u16() == 429,
                Err(_) => true,
            };
            if !again || attempt >= self.patience.attempts {
                return answer;
            }
            std::thread::sleep(PAUSE * (1 << (attempt - 1)));
        }
        Err("no attempt".to_owned())
    }

    fn agent(&self, url: &http::Uri) -> Result<Agent, String> {
        let tls = url.scheme_str() == Some("https");
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let proxy = self.proxies.before(tls, host, port).map(|proxy| {
            let mut made = ureq::Proxy::builder(ProxyProtocol::Http).host(&proxy.host).port(proxy.port);
            let user = proxy
                .authorization
                .as_deref()
                .and_then(|value| base64_decode(value.strip_prefix("Basic ")?).ok());
            if let Some((name, password)) =
                user.as_deref().and_then(|user| std::str::from_utf8(user).ok()?.split_once(':'))
            {
                made = made.username(name).password(password);
            }
            made.build().map_err(|error| error.to_string())
        });
        let mut config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy.transpose()?)
            .timeout_connect(Some(self.patience.connect))
            .timeout_global(Some(self.patience.whole))
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")));
        if tls {
            config = config.tls_config(self.tls()?);
        }
        Ok(config.build().new_agent())
    }

    fn tls(&self) -> Result<TlsConfig, String> {
        let certificates: Vec<_> = if let Some(path) = &self.ca_file {
            let pem = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            let items = parse_pem(&pem).filter_map(Result::ok);
            items
                .filter_map(|item| if let PemItem::Certificate(one) = item { Some(one) } else { None })
                .collect()
        } else {
            let found = rustls_native_certs::load_native_certs().certs;
            found.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
        };
        if certificates.is_empty() {
            return Err("the machine has no certificates of authorities".to_owned());
        }
        let roots = RootCerts::Specific(Arc::new(certificates));
        let provider = Arc::new(ring::default_provider());
        Ok(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
    }
}

fn exchange(agent: &Agent, request: &http::Request<Bytes>) -> Result<http::Response<Bytes>, String> {
    let body = request.body();
    let said = |error: ureq::Error| error.to_string();
    let mut reply = if body.is_empty() {
        agent.run(request.clone().map(|_| ())).map_err(said)?
    } else {
        agent.run(request.clone().map(|body| body.to_vec())).map_err(said)?
    };
    let body = reply.body_mut().with_config().limit(LONGEST).read_to_vec().map_err(said)?;
    Ok(reply.map(|_| Bytes::from(body)))
}

impl HttpSend for Http {
    async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error> {
        self.send(&request).map_err(Error::unexpected)
    }
}
