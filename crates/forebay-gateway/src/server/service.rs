//! One request: to S3's operations, or to what the server says of itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode};

use super::bodies::{BodyMd5, Incomer, Outgoer};
use super::file_connection;
use super::request::{Connection, Request};
use super::site::Site;
use crate::front::{RequestId, bytes_of};
use crate::warn::warn;

/// Answers a request.
pub(super) async fn serve(
    connection: Arc<Connection>,
    head: hyper::Request<Incoming>,
) -> Result<hyper::Response<Outgoer>, Infallible> {
    let mut request = Request::new(&connection, &head);
    let site = Arc::clone(&connection.site);
    let mut answer = match own_page(&site, &head).await {
        Some((name, page)) => {
            request.own_page = Some(name);
            page
        }
        // A form of unknown length would be held in memory.
        None if is_form(&head) && hyper::body::Body::size_hint(head.body()).exact().is_none() => {
            refusal(S3ErrorCode::MissingContentLength)
        }
        // All else that is posted is XML.
        None if head.method() == Method::POST
            && !is_form(&head)
            && body_len(&head) > site.limits.xml_bytes as u64 =>
        {
            refusal(S3ErrorCode::MaxMessageLengthExceeded)
        }
        None => operate(&site, &request, head).await,
    };
    if let Ok(id) = HeaderValue::from_str(&request.id) {
        answer.headers_mut().insert("x-amz-request-id", id);
    }
    // A client that meets the end of its connection between two requests might lose the second. The file of a new object goes with its
    // connection: it is published first.
    if site.is_leaving() && !connection.peer.as_ref().is_some_and(|peer| peer.has_draft()) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    tell_local(&connection, &request, &mut answer);
    tell_rdma(&request, &mut answer);
    request.status = answer.status();
    Ok(answer.map(|body| Outgoer::new(body, request)))
}

/// Through the socket: length and time of the file whose descriptor goes with the answer. Elsewhere: where the socket is, for those who may ask.
fn tell_local(connection: &Connection, request: &Request, answer: &mut HttpResponse) {
    let is_known = !request.visit.known().0.is_empty();
    match (&connection.peer, &connection.site.announced) {
        (Some(peer), _) => {
            let (mut parcel, mut grant) = (peer.parcel(), peer.grant());
            if !answer.status().is_success() {
                (*parcel, *grant) = (None, None);
            }
            if let Some(parcel) = &*parcel {
                answer.headers_mut().insert("x-forebay-length", parcel.len.into());
                answer.headers_mut().insert("x-forebay-modified", parcel.modified.into());
            }
            if connection.site.is_leaving() {
                *grant = None;
            }
            if grant.is_some() {
                file_connection::switch(answer);
            }
        }
        (None, Some(announced)) if is_known => {
            answer.headers_mut().insert("x-forebay-local", announced.clone());
        }
        _ => {}
    }
}

/// Which way the bytes go, where the request named memory for RDMA.
fn tell_rdma(request: &Request, answer: &mut HttpResponse) {
    let Some(word) = request.visit.word() else { return };
    for (name, value) in word.headers(answer.status()) {
        answer.headers_mut().insert(name, value);
    }
}

async fn operate(site: &Site, request: &Request, head: hyper::Request<Incoming>) -> HttpResponse {
    let has_body = !hyper::body::Body::is_end_stream(head.body());
    let limit = site.limits.stall_time;
    let came = Arc::clone(&request.came);
    let Ok(md5) = document_md5(&head) else { return refusal(S3ErrorCode::InvalidDigest) };
    // Nobody reads a body that is not there.
    if !has_body && md5.as_ref().is_some_and(|md5| !md5.is_of_nothing()) {
        return refusal(S3ErrorCode::BadDigest);
    }
    let (is_form, is_odd) = (is_form(&head), has_control_character(head.uri()));
    let is_wrong = md5.as_ref().map(|md5| Arc::clone(&md5.is_wrong));
    let mut head = head.map(|body| {
        if has_body { Body::http_body(Incomer::new(body, came, limit, md5)) } else { Body::from(body) }
    });
    head.extensions_mut().insert(RequestId(request.id.clone()));
    let answered = request.visit.run(site.service.call(head)).await;
    if is_wrong.is_some_and(|is_wrong| is_wrong.load(Relaxed)) {
        return refusal(S3ErrorCode::BadDigest);
    }
    match answered {
        // A form without a signature is malformed, whatever its policy says.
        Ok(answer) if is_form && request.visit.names_key() && breaks_policy(&answer) => {
            refusal(S3ErrorCode::AccessDenied)
        }
        Ok(answer) => answer,
        // The answer repeats a value that is wrong, and XML cannot say this one.
        Err(_) if is_odd => refusal(S3ErrorCode::InvalidArgument),
        Err(error) => {
            warn(&format!("a request failed: {error}"));
            refusal(S3ErrorCode::InternalError)
        }
    }
}

