//! Objects by RDMA: their server writes ranges of them into memory that is registered, the caller's or a device's.

mod place;
mod probe;
mod read;
mod trial;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay_config::S3Rdma;
use forebay_error::{Error, Result};
use forebay_source::{Answer, Place, Request};

use crate::fetch::ObjectFetch;
use crate::lock;
use crate::rdma::{MemoryOf, RdmaPeer, SMALLEST};
use place::ObjectPlace;
pub(crate) use probe::look;
pub use probe::{ArrivedBytes, ObjectRdma, rdma_of};
use read::Reading;

/// How an object goes by RDMA.
#[derive(Debug)]
pub(crate) struct ByRdma {
    wish: S3Rdma,
    host: Arc<HostBytes>,
    /// Why they do not go by RDMA was said where a device's memory was to be read into.
    is_told: AtomicBool,
}

/// Bytes of reads into host memory.
#[derive(Debug, Default)]
struct HostBytes {
    by_rdma: AtomicU64,
    /// Those of them that were compared with a checksum.
    compared: Arc<AtomicU64>,
    /// Those that RDMA was begun for, and failed, and the last reason.
    by_body: Mutex<(u64, Option<Error>)>,
    /// Those that RDMA was not begun for: before it was tried, or behind a refusal.
    by_http: AtomicU64,
}

impl ByRdma {
    /// As the environment says now.
    pub(crate) fn of_environment() -> Result<Self> {
        let wish = S3Rdma::from_env()?;
        Ok(Self { wish, host: Arc::default(), is_told: AtomicBool::new(false) })
    }

    /// Whether no byte may come in a body of HTTP.
    pub(crate) fn is_required(&self) -> bool {
        self.wish == S3Rdma::Require
    }

    fn is_worth(&self, bytes: u64) -> bool {
        match self.wish {
            S3Rdma::Off => false,
            S3Rdma::Prefer => bytes >= SMALLEST,
            S3Rdma::Require => bytes > 0,
        }
    }

    /// What places an object's bytes.
    pub(crate) fn place(&self, fetch: &Arc<ObjectFetch>) -> Option<Result<Arc<dyn Place>>> {
        let (endpoint, target) = fetch.at();
        if !self.is_worth(target.len) {
            return None;
        }
        let peer = RdmaPeer::of(&endpoint);
        let object = Reading { fetch: fetch.clone(), endpoint, target, peer, compared: Arc::default() };
        match object.peer.ask(&object.wanted()) {
            Ok(domain) => Some(Ok(Arc::new(ObjectPlace { object, domain }))),
            Err(_) if object.peer.has_no_nic() && !self.is_required() => None,
            Err(error) => {
                self.is_told.store(true, Relaxed);
                Some(Err(error))
            }
        }
    }

    /// Starts a read into host memory where it goes by RDMA. Returns it where it does not.
    ///
    /// # Safety
    /// The request's memory is valid, and nobody else uses it, until the answer.
    pub(crate) unsafe fn start(
        &self,
        fetch: &Arc<ObjectFetch>,
        request: Request,
        answer: Answer,
    ) -> Option<(Request, Answer)> {
        let (endpoint, target) = fetch.at();
        let len = target.len.saturating_sub(request.offset).min(request.memory.len as u64) as usize;
        if !self.is_worth(len as u64) {
            return Some((request, answer));
        }
        let object = Reading {
            fetch: fetch.clone(),
            peer: RdmaPeer::of(&endpoint),
            endpoint,
            target,
            compared: self.host.compared.clone(),
        };
        match self.is_ready(&object) {
            Ok(true) => {}
            Ok(false) => {
                self.host.by_http.fetch_add(len as u64, Relaxed);
                return Some((request, answer));
            }
            Err(error) => {
                answer(Err(error.hint("FOREBAY_S3_RDMA=prefer")));
                return None;
            }
        }
        let (host, is_required, again) = (self.host.clone(), self.is_required(), fetch.clone());
        let (memory, offset) = (request.memory, request.offset);
        let end: Answer = Box::new(move |result| match result {
            Ok(bytes) => {
                host.by_rdma.fetch_add(bytes as u64, Relaxed);
                answer(Ok(bytes));
            }
            Err(error) if is_required => answer(Err(error)),
            Err(error) => {
                let counted: Answer = Box::new(move |result| {
                    if let Ok(bytes) = result {
                        let mut by_body = lock(&host.by_body);
                        *by_body = (by_body.0 + bytes as u64, Some(error));
                    }
                    answer(result);
                });
                // SAFETY: the memory is the request's until its answer, and no operation has it any more.
                unsafe { again.start(request, counted) };
            }
        });
        // SAFETY: the caller keeps the memory until the answer, which is behind all operations.
        unsafe { object.start(offset, len, |at, len| MemoryOf::Host(memory.after(at).first(len)), end) };
        None
    }

    /// Whether bytes are known to come into host memory. Where they must, it is found out now, else beside this read, which goes by HTTP.
    fn is_ready(&self, object: &Reading) -> Result<bool> {
        if self.is_required() {
            object.peer.ask(&object.wanted())?;
            return object.try_now().map(|()| true);
        }
        match object.peer.known() {
            Some(Err(_)) => Ok(false),
            known => Ok(object.try_beside() && known.is_some()),
        }
    }

    /// What came into host memory from now on, for receipts.
    pub(crate) fn late_note(&self, fetch: &ObjectFetch) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let host = self.host.clone();
        let before = (host.by_rdma.load(Relaxed), lock(&host.by_body).0, host.compared.load(Relaxed));
        let http_before = host.by_http.load(Relaxed);
        let peer = (self.wish != S3Rdma::Off).then(|| RdmaPeer::of(&fetch.endpoint()));
        move || {
            let peer = peer.as_ref()?;
            let by_rdma = host.by_rdma.load(Relaxed) - before.0;
            let way = peer.way();
            let came = (by_rdma > 0).then(|| {
                let others = by_rdma.saturating_sub(host.compared.load(Relaxed) - before.2);
                let others = if others > 0 {
                    format!("; {others} bytes not compared with a checksum")
                } else {
                    String::new()
                };
                let few = peer.shortage().map_or(String::new(), |why| format!("; no further session: {why}"));
                format!("{by_rdma} bytes by RDMA into host memory: {way}; keys: per operation{others}{few}")
            });
            let beside = host.by_http.load(Relaxed) - http_before;
            let beside =
                (by_rdma > 0 && beside > 0).then(|| format!("{beside} bytes by HTTP before RDMA was tried"));
            let (by_body, why) = lock(&host.by_body).clone();
            let by_body = by_body - before.1;
            let left = why.filter(|_| by_body > 0).map(|why| format!("{by_body} bytes by HTTP body: {why}"));
            let notes: Vec<_> = came.into_iter().chain(left).chain(beside).collect();
            (!notes.is_empty()).then(|| notes.join("; "))
        }
    }

    /// Why bytes go by HTTP where the server was asked for RDMA, and what to do.
    pub(crate) fn left_out(&self, fetch: &ObjectFetch) -> Option<(String, String)> {
        if self.wish == S3Rdma::Off || self.is_told.load(Relaxed) {
            return None;
        }
        let error = RdmaPeer::of(&fetch.endpoint()).refusal()?;
        Some((
            format!("by HTTP body: {error}"),
            "to not ask servers for RDMA: FOREBAY_S3_RDMA=off".to_owned(),
        ))
    }
}
