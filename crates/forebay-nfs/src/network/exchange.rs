//! One call at a time, and its reply: everything but bytes of files.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::retry::RetryPauses;
use forebay_remote::silence::{SilenceClock, WaitLimits};
use forebay_remote::stop;

use crate::network::connect::{connect, end_unsent, has_low_port, lacks_low_port};
use crate::network::options::NfsOptions;
use crate::protocol::rpc::{self, Credential, RpcProgram};
use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// Bytes of a call at most.
const MAX_CALL_BYTES: usize = 8192;
/// Bytes of a reply at most.
const MAX_REPLY_BYTES: usize = 32 << 10;

/// A connection for calls, made when it is needed, and again when it is lost.
#[derive(Debug)]
pub(crate) struct Exchange {
    addresses: Vec<SocketAddr>,
    options: NfsOptions,
    clock: Arc<SilenceClock>,
    stream: Option<TcpStream>,
    /// It has answered: a server that does not is waited for.
    has_answered: bool,
    /// The last call was sent as a whole: the server may have seen it.
    was_sent: bool,
    /// When the last call ended.
    used: Instant,
    reply: Vec<u8>,
}

/// How the error of a silent server begins.
pub(crate) const NO_ANSWER: &str = "the server does not answer";
/// What helps against it.
pub(crate) const LOOK: &str = "check the server and the network path to it; calls are sent again until then";

/// How often a server is tried that has never answered.
const FIRST_ATTEMPTS: u32 = 3;

/// Why a reply did not come.
enum NoReply {
    /// The connection is of no use any more.
    Connection(Error),
    /// The server sent something that is no reply.
    Server(Malformed),
}

impl From<std::io::Error> for NoReply {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
        Self::Connection(match error.kind() {
            TimedOut | WouldBlock => Error::new(ErrorKind::Timeout, NO_ANSWER),
            UnexpectedEof => Error::new(ErrorKind::Io, "the server closed the connection"),
            _ => Error::from_io(&error, "the connection to the server broke"),
        })
    }
}

impl Exchange {
    pub(crate) fn new(addresses: Vec<SocketAddr>, options: NfsOptions, clock: Arc<SilenceClock>) -> Self {
        Self {
            addresses,
            options,
            clock,
            stream: None,
            has_answered: false,
            was_sent: false,
            used: Instant::now(),
            reply: Vec::new(),
        }
    }

    /// The same, by a connection that is there already.
    pub(crate) fn on(
        stream: TcpStream,
        address: SocketAddr,
        options: NfsOptions,
        clock: Arc<SilenceClock>,
    ) -> Self {
        // As of connections that are made here.
        let stream = stream.set_nonblocking(false).is_ok().then_some(stream);
        Self { stream, ..Self::new(vec![address], options, clock) }
    }

    /// The connection, for other calls.
    pub(crate) fn into_stream(self) -> Option<TcpStream> {
        self.stream.filter(|stream| stream.set_nonblocking(true).is_ok())
    }

    /// Whether there is a connection.
    pub(crate) const fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the server may have seen the last call.
    pub(crate) const fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// Ends the connection if nothing has used it for so long; otherwise how long it has left.
    pub(crate) fn end_idle(&mut self, idle: Duration) -> Option<Duration> {
        let left = idle.checked_sub(self.used.elapsed()).filter(|left| !left.is_zero());
        self.stream.take_if(|_| left.is_none());
        left
    }

    /// From now on calls fail soon: for the end of a session, on which nothing depends.
    pub(crate) fn shorten_deadline(&mut self, limit: Duration) {
        self.options.connect = limit / self.addresses.len().max(1) as u32;
        (self.options.silence, self.options.deadline) = (limit, Duration::ZERO);
    }

