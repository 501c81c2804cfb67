//! An S3 client: ranges of objects are received straight into memory of the caller, and new objects are sent from there. There is no
//! async runtime: calls are started with a sink for their reply, and the threads of `wire` serve all connections of an endpoint.
//!
//! | folder | what it has |
//! |---|---|
//! | `url` | names of objects: `s3://bucket/key` |
//! | `account` | from the environment and profiles to an endpoint, keys, and signed heads of requests |
//! | `xml` | documents of servers |
//! | `wire` | HTTP/1.1: heads, bodies, TLS, proxies; connections of an endpoint, and the threads that serve them |
//! | `pace` | what calls to an endpoint share: pauses that it asks for, how many ranges are under way |
//! | `endpoint` | endpoints of the process: account, connections and pace of a site |
//! | `calls` | operations of S3 that are waited for: heads, listings, uploads, removals, checksums, errors |
//! | `fetch` | ranges of an object: neighbours become one call, whose body is received from request to request |
//! | `local` | objects of a gateway on this node, by their files |
//! | `probe` | what an endpoint can do, and how fast |
//! | `source` | an object as a source of engines, and the opener of `s3://` |
//! | `by_file` | the same, by its file |
//! | `rdma` | sessions by which a server moves bytes by RDMA |
//! | `by_rdma` | an object whose bytes move by RDMA |

mod account;
mod between;
mod by_file;
mod by_rdma;
mod calls;
mod endpoint;
mod fetch;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod listed;
mod local;
mod pace;
mod probe;
mod rdma;
mod source;
mod url;
mod wire;
mod xml;

pub use between::Brought;
pub use by_rdma::{ArrivedBytes, ObjectRdma, rdma_of};
pub use calls::{Bucket, List, Listed, ListedObject, ObjectFinding, ObjectHead, Weight, buckets, examine};
#[doc(hidden)]
pub use pace::give_up_after;
pub use probe::{EndpointProbe, ObjectRate, Trial, probe};
#[doc(hidden)]
pub use rdma::use_fabric;
pub use url::ObjectUrl;
#[doc(hidden)]
pub use wire::silent_after;

use forebay_sys::lock;

/// `s3://` URLs are opened by this client from now on, wherever the program takes a path. Programs call it once, when they start.
pub fn register() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| forebay_source::register(std::sync::Arc::new(source::ObjectOpener)));
}
