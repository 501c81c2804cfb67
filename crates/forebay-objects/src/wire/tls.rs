//! A connection by TLS: records are decrypted where they were received, and their bytes copied to where they belong.

use std::fmt;
use std::io::{Error, ErrorKind, IoSlice};

type Result<T, E = Error> = std::result::Result<T, E>;

use forebay_source::HostRange;
use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};

use super::socket::Socket;

/// Bytes of records that are received at a time.
const INCOMING: usize = 128 << 10;
/// Bytes that are encrypted at a time.
const OUTGOING: usize = 64 << 10;

/// A session on a socket.
pub(super) struct TlsStream {
    socket: Socket,
    session: UnbufferedClientConnection,
    /// Records that came; those of `start..end` were not decrypted.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted bytes that there was no room for, and how many of them have gone.
    plain: Vec<u8>,
    gone: usize,
    /// The server said that nothing follows.
    is_closed: bool,
    /// Records that are to be sent, and how many bytes of them were.
    outgoing: Vec<u8>,
    sent: usize,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What a look at the records came to.
enum Step {
    /// Records are needed to go on.
    NeedsMore,
    /// Bytes may be sent, and more records received.
    Open,
    /// The server said that nothing follows.
    Closed,
}

impl TlsStream {
    pub(super) fn new(socket: Socket, session: UnbufferedClientConnection) -> Self {
        Self {
            socket,
            session,
            incoming: vec![0; INCOMING],
            start: 0,
            end: 0,
            plain: Vec::new(),
            gone: 0,
            is_closed: false,
            outgoing: Vec::new(),
            sent: 0,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// "TLS 1.3".
    pub(super) fn version(&self) -> Option<&'static str> {
        match self.session.protocol_version()? {
            rustls::ProtocolVersion::TLSv1_2 => Some("TLS 1.2"),
            rustls::ProtocolVersion::TLSv1_3 => Some("TLS 1.3"),
            _ => None,
        }
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Goes on with the handshake. Whether it has ended.
    pub(super) fn shake_hands(&mut self) -> Result<bool> {
        loop {
            let step = self.step(&mut no_room())?;
            self.flush()?;
            match step {
                Step::Open => return Ok(true),
                Step::Closed => return Err(ErrorKind::UnexpectedEof.into()),
                Step::NeedsMore => match self.fill() {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Receives bytes; 0: the server said that nothing follows.
    ///
    /// # Safety
    /// The memory is valid, and no other code reads or writes it meanwhile.
    pub(super) unsafe fn receive(&mut self, into: HostRange) -> Result<usize> {
        let mut room = into;
        self.take_plain(&mut room);
        while room.len > 0 {
            // Decrypts what is here before the kernel is asked.
            self.step(&mut room)?;
            if room.len == 0 {
                break;
            }
            if self.is_closed {
                return Ok(into.len - room.len);
            }
            match self.fill() {
                Ok(1..) => {}
                _ if room.len < into.len => break,
                Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(into.len - room.len)
    }

    /// Takes bytes to send; those that there was no room for are kept encrypted.
    pub(super) fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        self.flush()?;
        if self.wants_to_send() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut bytes = parts.iter().map(|part| &**part).filter(|part| !part.is_empty());
        let (first, second) = (bytes.next().unwrap_or_default(), bytes.next().unwrap_or_default());
        let joined;
        // A head and a short body are one record.
        let bytes = if first.len() + second.len() <= OUTGOING && !second.is_empty() {
            joined = [first, second].concat();
            &joined[..]
        } else {
            &first[..first.len().min(OUTGOING)]
        };
        if !self.encrypt(bytes)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.flush()?;
        Ok(bytes.len())
    }

    /// Sends records that are to be sent, as far as there is room.
    pub(super) fn flush(&mut self) -> Result<()> {
        while self.wants_to_send() {
            match self.socket.send(&[IoSlice::new(&self.outgoing[self.sent..])]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Whether nothing came on a connection that waits for no reply. Tickets for later sessions do not count.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        // SAFETY: the byte is borrowed for the call.
        let came = unsafe { self.receive(HostRange::of_mut(&mut byte)) };
        came.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Bytes that were decrypted before.
    fn take_plain(&mut self, room: &mut HostRange) {
        let bytes = room.len.min(self.plain.len() - self.gone);
        // SAFETY: the caller's memory; the bytes are this one's.
        unsafe { std::ptr::copy_nonoverlapping(self.plain[self.gone..].as_ptr(), room.start, bytes) };
        *room = room.after(bytes);
        self.gone += bytes;
        if self.gone == self.plain.len() {
            self.plain.clear();
            self.gone = 0;
        }
    }

    /// Receives records.
    fn fill(&mut self) -> Result<usize> {
        if self.start > 0 {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.incoming.len() {
            // A message of the handshake that has no end.
            return Err(Error::other(rustls::Error::InvalidMessage(rustls::InvalidMessage::MessageTooLarge)));
        }
        // SAFETY: the bytes are borrowed for the call.
        let got = unsafe { self.socket.receive(HostRange::of_mut(&mut self.incoming[self.end..]))? };
        self.end += got;
        Ok(got)
    }

    /// Goes on with the records that came, until more are needed or there is no room any more.
    fn step(&mut self, room: &mut HostRange) -> Result<Step> {
        let has_room = room.len > 0;
        loop {
            let status = self.session.process_tls_records(&mut self.incoming[self.start..self.end]);
            let mut used = status.discard;
            let step = match status.state.map_err(Error::other)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(Error::other)?;
                        used += record.discard;
                        let here = record.payload.len().min(room.len);
                        // SAFETY: the caller's memory; the record is the session's.
                        unsafe { std::ptr::copy_nonoverlapping(record.payload.as_ptr(), room.start, here) };
                        *room = room.after(here);
                        self.plain.extend_from_slice(&record.payload[here..]);
                    }
                    // Records that there is no room for are decrypted later.
                    (has_room && room.len == 0).then_some(Step::Open)
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |to| match data.encode(to) {
                        Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
                        Err(EncodeError::AlreadyEncoded) => Err(None),
                        Ok(bytes) => Ok(bytes),
                    });
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    // They are sent by `flush`.
                    data.done();
                    None
                }
                ConnectionState::WriteTraffic(_) => Some(Step::Open),
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    self.is_closed = true;
                    Some(Step::Closed)
                }
                _ => Some(Step::NeedsMore),
            };
            self.start += used;
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Encrypts bytes. False: the session cannot send now.
    fn encrypt(&mut self, bytes: &[u8]) -> Result<bool> {
        if !matches!(self.step(&mut no_room())?, Step::Open) {
            return Ok(false);
        }
        let status = self.session.process_tls_records(&mut self.incoming[self.start..self.end]);
        let used = status.discard;
        let mut has_failed = false;
        let is_open = match status.state.map_err(Error::other)? {
            ConnectionState::WriteTraffic(mut traffic) => {
                append(&mut self.outgoing, |to| match traffic.encrypt(bytes, to) {
                    Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                    Err(EncryptError::EncryptExhausted) => {
                        has_failed = true;
                        Err(None)
                    }
                    Ok(bytes) => Ok(bytes),
                });
                true
            }
            _ => false,
        };
        self.start += used;
        if has_failed {
            return Err(Error::other(rustls::Error::EncryptError));
        }
        Ok(is_open)
    }
}

/// Bytes that come are kept.
fn no_room() -> HostRange {
    HostRange::NONE
}

/// Appends what `write` writes; it says how much room it needs.
fn append(
    to: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) {
    let before = to.len();
    let done = match write(&mut []) {
        Err(Some(size)) => {
            to.resize(before + size.required_size, 0);
            write(&mut to[before..])
        }
        done => done,
    };
    to.truncate(before + done.unwrap_or(0));
}
