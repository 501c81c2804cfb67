//! The requests of RDMA beside S3's operations: sessions of rc1, transfers of hipobj-rc-v2.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use forebay_s3_rdma::Refusal;
use forebay_s3_rdma::hipobj::{CANCEL, PREPARE, READY, header};
use forebay_s3_rdma::rc1::{CONNECT, ConnectAsk, DISCONNECT, SESSION, SessionId};
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use ring::digest::{SHA256, digest};
use s3s::route::S3Route;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::access::{Visit, admit, is_version_4, refuse_unsigned, signs};
use super::codes::answer_body;
use super::exchange::{Exchanges, Headers};
use super::rdma::refused;
use super::{RequestId, blocking, named};
use crate::accounts::Accounts;
use crate::hex::hex;
use crate::rdma::{Rdma, Way};

/// A queue end is a few hundred bytes.
const MOST_BYTES: usize = 4096;
/// The hash of a body, which the signature covers.
const BODY_HASH: &str = "x-amz-content-sha256";

/// Sessions of RDMA, beside S3's operations.
pub(crate) struct RdmaRoute {
    accounts: Arc<Accounts>,
    /// `None`: RDMA is off.
    rdma: Option<(Arc<Rdma>, Arc<Exchanges>)>,
}

/// The addresses of this request's connection. One by a socket of this machine is as one by its loopback.
fn way() -> Way {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Visit::current().and_then(|visit| visit.way).unwrap_or(Way { reached: local, client: local })
}

/// The operation of a path, as the log has it.
fn operation_of(path: &str) -> Option<&'static str> {
    let table = [
        (CONNECT, "RdmaConnect"),
        (DISCONNECT, "RdmaDisconnect"),
        (PREPARE, "RdmaPrepare"),
        (READY, "RdmaReady"),
        (CANCEL, "RdmaCancel"),
    ];
    table.into_iter().find(|(known, _)| *known == path).map(|(_, operation)| operation)
}

impl RdmaRoute {
    pub(crate) fn new(accounts: &Arc<Accounts>, rdma: Option<&Arc<Rdma>>) -> Self {
        let rdma = rdma.map(|rdma| (Arc::clone(rdma), Exchanges::new(rdma, accounts)));
        Self { accounts: Arc::clone(accounts), rdma }
    }

    async fn connect(
        rdma: &Arc<Rdma>,
        request: S3Request<Body>,
        access_key: String,
    ) -> S3Result<S3Response<Body>> {
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
        let (rdma, way) = (Arc::clone(rdma), way());
        let connected = blocking(move || Ok(rdma.connect(&access_key, way, &ask))).await?;
        let mut answer = S3Response::new(Body::from(connected.map_err(refused)?.to_json()));
        answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(answer)
    }

    /// Also of a session that is not there: it has ended.
    fn disconnect(rdma: &Rdma, headers: &HeaderMap, access_key: &str) -> S3Result<Headers> {
        let session = headers.get(SESSION).and_then(|value| SessionId::parse(value.to_str().ok()?));
        let session =
            session.ok_or_else(|| refused(Refusal::Malformed("x-amz-rdma-session has 32 digits")))?;
        if let Some(session) = rdma.find(access_key, session).map_err(refused)? {
            rdma.end(session.id);
        }
        Ok(Headers::new())
    }
}

#[async_trait::async_trait]
impl S3Route for RdmaRoute {
    fn is_match(&self, method: &Method, uri: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        method == Method::POST && operation_of(uri.path()).is_some()
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let operation = operation_of(request.uri.path()).unwrap_or_default();
        let is_signed = is_version_4(&request.uri, &request.headers) && signs(&request.headers, BODY_HASH);
        admit(&self.accounts, request.credentials.as_ref(), operation, is_signed)?;
        refuse_unsigned(&request.headers)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let id = request.extensions.get::<RequestId>().cloned();
        let found = request.credentials.as_ref().and_then(|signed| self.accounts.find(&signed.access_key));
        let account = found.ok_or_else(|| S3Error::new(S3ErrorCode::AccessDenied))?;
        let access_key = account.entry.access_key.clone();
        let path = request.uri.path().to_owned();
        let Some((rdma, exchanges)) = &self.rdma else {
            return Err(named(declined(refused(Refusal::NotSupported)), id));
        };
        let answered = match path.as_str() {
            CONNECT => {
                return Self::connect(rdma, request, access_key).await.map_err(|error| named(error, id));
            }
            DISCONNECT => Self::disconnect(rdma, &request.headers, &access_key),
            PREPARE => exchanges.prepare(account, &request.headers, way()).await,
            READY => exchanges.ready(account, &request.headers).await,
            _ => exchanges.cancel(&access_key, &request.headers),
        };
        let headers = answered.map_err(|error| named(declined(error), id))?;
        let mut answer = S3Response::new(Body::empty());
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value))
            {
                answer.headers.insert(name, value);
            }
        }
        Ok(answer)
    }
}

/// hipobj-rc-v2 has a header for what 501 says.
fn declined(mut error: S3Error) -> S3Error {
    if error.status_code() == Some(StatusCode::NOT_IMPLEMENTED) {
        let header = (HeaderName::from_static(header::STATUS), HeaderValue::from_static("unsupported"));
        error.set_headers(std::iter::once(header).collect());
    }
    error
}
