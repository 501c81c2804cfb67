//! Whether an endpoint moves an object by RDMA, for `forebay s3 probe`, `doctor` and `report s3-rdma`.

use std::sync::Arc;
use std::time::Duration;

use forebay_config::S3Rdma;
use forebay_error::{Error, ErrorKind, Result};

use super::read::Reading;
use crate::ObjectUrl;
use crate::calls::{Bucket, ObjectHead};
use crate::fetch::{ObjectFetch, Target};
use crate::rdma::RdmaPeer;

/// How the server of an object answers where it is asked for RDMA.
#[derive(Clone, Debug)]
pub struct ObjectRdma {
    /// The object.
    pub url: ObjectUrl,
    /// Its server, `HOST:PORT`.
    pub server: String,
    /// The dialects that it was asked for, and why it does not speak one; none where this machine has no way to ask.
    pub dialects: Vec<(&'static str, Result<()>)>,
    /// The first bytes, which came by RDMA, and were compared with those by HTTP.
    pub arrived: Result<ArrivedBytes>,
    /// No byte may come by HTTP (`FOREBAY_S3_RDMA=require`).
    pub is_required: bool,
}

/// Bytes that came into host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedBytes {
    /// How.
    pub dialect: &'static str,
    /// How many.
    pub bytes: usize,
    /// The NIC of this machine.
    pub nic: String,
}

/// Asks the server of an object for RDMA, and has it move at most 64 KiB. `None`: the environment forbids RDMA, or there is no byte to read.
pub fn rdma_of(url: &ObjectUrl) -> Result<Option<ObjectRdma>> {
    let wish = S3Rdma::from_env()?;
    if wish == S3Rdma::Off || url.is_prefix() {
        return Ok(None);
    }
    let bucket = Bucket { patience: Duration::ZERO, ..Bucket::of_url(url)? };
    let head = bucket.head(&url.key, url.version.as_deref())?;
    if head.len == 0 {
        return Ok(None);
    }
    let object = reading(&bucket, &url.key, &head);
    Ok(Some(ObjectRdma {
        url: url.clone(),
        server: bucket.endpoint.site.name(),
        dialects: object.peer.dialects(&object.wanted()).unwrap_or_default(),
        arrived: arrived(&object),
        is_required: wish == S3Rdma::Require,
    }))
}

/// The same in a line. `None`: this machine has no RDMA on the way there.
pub(crate) fn look(bucket: &Bucket, key: &str, head: &ObjectHead) -> Option<Result<String>> {
    let object = reading(bucket, key, head);
    match arrived(&object) {
        Ok(ArrivedBytes { dialect, bytes, nic }) => {
            let also = object.peer.dialects(&object.wanted()).unwrap_or_default();
            let also = also.into_iter().filter(|(name, spoken)| *name != dialect && spoken.is_ok());
            let also: Vec<_> = also.map(|(name, _)| format!("; the server speaks {name}, too")).collect();
            Some(Ok(format!("{dialect}: {bytes} bytes arrived in host memory by NIC {nic}{}", also.concat())))
        }
        Err(_) if object.peer.has_no_nic() => None,
        Err(error) => Some(Err(error)),
    }
}

fn reading(bucket: &Bucket, key: &str, head: &ObjectHead) -> Reading {
    let (version, etag) = (head.version.clone(), head.etag.clone());
    let target = Target { bucket: bucket.name.clone(), key: key.to_owned(), version, etag, len: head.len };
    let endpoint = bucket.endpoint.clone();
    let fetch = ObjectFetch::new(endpoint.clone(), target.clone(), Vec::new(), None);
    let peer = RdmaPeer::of(&endpoint);
    Reading { fetch, endpoint, target, peer, compared: Arc::default() }
}

fn arrived(object: &Reading) -> Result<ArrivedBytes> {
    let domain = object.peer.ask(&object.wanted())?;
    let (dialect, nic) = (object.peer.dialect(), domain.device().name.clone());
    compared(object).map(|bytes| ArrivedBytes { dialect, bytes, nic })
}

/// How many bytes are the same both ways.
fn compared(object: &Reading) -> Result<usize> {
    object.try_now()?;
    let by_rdma = object.first_bytes()?;
    let mut by_http = vec![0; by_rdma.len()];
    let came = object.read_by_http(&mut by_http, 0)?;
    if came == by_rdma.len() && by_http == by_rdma {
        return Ok(came);
    }
    let first = by_http.iter().zip(&by_rdma).position(|(one, other)| one != other).unwrap_or(came);
    Err(Error::new(ErrorKind::Corrupt, "bytes that came by RDMA are others than those by HTTP")
        .with("first", first))
}
