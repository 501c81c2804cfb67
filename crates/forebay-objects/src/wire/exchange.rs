//! A call on its connection: the request is sent, and the reply is received, also while the request is being sent.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;

use super::call::Room;
use super::framing::{Framing, Next};
use super::head::{HeadReader, LONGEST};
use super::input::Input;
use super::job::Job;
use super::outgoing::Outgoing;
use super::stream::Stream;

/// Bytes that are received at a time before other connections have their turn.
const TURN: u64 = 1 << 20;
/// A rest that nobody wants is read over up to this length: another connection would cost more.
const READ_OVER: u64 = 64 << 10;
/// Heads of 1xx before that of a reply: a server sends one or two.
const MOST_INTERIM: u32 = 16;
/// Bytes that are received for the size of a chunk: those of the chunk behind it are copied.
const CODING: usize = 256;

/// A call on its connection.
pub(super) struct Exchange {
    pub(super) job: Job,
    out: Outgoing,
    reply: Reply,
    /// Heads of 1xx that came.
    interim: u32,
    sent: Instant,
    /// Bytes of the body that came.
    received: u64,
    /// How often bytes came.
    came: u64,
    /// How long the connection is kept; `None`: it is closed.
    keeps: Option<Duration>,
    /// The sink refused the reply.
    refused: Option<Error>,
}

/// Where in the reply the next byte is.
enum Reply {
    /// In the head, of which bytes have come or not.
    Head(HeadReader, bool),
    Body(Framing),
    /// In a body that nobody wants.
    Rest(Framing),
}

/// A connection of a call.
pub(super) struct Wire<'a> {
    pub(super) stream: &'a mut Stream,
    pub(super) input: &'a mut Input,
    /// Counts bytes of bodies that are copied.
    pub(super) copied: &'a AtomicU64,
    /// How long it is kept where the server does not say.
    pub(super) keep: Duration,
}

/// The state of a call behind its turn.
pub(super) enum Turn {
    /// It waits for the server.
    Waits,
    /// It can go on; others have their turn before.
    GoesOn,
    /// Its sink has no room.
    Paused,
    /// The connection is kept for so long; `None`: it is closed.
    Ended(Result<()>, Option<Duration>),
    /// The connection was lost before a byte of the reply came.
    Unanswered(Error),
}

/// Why receiving stops.
enum Stop {
    Waits,
    GoesOn,
    Paused,
    /// The reply has ended, or nobody wants the rest.
    Ended,
    /// The connection was lost, or the reply is not valid.
    Lost(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Lost(error)
    }
}

impl Exchange {
    pub(super) fn new(job: Job, head: Vec<u8>) -> Self {
        let out = Outgoing::new(head, job.body.clone());
        let reply = Reply::Head(HeadReader::default(), false);
        Self {
            job,
            out,
            reply,
            interim: 0,
            sent: Instant::now(),
            received: 0,
            came: 0,
            keeps: None,
            refused: None,
        }
    }