/// Whether a URL has one, encoded as it has to be.
fn has_control_character(uri: &hyper::Uri) -> bool {
    let text = uri.path_and_query().map_or("", hyper::http::uri::PathAndQuery::as_str);
    text.as_bytes().windows(2).any(|pair| matches!(pair, b"%0" | b"%1"))
}

fn refusal(code: S3ErrorCode) -> HttpResponse {
    S3Error::new(code).to_http_response().unwrap_or_else(|_| {
        let mut answer = HttpResponse::default();
        *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        answer
    })
}

/// An object that a form of a browser sends.
fn is_form(head: &hyper::Request<Incoming>) -> bool {
    let kind = head.headers().get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    head.method() == Method::POST && kind.trim_ascii_start().to_ascii_lowercase().starts_with(b"multipart/")
}

/// Whether a form was refused by a condition of its policy: 400 for s3s, as for a policy that is none, and 403 for S3.
fn breaks_policy(answer: &HttpResponse) -> bool {
    let body = (answer.status() == StatusCode::BAD_REQUEST).then(|| answer.body().bytes()).flatten();
    let starts = [&b"<Message>Policy condition "[..], b"<Message>Bucket in form field "];
    body.is_some_and(|body| starts.iter().any(|start| body.windows(start.len()).any(|part| part == *start)))
}

/// What the MD5 of a document is compared with; `Err`: `Content-MD5` is none. That of an object is compared where its bytes are
/// written, and that of signed chunks is of the bytes in them.
fn document_md5(head: &hyper::Request<Incoming>) -> Result<Option<BodyMd5>, ()> {
    let is_chunked = head.headers().contains_key("x-amz-decoded-content-length");
    match head.headers().get("content-md5") {
        Some(said) if is_document(head) && !is_chunked => {
            let said = said.to_str().ok().and_then(|said| bytes_of(said, 16)).ok_or(())?;
            Ok(Some(BodyMd5::new(said)))
        }
        _ => Ok(None),
    }
}

/// Whether a body is none of an object, nor of a part.
fn is_document(head: &hyper::Request<Incoming>) -> bool {
    if *head.method() != Method::PUT {
        return head.method() == Method::POST && !is_form(head);
    }
    let has_key =
        head.uri().path().trim_start_matches('/').split_once('/').is_some_and(|(_, key)| !key.is_empty());
    let names =
        head.uri().query().unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or(pair));
    !has_key || head.headers().contains_key("x-amz-copy-source") || names.into_iter().any(names_document)
}

/// Of a PUT's query: `tagging`, `acl` and others; not what objects, parts and signed URLs have.
fn names_document(name: &str) -> bool {
    let is_signed = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
    !is_signed && !matches!(name, "" | "partNumber" | "uploadId" | "x-id")
}

/// As far as it is known.
fn body_len(head: &hyper::Request<Incoming>) -> u64 {
    hyper::body::Body::size_hint(head.body()).lower()
}

/// `/healthz` and `/metrics`, where nothing is signed: a bucket of such a name is reached by signed requests.
async fn own_page(site: &Site, head: &hyper::Request<Incoming>) -> Option<(&'static str, HttpResponse)> {
    let is_plain = head.uri().query().is_none() && !head.headers().contains_key(AUTHORIZATION);
    if head.method() != Method::GET || !is_plain {
        return None;
    }
    let (name, (status, text)) = match head.uri().path() {
        "/healthz" => ("Health", site.health().await),
        "/metrics" if !site.has_own_metrics => ("Metrics", (StatusCode::OK, site.metrics())),
        _ => return None,
    };
    Some((name, page(status, text)))
}

/// Answers on the listener for figures: there is nothing else.
pub(super) async fn serve_metrics(
    site: Arc<Site>,
    head: hyper::Request<Incoming>,
) -> Result<HttpResponse, Infallible> {
    Ok(match head.uri().path() {
        "/metrics" => page(StatusCode::OK, site.metrics()),
        "/healthz" => {
            let (status, text) = site.health().await;
            page(status, text)
        }
        _ => page(StatusCode::NOT_FOUND, "/metrics, /healthz\n".to_owned()),
    })
}

fn page(status: StatusCode, text: String) -> HttpResponse {
    let mut answer = HttpResponse::new(Body::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    answer
}
