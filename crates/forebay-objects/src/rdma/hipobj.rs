//! The dialect hipobj-rc-v2: two requests and a queue pair for each operation.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_s3_rdma::headers::SUM;
use forebay_s3_rdma::hipobj::{
    CANCEL, Finished, NAME, PREPARE, Prepare, Prepared, READY, Ready, Refused, cancel,
};
use forebay_s3_rdma::{Operation as Kind, text_of_sum};
use forebay_source::Direction;
use forebay_verbs::{
    Completion, Connection, Kind as Posted, Options, Post, Remote, Stop, UnpairedEnd, Why, random_first,
};

use super::call::{Call, Documents, End as CallEnd, post};
use super::dialect::{Dialect, End, Ended, Failed, twice};
use super::memory::HostRegion;
use super::operation::{NotMoved, Operation};
use super::reached::{DECLINED, NoSession, REST, Reached};
use super::wanted::Wanted;
use crate::wire::call::{Ask, Body, ReplyHead};

/// Bytes of an operation at most: the least that servers were seen to take.
const MOST_BYTES: u64 = 64 << 20;
/// A server's memory is written this long behind READY at most.
const LEAD: Duration = Duration::from_millis(100);
/// How long the completion of a transfer is waited for that the server says it has done.
const BEHIND: Duration = Duration::from_secs(2);
const NOWHERE: Remote = Remote { key: 0, address: 0 };

/// A server that speaks it.
pub(super) struct Hipobj {
    reached: Reached,
}

/// A transfer that is paired.
struct Paired {
    connection: Box<dyn Connection>,
    prepared: Prepared,
    /// What the server has to say behind the transfer.
    cookie: u32,
    number: u32,
    /// How long the server took to prepare it.
    took: Duration,
}

fn failed(error: Error) -> End {
    End::Not(NotMoved::Failed(error))
}

impl Hipobj {
    /// Has the server prepare a transfer, and gives that up.
    pub(super) fn new(reached: &Reached, wanted: &Wanted) -> Result<Self, NoSession> {
        let end = end_of(reached).map_err(NoSession::of_machine)?;
        let cookie = random_first().map_err(NoSession::of_machine)?;
        let (target, bytes) = (wanted.target.clone(), wanted.bytes.clamp(1, MOST_BYTES));
        let ask = Prepare { operation: wanted.operation, target, offset: 0, bytes, end: end.own(), cookie };
        let this = Self { reached: reached.clone() };
        let asked = this.post(PREPARE, ask.headers()).wait();
        let (head, _) = asked.map_err(|why| NoSession::of_server(why.error, REST))?;
        let prepared =
            Prepared::parse(wanted.operation, end.own().mtu, head.status, |name| head.header(name));
        match prepared {
            Ok(prepared) => {
                this.cancel(&prepared);
                Ok(this)
            }
            Err(Refused::NotNow(_)) => Err(refused(&head, REST)),
            Err(_) => Err(NoSession { is_not_spoken: true, ..refused(&head, DECLINED) }),
        }
    }

