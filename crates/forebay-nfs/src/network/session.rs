//! The calls to a server that carry no bytes of files. Version 4.1 and later want a session, which all
//! connections share: each call of theirs stands in a slot of its own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::retry::RetryBudget;

use crate::lock;
use crate::network::exchange::Exchange;
use crate::network::identity::ServerIdentity;
use crate::network::server::{ControlCalls, NfsServer, NfsSession};
use crate::protocol::handle::{CallLimits, FileAttributes, NfsHandle, NfsVersion};
use crate::protocol::rpc::random;
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::{self, CallOutcome};
use crate::protocol::v4::{self, GrantedSession, SequenceSlot, op};
use crate::protocol::xdr::{XdrReader, XdrWriter};

/// The work of making a session.
const OPENING: &str = "cannot open a session";

/// When a file is looked at.
const LOOKING: &str = "cannot look at the file";

/// And when it is over.
const ENDING: &str = "cannot end a session";

impl NfsServer {
    /// Whether its end asks it something.
    pub(crate) fn has_session_to_end(&self) -> bool {
        self.session().granted.is_some() && self.clock.is_answering()
    }

    /// The present session.
    pub(crate) fn session(&self) -> NfsSession {
        if self.version.has_session() { *lock(&self.session) } else { NfsSession::default() }
    }

    /// The same, and who made it.
    pub(crate) fn session_and_identity(&self) -> (NfsSession, Option<ServerIdentity>) {
        // Both change under the first lock.
        let session = lock(&self.session);
        (*session, self.further.identity())
    }

    /// Asks the first address whether it knows the session, and makes it anew if not.
    pub(crate) fn check_session(&self, doing: &str) -> Result<()> {
        let said = self.compound(doing, 0, |_| (), |_| Ok(Ok(())))?;
        said.map_err(|status| status.error(doing, self.who.uid()))
    }

    /// Has a session of this many slots.
    #[cfg(test)]
    pub(crate) fn grant(&self, slots: u32) {
        let granted =
            GrantedSession { session: [1; 16], reply: 1 << 20, call: 1 << 20, operations: 16, slots };
        *lock(&self.session) = NfsSession { epoch: 1, granted: Some(granted) };
    }

    /// Slots that the session has for calls on wires; slot 0 is for the rest.
    pub(crate) fn slots(&self) -> usize {
        self.session().granted.map_or(usize::MAX, |granted| granted.slots as usize - 1)
    }

    /// The same limits, or what fits into calls of the session.
    pub(crate) fn limits(&self, told: CallLimits) -> CallLimits {
        let fits = self.session().limits();
        CallLimits { read: told.read.min(fits.read), write: told.write.min(fits.write) }
    }

    /// Makes a session if there is none, or in place of the one of `epoch`, which is lost.
    pub(crate) fn renew(&self, epoch: u32) -> Result<()> {
        if !self.version.has_session() {
            return Ok(());
        }
        let mut control = self.control();
        self.renew_with(&mut control, epoch)
    }

    fn renew_with(&self, control: &mut ControlCalls, epoch: u32) -> Result<()> {
        if self.session().epoch != epoch {
            return Ok(());
        }
        let owner = format!("forebay {} {} {:x}", self.who.uid(), std::process::id(), random());
        let mut budget = self.retry_budget();
        loop {
            match self.new_session(control, owner.as_bytes())? {
                Ok(()) => return Ok(()),
                Err(RefusedStatus(status, _)) if status.is_to_wait() || status.is_session_lost() => {
                    self.wait(&mut budget, status, OPENING)?;
                }
                Err(refused) => return Err(refused.into()),
            }
        }
    }

    /// Makes a session, in place of the present one.
    fn new_session(&self, control: &mut ControlCalls, owner: &[u8]) -> Result<Result<(), RefusedStatus>> {
        let verifier = random().to_be_bytes();
        let known = self.outside(
            control,
            OPENING,
            |to| v4::put_exchange_id(to, verifier, owner),
            |from| {
                Ok(v4::get_exchange_id(from)?
                    .map(|told| (told.sequence, ServerIdentity::new(verifier, owner, told))))
            },
        )?;
        let (sequence, identity) = match known {
            Ok(known) => known,
            Err(refused) => return Ok(Err(refused)),
        };
        let client = identity.client;
        let slots = 1 + (self.options.connections * self.options.depth) as u32;
        let made = self.outside(
            control,
            OPENING,
            |to| v4::put_create_session(to, client, sequence, slots),
            v4::get_create_session,
        )?;
        let granted = match made {
            Ok(granted) => granted,
            Err(refused) => return Ok(Err(refused)),
        };
        control.client = client;
        {
            let mut session = lock(&self.session);
            *session = NfsSession { epoch: session.epoch + 1, granted: Some(granted) };
            self.further.has_session(identity);
        }
        // A server in its time of grace wants to know that nothing is to be reclaimed.
        let told = self.in_slot(
            control,
            OPENING,
            1,
            |to| {
                to.u32(op::RECLAIM_COMPLETE);
                to.u32(0);
            },
            |from| v4::get_op(from, op::RECLAIM_COMPLETE),
        )?;
        Ok(match told {
            Err(status) if status.is_to_wait() || status.is_session_lost() => {
                Err(RefusedStatus(status, status.error(OPENING, self.who.uid())))
            }
            // Told before, or not known to the server: it is of no use to us.
            _ => Ok(()),
        })
    }

