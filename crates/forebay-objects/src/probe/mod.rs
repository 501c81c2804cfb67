//! What an endpoint can do for an object, and how fast.

mod rate;
mod trials;

use std::collections::HashMap;
use std::net::ToSocketAddrs;

use forebay_error::{Error, ErrorKind, Result};

use crate::calls::{Bucket, ObjectHead};
use crate::endpoint::Endpoint;
use crate::url::ObjectUrl;
pub use rate::ObjectRate;
use rate::Rates;

/// Connections by which the object is read.
const CONNECTIONS: [usize; 3] = [1, 4, 16];

/// Shorter objects are over before a rate shows.
const MEASURED_FROM: u64 = 1 << 20;

/// Something that an endpoint can do, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// A word for it: `ranges`.
    pub name: &'static str,
    /// Whether it can.
    pub works: bool,
    /// How the server answered.
    pub seen: String,
    /// What to do about it where it cannot.
    pub hint: Option<String>,
}

/// The result.
#[derive(Clone, Debug)]
pub struct EndpointProbe {
    /// The object.
    pub url: ObjectUrl,
    /// What its head says.
    pub object: ObjectHead,
    /// `http://HOST:PORT`.
    pub endpoint: String,
    /// `TCP`, `TLS 1.3`.
    pub transport: String,
    /// Of the bucket.
    pub region: String,
    /// What gave the key.
    pub provider: Option<String>,
    /// Addresses behind the endpoint's name.
    pub addresses: Vec<String>,
    /// Those that took no connection, and why.
    pub left_out: Vec<(String, String)>,
    /// What it can do.
    pub trials: Vec<Trial>,
    /// Rates by 1, 4 and 16 connections; none for objects below 1 MiB, or without ranges.
    pub rates: Vec<ObjectRate>,
}

/// Looks at the endpoint of an object. With `writes`, also what it does with new objects: two are written beside the object, and
/// removed.
pub fn probe(url: &ObjectUrl, writes: bool) -> Result<EndpointProbe> {
    if url.key.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no object").with("url", url);
        return Err(error.hint("name an object of some MiB: s3://BUCKET/KEY"));
    }
    let bucket = Bucket::of_url(url)?;
    // A network of its own: its connections are counted.
    let (account, site) = (bucket.endpoint.account.clone(), bucket.endpoint.site.clone());
    let bucket = Bucket { endpoint: Endpoint::new(account, site), ..bucket };
    let object = bucket.head(&url.key, url.version.as_deref())?;
    let mut trials = trials::reads(&bucket, &url.key, &object)?;
    if writes {
        trials.extend(trials::writes(&bucket, &url.key)?);
    }
    let mut rates = Vec::new();
    if object.len >= MEASURED_FROM && trials.iter().any(|trial| trial.name == trials::RANGES && trial.works) {
        let mut all = Rates { bucket: &bucket, key: &url.key, head: &object, known: HashMap::new() };
        for connections in CONNECTIONS {
            rates.push(all.measure(connections)?);
        }
    }
    let Endpoint { account, site, network, .. } = &*bucket.endpoint;
    let facts = network.facts();
    let scheme = if site.tls { "https" } else { "http" };
    Ok(EndpointProbe {
        url: url.clone(),
        object,
        endpoint: format!("{scheme}://{}:{}", site.host, site.port),
        transport: facts.transport.to_owned(),
        region: account.region(&url.bucket),
        provider: account.provider(),
        addresses: addresses(&site.host, site.port),
        left_out: facts.left_out.into_iter().map(|(address, why)| (address.to_string(), why)).collect(),
        trials,
        rates,
    })
}

/// Addresses of a name; none where a proxy alone knows it.
fn addresses(host: &str, port: u16) -> Vec<String> {
    let found = (host, port).to_socket_addrs().into_iter().flatten();
    let mut all: Vec<String> = found.map(|address| address.ip().to_string()).collect();
    all.sort();
    all.dedup();
    all
}
