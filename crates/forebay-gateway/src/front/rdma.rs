//! Objects whose bytes go by RDMA. Names, conditions and checksums are those of all other requests.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_s3_rdma::headers::{OTHER_TOKEN, TOKEN};
use forebay_s3_rdma::rc1::{Ask, Token};
use forebay_s3_rdma::{Reason, Refusal};
use hyper::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use hyper::{Method, StatusCode};
use s3s::auth::Credentials;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::access::Visit;
use super::codes::answer;
use super::intake::Begin;
use super::sums::Sums;
use super::word::RdmaWord;
use super::{Front, sending};
use crate::rdma::{Broken, OPERATION_BYTES, Rdma, Session, Slots, Wire};
use crate::store::{Condition, Facts, Meta};
use crate::warn::warn;

/// A request waits this long for those before it in its session.
const PATIENCE: Duration = Duration::from_secs(10);

/// Metadata that is another dialect's token.
const TOKEN_AS_METADATA: &str = "x-amz-meta-rdma-token";

/// A transfer that a request asks for. It has the session's connection to itself.
pub(super) struct Transfer {
    token: Token,
    wire: OwnedMutexGuard<Wire>,
    session: Arc<Session>,
    rdma: Arc<Rdma>,
    visit: Option<Arc<Visit>>,
}

/// The answer of a refusal.
pub(super) fn refused(refusal: Refusal) -> S3Error {
    if let Some(visit) = Visit::current() {
        visit.say(RdmaWord::Refused(refusal));
    }
    let code = S3ErrorCode::Custom(refusal.code().into());
    let mut error = S3Error::with_message(code, refusal.message());
    error.set_status_code(StatusCode::from_u16(refusal.status()).unwrap_or_default());
    error
}

/// What the heads of a request ask for.
fn asked(headers: &HeaderMap) -> S3Result<Ask> {
    if [TOKEN, OTHER_TOKEN].iter().map(|name| headers.get_all(*name).iter().count()).sum::<usize>() > 1 {
        return Err(refused(Refusal::Malformed("a request has one token")));
    }
    // One that is no text is of no dialect.
    let header = |name: &str| Some(headers.get(name)?.to_str().unwrap_or_default());
    Ask::parse(header).map_err(refused)
}

/// Whether the request has a body, or may have one.
fn has_body(headers: &HeaderMap) -> bool {
    let len = headers.get(CONTENT_LENGTH).map_or(&b"0"[..], |len| len.as_bytes());
    len != b"0" || headers.contains_key(TRANSFER_ENCODING) || headers.contains_key("x-amz-trailer")
}

impl Front {
    /// The transfer of a GET. `None`: the bytes go by the body.
    pub(super) async fn transfer_out<T>(&self, request: &S3Request<T>) -> S3Result<Option<Transfer>> {
        let found = match asked(&request.headers)? {
            Ask::Plain => return Ok(None),
            Ask::Other(_) => Err(Refusal::NotSupported),
            Ask::Rc1(token) => self.transfer(request.credentials.as_ref(), token).await,
        };
        match found {
            Ok(transfer) => Ok(Some(transfer)),
            Err(refusal) => {
                let reason = refusal.reason().ok_or_else(|| refused(refusal))?;
                if let Some(visit) = Visit::current() {
                    visit.say(RdmaWord::Declined(reason));
                }
                if let Some(rdma) = &self.rdma {
                    rdma.moved.declined.fetch_add(1, Relaxed);
                }
                Ok(None)
            }
        }
    }

    /// The transfer of a PUT or an UploadPart. `None`: the bytes come by the body. To store what came there for a request that names
    /// memory would store nothing.
    pub(super) async fn transfer_in<T>(&self, request: &S3Request<T>) -> S3Result<Option<Transfer>> {
        // A form has its headers from its fields.
        if request.method == Method::POST {
            return Ok(None);
        }
        let token = match asked(&request.headers)? {
            Ask::Plain if request.headers.contains_key(TOKEN_AS_METADATA) && !has_body(&request.headers) => {
                return Err(refused(Refusal::NotSupported));
            }
            Ask::Plain => return Ok(None),
            Ask::Other(_) => return Err(refused(Refusal::NotSupported)),
            Ask::Rc1(token) => token,
        };
        if has_body(&request.headers) {
            let why = "a request whose bytes go by RDMA has no body";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
        }
        let transfer = self.transfer(request.credentials.as_ref(), token).await.map_err(refused)?;
        if transfer.wire.reads() { Ok(Some(transfer)) } else { Err(refused(Refusal::NotSupported)) }
    }

