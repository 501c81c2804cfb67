//! Transfers of hipobj-rc-v2: prepare pairs a queue pair for one object, ready moves it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_s3_rdma::hipobj::{Finished, NAME, Prepare, Prepared, Ready, header};
use forebay_s3_rdma::rc1::SessionId;
use forebay_s3_rdma::{Operation, Refusal, sum_of_text};
use forebay_verbs::{QueueEnd, Remote};
use hyper::HeaderMap;
use s3s::{S3Error, S3ErrorCode, S3Result};
use tokio::time::sleep;

use super::codes::{answer, answer_read};
use super::rdma::refused;
use super::said::path_of;
use super::sums::{Algorithm, Sums};
use super::uploads::{algorithm_of, part_number};
use super::{blocking, sending};
use crate::accounts::{Account, Accounts};
use crate::rdma::{Landed, Landing, Rdma, Way, Wire, random_session};
use crate::store::{Condition, Draft, Facts, Meta, Store};
use crate::threads::Aside;
use crate::warn::warn;

/// A transfer that is not ready this long after its prepare is given up.
const PREPARE_TIME: Duration = Duration::from_secs(100);
/// Bytes of a transfer: it is in memory whole.
const LANDING_BYTES: u64 = 64 << 20;
/// No message has the client's MTU: each side takes its own port's, which is the smaller one then.
const MTU: u32 = 4096;
/// Transfers of an account, prepared or under way: each has memory.
const EACH: usize = 16;
/// Bytes that the store gets at a time.
const PIECE: usize = 1 << 20;

/// How often it is looked whether a transfer's account is still there.
const LOOK: Duration = Duration::from_secs(1);

/// Transfers that are prepared.
pub(super) struct Exchanges {
    rdma: Arc<Rdma>,
    accounts: Arc<Accounts>,
    known: Mutex<HashMap<SessionId, Exchange>>,
    /// Those that there are, also under way, by their accounts.
    seats: Seats,
}

/// One of them.
struct Exchange {
    access_key: String,
    ask: Prepare,
    paired: Aside<Paired>,
    /// Of a GET, the file as it was at prepare: an object that is replaced meanwhile is another file.
    object: Option<(File, Facts)>,
}

/// The connection of a transfer, and its memory, which goes behind it.
struct Paired {
    wire: Wire,
    landing: Landing,
    seat: Seat,
}

type Seats = Arc<Mutex<HashMap<String, usize>>>;

/// Room for a transfer's memory, until it is dropped.
struct Seat {
    seats: Seats,
    access_key: String,
}

impl Seat {
    /// `None`: the account has as many as it may.
    fn take(seats: &Seats, access_key: &str) -> Option<Self> {
        let mut all = seats.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.entry(access_key.to_owned()).or_default();
        if *own >= EACH {
            return None;
        }
        *own += 1;
        drop(all);
        Some(Self { seats: Arc::clone(seats), access_key: access_key.to_owned() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&self.access_key) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.access_key);
            }
        }
    }
}

/// Headers of an answer.
pub(super) type Headers = Vec<(&'static str, String)>;

/// An object, or a part of an upload.
struct Target {
    bucket: String,
    key: String,
    /// Its number, and the upload.
    part: Option<(u32, String)>,
}

/// The object is stored, or sent.
struct Done {
    facts: Facts,
    bytes: u64,
    sum: Option<u64>,
}

fn malformed(why: &'static str) -> S3Error {
    refused(Refusal::Malformed(why))
}

impl Target {
    /// Of `/bucket/key`, with `?partNumber=…&uploadId=…` of a part.
    fn parse(text: &str) -> S3Result<Self> {
        let wrong = "x-amz-rdma-target is /bucket/key, or a part of an upload";
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let (bucket, key) = path.strip_prefix('/').and_then(|path| path.split_once('/')).unzip();
        let decoded = |text: Option<&str>| text.filter(|text| !text.is_empty()).and_then(path_of);
        let (bucket, key) = decoded(bucket).zip(decoded(key)).ok_or_else(|| malformed(wrong))?;
        let (mut number, mut upload) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("partNumber", text)) => number = text.parse().ok(),
                Some(("uploadId", text)) => upload = path_of(text),
                Some(("versionId", "null")) => {}
                _ => return Err(malformed(wrong)),
            }
        }
        let part = match (number, upload) {
            (Some(number), Some(upload)) => Some((part_number(number)?, upload)),
            (None, None) => None,
            _ => return Err(malformed(wrong)),
        };
        Ok(Self { bucket, key, part })
    }
}

