//! Connections: records in, records out, and what goes wrong with them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calling::{Calling, Refused};
use crate::words::{In, Out};
use crate::{Fault, Shared, lock, v3, v4};

pub(crate) fn accept(listener: &TcpListener, shared: &Arc<Shared>, is_over: &AtomicBool) {
    for stream in listener.incoming().flatten() {
        if shared.is_over.load(Ordering::Relaxed) || is_over.load(Ordering::Relaxed) {
            return;
        }
        let connection = shared.connection_count.fetch_add(1, Ordering::Relaxed);
        lock(&shared.connections).extend(stream.try_clone());
        if let Ok(at) = stream.local_addr() {
            *lock(&shared.connection_counts).entry(at.ip()).or_default() += 1;
        }
        lock(&shared.ports).extend(stream.peer_addr().map(|peer| peer.port()));
        let shared = shared.clone();
        std::thread::spawn(move || {
            let _ = serve(stream, &shared, connection);
        });
    }
}

fn serve(mut stream: TcpStream, shared: &Arc<Shared>, connection: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut held: Vec<u8> = Vec::new();
    loop {
        let call = record(&mut stream, shared)?;
        let mut calling = Calling { shared, connection, user: None, fault: None, payload: 0 };
        let Some(reply) = answer(&mut calling, &call) else { return Ok(()) };
        let mut whole = in_fragments(&reply, usize::MAX);
        match calling.fault.take() {
            None
            | Some(
                Fault::Status(_)
                | Fault::Short(_)
                | Fault::Forget
                | Fault::Cut(_)
                | Fault::Overwrite(_)
                | Fault::Names(_),
            ) => {}
            Some(Fault::NoReply) => continue,
            Some(Fault::Unread(time)) => {
                std::thread::sleep(time);
                continue;
            }
            Some(Fault::Vanish) => {
                vanish(&stream);
                return Ok(());
            }
            Some(Fault::Close) => return stream.shutdown(std::net::Shutdown::Both),
            Some(Fault::CloseAfter(bytes)) => {
                stream.write_all(&whole[..bytes.min(whole.len())])?;
                return stream.shutdown(std::net::Shutdown::Both);
            }
            Some(Fault::Late(time)) => std::thread::sleep(time),
            Some(Fault::Drip(pause)) => slowly(&mut stream, &mut whole, 1, pause)?,
            Some(Fault::Slow(bytes, pause)) => slowly(&mut stream, &mut whole, bytes, pause)?,
            Some(Fault::Flood(pause)) => {
                whole[7] ^= 0x55;
                loop {
                    stream.write_all(&whole)?;
                    std::thread::sleep(pause);
                }
            }
            Some(Fault::Overtaken) => {
                held.extend(whole);
                continue;
            }
            Some(Fault::Twice) => whole.extend_from_within(..),
            Some(Fault::OtherXid) => whole[7] ^= 0x55,
            Some(Fault::Fragments(size)) => whole = in_fragments(&reply, size),
            Some(Fault::Truncated(less)) => {
                whole = in_fragments(&reply[..reply.len().saturating_sub(less)], usize::MAX);
            }
            Some(Fault::Word(at, more)) => {
                if let Some(word) = whole[4..].get_mut(at..at + 4) {
                    let value = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                    word.copy_from_slice(&value.wrapping_add(more).to_be_bytes());
                }
            }
            Some(Fault::Record(bytes)) => whole = in_fragments(&bytes, usize::MAX),
            Some(Fault::Restart) => {
                shared.restart();
                return Ok(());
            }
        }
        whole.append(&mut held);
        stream.write_all(&whole)?;
    }
}

/// Sends bytes, a few at a time.
fn slowly(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    some: usize,
    pause: std::time::Duration,
) -> std::io::Result<()> {
    for bytes in std::mem::take(bytes).chunks(some) {
        stream.write_all(bytes)?;
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Whether this process may have connections that vanish.
pub fn may_vanish() -> bool {
    let listener = TcpListener::bind("127.0.0.1:0");
    let connected = listener.and_then(|listener| TcpStream::connect(listener.local_addr()?));
    connected.is_ok_and(|stream| repair(&stream))
}

/// From now on the socket's end sends nothing.
fn repair(socket: &TcpStream) -> bool {
    let (level, on) = (libc::IPPROTO_TCP, 1i32);
    // SAFETY: pointer and length are of a local variable.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, libc::TCP_REPAIR, (&raw const on).cast(), 4) == 0 }
}

/// The kernel forgets the connection, whichever descriptors there are.
fn vanish(stream: &TcpStream) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    if repair(stream) {
        // SAFETY: pointer and length are of an address.
        unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, size_of_val(&nowhere) as u32) };
    }
}

