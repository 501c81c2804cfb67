//! RPC over RDMA in front of the server: it places bytes of a READ, and reads those of a WRITE.
#![allow(clippy::unwrap_used, reason = "a test double: what breaks it fails the test")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Completion, Connection, Domain, Fabric, HostRange, Memory, Message, Options as With, Post, Remote,
};

use crate::{Fault, Server, lock};

/// How a server over RDMA is wrong. Each happens once, with the next READ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// It says that it placed more than it did.
    Placed,
    /// It grants no credits.
    NoCredits,
    /// It grants more than there is.
    ManyCredits,
    /// Its header has another number than its reply.
    TwoNumbers,
    /// It refuses the chunks.
    WrongChunks,
    /// It says that it speaks another version of the header.
    OtherVersions,
    /// Its message has this many bytes only.
    Truncated(usize),
    /// The 32-bit word at this byte of its message is another: what it should be, plus this.
    Word(usize, u32),
    /// It answers a call that was not made.
    OtherNumber,
    /// It says that it placed more than there is room for.
    PlacedMore,
    /// Its message invalidates the key that it was given.
    Invalidate,
    /// Its message is noise.
    Noise,
    /// It answers twice.
    Twice,
    /// It writes behind the range that it was given.
    Beyond,
    /// It writes once more after its reply.
    Late,
    /// It puts the bytes into the message.
    Inline,
}

/// How it serves.
struct Ways {
    lie: Mutex<Option<Lie>>,
    credits: AtomicU32,
    receives: AtomicU32,
    /// The most calls that waited for their replies.
    most: AtomicUsize,
}

/// A server over RDMA in front of one over TCP. It insists that clients send what Linux's client sends.
pub struct Placing {
    ways: Arc<Ways>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Placing {
    /// Where it listens on its fabric.
    pub fn address() -> SocketAddr {
        ([10, 0, 0, 1], 20049).into()
    }

    /// The server's next READ goes wrong.
    pub fn lie(&self, lie: Lie) {
        *lock(&self.ways.lie) = Some(lie);
    }

    /// Grants this many credits from now on. By default 4.
    pub fn grant(&self, credits: u32) {
        self.ways.credits.store(credits, Ordering::Relaxed);
        self.ways.most.store(0, Ordering::Relaxed);
    }

    /// Has room for this many calls on connections from now on. By default 64.
    pub fn receives(&self, calls: u32) {
        self.ways.receives.store(calls, Ordering::Relaxed);
    }

    /// The most calls that waited for their replies on a connection, since the last grant.
    pub fn most_at_once(&self) -> usize {
        self.ways.most.load(Ordering::Relaxed)
    }

    /// Starts one on a fabric, for the files of a server over TCP.
    ///
    /// # Panics
    /// If another one listens there.
    pub fn start(fabric: &impl Fabric, server: Arc<Server>) -> Self {
        Self::start_at(fabric, server, Self::address())
    }

    /// The same at another address.
    ///
    /// # Panics
    /// If another one listens there.
    pub fn start_at(fabric: &impl Fabric, server: Arc<Server>, at: SocketAddr) -> Self {
        let ways = Arc::new(Ways {
            lie: Mutex::new(None),
            credits: AtomicU32::new(4),
            receives: AtomicU32::new(64),
            most: AtomicUsize::new(0),
        });
        let is_over = Arc::<AtomicBool>::default();
        let mut listener = fabric.listen(at).unwrap();
        let (serving_ways, over) = (ways.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            let mut serving = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let Ok(Some(incoming)) = listener.next(Duration::from_millis(20)) else { continue };
                assert_eq!(&incoming.private_data()[..8], [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3]);
                let receives = serving_ways.receives.load(Ordering::Relaxed);
                let with = With { receives, receive_size: 4096, reads_out: 16, ..With::default() };
                let domain = incoming.domain();
                // The peer may have gone again.
                let Ok(mut connection) = incoming.accept(&with) else { continue };
                let (server, ways, over) = (server.clone(), serving_ways.clone(), over.clone());
                serving.push(std::thread::spawn(move || {
                    let mut inbox = VecDeque::new();
                    while !over.load(Ordering::Relaxed) {
                        // What breaks is the connection; the client comes back.
                        let served = serve(connection.as_mut(), &mut inbox, &domain, &server, &ways);
                        if served.is_err() || connection.down().is_some() {
                            return;
                        }
                    }
                }));
            }
            for serving in serving {
                serving.join().unwrap();
            }
        });
        Self { ways, is_over, thread: Some(thread) }
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_be_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap())
}