impl Exchanges {
    pub(super) fn new(rdma: &Arc<Rdma>, accounts: &Arc<Accounts>) -> Arc<Self> {
        let (rdma, accounts) = (Arc::clone(rdma), Arc::clone(accounts));
        Arc::new(Self { rdma, accounts, known: Mutex::default(), seats: Seats::default() })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SessionId, Exchange>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pairs a queue pair for an object, which has to be there, or for memory that it is written to.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        account: Arc<Account>,
        headers: &HeaderMap,
        way: Way,
    ) -> S3Result<Headers> {
        let ask = Prepare::parse(MTU, text(headers)).map_err(refused)?;
        let target = Target::parse(&ask.target)?;
        if ask.operation == Operation::Put && account.entry.read_only {
            return Err(refused(Refusal::Forbidden("the account may only read")));
        }
        let seat = Seat::take(&self.seats, &account.entry.access_key);
        let seat = seat.ok_or_else(|| refused(Refusal::Limits))?;
        let rdma = Arc::clone(&self.rdma);
        let begun = blocking(move || Ok(begin(&rdma, &account, &target, (ask, seat), way)));
        let (end, memory, exchange) = begun.await?.map_err(NotBegun::answer)?;
        let id = random_session().map_err(refused)?;
        self.known().insert(id, exchange);
        tokio::spawn(Arc::clone(self).forget_late(id));
        Ok(Prepared { session: id.text(), end, memory }.headers())
    }

    /// Takes a transfer that is the account's.
    fn take(&self, id: SessionId, access_key: &str) -> S3Result<Option<Exchange>> {
        let mut known = self.known();
        if known.get(&id).is_some_and(|exchange| exchange.access_key != access_key) {
            return Err(refused(Refusal::Forbidden("the session is another account's")));
        }
        Ok(known.remove(&id))
    }

    /// Ends a transfer that does not become ready in time, or whose account is gone.
    async fn forget_late(self: Arc<Self>, id: SessionId) {
        let until = Instant::now() + PREPARE_TIME;
        loop {
            sleep(LOOK).await;
            let mut known = self.known();
            let Some(exchange) = known.get(&id) else { return };
            if Instant::now() >= until || self.accounts.find(&exchange.access_key).is_none() {
                let ended = known.remove(&id);
                drop(known);
                drop(ended);
                return;
            }
        }
    }

    /// Gives a transfer up; also one that has ended.
    pub(super) fn cancel(&self, access_key: &str, headers: &HeaderMap) -> S3Result<Headers> {
        let name = text(headers)(header::SESSION).unwrap_or_default();
        let id = SessionId::parse(name).ok_or_else(|| malformed("there is no session of 32 digits"))?;
        self.take(id, access_key)?;
        Ok(vec![(header::PROTOCOL, NAME.to_owned())])
    }

    /// Moves the object: the session has ended when the answer is there, whatever it says.
    pub(super) async fn ready(&self, account: Arc<Account>, headers: &HeaderMap) -> S3Result<Headers> {
        let ready = Ready::parse(text(headers)).map_err(refused)?;
        let id = SessionId::parse(&ready.session);
        let found = id.map(|id| self.take(id, &account.entry.access_key)).transpose()?.flatten();
        let exchange = found.ok_or_else(|| refused(Refusal::SessionExpired))?;
        let cookie = exchange.ask.cookie;
        if (ready.cookie, ready.number) != (cookie, exchange.ask.end.number) {
            return Err(malformed("cookie or queue pair are not those of the prepare"));
        }
        let Exchange { ask, paired, object, .. } = exchange;
        let (moved, done) = if let Some(object) = object {
            (&self.rdma.moved.sent, send((ask, paired), object, ready.memory).await?)
        } else {
            (&self.rdma.moved.received, self.receive(&account, (ask, paired), headers).await?)
        };
        moved.fetch_add(done.bytes, Relaxed);
        let (bytes, sum) = (done.bytes, done.sum);
        let etag = Some(format!("\"{}\"", done.facts.etag));
        Ok(Finished { bytes, cookie, etag, version: None, sum }.headers())
    }

    /// Waits for the client's writes, and stores what it wrote.
    async fn receive(
        &self,
        account: &Account,
        (ask, paired): (Prepare, Aside<Paired>),
        headers: &HeaderMap,
    ) -> S3Result<Done> {
        let target = Target::parse(&ask.target)?;
        let (cookie, limit) = (ask.cookie, self.rdma.write_time());
        let (accounts, access_key) = (Arc::clone(&self.accounts), account.entry.access_key.clone());
        let is_gone = move || accounts.find(&access_key).is_none();
        let landed = sending(move || {
            let Paired { wire, landing, seat } = paired.into_inner();
            let landed = wire.await_writes(landing, cookie, limit, &is_gone);
            if is_gone() {
                return Err(refused(Refusal::Forbidden("the account is gone")));
            }
            landed.map(|landed| Aside::new((landed, seat))).map_err(|error| failed(&error))
        });
        let landed = landed.await?;
        let (store, headers) = (Arc::clone(&account.store), headers.clone());
        blocking(move || {
            let (landed, _seat) = landed.into_inner();
            let (draft, sums) = draft_of(store.as_ref(), &target, ask.bytes, &headers)?;
            store_landed(draft, sums, &landed)
        })
        .await
    }
}

