//! Both ends of a connection, memory, and waits for completions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Completion, Connection, Domain, Fabric, Failure, HostRange, Kind, Memory, Options, Post,
    QueueEnd, Region, Remote, Route, Transport,
};

pub(super) const LONG: Duration = Duration::from_secs(20);
pub(super) const GUARD: u8 = 0xa5;

/// A change of an end, before the other side gets it.
pub(super) type Tell = fn(&mut QueueEnd);

/// A connection of this machine with itself.
pub(super) struct Ends {
    pub(super) client: Box<dyn Connection>,
    pub(super) server: Box<dyn Connection>,
    pub(super) client_domain: Arc<dyn Domain>,
    pub(super) server_domain: Arc<dyn Domain>,
    pub(super) other_domain: Arc<dyn Domain>,
}

pub(super) fn options(text: &str) -> Options {
    Options { private_data: text.into(), receives: 8, sends: 16, reads_out: 4, ..Options::default() }
}

impl Ends {
    pub(super) fn connect(fabric: &dyn Fabric, at: SocketAddr) -> Result<Self> {
        let mut listener = fabric.listen(at)?;
        let to = listener.address();
        let accepting = std::thread::spawn(move || {
            let incoming = listener.next(LONG)?.ok_or_else(|| wrong("no peer came"))?;
            same(&incoming.private_data()[..6], b"client")?;
            Ok::<_, Error>((incoming.domain(), incoming.accept(&options("server"))?))
        });
        let route = Route::to(to).from(at.ip());
        let client_domain = fabric.open(&route)?;
        let client = client_domain.connect(to, &options("client"));
        let accepted = accepting.join().map_err(|_| wrong("the server panicked"))?;
        let client = client?;
        let (server_domain, server) = accepted?;
        same(&client.private_data()[..6], b"server")?;
        let other_domain = fabric.open(&route)?;
        Ok(Self { client, server, client_domain, server_domain, other_domain })
    }

    /// The same, paired in band. Each side gets the other's end as `tell` changes it.
    pub(super) fn pair(fabric: &dyn Fabric, at: SocketAddr, options: &Options, tell: Tell) -> Result<Self> {
        let route = Route::to(SocketAddr::new(at.ip(), 9)).from(at.ip());
        let domain = || fabric.open(&route);
        let (client_domain, server_domain, other_domain) = (domain()?, domain()?, domain()?);
        let (client, server) = (client_domain.end(options)?, server_domain.end(options)?);
        let mut told = (client.own(), server.own());
        tell(&mut told.0);
        tell(&mut told.1);
        let (server, client) = (server.pair(&told.0)?, client.pair(&told.1)?);
        Ok(Self { client, server, client_domain, server_domain, other_domain })
    }

    /// Another connection in place of one that is dropped.
    pub(super) fn spare(domain: &dyn Domain) -> Result<Box<dyn Connection>> {
        let (end, peer) = (domain.end(&options(""))?, domain.end(&options(""))?);
        end.pair(&peer.own())
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.client_domain.device().transport == Transport::Iwarp
    }

    /// A WRITE by the server, and a message behind it that tells the client.
    pub(super) fn write_and_tell(&mut self, source: &Buffer, len: usize, to: Remote) -> Result<()> {
        self.server.write(1, source.region.range(0, len)?, to, Post::QUIET)?;
        self.server.send(2, b"done", Post::PLAIN)?;
        message(&mut *self.client, b"done")?;
        expect(&mut *self.server, &Completion::Done { id: 2, kind: Kind::Send })
    }

    /// A WRITE by the server that must be refused: neither bytes nor message arrive, and both ends are down.
    pub(super) fn write_refused(&mut self, len: usize, to: Remote) -> Result<Vec<Failure>> {
        let source = Buffer::new(&*self.server_domain, len, Access::READ, 0x77)?;
        self.server.write(1, source.region.range(0, len)?, to, Post::PLAIN)?;
        // The connection may be down already.
        let _ = self.server.send(2, b"done", Post::PLAIN);
        self.broken()
    }