    fn post(&self, path: &str, headers: Vec<(&'static str, String)>) -> Call {
        let mut ask = post(path);
        ask.headers.extend(headers.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Call::start(&self.reached.network, ask, Body::None, Documents::Refusals)
    }

    /// Has the server forget a transfer. Nobody waits for it.
    fn cancel(&self, prepared: &Prepared) {
        self.post(CANCEL, cancel(&prepared.session));
    }

    fn attempt(&self, operation: &Operation) -> Result<ReplyHead, Failed> {
        // Where no memory can be registered, the server is not asked.
        let (memory, region) = operation.register(&*self.reached.domain).map_err(failed)?;
        let mut paired = match self.prepare(operation) {
            Ok(paired) => paired,
            Err(Failed { ended, is_again }) => {
                return Err(Failed::again(Ended::behind(region, ended.end), is_again));
            }
        };
        let moved = match operation.direction {
            Direction::Read => self.read(&mut paired, memory),
            Direction::Write => self.write(&mut paired, operation, region.as_ref()),
        };
        let verdict = moved.and_then(|(head, document)| judged(operation, &paired, head, document));
        let Paired { connection, prepared, .. } = paired;
        // Nothing of the server's arrives behind this. The key ends then.
        drop(connection);
        match verdict {
            Ok(finished) => delivered(operation, region, &finished),
            Err(Failed { ended, is_again }) => {
                self.cancel(&prepared);
                Err(Failed::again(Ended::behind(region, ended.end), is_again))
            }
        }
    }

    /// Pairs a queue pair for the operation.
    fn prepare(&self, operation: &Operation) -> Result<Paired, Failed> {
        let offset = offset_of(operation).map_err(End::Declined)?;
        let made = end_of(&self.reached).and_then(|end| Ok((end, random_first()?)));
        let (end, cookie) = made.map_err(failed)?;
        let ask = Prepare {
            operation: operation.asked().operation,
            target: target_of(&operation.ask),
            offset,
            bytes: operation.bytes(),
            end: end.own(),
            cookie,
        };
        let began = Instant::now();
        let (head, document) = unfinished(self.post(PREPARE, ask.headers()).wait(), true)?;
        let (took, number) = (began.elapsed(), end.own().number);
        let parsed = Prepared::parse(ask.operation, end.own().mtu, head.status, |name| head.header(name));
        let prepared = parsed.map_err(|why| match why {
            Refused::Unsupported => End::Declined("dialect"),
            Refused::NotNow(413) => End::Declined("size"),
            Refused::NotNow(_) | Refused::Status(_) => End::Not(NotMoved::Refused(head, document)),
            Refused::Wrong(why) => End::Wrong(why),
        })?;
        let connection = end.pair(&prepared.end).map_err(|error| {
            self.cancel(&prepared);
            failed(error)
        })?;
        Ok(Paired { connection, prepared, cookie, number, took })
    }

    /// Has the server write into the memory.
    fn read(&self, paired: &mut Paired, memory: Remote) -> Result<(ReplyHead, Vec<u8>), Failed> {
        let ended = self.post(READY, paired.ready(memory).headers()).wait();
        let (head, document) = unfinished(ended, true)?;
        if head.status == 200 {
            let is_it = |completion: &Completion| match completion {
                Completion::Received(message) => message.immediate() == Some(paired.cookie),
                _ => false,
            };
            let came = completion(&mut *paired.connection, BEHIND).map_err(failed)?;
            if !came.as_ref().is_some_and(is_it) {
                return Err(End::Wrong("its number does not come behind the bytes").into());
            }
        }
        Ok((head, document))
    }

    /// Writes to the server's memory, and has the server store it.
    fn write(
        &self,
        paired: &mut Paired,
        operation: &Operation,
        region: Option<&HostRegion>,
    ) -> Result<(ReplyHead, Vec<u8>), Failed> {
        let Some(region) = region else { return Err(End::Declined("memory").into()) };
        let mut headers = paired.ready(NOWHERE).headers();
        headers.extend(operation.expected.sum.map(|sum| (SUM, text_of_sum(sum))));
        let call = self.post(READY, headers);
        // Some servers pair their end with READY. What comes before is sent again by the NIC, half a second later.
        stop::sleep(paired.took.min(LEAD)).map_err(failed)?;
        let (to, cookie) = (paired.prepared.memory, paired.cookie);
        let posted = region
            .local()
            .and_then(|from| paired.connection.write_with_immediate(1, from, to, cookie, Post::PLAIN));
        posted.map_err(failed)?;
        let mut is_written = false;
        let ended = call.wait_beside(|| {
            is_written = is_written || written(&mut *paired.connection, Duration::ZERO)?;
            Ok(())
        });
        let (head, document) = unfinished(ended, false)?;
        if head.status == 200 && !is_written && !written(&mut *paired.connection, BEHIND).map_err(failed)? {
            return Err(End::Wrong("it has stored bytes that were not written").into());
        }
        Ok((head, document))
    }
}

impl Paired {
    fn ready(&self, memory: Remote) -> Ready {
        Ready { session: self.prepared.session.clone(), cookie: self.cookie, number: self.number, memory }
    }
}

/// Of a call that has no reply. What stores nothing is sent once more, by a queue pair of its own.
fn unfinished(ended: CallEnd, may_repeat: bool) -> Result<(ReplyHead, Vec<u8>), Failed> {
    ended.map_err(|why| {
        let is_again = may_repeat && why.may_go_again();
        Failed::again(failed(why.error).into(), is_again)
    })
}

fn refused(head: &ReplyHead, pause: Duration) -> NoSession {
    let error = Error::new(ErrorKind::Unsupported, "the server does not take RDMA by hipobj-rc-v2");
    NoSession::of_server(error.with("status", head.status), pause)
}

fn end_of(reached: &Reached) -> Result<Box<dyn UnpairedEnd>> {
    let options = Options {
        receives: 1,
        receive_size: 64,
        sends: 2,
        send_size: 64,
        reads_in: 1,
        // Until the server has posted its receive.
        receiver_retries: 7,
        stop: Stop::when(stop::is_stopped),
        ..Options::default()
    };
    reached.domain.end(&options)
}

/// The next completion, if one comes.
fn completion(connection: &mut dyn Connection, within: Duration) -> Result<Option<Completion>> {
    let mut out = Vec::with_capacity(1);
    connection.wait(&mut out, within)?;
    Ok(out.pop())
}

/// Whether the write has ended well.
fn written(connection: &mut dyn Connection, within: Duration) -> Result<bool> {
    match completion(connection, within)? {
        Some(Completion::Done { kind: Posted::Write, .. }) => Ok(true),
        None if connection.down().is_none() => Ok(false),
        other => Err(Why::Unreachable
            .error("the server's memory could not be written")
            .with("end", format!("{other:?}"))),
    }
}

/// Where the bytes begin in the object. An error where no header of the dialect has what the request has.
fn offset_of(operation: &Operation) -> Result<u64, &'static str> {
    let mut offset = 0;
    for (name, value) in &operation.ask.headers {
        let is_known = match (operation.direction, name.as_str()) {
            (Direction::Read, "range") => {
                let start = value.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
                offset = start.and_then(|(start, _)| start.parse().ok()).ok_or("headers")?;
                true
            }
            // The answer has the ETag.
            (Direction::Read, "if-match") => operation.expected.etag.is_some(),
            (Direction::Read, "x-amz-checksum-mode") | (Direction::Write, SUM | "x-amz-content-sha256") => {
                true
            }
            _ => false,
        };
        if !is_known {
            return Err("headers");
        }
    }
    Ok(offset)
}

/// The reply to READY.
fn judged(
    operation: &Operation,
    paired: &Paired,
    head: ReplyHead,
    document: Vec<u8>,
) -> Result<Finished, Failed> {
    match head.status {
        200 => {}
        // It has the session no more.
        404 | 409 => return Err(Failed::again(End::Declined("session").into(), true)),
        500 => return Err(End::Declined("transfer").into()),
        501 => return Err(End::Declined("dialect").into()),
        _ => return Err(End::Not(NotMoved::Refused(head, document)).into()),
    }
    let asked = (operation.bytes(), paired.cookie);
    let finished = Finished::parse(asked, head.status, |name| head.header(name)).map_err(End::Wrong)?;
    let (ours, theirs) = (operation.expected.etag.as_deref(), finished.etag.as_deref());
    match (ours, theirs) {
        (Some(_), None) => return Err(End::Wrong("there is no ETag").into()),
        (Some(ours), Some(theirs)) if ours.trim_matches('"') != theirs.trim_matches('"') => {
            let head = reply_head(&finished);
            return Err(End::Not(NotMoved::Replaced(head)).into());
        }
        _ => {}
    }
    match (operation.expected.sum, finished.sum) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(End::Wrong("the checksum of other bytes").into()),
        _ => Ok(finished),
    }
}