    async fn transfer(&self, signed: Option<&Credentials>, token: Token) -> Result<Transfer, Refusal> {
        let rdma = self.rdma.as_ref().ok_or(Refusal::NotSupported)?;
        let signed = signed.ok_or(Refusal::Forbidden("a signature is needed"))?;
        let session = rdma.find(&signed.access_key, token.session)?.ok_or(Refusal::SessionExpired)?;
        // Before it waits for anything: the copy of a request that is under way is not answered as if nothing moved.
        if !session.is_new(token.number) {
            return Err(Refusal::SessionExpired);
        }
        if token.bytes > OPERATION_BYTES {
            return Err(Refusal::TooLong);
        }
        let wire = timeout(PATIENCE, Arc::clone(&session.wire).lock_owned()).await;
        let wire = wire.map_err(|_| Refusal::Limits)?;
        // It may have ended while this request waited.
        if !wire.is_up() || rdma.find(&signed.access_key, token.session)?.is_none() {
            rdma.end(session.id);
            return Err(Refusal::SessionExpired);
        }
        let (rdma, visit) = (Arc::clone(rdma), Visit::current());
        Ok(Transfer { token, wire, session, rdma, visit })
    }
}

/// An error where the session was ended while a transfer was under way.
fn check(session: &Session) -> S3Result<()> {
    if session.has_ended() { Err(refused(Refusal::Forbidden("the session has ended"))) } else { Ok(()) }
}

impl Transfer {
    /// Bytes of the token.
    pub(super) const fn bytes(&self) -> u64 {
        self.token.bytes
    }

    /// Taken last: a request that waits for a thread, a file or its session holds none. Blocks.
    fn slots(&self) -> Option<Slots> {
        self.session.rail.slots(&self.session.access_key)
    }

    fn say(&self, word: RdmaWord) {
        if let Some(visit) = &self.visit {
            visit.say(word);
        }
    }

    /// The session's connection has ended.
    fn lost(&self, error: &forebay_error::Error) {
        warn(&format!("an RDMA session ended: {error}"));
        self.rdma.end(self.session.id);
    }

    fn decline(&self, reason: Reason) -> bool {
        self.rdma.moved.declined.fetch_add(1, Relaxed);
        self.say(RdmaWord::Declined(reason));
        false
    }

    /// Writes a range of a file to the client. `false`: its bytes go by the body, and nothing more of the transfer arrives. Blocks.
    pub(super) fn send(mut self, file: &File, range: &Range<u64>) -> S3Result<bool> {
        let bytes = range.end - range.start;
        if bytes != self.token.bytes {
            return Ok(self.decline(Reason::Size));
        }
        let Some(mut slots) = self.slots() else { return Ok(self.decline(Reason::Transfer)) };
        let session = Arc::clone(&self.session);
        let sent = self.wire.push(&mut slots, self.token.memory, bytes, |memory, offset| {
            check(&session)?;
            file.read_exact_at(memory, range.start + offset).map_err(S3Error::internal_error)
        });
        self.session.touch();
        match sent {
            Ok(()) => {
                self.rdma.moved.sent.fetch_add(bytes, Relaxed);
                self.say(RdmaWord::Moved(bytes));
                Ok(true)
            }
            Err(Broken::Own(error)) => Err(error),
            Err(Broken::Wire(error)) => {
                self.lost(&error);
                Ok(self.decline(Reason::Transfer))
            }
        }
    }

    /// Reads the client's memory into the draft that `begin` makes, compares checksums, and gives it its name.
    pub(super) async fn receive(
        self,
        begin: Begin,
        sums: Sums,
        meta: Meta,
        condition: Condition,
    ) -> S3Result<Facts> {
        sending(move || Ok(self.take_in(begin, sums, meta, &condition))).await?.map_err(|failed| match failed
        {
            Failed::Store(error) => error,
            Failed::Wire => refused(Refusal::TransferFailed),
            Failed::Slots => refused(Refusal::Limits),
        })
    }

    fn take_in(
        mut self,
        begin: Begin,
        mut sums: Sums,
        meta: Meta,
        condition: &Condition,
    ) -> Result<Facts, Failed> {
        let draft = begin().map_err(answer)?;
        let mut slots = self.slots().ok_or(Failed::Slots)?;
        let bytes = self.token.bytes;
        let session = Arc::clone(&self.session);
        let came = self.wire.pull(&mut slots, self.token.memory, bytes, |memory, offset| {
            check(&session)?;
            sums.update(memory);
            draft.write_at(memory, offset).map_err(answer)
        });
        drop(slots);
        self.session.touch();
        match came {
            Ok(()) => {}
            Err(Broken::Own(error)) => return Err(error.into()),
            Err(Broken::Wire(error)) => {
                self.lost(&error);
                return Err(Failed::Wire);
            }
        }
        let summed = sums.finish(None)?;
        let meta = Meta { checksum: Some(summed.checksum), md5: summed.md5, ..meta };
        let facts = draft.publish(bytes, meta, condition).map_err(answer)?;
        self.rdma.moved.received.fetch_add(bytes, Relaxed);
        self.say(RdmaWord::Moved(bytes));
        Ok(facts)
    }
}

/// Why a transfer into the store failed.
enum Failed {
    Store(S3Error),
    Wire,
    /// All were taken for too long.
    Slots,
}

impl From<S3Error> for Failed {
    fn from(error: S3Error) -> Self {
        Self::Store(error)
    }
}
