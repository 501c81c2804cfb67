//! One call at a time, and its reply: everything but bytes of files.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use crate::connect::connect;
use crate::options::Options;
use crate::rpc::{self, Credential, Program};
use crate::xdr::{Malformed, Reader, Writer};

/// Bytes of a call at most.
const MAX_CALL_BYTES: usize = 8192;
/// Bytes of a reply at most.
const MAX_REPLY_BYTES: usize = 32 << 10;

/// A connection for calls, made when it is needed, and again when it is lost.
#[derive(Debug)]
pub(crate) struct Exchange {
    addresses: Vec<SocketAddr>,
    options: Options,
    stream: Option<TcpStream>,
    /// It has answered: a server that does not is waited for.
    has_answered: bool,
    /// The last call was sent as a whole: the server may have seen it.
    was_sent: bool,
    /// When the last call ended.
    used: Instant,
    reply: Vec<u8>,
}

/// How often a server is tried that has never answered.
const FIRST_ATTEMPTS: u32 = 3;

/// Why a reply did not come.
enum Lost {
    /// The connection is of no use any more.
    Connection(Error),
    /// The server sent something that is no reply.
    Server(Malformed),
}

impl From<std::io::Error> for Lost {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
        Self::Connection(match error.kind() {
            TimedOut | WouldBlock => Error::new(ErrorKind::Timeout, "the server does not answer"),
            UnexpectedEof => Error::new(ErrorKind::Io, "the server closed the connection"),
            _ => Error::from_io(&error, "the connection to the server broke"),
        })
    }
}

impl Exchange {
    pub(crate) fn new(addresses: Vec<SocketAddr>, options: Options) -> Self {
        Self {
            addresses,
            options,
            stream: None,
            has_answered: false,
            was_sent: false,
            used: Instant::now(),
            reply: Vec::new(),
        }
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
    pub(crate) fn shorten_deadline(&mut self) {
        let short = Duration::from_millis(500);
        (self.options.silence, self.options.deadline) = (short, Duration::ZERO);
    }

    /// Makes a call and reads its results. While the connection is lost the call is made again, with the same number, until the
    /// deadline; a server that has never answered is not waited for.
    pub(crate) fn call<T>(
        &mut self,
        doing: &str,
        (program, procedure): (Program, u32),
        who: Option<&Credential>,
        arguments: impl FnOnce(&mut Writer<'_>),
        results: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T> {
        // A call for which there is no room is not sent either.
        self.was_sent = false;
        let mut place = [0; MAX_CALL_BYTES];
        let mut writer = Writer::new(&mut place);
        let xid = rpc::next_xid();
        writer.u32(0);
        rpc::call(&mut writer, xid, program, procedure, who);
        arguments(&mut writer);
        let len = writer.finish()?;
        place[..4].copy_from_slice(&(1 << 31 | (len - 4) as u32).to_be_bytes());
        let began = Instant::now();
        let mut delay = Duration::from_millis(100);
        let (mut lies, mut attempts) = (0, 0);
        loop {
            attempts += 1;
            match self.attempt(xid, &place[..len]) {
                Ok(()) => break,
                Err(Lost::Server(malformed)) => {
                    self.stream = None;
                    lies += 1;
                    if lies == 3 {
                        return Err(Error::from(malformed).with("doing", doing));
                    }
                }
                Err(Lost::Connection(error)) => {
                    let is_refused = self.stream.take().is_none() || attempts >= FIRST_ATTEMPTS;
                    if is_refused && !self.has_answered || began.elapsed() > self.options.deadline {
                        return Err(error);
                    }
                    std::thread::sleep(delay.min(self.options.deadline));
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
        (self.has_answered, self.used) = (true, Instant::now());
        let mut reader = Reader::new(&self.reply);
        reader.skip(8)?;
        rpc::reply(&mut reader)?.map_err(|rejected| rejected.error(doing))?;
        Ok(results(&mut reader)?)
    }

    fn attempt(&mut self, xid: u32, call: &[u8]) -> Result<(), Lost> {
        if self.stream.is_none() {
            let stream = connect(&self.addresses, &self.options).map_err(Lost::Connection)?;
            stream.set_nonblocking(false)?;
            self.stream = Some(stream);
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.set_write_timeout(Some(self.options.silence))?;
        stream.write_all(call)?;
        self.was_sent = true;
        let until = Instant::now() + self.options.silence;
        loop {
            record(stream, &mut self.reply, until)?;
            let found = rpc::reply_xid(&mut Reader::new(&self.reply)).map_err(Lost::Server)?;
            // A reply to a call that was given up is none of ours.
            if found == xid {
                return Ok(());
            }
        }
    }
}

/// Reads a record of at most [`MAX_REPLY_BYTES`] bytes, by `until`.
fn record(stream: &mut TcpStream, record: &mut Vec<u8>, until: Instant) -> Result<(), Lost> {
    record.clear();
    loop {
        let mut mark = [0; 4];
        read(stream, &mut mark, until)?;
        let mark = u32::from_be_bytes(mark);
        let (is_last, len) = (mark >> 31 != 0, (mark & !(1 << 31)) as usize);
        if len == 0 && !is_last || record.len() + len > MAX_REPLY_BYTES {
            return Err(Lost::Server(Malformed("a record of no sensible length")));
        }
        let start = record.len();
        record.resize(start + len, 0);
        read(stream, &mut record[start..], until)?;
        if is_last {
            return Ok(());
        }
    }
}

fn read(stream: &mut TcpStream, mut place: &mut [u8], until: Instant) -> Result<(), Lost> {
    while !place.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(place) {
            Ok(0) => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => place = &mut place[bytes..],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
