//! READ calls to count instructions of: `nfs_calls start|place|bare BYTES COUNT FILE`.
//!
//! A server in this process puts bytes of the file into memory over a fabric in this process. `start` has the client register memory
//! for each call, `place` registers it once; both wait for each request of BYTES. `bare` is what no client can leave out: the same
//! calls of 1 MiB, four at a time, encoded, posted, polled and decoded by one thread, of registered memory, without any way to go on
//! after a fault. `bench/instructions.py` runs it.

use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

use fake_nfs::{Placing, Server};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::handle::NfsVersion;
use forebay_nfs::io_call::{IoCall, IoOperation, IoReply};
use forebay_nfs::rdma::{self, RdmaChunk, RdmaSegment};
use forebay_nfs::rpc::{self, Credential};
use forebay_nfs::xdr::{XdrReader, XdrWriter};
use forebay_nfs::{Direction, NfsFile, NfsUrl, RdmaOptions, open};
use forebay_verbs::{
    Access, Completion, Connection, DeviceRange, Fabric, HostRange, Memory, Options, Post, Region, Route,
};

/// Calls of `bare` under way: the credits of the server in the process.
const UNDER_WAY: usize = 4;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Error::new(ErrorKind::InvalidInput, "use: nfs_calls start|place|bare BYTES COUNT FILE");
    let [form, bytes, count, path] = words.as_slice() else { return Err(usage()) };
    let number = |text: &str| text.parse::<usize>().map_err(|_| usage());
    let (bytes, count) = (number(bytes)?, number(count)?);
    let (fabric, server) = (Arc::new(fake_verbs::Fake::new()), Arc::new(Server::start()));
    let content = std::fs::read(path).map_err(|error| Error::from_io(&error, "cannot read the file"))?;
    server.put("/export/file", content);
    // The server ends with the process.
    std::mem::forget(Placing::start(&*fabric, server.clone()));
    let rdma = RdmaOptions::by(fabric.clone(), Placing::address());
    let options = forebay_nfs::NfsOptions { connections: 1, rdma: Some(rdma), ..Default::default() };
    let file = open(&NfsUrl::parse(&server.url("/export/file", "3"))?, &options)?;
    let mut memory = vec![0u8; bytes];
    match form.as_str() {
        "bare" => Bare::new(&*fabric, &file, &mut memory)?.read(count),
        "start" | "place" => requests(form, &file, &mut memory, count),
        _ => Err(usage()),
    }
}

fn offset(file: &NfsFile, index: usize, bytes: usize) -> u64 {
    index as u64 * 7919 % (file.opened().size / bytes as u64) * bytes as u64
}

/// Requests of the client, one after the other.
fn requests(form: &str, file: &NfsFile, memory: &mut [u8], count: usize) -> Result<()> {
    let range = Memory::Host(HostRange::of_mut(memory));
    // SAFETY: the memory outlives the registration.
    let registered = unsafe { forebay_verbs::RegisteredMemory::new(&file.client().domain()?, range) }?;
    for index in 0..count {
        let (waits, told) = (std::thread::current(), Arc::new(std::sync::OnceLock::new()));
        let (tell, len) = (told.clone(), memory.len());
        let answer = Box::new(move |result: Result<usize>| done(&waits, &tell, result, len));
        let at = offset(file, index, memory.len());
        // SAFETY: the memory is used by nobody else until the answer, which is waited for.
        unsafe {
            if form == "place" {
                file.place(
                    at,
                    DeviceRange::new(memory.as_ptr() as u64, memory.len()),
                    registered.clone(),
                    answer,
                );
            } else {
                file.start(Direction::Read, at, HostRange::of_mut(memory), answer);
            }
        }
        while told.get().is_none() {
            std::thread::park();
        }
        told.get().cloned().unwrap_or(Ok(()))?;
    }
    Ok(())
}

fn done(waits: &Thread, tell: &std::sync::OnceLock<Result<()>>, result: Result<usize>, len: usize) {
    let short = || Error::new(ErrorKind::Io, "a read came short");
    let _ = tell.set(result.and_then(|bytes| if bytes == len { Ok(()) } else { Err(short()) }));
    waits.unpark();
}

/// A client that knows one file and one memory, and has no way to go on after a fault.
struct Bare<'a> {
    connection: Box<dyn Connection>,
    region: Region,
    file: &'a NfsFile,
    bytes: usize,
    who: Credential,
}

impl<'a> Bare<'a> {
    const CALL: usize = 1 << 20;

    fn new(fabric: &dyn Fabric, file: &'a NfsFile, memory: &mut [u8]) -> Result<Self> {
        let domain = fabric.open(&Route::to(Placing::address()))?;
        let private_data = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3].to_vec();
        let with = Options { private_data, receives: 8, receive_size: 16 << 10, ..Options::default() };
        let connection = domain.connect(Placing::address(), &with)?;
        let range = Memory::Host(HostRange::of_mut(memory));
        // SAFETY: the memory outlives the region, and is looked at by nobody.
        let region = unsafe { domain.register(range, Access::WRITE | Access::REMOTE_WRITE) }?;
        Ok(Self { connection, region, file, bytes: memory.len(), who: Credential::of_process() })
    }

    fn send(&mut self, xid: u32, place: u64, offset: u64) -> Result<()> {
        let mut message = [0; 512];
        let mut to = XdrWriter::new(&mut message);
        let segment = RdmaSegment { key: self.region.remote_key(), len: Self::CALL as u32, address: place };
        rdma::call(&mut to, xid, UNDER_WAY as u32, RdmaChunk::Write(segment));
        let io =
            IoCall { operation: IoOperation::Read, offset, count: Self::CALL as u32, tells_state: false };
        io.encode(&mut to, (NfsVersion::V3, self.file.handle()), xid, &self.who, None);
        let len = to.finish()?;
        self.connection.send(xid.into(), &message[..len], Post::QUIET)
    }

    /// `count` ranges, call by call: a place of the memory is asked for again when its call was answered.
    fn read(&mut self, count: usize) -> Result<()> {
        let each = self.bytes / Self::CALL;
        let (all, io) = (
            count * each,
            IoCall { operation: IoOperation::Read, offset: 0, count: Self::CALL as u32, tells_state: false },
        );
        let mut completions = Vec::with_capacity(64);
        let (mut asked, mut answered) = (0, 0);
        // One call until the server has said how many it takes.
        let mut most = 1;
        while answered < all {
            while asked < all && asked - answered < most {
                let place = self.region.memory().start + (asked % each * Self::CALL) as u64;
                let at = offset(self.file, asked / each, self.bytes) + (asked % each * Self::CALL) as u64;
                self.send(asked as u32, place, at)?;
                asked += 1;
            }
            self.connection.wait(&mut completions, Duration::from_mins(1))?;
            for completion in completions.drain(..) {
                let Completion::Received(message) = completion else { continue };
                let mut from = XdrReader::new(self.connection.bytes(&message)?);
                let header = rdma::reply(&mut from)?;
                let is_it = rpc::reply_xid(&mut from)? == header.xid;
                let reply = io.decode(&mut from, NfsVersion::V3, None)?;
                let has_all = matches!(reply, IoReply::Read { count, .. } if count as usize == Self::CALL);
                assert!(is_it && has_all, "another reply than was asked for");
                self.connection.post_receive(message)?;
                most = UNDER_WAY;
                answered += 1;
            }
        }
        Ok(())
    }
}
