//! Reads a file of a server over TCP and prints bytes, seconds and CPU seconds as JSON: `nfs_read client|bare URL CONNECTIONS ROUNDS`.
//!
//! `client` is this crate. `bare` is what no client can do without: the same calls of version 3, made beforehand, and a receive of each
//! reply as it comes, into memory of the same size, unread. `bench/nfs_tcp.py` runs it.
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::io_call::{IoCall, IoOperation};
use forebay_nfs::open::find;
use forebay_nfs::rpc::{Credential, next_xid};
use forebay_nfs::xdr::XdrWriter;
use forebay_nfs::{Direction, NfsOptions, NfsUrl, open};
use forebay_source::HostRange;

const CALL: usize = 1 << 20;
/// Calls under way on a connection.
const DEPTH: usize = 8;
/// Room for what stands before the bytes of a READ.
const HEAD: usize = 512;

fn cpu() -> Duration {
    // SAFETY: all-zero bytes are a valid timespec, and the call writes only that.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now);
        now
    };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let usage = || Error::new(ErrorKind::InvalidInput, "use: nfs_read client|bare URL CONNECTIONS ROUNDS");
    let [_, way, url, connections, rounds] = arguments.as_slice() else { return Err(usage()) };
    let number = |text: &str| text.parse::<usize>().map_err(|_| usage());
    let (url, connections, rounds) = (NfsUrl::parse(url)?, number(connections)?, number(rounds)?);
    let (bytes, seconds, cpu) = match way.as_str() {
        "client" => by_client(&url, connections, rounds)?,
        "bare" => bare(&url, connections, rounds)?,
        _ => return Err(usage()),
    };
    let (seconds, cpu) = (seconds.as_secs_f64(), cpu.as_secs_f64());
    println!("{{\"bytes\": {bytes}, \"seconds\": {seconds:.6}, \"cpu_s\": {cpu:.6}}}");
    Ok(())
}

/// As many calls under way as there may be; each 1 MiB of the file has its place in memory.
fn by_client(url: &NfsUrl, connections: usize, rounds: usize) -> Result<(u64, Duration, Duration)> {
    let file = open(url, &NfsOptions { connections, depth: DEPTH, ..NfsOptions::default() })?;
    let len = file.opened().size as usize / CALL * CALL;
    // For good: after an error others are still under way.
    let memory = vec![0xA5u8; len].leak();
    let (tell, told) = mpsc::channel();
    let all_memory = HostRange::of_mut(memory);
    let start = |index: usize| {
        let (at, tell) = (index * CALL % len, tell.clone());
        let place = all_memory.after(at).first(CALL);
        // Twice as many requests as calls under way: a place is asked for again long after its answer.
        // SAFETY: within `memory`, which stays.
        unsafe { file.start(Direction::Read, at as u64, place, Box::new(move |got| drop(tell.send(got)))) };
    };
    let all = len / CALL * rounds;
    let (began, spent) = (Instant::now(), cpu());
    let ahead = (connections * DEPTH * 2).min(len / CALL);
    (0..ahead).for_each(start);
    for index in 0..all {
        let got = told.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "no answer")))?;
        if got != CALL {
            return Err(Error::new(ErrorKind::ShortRead, "the file became shorter"));
        }
        if index + ahead < all {
            start(index + ahead);
        }
    }
    Ok(((all * CALL) as u64, began.elapsed(), cpu().saturating_sub(spent)))
}

/// Each connection reads a part of the file.
fn bare(url: &NfsUrl, connections: usize, rounds: usize) -> Result<(u64, Duration, Duration)> {
    let only = NfsUrl { versions: vec![NfsVersion::V3], ..url.clone() };
    let found = find(&only, &NfsOptions::default())?;
    let calls = found.attributes.size as usize / CALL / connections;
    let broken = |error: std::io::Error| Error::from_io(&error, "the connection broke");
    let ready = Barrier::new(connections + 1);
    let mut times = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|index| {
                let (found, ready) = (&found, &ready);
                scope.spawn(move || -> Result<()> {
                    let address = (url.server.as_str(), url.port).to_socket_addrs().map_err(broken)?.next();
                    let address = address.ok_or_else(|| Error::new(ErrorKind::NotFound, "no address"))?;
                    let mut stream = TcpStream::connect(address).map_err(broken)?;
                    stream.set_nodelay(true).map_err(broken)?;
                    let mut memory = vec![0xA5u8; calls * CALL + HEAD];
                    let encoded: Vec<_> = (0..calls)
                        .map(|call| encode(found.handle, (index * calls + call) * CALL))
                        .collect::<Result<_>>()?;
                    ready.wait();
                    let all = calls * rounds;
                    let ahead = DEPTH.min(all);
                    for call in 0..ahead {
                        stream.write_all(&encoded[call % calls]).map_err(broken)?;
                    }
                    let mut mark = [0; 4];
                    stream.read_exact(&mut mark).map_err(broken)?;
                    // All replies are of the same length.
                    let len = (u32::from_be_bytes(mark) & !(1 << 31)) as usize;
                    let mut skip = 4;
                    for call in 0..all {
                        let at = call % calls * CALL;
                        stream.read_exact(&mut memory[at..at + len + 4 - skip]).map_err(broken)?;
                        skip = 0;
                        if call + ahead < all {
                            stream.write_all(&encoded[(call + ahead) % calls]).map_err(broken)?;
                        }
                    }
                    ready.wait();
                    Ok(())
                })
            })
            .collect();
        ready.wait();
        let (began, spent) = (Instant::now(), cpu());
        ready.wait();
        times = Some((began.elapsed(), cpu().saturating_sub(spent)));
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")))
        })
    })?;
    let (seconds, spent) = times.unwrap_or_default();
    Ok(((calls * CALL * rounds * connections) as u64, seconds, spent))
}

/// A READ of 1 MiB, with its record mark.
fn encode(handle: forebay_nfs::handle::NfsHandle, offset: usize) -> Result<Vec<u8>> {
    let io = IoCall {
        operation: IoOperation::Read,
        offset: offset as u64,
        count: CALL as u32,
        tells_state: false,
    };
    let mut bytes = vec![0; HEAD];
    let mut to = XdrWriter::new(&mut bytes);
    to.u32(0);
    io.encode(&mut to, (NfsVersion::V3, &handle), next_xid(), &Credential::of_process(), None);
    let len = to.finish()?;
    bytes.truncate(len);
    bytes[..4].copy_from_slice(&(1 << 31 | (len - 4) as u32).to_be_bytes());
    Ok(bytes)
}
