//! The requests that begin and end RDMA sessions.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use forebay_s3_rdma::Refusal;
use forebay_s3_rdma::rc1::{CONNECT, ConnectAsk, DISCONNECT, SESSION, SessionId};
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, Uri};
use ring::digest::{SHA256, digest};
use s3s::route::S3Route;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::access::{Visit, admit, is_version_4, refuse_unsigned, signs};
use super::codes::answer_body;
use super::rdma::refused;
use super::{RequestId, blocking, named};
use crate::accounts::Accounts;
use crate::hex::hex;
use crate::rdma::Rdma;

/// A queue end is a few hundred bytes.
const MOST_BYTES: usize = 4096;
/// The hash of a body, which the signature covers.
const BODY_HASH: &str = "x-amz-content-sha256";

/// Sessions of RDMA, beside S3's operations.
pub(crate) struct RdmaRoute {
    accounts: Arc<Accounts>,
    rdma: Arc<Rdma>,
}

impl RdmaRoute {
    pub(crate) fn new(accounts: &Arc<Accounts>, rdma: &Arc<Rdma>) -> Self {
        Self { accounts: Arc::clone(accounts), rdma: Arc::clone(rdma) }
    }

    async fn connect(&self, request: S3Request<Body>, access_key: String) -> S3Result<Body> {
        let said = request.headers.get(BODY_HASH).cloned();
        let body = request.input.collect().await.map_err(|error| answer_body(&error))?.to_bytes();
        if body.len() > MOST_BYTES {
            return Err(S3Error::new(S3ErrorCode::MaxMessageLengthExceeded));
        }
        // A queue end that another could change would lead objects to its memory.
        let hash = hex(digest(&SHA256, &body).as_ref());
        if said.is_none_or(|said| said.as_bytes() != hash.as_bytes()) {
            return Err(refused(Refusal::Forbidden(
                "x-amz-content-sha256 has to be the SHA-256 of the body",
            )));
        }
        let ask = ConnectAsk::parse(&body).map_err(refused)?;
        let reached = Visit::current().and_then(|visit| visit.reached);
        let reached = reached.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let rdma = Arc::clone(&self.rdma);
        let connected = blocking(move || Ok(rdma.connect(&access_key, reached, &ask))).await?;
        connected.map(|answer| Body::from(answer.to_json())).map_err(refused)
    }

    /// Also of a session that is not there: it has ended.
    fn disconnect(&self, headers: &HeaderMap, access_key: &str) -> S3Result<Body> {
        let session = headers.get(SESSION).and_then(|value| SessionId::parse(value.to_str().ok()?));
        let session =
            session.ok_or_else(|| refused(Refusal::Malformed("x-amz-rdma-session has 32 digits")))?;
        if let Some(session) = self.rdma.find(access_key, session).map_err(refused)? {
            self.rdma.end(session.id);
        }
        Ok(Body::empty())
    }
}

#[async_trait::async_trait]
impl S3Route for RdmaRoute {
    fn is_match(&self, method: &Method, uri: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        method == Method::POST && matches!(uri.path(), CONNECT | DISCONNECT)
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let operation = if request.uri.path() == CONNECT { "RdmaConnect" } else { "RdmaDisconnect" };
        let is_signed = is_version_4(&request.uri, &request.headers) && signs(&request.headers, BODY_HASH);
        admit(&self.accounts, request.credentials.as_ref(), operation, is_signed)?;
        refuse_unsigned(&request.headers)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let id = request.extensions.get::<RequestId>().cloned();
        let access_key = request.credentials.as_ref().map(|signed| signed.access_key.clone());
        let access_key = access_key.ok_or_else(|| S3Error::new(S3ErrorCode::AccessDenied))?;
        let is_connect = request.uri.path() == CONNECT;
        let answered = if is_connect {
            self.connect(request, access_key).await
        } else {
            self.disconnect(&request.headers, &access_key)
        };
        let mut answer = S3Response::new(answered.map_err(|error| named(error, id))?);
        if is_connect {
            answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(answer)
    }
}