    /// Whether the connection has a port above 1023, because no other one was free.
    pub(crate) fn lacks_low_port(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| self.options.low_ports && lacks_low_port(stream))
    }

    /// Makes a call and reads its results. While the connection is lost the call is made again, with the same number, until the
    /// deadline; a server that has never answered has less time.
    pub(crate) fn call<T>(
        &mut self,
        doing: &str,
        (program, procedure): (RpcProgram, u32),
        who: Option<&Credential>,
        arguments: impl FnOnce(&mut XdrWriter<'_>),
        results: impl FnOnce(&mut XdrReader<'_>) -> Result<T, Malformed>,
    ) -> Result<T> {
        // A call for which there is no room is not sent either.
        self.was_sent = false;
        if self.stream.is_none() {
            self.options.check_network()?;
        }
        let mut place = [0; MAX_CALL_BYTES];
        let mut writer = XdrWriter::new(&mut place);
        let xid = rpc::next_xid();
        writer.u32(0);
        rpc::call(&mut writer, xid, program, procedure, who);
        arguments(&mut writer);
        let len = writer.finish()?;
        place[..4].copy_from_slice(&(1 << 31 | (len - 4) as u32).to_be_bytes());
        let began = Instant::now();
        self.clock.asked(began);
        let mut pauses = RetryPauses::default();
        let (mut lies, mut attempts) = (0, 0);
        loop {
            attempts += 1;
            match self.attempt(xid, &place[..len], began) {
                Ok(()) => break,
                Err(NoReply::Server(malformed)) => {
                    self.stream = None;
                    lies += 1;
                    if lies == 3 {
                        return Err(Error::from(malformed).with("doing", doing));
                    }
                }
                Err(NoReply::Connection(error)) => {
                    let is_refused = self.stream.take().is_none() || attempts >= FIRST_ATTEMPTS;
                    let is_over = self.is_over(began);
                    if stop::is_stopped() {
                        return Err(stop::stopped());
                    }
                    if is_refused && !self.has_answered || is_over {
                        return Err(self.explain(error, doing, began));
                    }
                    stop::sleep(pauses.next_pause().min(self.options.deadline))?;
                }
            }
        }
        (self.has_answered, self.used) = (true, Instant::now());
        self.clock.heard(self.used);
        let mut reader = XdrReader::new(&self.reply);
        reader.skip(8)?;
        rpc::reply(&mut reader)?.map_err(|rejected| rejected.error(doing))?;
        Ok(results(&mut reader)?)
    }

    /// How long a call that began then still waits.
    fn left(&self, began: Instant) -> Duration {
        let (options, now) = (&self.options, Instant::now());
        self.clock.waits(now);
        if !self.has_answered {
            return options.first_answer.saturating_sub(now - began);
        }
        self.clock.left(began, now, self.limits())
    }

    /// Whether a call that began then is given up: alone, or with all that waits for the server.
    fn is_over(&self, began: Instant) -> bool {
        let left = self.left(began);
        if left.is_zero() && self.has_answered {
            // Later requests have a few seconds.
            self.clock.is_given_up(Instant::now(), self.limits());
        }
        left.is_zero() || began.elapsed() > self.options.deadline
    }

    fn limits(&self) -> WaitLimits {
        self.clock.limits(self.options.wait_limits())
    }

    /// The error of a server that is silent says where it was asked, and for how long.
    fn explain(&self, error: Error, doing: &str, began: Instant) -> Error {
        if !error.message().starts_with(NO_ANSWER) {
            return error;
        }
        let mut told = Error::new(ErrorKind::Timeout, format!("{doing}: {NO_ANSWER}"));
        for address in &self.addresses {
            told = told.with("address", address);
        }
        let told = told.with("seconds", began.elapsed().as_secs_f32().round());
        if self.has_answered {
            return told.hint(LOOK);
        }
        match self.addresses.first() {
            Some(address) => told.hint(format!(
                "the program on port {} does not speak NFS, hangs, or is blocked by a firewall: rpcinfo -p {}",
                address.port(),
                address.ip()
            )),
            None => told,
        }
    }

    fn attempt(&mut self, xid: u32, call: &[u8], began: Instant) -> Result<(), NoReply> {
        let left = self.left(began);
        if self.stream.is_none() {
            let options = NfsOptions { connect: self.options.connect.min(left), ..self.options.clone() };
            let stream = connect(&self.addresses, &options, &self.clock).map_err(NoReply::Connection)?;
            stream.set_nonblocking(false)?;
            // Nothing is unsent when its calls are answered, and others have no meaning any more.
            if has_low_port(&stream) {
                end_unsent(&stream);
            }
            self.stream = Some(stream);
        }
        let until = Instant::now() + self.options.silence.min(left);
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.set_write_timeout(Some(self.options.silence))?;
        stream.write_all(call)?;
        self.was_sent = true;
        let clock = &self.clock;
        loop {
            record(stream, &mut self.reply, until, clock)?;
            let found = rpc::reply_xid(&mut XdrReader::new(&self.reply)).map_err(NoReply::Server)?;
            // A reply to a cancelled call is ignored.
            if found == xid {
                return Ok(());
            }
            more(until, clock)?;
        }
    }
}

/// Reads a record of at most [`MAX_REPLY_BYTES`] bytes, by `until`.
fn record(
    stream: &mut TcpStream,
    record: &mut Vec<u8>,
    until: Instant,
    clock: &SilenceClock,
) -> Result<(), NoReply> {
    record.clear();
    loop {
        let mut mark = [0; 4];
        read(stream, &mut mark, until, clock)?;
        let mark = u32::from_be_bytes(mark);
        let (is_last, len) = (mark >> 31 != 0, (mark & !(1 << 31)) as usize);
        if len == 0 && !is_last || record.len() + len > MAX_REPLY_BYTES {
            return Err(NoReply::Server(Malformed("a record of no sensible length")));
        }
        let start = record.len();
        record.resize(start + len, 0);
        read(stream, &mut record[start..], until, clock)?;
        if is_last {
            return Ok(());
        }
    }
}

/// Whether to wait for more, where something has come that is not the reply.
fn more(until: Instant, clock: &SilenceClock) -> Result<(), NoReply> {
    if stop::is_stopped() {
        return Err(NoReply::Connection(stop::stopped()));
    }
    let now = Instant::now();
    clock.waits(now);
    if now < until { Ok(()) } else { Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()) }
}

fn read(
    stream: &mut TcpStream,
    mut place: &mut [u8],
    until: Instant,
    clock: &SilenceClock,
) -> Result<(), NoReply> {
    use std::io::ErrorKind::{Interrupted, TimedOut, UnexpectedEof, WouldBlock};
    while !place.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.clamp(Duration::from_millis(1), stop::SLICE)))?;
        match stream.read(place) {
            Ok(0) => return Err(std::io::Error::from(UnexpectedEof).into()),
            Ok(bytes) => {
                place = &mut place[bytes..];
                if !place.is_empty() {
                    more(until, clock)?;
                }
            }
            Err(_) if stop::is_stopped() => return Err(NoReply::Connection(stop::stopped())),
            Err(error) if error.kind() == Interrupted => {}
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) && Instant::now() < until => {
                clock.waits(Instant::now());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