    /// Whether it waits for room to send.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.out.is_over()
    }

    /// Changes when bytes go; changes when bytes come.
    pub(super) fn progress(&self) -> (usize, u64) {
        (self.out.sent(), self.came)
    }

    /// Sends and receives what there is room for.
    pub(super) fn turn(&mut self, wire: &mut Wire<'_>) -> Turn {
        if self.job.sink().is_some_and(|sink| !sink.is_wanted()) {
            return Turn::Ended(Ok(()), None);
        }
        let is_first = self.out.sent() == 0;
        let unsent = self.out.send(wire.stream).err();
        if unsent.is_some() {
            self.out.give_up();
        } else if is_first {
            // No reply is there yet.
            return Turn::Waits;
        }
        let stop = match self.receive(wire) {
            // The server closed the connection, and its reply did not come before.
            Stop::Waits if let Some(error) = unsent => {
                Stop::Lost(Error::from_io(&error, "the connection broke"))
            }
            stop => stop,
        };
        wire.stream.expect(match (&stop, &self.reply) {
            (Stop::Waits, Reply::Body(framing)) => framing.left().unwrap_or(0),
            _ => 0,
        });
        match stop {
            Stop::Waits => Turn::Waits,
            Stop::GoesOn => Turn::GoesOn,
            Stop::Paused => Turn::Paused,
            Stop::Lost(error) if matches!(self.reply, Reply::Head(_, false)) => Turn::Unanswered(error),
            Stop::Lost(error) => Turn::Ended(Err(error), None),
            Stop::Ended => {
                let keeps = self.keeps.filter(|_| self.out.is_whole() && wire.input.is_empty());
                Turn::Ended(self.refused.take().map_or(Ok(()), Err), keeps)
            }
        }
    }

    fn receive(&mut self, wire: &mut Wire<'_>) -> Stop {
        let until = self.received + TURN;
        loop {
            let done = match &self.reply {
                Reply::Head(..) => self.receive_head(wire),
                Reply::Body(_) => self.receive_body(wire),
                Reply::Rest(_) => self.read_over(wire),
            };
            if let Err(stop) = done {
                return stop;
            }
            if self.received >= until {
                return Stop::GoesOn;
            }
        }
    }

    fn receive_head(&mut self, wire: &mut Wire<'_>) -> Result<(), Stop> {
        let Reply::Head(reader, has_come) = &mut self.reply else { return Ok(()) };
        if reader.has_read(wire.input.came()) {
            match wire.input.receive(wire.stream, LONGEST) {
                Ok(0) => return Err(Stop::Lost(closed())),
                Ok(_) => (*has_come, self.came) = (true, self.came + 1),
                Err(error) => return Err(lost(&error, 0)),
            }
        }
        let Some(raw) = reader.read(wire.input.came(), self.job.ask.method)? else { return Ok(()) };
        wire.input.consume(raw.bytes);
        if raw.is_interim() {
            // Another head follows, of which bytes may have come.
            *reader = HeadReader::default();
            self.interim += 1;
            if self.interim > MOST_INTERIM {
                let text = "the server says 1xx again and again, and no reply follows";
                return Err(Error::new(ErrorKind::Corrupt, text).with("most", MOST_INTERIM).into());
            }
            return Ok(());
        }
        forebay_source::round_trip(self.sent.elapsed());
        if raw.keeps {
            self.keeps = Some(raw.keeps_for.map_or(wire.keep, |time| time.min(wire.keep)));
        }
        // A server that answers before the request has ended does not want the rest.
        self.out.give_up();
        self.reply = Reply::Body(raw.framing);
        if let Some(Err(error)) = self.job.sink().map(|sink| sink.head(raw.head)) {
            self.refused = Some(error);
            self.want_no_more()?;
        }
        Ok(())
    }

    /// Nobody wants the rest of the body.
    fn want_no_more(&mut self) -> Result<(), Stop> {
        if let Reply::Body(framing) = &self.reply {
            let is_short = framing.left().is_some_and(|left| left <= READ_OVER);
            if !is_short {
                self.keeps = None;
                return Err(Stop::Ended);
            }
            self.reply = Reply::Rest(framing.clone());
        }
        Ok(())
    }

    fn receive_body(&mut self, wire: &mut Wire<'_>) -> Result<(), Stop> {
        let Reply::Body(framing) = &mut self.reply else { return Ok(()) };
        let most = match framing.next() {
            Next::End => return Err(Stop::Ended),
            Next::Coding => return decode(framing, wire, self.received),
            Next::Body(most) => most,
        };
        let Some(sink) = self.job.sink() else { return Err(Stop::Ended) };
        let room = match sink.room() {
            Room::Later => return Err(Stop::Paused),
            Room::Enough => return self.want_no_more(),
            Room::Memory(room) => room.first(most.try_into().unwrap_or(usize::MAX)),
        };
        if room.len == 0 {
            return Err(Error::new(ErrorKind::Internal, "a call has no room for its reply").into());
        }
        let got = match fill(room, wire) {
            Ok(0) => {
                framing.closed(self.received)?;
                return Err(Stop::Ended);
            }
            Ok(got) => got,
            Err(error) => return Err(lost(&error, self.received)),
        };
        framing.received(got as u64);
        self.received += got as u64;
        self.came += 1;
        sink.filled(got);
        Ok(())
    }

    fn read_over(&mut self, wire: &mut Wire<'_>) -> Result<(), Stop> {
        let Reply::Rest(framing) = &mut self.reply else { return Ok(()) };
        let Next::Body(most) = framing.next() else { return Err(Stop::Ended) };
        if wire.input.is_empty() && !matches!(wire.input.receive(wire.stream, LONGEST), Ok(1..)) {
            // The call has all that it wanted; the connection is not waited for.
            self.keeps = None;
            return Err(Stop::Ended);
        }
        let over = (wire.input.came().len() as u64).min(most);
        wire.input.consume(over as usize);
        framing.received(over);
        Ok(())
    }
}

/// Receives coding of a body.
fn decode(framing: &mut Framing, wire: &mut Wire<'_>, received: u64) -> Result<(), Stop> {
    if wire.input.is_empty() {
        match wire.input.receive(wire.stream, CODING) {
            Ok(0) => return Err(framing.closed(received).err().map_or(Stop::Ended, Stop::Lost)),
            Ok(_) => {}
            Err(error) => return Err(lost(&error, received)),
        }
    }
    let bytes = framing.decode(wire.input.came())?;
    wire.input.consume(bytes);
    Ok(())
}

/// Bytes of a body to where they belong: those that came already, else straight from the stream.
fn fill(room: HostRange, wire: &mut Wire<'_>) -> io::Result<usize> {
    if wire.input.is_empty() {
        // SAFETY: the sink's memory, valid and untouched until it was filled or the call ends.
        return unsafe { wire.stream.receive(room) };
    }
    let bytes = room.len.min(wire.input.came().len());
    // SAFETY: the same; the bytes are not of the input's.
    unsafe { std::ptr::copy_nonoverlapping(wire.input.came().as_ptr(), room.start, bytes) };
    wire.input.consume(bytes);
    wire.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    Ok(bytes)
}

fn closed() -> Error {
    Error::new(ErrorKind::Io, "the server closed the connection before it answered")
}

fn lost(error: &io::Error, received: u64) -> Stop {
    match error.kind() {
        io::ErrorKind::WouldBlock => Stop::Waits,
        io::ErrorKind::Interrupted => Stop::GoesOn,
        _ => Stop::Lost(Error::from_io(error, "the connection broke").with("received", received)),
    }
}