/// Waits for the end of an operation. Calls that come meanwhile wait in the inbox.
fn done(connection: &mut dyn Connection, inbox: &mut VecDeque<Message>) -> Result<()> {
    loop {
        let mut completions = Vec::with_capacity(1);
        connection.wait(&mut completions, Duration::from_secs(5))?;
        match completions.pop() {
            Some(Completion::Received(message)) => inbox.push_back(message),
            Some(Completion::Done { .. }) => return Ok(()),
            other => return Err(Error::new(ErrorKind::Io, format!("{other:?}"))),
        }
    }
}

/// Takes calls that are there already.
fn drain(connection: &mut dyn Connection, inbox: &mut VecDeque<Message>) -> Result<()> {
    let mut completions = Vec::with_capacity(64);
    connection.poll(&mut completions)?;
    for completion in completions {
        match completion {
            Completion::Received(message) => inbox.push_back(message),
            other => return Err(Error::new(ErrorKind::Io, format!("{other:?}"))),
        }
    }
    Ok(())
}

/// Replies to a call that was not made, until the connection is closed.
fn flood(
    connection: &mut dyn Connection,
    inbox: &mut VecDeque<Message>,
    call: &[u8],
    mut reply: Vec<u8>,
    pause: Duration,
) -> Result<()> {
    let head = [word(call, 0) ^ 0x55, 1, 4, 0, 0, 0, 0];
    reply[3] ^= 0x55;
    reply.truncate(200);
    let message = [head.iter().flat_map(|word| word.to_be_bytes()).collect(), reply].concat();
    loop {
        connection.send(3, &message, Post::PLAIN)?;
        done(connection, inbox)?;
        std::thread::sleep(pause);
    }
}

