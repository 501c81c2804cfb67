//! One request, from its head to the last byte of its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use hyper::body::Incoming;
use hyper::{Method, StatusCode};

use super::access_log::Line;
use super::site::Site;
use super::watch::Watch;
use crate::front::{Belongs, LocalPeer, RdmaWord, Visit};
use crate::lane::FileLane;
use crate::rdma::Way;

/// A connection, as its requests see it.
pub(super) struct Connection {
    pub(super) site: Arc<Site>,
    pub(super) watch: Arc<Watch>,
    pub(super) belongs: Arc<Belongs>,
    /// Where the kernel can move files to the socket.
    pub(super) lane: Option<Arc<FileLane>>,
    /// Of the socket of this machine.
    pub(super) peer: Option<Arc<LocalPeer>>,
    /// For the log.
    pub(super) from: String,
    /// Of a TCP connection.
    pub(super) way: Option<Way>,
}

/// A request, until its answer is out.
pub(super) struct Request {
    connection: Arc<Connection>,
    pub(super) visit: Arc<Visit>,
    method: Method,
    path: String,
    pub(super) id: String,
    began: (SystemTime, Instant),
    pub(super) came: Arc<AtomicU64>,
    pub(super) sent: u64,
    pub(super) status: StatusCode,
    /// Of the server itself: no operation of S3.
    pub(super) own_page: Option<&'static str>,
}

/// 499, as other servers log it: no status of HTTP.
fn client_left() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or_default()
}

impl Request {
    pub(super) fn new(connection: &Arc<Connection>, head: &hyper::Request<Incoming>) -> Self {
        connection.watch.begin_request();
        connection.site.metrics.under_way.fetch_add(1, Relaxed);
        Self {
            connection: Arc::clone(connection),
            visit: Visit::of(
                &connection.belongs,
                connection.lane.clone(),
                connection.peer.clone(),
                connection.way,
            ),
            method: head.method().clone(),
            path: head.uri().path().to_owned(),
            id: connection.site.next_id(),
            began: (SystemTime::now(), Instant::now()),
            came: Arc::default(),
            sent: 0,
            // Until there is another one: the client went away before it was answered.
            status: client_left(),
            own_page: None,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Connection { site, watch, from, .. } = &*self.connection;
        watch.end_request();
        site.metrics.under_way.fetch_sub(1, Relaxed);
        let (operation, account) = self.visit.known();
        let operation = self.own_page.unwrap_or(operation);
        let (status, bytes_in) = (self.status.as_u16(), self.came.load(Relaxed));
        let time = self.began.1.elapsed();
        site.metrics.count(operation, status, time, bytes_in, self.sent);
        if let Some(log) = &site.log {
            log.add(&Line {
                began: self.began.0,
                peer: from,
                account: &account,
                operation,
                method: self.method.as_str(),
                path: &self.path,
                status,
                bytes_in,
                bytes_out: self.sent,
                bytes_rdma: self.visit.word().map_or(0, RdmaWord::bytes),
                time,
                id: &self.id,
            });
        }
    }
}