/// The bytes are where they belong, as the reply says: the connection has ended.
fn delivered(
    operation: &Operation,
    region: Option<HostRegion>,
    finished: &Finished,
) -> Result<ReplyHead, Failed> {
    let head = reply_head(finished);
    let Some(mut region) = region else { return Ok(head) };
    if let Err(error) = region.end() {
        return Err(Ended::kept(region, error).into());
    }
    // Of a range there is none.
    let sum = finished.sum.filter(|_| operation.expected.content_range.is_none());
    if operation.asked().operation == Kind::Get && !region.deliver(sum) {
        return Err(End::Wrong("the bytes have another checksum").into());
    }
    Ok(head)
}

/// The head that a reply without RDMA would have.
fn reply_head(finished: &Finished) -> ReplyHead {
    let Finished { etag, version, sum, .. } = finished.clone();
    let named = [("etag", etag), ("x-amz-version-id", version), (SUM, sum.map(text_of_sum))];
    let headers = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    ReplyHead { status: 200, headers: headers.collect(), length: Some(0) }
}

fn target_of(ask: &Ask) -> String {
    Wanted::target(&ask.bucket, &ask.key, &ask.query)
}

impl Dialect for Hipobj {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reached(&self) -> &Reached {
        &self.reached
    }

    fn most_bytes(&self) -> u64 {
        MOST_BYTES
    }

    /// vgwrdma knows targets of a bucket and a key alone, and ends an upload whose parts went so with `InvalidPart`.
    fn takes_parts(&self) -> bool {
        false
    }

    fn transfer(&self, operation: &Operation) -> Ended {
        if operation.bytes() > MOST_BYTES {
            return End::Declined("size").into();
        }
        twice(|| self.attempt(operation))
    }

    /// It keeps no sessions.
    fn look_after(&self) -> Result<bool> {
        Ok(false)
    }

    fn shortage(&self) -> Option<Error> {
        None
    }
}