fn record(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let start = all.len();
        all.resize(start + (mark & 0x7FFF_FFFF) as usize, 0);
        let slow = *lock(&shared.slow_calls);
        if slow.is_some() {
            keep_little(stream);
        }
        let (some, pause) = slow.unwrap_or((usize::MAX, std::time::Duration::ZERO));
        for bytes in all[start..].chunks_mut(some) {
            stream.read_exact(bytes)?;
            std::thread::sleep(pause);
        }
        if mark >> 31 == 1 {
            return Ok(all);
        }
    }
}

/// The kernel buffers little more than the received bytes.
fn keep_little(stream: &TcpStream) {
    let bytes: libc::c_int = 64 << 10;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
    // SAFETY: pointer and length are of a local variable.
    unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const bytes).cast(), 4) };
}

fn in_fragments(record: &[u8], size: usize) -> Vec<u8> {
    let mut made = Vec::with_capacity(record.len() + 4);
    let last = record.len().saturating_sub(1) / size.max(1);
    for (index, part) in record.chunks(size.max(1).min(record.len().max(1))).enumerate() {
        made.extend(((u32::from(index == last) << 31) | part.len() as u32).to_be_bytes());
        made.extend(part);
    }
    made
}

/// A call that comes by another way than TCP: its reply, bytes of a READ at the end of it, and what goes wrong with it.
pub(crate) fn answer_for(
    shared: &Shared,
    connection: u64,
    call: &[u8],
) -> Option<(Vec<u8>, usize, Option<Fault>)> {
    let mut calling = Calling { shared, connection, user: None, fault: None, payload: 0 };
    let reply = answer(&mut calling, call)?;
    Some((reply, calling.payload, calling.fault))
}

/// The user of AUTH_SYS: behind a stamp and the machine's name.
fn user(body: &[u8]) -> Option<u32> {
    let mut from = In(body);
    from.word()?;
    from.bytes()?;
    from.word()
}

/// The reply to a call; `None`: what came is no call.
fn answer(calling: &mut Calling<'_>, call: &[u8]) -> Option<Vec<u8>> {
    let mut from = In(call);
    let xid = from.word()?;
    if (from.word()?, from.word()?) != (0, 2) {
        return None;
    }
    let (program, version, procedure) = (from.word()?, from.word()?, from.word()?);
    let (flavor, body) = (from.word()?, from.bytes()?);
    if flavor == 1 && body.len() < 20 {
        return None;
    }
    calling.user = if flavor == 1 { user(body) } else { None };
    from.word()?;
    from.bytes()?;
    let (has_three, four) = *lock(&calling.shared.versions);
    let results = match (program, version) {
        (100_000, 2) => v3::portmap(calling, procedure, &mut from),
        (100_000, 4) => v3::rpcbind(calling, procedure),
        (100_005, 3) => v3::mount(calling, procedure, &mut from),
        (100_003, 3) if has_three => v3::call(calling, procedure, &mut from),
        (100_003, 4) if four.is_some() => v4::call(calling, procedure, &mut from, four.unwrap_or(0)),
        (100_003, _) => {
            Err(Refused::Versions(if has_three { 3 } else { 4 }, if four.is_some() { 4 } else { 3 }))
        }
        _ => Err(Refused::NoProgram),
    };
    let head = Out::default().words(&[xid, 1, 0, 0, 0]);
    Some(match results {
        Ok(results) => head.word(0).raw(&results.0).0,
        Err(Refused::NoProgram) => head.word(1).0,
        Err(Refused::Versions(low, high)) => head.words(&[2, low, high]).0,
        Err(Refused::NoProcedure) => head.word(3).0,
        Err(Refused::Arguments) => head.word(4).0,
    })
}