    /// Attempts while the server asks to wait.
    const fn retry_budget(&self) -> RetryBudget {
        RetryBudget::new(self.options.deadline)
    }

    /// Sleeps before the next attempt; an error behind the deadline.
    fn wait(&self, budget: &mut RetryBudget, status: NfsStatus, doing: &str) -> Result<()> {
        if budget.wait()? { Ok(()) } else { Err(status.error(doing, self.who.uid())) }
    }

    /// A compound of one operation that stands in no session.
    fn outside<T>(
        &self,
        control: &mut ControlCalls,
        doing: &str,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, RefusedStatus>> {
        let said = self.compound_on(&mut control.exchange, doing, 1, put, get)?;
        Ok(said.map_err(|status| RefusedStatus(status, status.error(doing, self.who.uid()))))
    }

    /// A compound that stands in no session, once.
    pub(crate) fn compound_on<T>(
        &self,
        exchange: &mut Exchange,
        doing: &str,
        count: u32,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, NfsStatus>> {
        exchange.call(
            doing,
            (v4::PROGRAM, v4::COMPOUND),
            Some(&self.who),
            |to| {
                v4::begin(to, self.version, None, count);
                put(to);
            },
            |from| match v4::get_begin(from, None)? {
                Ok(()) => get(from),
                Err(status) => Ok(Err(status)),
            },
        )
    }

    /// A compound in slot 0 of the session, or without one; waits where the server asks for it.
    pub(crate) fn compound<T>(
        &self,
        doing: &str,
        count: u32,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, NfsStatus>> {
        self.compound_with(&mut self.control(), doing, count, put, get)
    }

    fn compound_with<T>(
        &self,
        control: &mut ControlCalls,
        doing: &str,
        count: u32,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, NfsStatus>> {
        let (mut budget, mut lost) = (self.retry_budget(), 0);
        loop {
            match self.in_slot(control, doing, count, &put, &get)? {
                Err(status) if status.is_to_wait() || status.is_uncached() => {
                    self.wait(&mut budget, status, doing)?;
                }
                Err(status) if status.is_session_lost() && self.version.has_session() => {
                    if lost > 0 {
                        self.wait(&mut budget, status, doing)?;
                    }
                    lost += 1;
                    self.renew_with(control, control.sequence.1)?;
                }
                said => return Ok(said),
            }
        }
    }

    /// A compound in slot 0 of the session, or without one, once.
    fn in_slot<T>(
        &self,
        control: &mut ControlCalls,
        doing: &str,
        count: u32,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, NfsStatus>> {
        let place = self.place(&mut control.sequence);
        let mut is_placed = place.is_some();
        let called = control.exchange.call(
            doing,
            (v4::PROGRAM, v4::COMPOUND),
            Some(&self.who),
            |to| {
                v4::begin(to, self.version, place.as_ref(), count);
                put(to);
            },
            |from| match v4::get_begin(from, place.as_ref())? {
                Ok(()) => get(from),
                Err(status) => {
                    is_placed = false;
                    Ok(Err(status))
                }
            },
        );
        let is_unused = match &called {
            Ok(Err(status)) => !is_placed && status.is_to_wait(),
            Ok(Ok(_)) => false,
            Err(_) => !control.exchange.was_sent(),
        };
        if place.is_some() && is_unused {
            // The slot stands where it stood.
            control.sequence.0 -= 1;
        }
        called
    }

    /// The next place in slot 0.
    fn place(&self, sequence: &mut (u32, u32)) -> Option<SequenceSlot> {
        let session = self.session();
        let granted = session.granted?;
        if sequence.1 != session.epoch {
            *sequence = (0, session.epoch);
        }
        sequence.0 += 1;
        Some(SequenceSlot {
            session: granted.session,
            slot: 0,
            sequence: sequence.0,
            highest: granted.slots - 1,
        })
    }

    /// A call of version 3; waits where the server asks for it.
    pub(crate) fn call3<T>(
        &self,
        doing: &str,
        procedure: u32,
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
    ) -> Result<Result<T, NfsStatus>> {
        let mut budget = self.retry_budget();
        loop {
            let mut control = self.control();
            let said = control.exchange.call(doing, (v3::PROGRAM, procedure), Some(&self.who), &put, &get)?;
            drop(control);
            match said {
                Err(status) if status.is_to_wait() => self.wait(&mut budget, status, doing)?,
                said => return Ok(said),
            }
        }
    }

    /// Facts about a file, now; and what the server takes in a call, which version 4 tells with them.
    pub(crate) fn facts(&self, handle: &NfsHandle) -> Result<(FileAttributes, Option<CallLimits>)> {
        self.said_of(handle)?.map_err(|status| self.error(status, LOOKING))
    }

    /// The same, or what the server says in their place.
    pub(crate) fn said_of(
        &self,
        handle: &NfsHandle,
    ) -> Result<Result<(FileAttributes, Option<CallLimits>), NfsStatus>> {
        if self.version == NfsVersion::V3 {
            let said =
                self.call3(LOOKING, v3::GETATTR, |to| v3::put_handle(to, handle), v3::get_attributes)?;
            return Ok(said.map(|attributes| (attributes, None)));
        }
        let said = self.compound(LOOKING, 2, |to| put_look(to, handle), get_look)?;
        Ok(said.map(|(attributes, limits)| (attributes, Some(limits))))
    }

    /// The error of a call with this status that carried no bytes.
    pub(crate) fn error(&self, status: NfsStatus, doing: &str) -> Error {
        if status.is_refusal() && lock(&self.control).exchange.lacks_low_port() {
            return NfsStatus::without_low_port(doing);
        }
        status.error(doing, self.who.uid())
    }
}

/// Asks for facts about a file.
pub(crate) fn put_look(to: &mut XdrWriter<'_>, handle: &NfsHandle) {
    v4::put_handle(to, handle);
    v4::put_getattr(to);
}

/// The facts, and limits.
pub(crate) fn get_look(from: &mut XdrReader<'_>) -> CallOutcome<(FileAttributes, CallLimits)> {
    match v4::get_op(from, op::PUTFH)? {
        Ok(()) => v4::get_attributes(from),
        Err(status) => Ok(Err(status)),
    }
}

/// A status with its error.
struct RefusedStatus(NfsStatus, Error);

impl From<RefusedStatus> for Error {
    fn from(refused: RefusedStatus) -> Self {
        refused.1
    }
}

impl NfsServer {
    /// Tells the server that a session is over, and the client with it. An error: the server could not be reached.
    fn end_session(&self, control: &mut ControlCalls, granted: &GrantedSession) -> Result<()> {
        // A session is ended on a connection that it knows: a new one is known by its first call in a slot.
        if !control.exchange.is_connected()
            && self.in_slot(control, ENDING, 0, |_| (), |_| Ok(Ok(())))?.is_err()
        {
            return Ok(());
        }
        let client = control.client;
        let put = |to: &mut XdrWriter<'_>| {
            to.u32(op::DESTROY_SESSION);
            to.raw(&granted.session);
        };
        let get = |from: &mut XdrReader<'_>| v4::get_op(from, op::DESTROY_SESSION);
        if self.outside(control, ENDING, put, get)?.is_ok() {
            let put = |to: &mut XdrWriter<'_>| {
                to.u32(op::DESTROY_CLIENTID);
                to.u64(client);
            };
            let get = |from: &mut XdrReader<'_>| v4::get_op(from, op::DESTROY_CLIENTID);
            // Without it the server forgets the client when its lease ends.
            let _ = self.outside(control, "cannot end a client", put, get);
        }
        Ok(())
    }
}

impl Drop for NfsServer {
    /// Tells the server that its session is over. A silent server is left alone: the lease ends the session.
    fn drop(&mut self) {
        // A child's connection and session are its parent's.
        if !self.process.is_current() {
            return;
        }
        let Some(granted) = self.session().granted else { return };
        if !self.clock.is_answering() {
            return;
        }
        let mut control = lock(&self.control);
        control.exchange.shorten_deadline(Duration::from_millis(self.patience.load(Ordering::Relaxed)));
        let was_connected = control.exchange.is_connected();
        let ended = self.end_session(&mut control, &granted);
        // That the server has closed a connection shows when it is used.
        if was_connected && ended.is_err_and(|error| error.kind() != ErrorKind::Timeout) {
            let _ = self.end_session(&mut control, &granted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::options::NfsOptions;

    /// Nothing listens there.
    #[test]
    fn a_call_that_was_never_sent_takes_no_number() {
        let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server =
            NfsServer::new("server".to_owned(), vec![nowhere], NfsVersion::V4(1), NfsOptions::default());
        server.grant(1);
        server.facts(&NfsHandle::new(&[1]).unwrap()).unwrap_err();
        assert_eq!(lock(&server.control).sequence, (0, 1));
    }

    #[test]
    fn nothing_is_sent_from_another_network_namespace() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let options = NfsOptions {
            network: Some(forebay_remote::namespace::NetworkNamespace::default()),
            ..NfsOptions::default()
        };
        let addresses = vec![listener.local_addr().unwrap()];
        let server = NfsServer::new("server".to_owned(), addresses, NfsVersion::V3, options);
        let error = server.facts(&NfsHandle::new(&[1]).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
