//! Whether an endpoint moves an object by RDMA, for `forebay s3 probe`.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use super::read::Reading;
use crate::endpoint::Endpoint;
use crate::fetch::{ObjectFetch, Target};
use crate::rdma::RdmaPeer;

/// Asks the server, and compares bytes that come by RDMA with those that come by HTTP. Returns what users see. `None`: this machine has no RDMA
/// on the way there.
pub(crate) fn look(endpoint: &Arc<Endpoint>, target: Target) -> Option<Result<String>> {
    let fetch = ObjectFetch::new(endpoint.clone(), target.clone(), Vec::new(), None);
    let peer = RdmaPeer::of(endpoint);
    let object = Reading { fetch, endpoint: endpoint.clone(), target, peer, compared: Arc::default() };
    let domain = match object.peer.ask(&object.wanted()) {
        Ok(domain) => domain,
        Err(_) if object.peer.has_no_nic() => return None,
        Err(error) => return Some(Err(error)),
    };
    let (dialect, nic) = (object.peer.dialect(), domain.device().name.clone());
    Some(
        compared(&object)
            .map(|bytes| format!("{dialect}: {bytes} bytes arrived in host memory by NIC {nic}")),
    )
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
