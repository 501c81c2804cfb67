//! The dialect rc1: sessions that are kept, and one request for each operation.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_error::{Error, Result};
use forebay_remote::stop;
use forebay_s3_rdma::headers::TOKEN;
use forebay_source::Direction;
use forebay_verbs::Remote;

use super::call::{Call, Documents, NoReply};
use super::dialect::{Dialect, End, Ended, Failed, twice};
use super::memory::HostRegion;
use super::operation::{NotMoved, Operation};
use super::reached::{NoSession, REST, Reached};
use super::session::{Life, Session, removed};
use super::verdict::Verdict;
use crate::lock;
use crate::wire::call::{Body, ReplyHead};

/// A server that speaks it.
pub(super) struct Rc1 {
    reached: Reached,
    most_bytes: u64,
    pool: Mutex<Pool>,
    /// A session is idle, or has ended.
    changed: Condvar,
}

/// Its sessions.
#[derive(Default)]
struct Pool {
    idle: Vec<Session>,
    /// Those that there are, or that are being made.
    count: usize,
    /// One is being made.
    is_connecting: bool,
    /// The server gave no further one: when it is asked again, and why.
    shortage: Option<(Instant, Error)>,
}

impl Rc1 {
    /// Asks the server for a session.
    pub(super) fn new(reached: &Reached) -> Result<Self, NoSession> {
        let (session, most_bytes) = Session::connect(reached)?;
        let pool = Pool { idle: vec![session], count: 1, ..Pool::default() };
        Ok(Self { reached: reached.clone(), most_bytes, pool: Mutex::new(pool), changed: Condvar::new() })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    /// A session for an operation.
    fn session(&self) -> Result<Session, NoSession> {
        let mut pool = self.pool();
        loop {
            if let Some(mut session) = pool.idle.pop() {
                drop(pool);
                if session.life() == Life::Good {
                    return Ok(session);
                }
                self.end(session);
                pool = self.pool();
                continue;
            }
            let rests = pool.shortage.as_ref().is_some_and(|(until, _)| Instant::now() < *until);
            if pool.count == 0 || !(rests || pool.is_connecting) {
                pool.count += 1;
                pool.is_connecting = true;
                drop(pool);
                match self.connected(Session::connect(&self.reached)) {
                    Ok(session) => return Ok(session),
                    Err(None) => pool = self.pool(),
                    Err(Some(why)) => return Err(why),
                }
            }
            if stop::is_stopped() {
                return Err(NoSession::of_server(stop::stopped(), REST));
            }
            pool = self.changed.wait_timeout(pool, stop::SLICE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The server gave one, or none: an error where there is no other one to wait for.
    fn connected(&self, made: Result<(Session, u64), NoSession>) -> Result<Session, Option<NoSession>> {
        let mut pool = self.pool();
        pool.is_connecting = false;
        self.changed.notify_all();
        match made {
            Ok((session, _)) => {
                pool.shortage = None;
                Ok(session)
            }
            Err(why) => {
                pool.count -= 1;
                if pool.count == 0 {
                    return Err(Some(why));
                }
                pool.shortage = Some((Instant::now() + REST, why.error));
                Err(None)
            }
        }
    }

    /// A session has no operation any more.
    fn give_back(&self, mut session: Session) {
        session.touch();
        self.pool().idle.push(session);
        self.changed.notify_one();
    }

    /// Ends a session, at both sides.
    fn end(&self, session: Session) {
        session.end(&self.reached);
        self.pool().count -= 1;
        self.changed.notify_one();
    }

    fn end_idle(&self) {
        let idle = std::mem::take(&mut self.pool().idle);
        for session in idle {
            self.end(session);
        }
    }

    fn attempt(&self, operation: &Operation) -> Result<ReplyHead, Failed> {
        let mut session = self.session().map_err(End::NoSession)?;
        session.touch();
        let (memory, region) = match operation.register(&*self.reached.domain) {
            Ok(registered) => registered,
            Err(error) => {
                self.give_back(session);
                return Err(End::Not(NotMoved::Failed(error)).into());
            }
        };
        let called = self.call(operation, &mut session, memory);
        let (head, document) = match called {
            Ok(reply) => reply,
            Err(why) => return Err(self.without_reply((session, region), operation, why)),
        };
        match Verdict::of(&head, operation.asked(), &operation.expected) {
            Verdict::Moved(sum) => self.moved((session, region), operation, sum).map(|()| head),
            Verdict::SessionLost => {
                // It has begun anew: it has none of the others either.
                self.end_idle();
                Err(Failed::again(self.close((session, region), End::Declined("session")), true))
            }
            verdict => Err(self.not_moved((session, region), verdict, (head, document)).into()),
        }
    }

    fn call(&self, operation: &Operation, session: &mut Session, memory: Remote) -> super::call::End {
        let mut ask = operation.ask.clone();
        ask.headers.push((TOKEN.to_owned(), session.token(memory, operation.bytes())));
        Call::start(&self.reached.network, ask, Body::None, Documents::Refusals).wait()
    }

    /// What the server may be writing ends with the session.
    fn without_reply(&self, used: Used, operation: &Operation, why: NoReply) -> Failed {
        let is_again = operation.direction == Direction::Read && why.may_go_again();
        let ended = self.close(used, End::Not(NotMoved::Failed(why.error)));
        Failed::again(ended, is_again)
    }

    /// The bytes are where they belong, as the reply says.
    fn moved(&self, used: Used, operation: &Operation, sum: Option<u64>) -> Result<(), Failed> {
        let (session, mut region) = used;
        // Where the key lives on, the connection ends in its place.
        if let Some(Err(error)) = region.as_mut().map(HostRegion::end) {
            return Err(self.close((session, region), End::Not(NotMoved::Failed(error))).into());
        }
        let filled = region.as_ref().filter(|_| operation.direction == Direction::Read);
        if filled.is_some_and(|filled| !filled.deliver(sum)) {
            let wrong = End::Wrong("the bytes have another checksum");
            return Err(self.close((session, region), wrong).into());
        }
        self.give_back(session);
        Ok(())
    }

    fn not_moved(
        &self,
        (session, mut region): Used,
        verdict: Verdict,
        (head, document): (ReplyHead, Vec<u8>),
    ) -> Ended {
        // Refused before a byte moved: nothing of it can arrive behind its key, and the session goes on.
        let is_whole = match verdict {
            Verdict::Refused => matches!(head.status, 300..500 | 503),
            Verdict::Declined(reason) => reason.text() == "size",
            _ => false,
        };
        let end = match verdict {
            Verdict::Replaced => End::Not(NotMoved::Replaced(head)),
            Verdict::Refused => End::Not(NotMoved::Refused(head, document)),
            Verdict::Declined(reason) => End::Declined(reason.text()),
            Verdict::Wrong(why) => End::Wrong(why),
            _ => End::Unknown,
        };
        if is_whole && region.as_mut().is_some_and(|region| region.end().is_ok()) {
            self.give_back(session);
            return end.into();
        }
        self.close((session, region), end)
    }

    /// Ends the connection, then the key.
    fn close(&self, (session, region): Used, end: End) -> Ended {
        self.end(session);
        Ended::behind(region, end)
    }
}

/// An operation's session, and its region.
type Used = (Session, Option<HostRegion>);

impl Dialect for Rc1 {
    fn name(&self) -> &'static str {
        "rc1"
    }

    fn reached(&self) -> &Reached {
        &self.reached
    }

    fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    fn takes_parts(&self) -> bool {
        true
    }

    fn transfer(&self, operation: &Operation) -> Ended {
        twice(|| self.attempt(operation))
    }

    fn look_after(&self) -> Result<bool> {
        let idle = std::mem::take(&mut self.pool().idle);
        let mut is_removed = false;
        for mut session in idle {
            let life = session.life();
            is_removed |= life == Life::DeviceRemoved;
            if life == Life::Good && !session.is_unused() {
                self.pool().idle.push(session);
            } else {
                self.end(session);
            }
        }
        if is_removed { Err(removed()) } else { Ok(self.pool().count > 0) }
    }

    fn shortage(&self) -> Option<Error> {
        self.pool().shortage.as_ref().map(|(_, why)| why.clone())
    }
}

impl Drop for Rc1 {
    fn drop(&mut self) {
        self.end_idle();
    }
}