/// Serves one call.
fn serve(
    connection: &mut dyn Connection,
    inbox: &mut VecDeque<Message>,
    domain: &Arc<dyn Domain>,
    server: &Server,
    ways: &Ways,
) -> Result<()> {
    if inbox.is_empty() {
        let mut completions = Vec::with_capacity(1);
        connection.wait(&mut completions, Duration::from_millis(20))?;
        match completions.pop() {
            Some(Completion::Received(message)) => inbox.push_back(message),
            Some(other) => return Err(Error::new(ErrorKind::Io, format!("{other:?}"))),
            None => {}
        }
    }
    drain(connection, inbox)?;
    ways.most.fetch_max(inbox.len(), Ordering::Relaxed);
    let Some(message) = inbox.pop_front() else { return Ok(()) };
    let call = connection.bytes(&message)?.to_vec();
    connection.post_receive(message)?;
    assert_eq!((word(&call, 1), word(&call, 3)), (1, 0), "version and procedure");
    let (mut at, mut read, mut write) = (4, None, None);
    let segment = |at: usize| {
        let address = u64::from(word(&call, at + 2)) << 32 | u64::from(word(&call, at + 3));
        (Remote { key: word(&call, at), address }, word(&call, at + 1))
    };
    if word(&call, at) == 1 {
        read = Some((word(&call, at + 1) as usize, segment(at + 2)));
        at += 6;
    }
    assert_eq!(word(&call, at), 0, "one read chunk at most");
    at += 1;
    if word(&call, at) == 1 {
        assert_eq!(word(&call, at + 1), 1, "one segment");
        write = Some(segment(at + 2));
        at += 6;
    }
    assert_eq!((word(&call, at), word(&call, at + 1)), (0, 0), "no more chunks, no reply chunk");
    let mut rpc = call[(at + 2) * 4..].to_vec();
    if let Some((position, (remote, len))) = read {
        assert_eq!((position, position % 4), (rpc.len(), 0));
        let mut bytes = vec![0u8; len as usize];
        let memory = Memory::Host(HostRange::of_mut(&mut bytes));
        // SAFETY: the region ends before the bytes are looked at.
        let region = unsafe { domain.register(memory, Access::WRITE)? };
        connection.read(1, region.range(0, bytes.len())?, remote, Post::PLAIN)?;
        done(connection, inbox)?;
        region.release()?;
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        rpc.extend(bytes);
    }
    let Some((mut reply, payload, fault)) = server.answer(connection.number(), &rpc) else {
        panic!("not a call: {rpc:?}");
    };
    match fault {
        Some(Fault::NoReply) => return Ok(()),
        Some(Fault::Flood(pause)) => return flood(connection, inbox, &call, reply, pause),
        Some(Fault::Late(time)) => std::thread::sleep(time),
        _ => {}
    }
    let lie = if payload > 0 { lock(&ways.lie).take() } else { None };
    let mut bytes = reply.split_off(reply.len() - payload.next_multiple_of(4));
    let mut head = vec![word(&call, 0), 1, ways.credits.load(Ordering::Relaxed), 0, 0];
    let mut late = None;
    if let Some((remote, len)) = write.filter(|_| lie != Some(Lie::Inline)) {
        assert!(payload <= len as usize);
        bytes.truncate(payload);
        if lie == Some(Lie::Placed) {
            bytes.truncate(payload / 2);
        }
        let behind = if lie == Some(Lie::Beyond) { 8 } else { 0 };
        let place = Remote { address: remote.address + behind, ..remote };
        if !bytes.is_empty() {
            let memory = Memory::Host(HostRange::of_mut(&mut bytes));
            // SAFETY: the region lives until the write is done.
            let region = unsafe { domain.register(memory, Access::READ)? };
            connection.write(2, region.range(0, bytes.len())?, place, Post::PLAIN)?;
            done(connection, inbox)?;
            late = Some((region, place));
        }
        let more = if lie == Some(Lie::PlacedMore) { len } else { 0 };
        head.extend([1, 1, remote.key, bytes.len() as u32 + more, 0, 0]);
        bytes.clear();
    }
    head.extend([0, 0]);
    match lie {
        Some(Lie::NoCredits) => head[2] = 0,
        Some(Lie::ManyCredits) => head[2] = u32::MAX,
        Some(Lie::TwoNumbers) => head[0] ^= 1,
        Some(Lie::WrongChunks) => {
            head = vec![word(&call, 0), 1, 4, 4, 2];
            reply.clear();
        }
        Some(Lie::OtherVersions) => {
            head = vec![word(&call, 0), 1, 4, 4, 1, 2, 3];
            reply.clear();
        }
        Some(Lie::OtherNumber) => {
            head[0] ^= 0x55;
            reply[3] ^= 0x55;
        }
        Some(Lie::Noise) => {
            head = vec![0xFFFF_FFFF; 40];
            reply.clear();
        }
        _ => {}
    }
    let head: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut message = [head, reply, bytes].concat();
    match lie {
        Some(Lie::Truncated(len)) => message.truncate(len),
        Some(Lie::Word(at, more)) if at + 4 <= message.len() => {
            let value = word(&message, at / 4).wrapping_add(more);
            message[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        _ => {}
    }
    let invalidate = write.filter(|_| lie == Some(Lie::Invalidate)).map(|(remote, _)| remote.key);
    for _ in 0..if lie == Some(Lie::Twice) { 2 } else { 1 } {
        connection.send(3, &message, Post { invalidate, ..Post::PLAIN })?;
        done(connection, inbox)?;
    }
    if lie == Some(Lie::Late) {
        std::thread::sleep(Duration::from_millis(100));
        let (mut region, place) = late.unwrap();
        // Other bytes than before, so that it would be seen.
        drop(region);
        let mut other = [0xEEu8; 64];
        let memory = Memory::Host(HostRange::new(other.as_mut_ptr(), 64));
        // SAFETY: the region lives until the write is done.
        region = unsafe { domain.register(memory, Access::READ)? };
        connection.write(4, region.range(0, 64)?, place, Post::PLAIN)?;
        assert!(done(connection, inbox).is_err(), "a key that outlives its call");
    }
    Ok(())
}