/// Reads the object into memory, and writes it to the client's.
async fn send(
    (ask, paired): (Prepare, Aside<Paired>),
    (file, facts): (File, Facts),
    memory: Remote,
) -> S3Result<Done> {
    let (bytes, cookie) = (ask.bytes, ask.cookie);
    let sent = sending(move || {
        let Paired { wire, mut landing, seat: _seat } = paired.into_inner();
        let room = landing.bytes_mut().ok_or_else(|| S3Error::new(S3ErrorCode::InternalError))?;
        file.read_exact_at(room, ask.offset).map_err(S3Error::internal_error)?;
        Ok(wire.send(&landing, memory, cookie))
    });
    sent.await?.map_err(|error| failed(&error))?;
    // Of a range there is no checksum.
    let whole = facts.meta.checksum.as_ref().filter(|sum| bytes == facts.len && sum.algorithm == "CRC64NVME");
    let sum = whole.and_then(|sum| sum_of_text(&sum.value));
    Ok(Done { facts, bytes, sum })
}

fn failed(error: &forebay_error::Error) -> S3Error {
    warn(&format!("an RDMA transfer failed: {error}"));
    refused(Refusal::TransferFailed)
}

fn text<'a>(headers: &'a HeaderMap) -> impl Fn(&str) -> Option<&'a str> {
    move |name| headers.get(name)?.to_str().ok()
}

/// Why a transfer was not begun.
enum NotBegun {
    Store(S3Error),
    Refused(Refusal),
}

impl NotBegun {
    fn answer(self) -> S3Error {
        match self {
            Self::Store(error) => error,
            Self::Refused(refusal) => refused(refusal),
        }
    }
}

/// Finds the object, takes memory for it, and pairs.
fn begin(
    rdma: &Rdma,
    account: &Account,
    target: &Target,
    (ask, seat): (Prepare, Seat),
    way: Way,
) -> Result<(QueueEnd, Remote, Exchange), NotBegun> {
    let refused = NotBegun::Refused;
    let is_put = ask.operation == Operation::Put;
    let object = if is_put {
        if ask.offset != 0 {
            return Err(refused(Refusal::Malformed("the offset of a PUT is 0")));
        }
        None
    } else {
        let opened = account.store.open(&target.bucket, &target.key);
        let opened = opened.map_err(|error| NotBegun::Store(answer_read(error)))?;
        let end = ask.offset.checked_add(ask.bytes).filter(|end| *end <= opened.facts.len);
        if end.is_none() || target.part.is_some() {
            return Err(NotBegun::Store(S3Error::new(S3ErrorCode::InvalidRange)));
        }
        Some((opened.file, opened.facts))
    };
    if ask.bytes > LANDING_BYTES {
        return Err(refused(Refusal::OverBuffer));
    }
    let paired = rdma.pair_apart(way, &ask.end, ask.bytes as usize, is_put);
    let (landing, own, wire) = paired.map_err(refused)?;
    let access_key = account.entry.access_key.clone();
    // The client has no use of memory that is not its to write.
    let memory = if is_put { landing.remote() } else { Remote { key: 0, address: 0 } };
    let paired = Aside::new(Paired { wire, landing, seat });
    Ok((own, memory, Exchange { access_key, ask, paired, object }))
}

fn draft_of(
    store: &dyn Store,
    target: &Target,
    bytes: u64,
    headers: &HeaderMap,
) -> S3Result<(Box<dyn Draft>, Sums)> {
    let Target { bucket, key, part } = target;
    let Some((number, id)) = part else {
        let sums = Sums::of(headers, Algorithm::Crc64Nvme)?;
        return Ok((store.begin(bucket, key, Some(bytes)).map_err(answer)?, sums));
    };
    let upload = store.upload(bucket, key, id).map_err(answer)?;
    let usual = algorithm_of(&upload)?;
    let sums = Sums::of(headers, usual)?;
    if upload.meta.checksum.is_some() {
        sums.require(usual)?;
    }
    Ok((store.begin_part(bucket, key, id, *number, Some(bytes)).map_err(answer)?, sums))
}

fn store_landed(draft: Box<dyn Draft>, mut sums: Sums, landed: &Landed) -> S3Result<Done> {
    let mut at = 0;
    for piece in landed.bytes().chunks(PIECE) {
        sums.update(piece);
        draft.write_at(piece, at).map_err(answer)?;
        at += piece.len() as u64;
    }
    let summed = sums.finish(None)?;
    let sum =
        if summed.checksum.algorithm == "CRC64NVME" { sum_of_text(&summed.checksum.value) } else { None };
    let meta = Meta { checksum: Some(summed.checksum), md5: summed.md5, ..Meta::default() };
    let facts = draft.publish(at, meta, &Condition::None).map_err(answer)?;
    Ok(Done { facts, bytes: at, sum })
}