    /// Both ends go down, and no message comes; the failures of the server's operations.
    pub(super) fn broken(&mut self) -> Result<Vec<Failure>> {
        let (told, failures) = (ending(&mut *self.client)?, ending(&mut *self.server)?);
        if told.0 + failures.0 > 0 {
            return Err(wrong("a message arrived behind what should have been refused"));
        }
        Ok(failures.1)
    }
}

/// Memory of its own, and its registration, which goes first.
pub(crate) struct Buffer {
    pub(crate) region: Region,
    pub(super) bytes: Box<[u8]>,
}

impl Buffer {
    pub(crate) fn new(domain: &dyn Domain, len: usize, access: Access, fill: u8) -> Result<Self> {
        let mut bytes = vec![fill; len].into_boxed_slice();
        let memory = Memory::Host(HostRange::new(bytes.as_mut_ptr(), len));
        // SAFETY: the bytes go after the region, and are looked at only between operations.
        let region = unsafe { domain.register(memory, access) }?;
        Ok(Self { region, bytes })
    }

    /// A pattern that differs at every offset.
    pub(super) fn patterned(domain: &dyn Domain, len: usize, access: Access) -> Result<Self> {
        let mut buffer = Self::new(domain, len, access, 0)?;
        for (at, byte) in buffer.bytes.iter_mut().enumerate() {
            *byte = (at * 7 + (at >> 8) * 13 + 1) as u8;
        }
        Ok(buffer)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        std::hint::black_box(&self.bytes)
    }

    pub(super) fn at(&self, offset: usize) -> Remote {
        Remote { key: self.region.remote_key(), address: self.region.memory().start + offset as u64 }
    }

    /// `len` bytes of `from` stand at `offset`, and nothing was changed around them.
    pub(super) fn has(&self, offset: usize, from: &[u8]) -> Result<()> {
        let bytes = self.bytes();
        same(&bytes[offset..offset + from.len()], from)?;
        let around = bytes[..offset].iter().chain(&bytes[offset + from.len()..]);
        around
            .copied()
            .all(|byte| byte == GUARD)
            .then_some(())
            .ok_or_else(|| wrong("guard bytes were changed"))
    }
}

pub(super) fn wrong(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, text.to_owned())
}

pub(super) fn same(got: &[u8], wanted: &[u8]) -> Result<()> {
    (got == wanted).then_some(()).ok_or_else(|| wrong("bytes differ"))
}

pub(super) fn next(connection: &mut dyn Connection) -> Result<Completion> {
    let mut out = Vec::with_capacity(1);
    connection.wait(&mut out, LONG)?;
    out.pop().ok_or_else(|| wrong("no completion came"))
}

pub(super) fn expect(connection: &mut dyn Connection, wanted: &Completion) -> Result<()> {
    let got = next(connection)?;
    (got == *wanted).then_some(()).ok_or_else(|| wrong(&format!("{got:?} came, not {wanted:?}")))
}

pub(super) fn message(connection: &mut dyn Connection, text: &[u8]) -> Result<()> {
    match next(connection)? {
        Completion::Received(message) => {
            same(connection.bytes(&message)?, text)?;
            connection.post_receive(message)
        }
        other => Err(wrong(&format!("{other:?} came, no message"))),
    }
}

/// Waits until it is down and nothing more comes: how many messages came, and what failed but receives.
pub(super) fn ending(connection: &mut dyn Connection) -> Result<(usize, Vec<Failure>)> {
    let (mut messages, mut failures) = (0, Vec::new());
    let until = Instant::now() + LONG;
    let mut out = Vec::new();
    loop {
        let count = connection.wait(&mut out, Duration::from_millis(100))?;
        for completion in out.drain(..) {
            match completion {
                Completion::Received(_) => messages += 1,
                Completion::Failed { kind, why, .. } if kind != Kind::Receive => failures.push(why),
                _ => {}
            }
        }
        if count == 0 && connection.down().is_some() {
            return Ok((messages, failures));
        }
        if Instant::now() > until {
            return Err(wrong("the connection did not go down").with("messages", messages));
        }
    }
}
