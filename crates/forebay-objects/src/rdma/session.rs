//! A session of rc1: a connection that is paired with an end of the server's, and the name by which requests mean it.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_s3_rdma::rc1::{CONNECT, ConnectAnswer, ConnectAsk, DISCONNECT, SESSION, SessionId, Token};
use forebay_verbs::{Connection, Options, Remote, Stop, UnpairedEnd, Why};

use super::call::{Call, Documents, NoReply, post};
use super::reached::{DECLINED, NoSession, REST, Reached};
use crate::wire::call::{Body, ReplyHead};

/// Time that a request may take to its server: a session that ends sooner is not used any more.
const MARGIN: Duration = Duration::from_secs(5);
/// How long a session is kept that nobody uses.
const UNUSED: Duration = Duration::from_mins(1);
/// RDMA READs of the server that this side answers at a time.
const READS: u8 = 16;
/// A server whose operations are shorter is not used: a read of 8 MiB is 8 requests at most. Chosen, not measured.
const LEAST_BYTES: u64 = 1 << 20;

/// A session. One operation at a time uses it.
pub(super) struct Session {
    connection: Box<dyn Connection>,
    name: SessionId,
    /// How long the server keeps it without an operation.
    idle: Duration,
    used: Instant,
    /// Requests that named it.
    requests: u64,
}

/// Whether a session can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Good,
    Over,
    DeviceRemoved,
}

impl Session {
    /// Pairs an end with one of the server's. With the bytes of an operation at most.
    pub(super) fn connect(reached: &Reached) -> Result<(Self, u64), NoSession> {
        let (end, called) = ask(reached)?;
        // The second end has other numbers: what the server may have paired with the first is nobody's.
        let (end, called) = match called {
            Err(why) if why.may_go_again() => ask(reached)?,
            called => (end, called),
        };
        let (head, document) = called.map_err(|why| NoSession::of_server(why.error, REST))?;
        let answer = ConnectAnswer::parse(head.status, &document).map_err(|refused| {
            let error = Error::new(ErrorKind::Unsupported, "the server does not take RDMA").source(refused);
            let is_for_now = matches!(head.status, 429 | 500 | 502..=504);
            let pause = if is_for_now { REST } else { DECLINED };
            let why = NoSession::of_server(error.with("status", head.status), pause);
            NoSession { is_not_spoken: !is_for_now, ..why }
        })?;
        let connection = check(&answer).and_then(|()| end.pair(&answer.end)).map_err(|error| {
            disconnect(reached, answer.session);
            NoSession::of_server(error, DECLINED)
        })?;
        let idle = Duration::from_secs(answer.idle_seconds.into());
        let new = Self { connection, name: answer.session, idle, used: Instant::now(), requests: 0 };
        Ok((new, answer.operation_bytes))
    }

    /// An operation begins, or has ended.
    pub(super) fn touch(&mut self) {
        self.used = Instant::now();
    }

    /// The token of its next request. The server moves nothing for a number that is not above those before.
    pub(super) fn token(&mut self, memory: Remote, bytes: u64) -> String {
        self.requests += 1;
        Token { session: self.name, number: self.requests, memory, bytes }.text()
    }

    /// Whether it can still be used, as far as this side knows.
    pub(super) fn life(&mut self) -> Life {
        let is_kept = self.used.elapsed() + MARGIN < self.idle;
        let is_good = is_kept && self.connection.arm().is_ok();
        match self.connection.down() {
            Some(forebay_verbs::Down::DeviceRemoved) => Life::DeviceRemoved,
            None if is_good => Life::Good,
            _ => Life::Over,
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.used.elapsed() >= UNUSED
    }

    /// Ends it here, then has the server forget it: its seat there is free for another one.
    pub(super) fn end(self, reached: &Reached) {
        drop(self.connection);
        disconnect(reached, self.name);
    }
}

type Asked = (Box<dyn UnpairedEnd>, Result<(ReplyHead, Vec<u8>), NoReply>);

fn ask(reached: &Reached) -> Result<Asked, NoSession> {
    let end = reached.domain.end(&options(READS)).map_err(NoSession::of_machine)?;
    let asked = ConnectAsk { end: end.own(), reads: READS };
    let body = Body::Bytes(asked.to_json().into_bytes().into());
    let called = Call::start(&reached.network, post(CONNECT), body, Documents::All).wait();
    Ok((end, called))
}

/// With what queue pairs are made. The server alone posts operations: RDMA WRITEs, and this many READs at a time.
fn options(reads: u8) -> Options {
    Options {
        receives: 2,
        receive_size: 64,
        sends: 2,
        send_size: 64,
        reads_in: reads,
        stop: Stop::when(stop::is_stopped),
        ..Options::default()
    }
}

/// An error where a session is of no use.
fn check(answer: &ConnectAnswer) -> Result<()> {
    let (bytes, seconds) = (answer.operation_bytes, answer.idle_seconds);
    let text = if bytes < LEAST_BYTES {
        "the server's operations by RDMA are too short"
    } else if Duration::from_secs(seconds.into()) <= 2 * MARGIN {
        "the server keeps sessions of RDMA too short a time"
    } else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::Unsupported, text);
    Err(error.with("operation_bytes", bytes).with("idle_seconds", seconds))
}

/// Has the server forget a session. Nobody waits for it.
fn disconnect(reached: &Reached, session: SessionId) {
    let mut ask = post(DISCONNECT);
    ask.headers.push((SESSION.to_owned(), session.text()));
    Call::start(&reached.network, ask, Body::None, Documents::Refusals);
}

/// What there is to say of a removed device.
pub(super) fn removed() -> Error {
    Why::DeviceRemoved.error("the RDMA device was removed")
}
