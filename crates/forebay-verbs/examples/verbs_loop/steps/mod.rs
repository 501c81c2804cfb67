//! The steps and comparisons, over any fabric.

mod ends;
mod paired;

use std::net::SocketAddr;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{
    Access, Completion, Connection, DeviceRange, Down, Fabric, Failure, Kind, Memory, Post, Remote, Route,
    Why,
};

pub(crate) use ends::Buffer;
use ends::{Ends, GUARD, LONG, ending, expect, message, next, options, same, wrong};

/// What holds however the two ends were paired.
const STEPS: &[(&str, Step)] = &[
    ("messages", messages),
    ("probe", probe),
    ("write", writes),
    ("read", reads),
    ("descriptor", descriptor),
    ("window", window),
    ("window invalidated", window_invalidated),
    ("window bounds", window_bounds),
    ("invalidated by message", invalidated_by_message),
    ("deregistered", deregistered),
    ("rights", rights),
    ("bounds", bounds),
    ("dma-buf", dma_buf),
    ("forked", forked),
    ("other domain", other_domain),
    ("no receive", no_receive),
    ("message too long", message_too_long),
    ("full queue", full_queue),
];

/// All steps; what each compared goes to `say`.
pub(crate) fn all(fabric: &dyn Fabric, at: SocketAddr, say: &mut dyn FnMut(String)) -> Result<()> {
    for (name, step) in STEPS.iter().chain(&[("disconnected", disconnected as Step)]) {
        let said = step(&mut Ends::connect(fabric, at)?).map_err(|error| error.with("step", name))?;
        say(format!("{name}: {said}"));
    }
    say(format!("no listener: {}", no_listener(fabric, at)?));
    say(format!("rejected: {}", rejected(fabric, at)?));
    paired::all(fabric, at, say)
}

/// Connects, pairs in band too where the device can, and waits for the end.
#[allow(dead_code, reason = "the test does not call it")]
pub(crate) fn hold(fabric: &dyn Fabric, at: SocketAddr, say: &mut dyn FnMut(String)) -> Result<()> {
    let connected = Ends::connect(fabric, at)?;
    let paired = match Ends::pair(fabric, at, &options(""), |_| {}) {
        Err(error) if Why::of(&error) == Some(Why::Unsupported) => None,
        ends => Some(ends?),
    };
    say("up".to_owned());
    for (name, mut ends) in [("down", Some(connected)), ("paired, down", paired)]
        .into_iter()
        .filter_map(|(name, ends)| Some((name, ends?)))
    {
        ending(&mut *ends.client).map_err(|error| error.with("end", "client"))?;
        ending(&mut *ends.server).map_err(|error| error.with("end", "server"))?;
        say(format!("{name}: {:?} and {:?}", ends.client.down(), ends.server.down()));
    }
    Ok(())
}

type Step = fn(&mut Ends) -> Result<String>;

fn messages(ends: &mut Ends) -> Result<String> {
    let mut bytes = 0;
    for (round, len) in [1, 100, 256, 257, 1000, 4095, 4096].into_iter().cycle().take(35).enumerate() {
        let text: Vec<u8> = (0..len).map(|at| (at * 3 + round) as u8).collect();
        ends.client.send(round as u64, &text, Post::PLAIN)?;
        message(&mut *ends.server, &text)?;
        expect(&mut *ends.client, &Completion::Done { id: round as u64, kind: Kind::Send })?;
        ends.server.send(0, &text, Post::QUIET)?;
        message(&mut *ends.client, &text)?;
        bytes += 2 * len;
    }
    Ok(format!("70 messages of 1 to 4096 bytes, {bytes} bytes compared"))
}

fn probe(ends: &mut Ends) -> Result<String> {
    for id in 0..5 {
        ends.client.probe(100 + id)?;
        // In order: operations posted before it are done, too.
        ends.client.send(id, b"after a probe", Post::PLAIN)?;
        message(&mut *ends.server, b"after a probe")?;
        expect(&mut *ends.client, &Completion::Done { id, kind: Kind::Send })?;
    }
    Ok("5 WRITEs of no bytes harm nothing".to_owned())
}

fn writes(ends: &mut Ends) -> Result<String> {
    let source = Buffer::patterned(&*ends.server_domain, 1 << 20, Access::READ)?;
    let mut bytes = 0;
    for (len, offset) in [(1, 1), (63, 7), (4096, 4096), (65_537, 4095), (1 << 20, 13)] {
        let access = Access::WRITE | Access::REMOTE_WRITE;
        let target = Buffer::new(&*ends.client_domain, len + 8192, access, GUARD)?;
        ends.write_and_tell(&source, len, target.at(offset))?;
        target.has(offset, &source.bytes()[..len])?;
        bytes += target.bytes().len();
    }
    Ok(format!("5 RDMA WRITEs of 1 byte to 1 MiB at odd addresses, {bytes} bytes with guards compared"))
}

fn reads(ends: &mut Ends) -> Result<String> {
    let source = Buffer::patterned(&*ends.client_domain, 1 << 20, Access::REMOTE_READ)?;
    let mut bytes = 0;
    for (len, offset) in [(1, 3), (4096, 4095), (65_537, 5), (1 << 19, 1 << 19)] {
        let target = Buffer::new(&*ends.server_domain, len + 64, Access::WRITE, GUARD)?;
        ends.server.read(7, target.region.range(32, len)?, source.at(offset), Post::PLAIN)?;
        expect(&mut *ends.server, &Completion::Done { id: 7, kind: Kind::Read })?;
        target.has(32, &source.bytes()[offset..offset + len])?;
        bytes += target.bytes().len();
    }
    Ok(format!("4 RDMA READs of 1 byte to 512 KiB, {bytes} bytes with guards compared"))
}

/// Armed, the descriptor becomes readable with the next message, and not before.
fn descriptor(ends: &mut Ends) -> Result<String> {
    use std::os::fd::AsRawFd;
    let readable = |connection: &dyn Connection, milliseconds| {
        let mut poll =
            libc::pollfd { fd: connection.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
    };
    ends.client.arm()?;
    if readable(&*ends.client, 50) {
        return Err(wrong("readable without a reason"));
    }
    ends.server.send(1, b"wake", Post::QUIET)?;
    if !readable(&*ends.client, 10_000) {
        return Err(wrong("not readable with a message there"));
    }
    message(&mut *ends.client, b"wake")?;
    Ok("silent before a message, readable with it".to_owned())
}

/// A window for `len` bytes at `offset`; none where the device has no windows.
fn bound(
    ends: &mut Ends,
    target: &Buffer,
    (offset, len): (usize, usize),
) -> Result<Option<(forebay_verbs::Window, Remote)>> {
    let mut window = match ends.client_domain.window() {
        Err(error) if Why::of(&error) == Some(Why::Unsupported) => return Ok(None),
        window => window?,
    };
    let range = target.region.range(offset, len)?;
    ends.client.bind(5, &mut window, range, Access::REMOTE_WRITE, Post::PLAIN)?;
    expect(&mut *ends.client, &Completion::Done { id: 5, kind: Kind::Bind })?;
    let remote = Remote { key: window.key(), address: range.address };
    Ok(Some((window, remote)))
}

const NO_WINDOWS: &str = "the device has no windows";

fn windowed(ends: &Ends) -> Result<Buffer> {
    Buffer::new(&*ends.client_domain, 16384, Access::WRITE | Access::BIND, GUARD)
}

fn window(ends: &mut Ends) -> Result<String> {
    let target = windowed(ends)?;
    let source = Buffer::patterned(&*ends.server_domain, 4096, Access::READ)?;
    let Some((mut window, first)) = bound(ends, &target, (1000, 4096))? else {
        return Ok(NO_WINDOWS.to_owned());
    };
    ends.write_and_tell(&source, 4096, first)?;
    target.has(1000, source.bytes())?;
    for round in 0..10 {
        ends.client.invalidate(6, &mut window, Post::PLAIN)?;
        expect(&mut *ends.client, &Completion::Done { id: 6, kind: Kind::Invalidate })?;
        let before = window.key();
        let range = target.region.range(1000 + round, 100)?;
        ends.client.bind(7, &mut window, range, Access::REMOTE_WRITE, Post::PLAIN)?;
        expect(&mut *ends.client, &Completion::Done { id: 7, kind: Kind::Bind })?;
        if window.key() == before {
            return Err(wrong("a window has its old key"));
        }
        let to = Remote { key: window.key(), address: range.address };
        ends.write_and_tell(&source, 100, to)?;
        same(&target.bytes()[1000 + round..1100 + round], &source.bytes()[..100])?;
    }
    Ok("bound 11 times to a region without remote rights, each with a new key; 5096 bytes compared"
        .to_owned())
}

fn window_invalidated(ends: &mut Ends) -> Result<String> {
    let target = windowed(ends)?;
    let Some((mut window, remote)) = bound(ends, &target, (1000, 4096))? else {
        return Ok(NO_WINDOWS.to_owned());
    };
    ends.client.invalidate(6, &mut window, Post::PLAIN)?;
    expect(&mut *ends.client, &Completion::Done { id: 6, kind: Kind::Invalidate })?;
    let failures = ends.write_refused(4096, remote)?;
    target.has(0, &[])?;
    window.release()?;
    Ok(format!("a WRITE by its key is refused {failures:?}, 16384 bytes unchanged"))
}

/// Soft RoCE does not enforce them: whether the device does is said, not judged.
fn window_bounds(ends: &mut Ends) -> Result<String> {
    let target = windowed(ends)?;
    let Some((_window, remote)) = bound(ends, &target, (0, 4096))? else { return Ok(NO_WINDOWS.to_owned()) };
    let source = Buffer::new(&*ends.server_domain, 8192, Access::READ, 0x77)?;
    ends.server.write(1, source.region.range(0, 8192)?, remote, Post::PLAIN)?;
    match next(&mut *ends.server)? {
        Completion::Done { .. } => Ok("NOT enforced by this device".to_owned()),
        Completion::Failed { why, .. } => {
            target.has(0, &[])?;
            Ok(format!("a WRITE beyond them is refused [{why:?}], 16384 bytes unchanged"))
        }
        other @ Completion::Received(_) => Err(wrong(&format!("{other:?} came"))),
    }
}

fn invalidated_by_message(ends: &mut Ends) -> Result<String> {
    let target = windowed(ends)?;
    let Some((mut window, remote)) = bound(ends, &target, (0, 4096))? else {
        return Ok(NO_WINDOWS.to_owned());
    };
    ends.server.send(1, b"over", Post { invalidate: Some(remote.key), ..Post::PLAIN })?;
    let Completion::Received(message) = next(&mut *ends.client)? else {
        return Err(wrong("no message came"));
    };
    same(ends.client.bytes(&message)?, b"over")?;
    window.set_invalid();
    let said = message.invalidated();
    ends.client.post_receive(message)?;
    expect(&mut *ends.server, &Completion::Done { id: 1, kind: Kind::Send })?;
    let failures = ends.write_refused(4096, remote)?;
    target.has(0, &[])?;
    let told = if said == Some(remote.key) {
        "the message names the key"
    } else {
        "the message does not name the key"
    };
    Ok(format!("{told}; a WRITE by it is refused {failures:?}, 16384 bytes unchanged"))
}

fn deregistered(ends: &mut Ends) -> Result<String> {
    let Buffer { region, bytes } =
        Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let to = Remote { key: region.remote_key(), address: region.memory().start };
    region.release()?;
    let failures = ends.write_refused(4096, to)?;
    same(std::hint::black_box(&bytes), &[GUARD; 8192])?;
    Ok(format!("a WRITE by its key is refused {failures:?}, 8192 bytes unchanged"))
}

fn rights(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_READ, GUARD)?;
    let failures = ends.write_refused(4096, target.at(0))?;
    target.has(0, &[])?;
    Ok(format!("a WRITE to a read-only grant is refused {failures:?}, 8192 bytes unchanged"))
}

fn bounds(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let failures = ends.write_refused(4096, target.at(8192 - 4095))?;
    // Soft devices and iWARP place what comes before the bound is met.
    let changed = target.bytes().iter().filter(|byte| **byte != GUARD).count();
    Ok(format!("a WRITE one byte beyond the region is refused {failures:?}, {changed} bytes of it placed"))
}

/// A dma-buf of the kernel's over a memfd; for the double the memfd itself.
fn dma_buf(ends: &mut Ends) -> Result<String> {
    use std::os::fd::AsFd;
    const LEN: usize = 65_536;
    let file = memory_file(LEN)?;
    let is_double = ends.client_domain.device().name.starts_with("fake");
    let buffer = if is_double { file.try_clone().ok() } else { udmabuf(&file, LEN as u64) };
    let Some(buffer) = buffer else { return Ok("this user has no /dev/udmabuf".to_owned()) };
    let memory =
        Memory::DmaBuf { fd: buffer.as_fd(), offset: 4096, range: DeviceRange::new(0x10_0000_1000, 8192) };
    // SAFETY: no memory that this process uses but through the file.
    let region = match unsafe { ends.client_domain.register(memory, Access::WRITE | Access::REMOTE_WRITE) } {
        Err(error) if Why::of(&error) == Some(Why::Unsupported) => return Ok(format!("{error}")),
        region => region?,
    };
    let source = Buffer::patterned(&*ends.server_domain, 4096, Access::READ)?;
    let to = Remote { key: region.remote_key(), address: region.memory().start + 100 };
    ends.write_and_tell(&source, 4096, to)?;
    region.release()?;
    let mut bytes = vec![0; LEN];
    let read = std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0);
    read.map_err(|error| Error::from_io(&error, "cannot read the memfd"))?;
    same(&bytes[4196..8292], source.bytes())?;
    same(&bytes[..4196], &[0; 4196])?;
    Ok(format!("an RDMA WRITE into it, {LEN} bytes compared"))
}

fn memory_file(len: usize) -> Result<std::fs::File> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: a new descriptor, which is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"verbs_loop".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(Error::last_os("cannot make a memfd"));
        }
        std::fs::File::from_raw_fd(fd)
    };
    file.set_len(len as u64).map_err(|error| Error::from_io(&error, "cannot size a memfd"))?;
    // SAFETY: no pointers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    Ok(file)
}

/// A dma-buf of these pages.
fn udmabuf(file: &std::fs::File, len: u64) -> Option<std::fs::File> {
    use std::os::fd::{AsRawFd, FromRawFd};
    /// `UDMABUF_CREATE` with its argument.
    const CREATE: libc::c_ulong = 0x4018_7542;
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/udmabuf").ok()?;
    let create = Create { memfd: file.as_raw_fd() as u32, flags: 0, offset: 0, size: len };
    // SAFETY: the argument lives during the call; the answer is a new descriptor.
    unsafe {
        let fd = libc::ioctl(device.as_raw_fd(), CREATE, &raw const create);
        (fd >= 0).then(|| std::fs::File::from_raw_fd(fd))
    }
}

/// A forked child that drops all it has from its parent takes nothing away.
fn forked(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let source = Buffer::patterned(&*ends.server_domain, 4096, Access::READ)?;
    // SAFETY: the child drops what is here, and leaves without running anything else.
    unsafe {
        match libc::fork() {
            0 => {
                std::ptr::drop_in_place(&raw mut *ends);
                drop(std::ptr::read(&raw const target));
                libc::_exit(0);
            }
            child if child > 0 => {
                let mut status = 0;
                libc::waitpid(child, &raw mut status, 0);
                if status != 0 {
                    return Err(wrong("the forked child failed"));
                }
            }
            _ => return Err(Error::last_os("cannot fork")),
        }
    }
    ends.write_and_tell(&source, 4096, target.at(1000))?;
    target.has(1000, source.bytes())?;
    Ok("the parent's connection and memory outlive a child that drops them, 8192 bytes compared".to_owned())
}

fn other_domain(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.other_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let failures = ends.write_refused(4096, target.at(0))?;
    target.has(0, &[])?;
    Ok(format!("a WRITE to memory of another domain is refused {failures:?}, 8192 bytes unchanged"))
}

fn no_receive(ends: &mut Ends) -> Result<String> {
    if ends.is_iwarp() {
        return Ok("iWARP leaves it to the flow control of TCP".to_owned());
    }
    for id in 0..9 {
        ends.server.send(id, b"many", Post::PLAIN)?;
    }
    let (_, failures) = ending(&mut *ends.server)?;
    if failures.first() != Some(&Failure::ReceiverNotReady) {
        return Err(wrong(&format!("{failures:?}, no receiver that is not ready")));
    }
    Ok(format!("the ninth message for eight receives fails {failures:?}"))
}

fn message_too_long(ends: &mut Ends) -> Result<String> {
    match ends.server.send(2, &[1; 4097], Post::PLAIN) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            ends.server.send(3, b"next", Post::QUIET)?;
            message(&mut *ends.client, b"next")?;
            Ok("a message beyond send_size is not posted, and nothing breaks".to_owned())
        }
        other => Err(wrong(&format!("{other:?}"))),
    }
}

fn disconnected(ends: &mut Ends) -> Result<String> {
    ends.server.disconnect();
    let (_, failures) = ending(&mut *ends.client)?;
    if ends.client.down() != Some(Down::Disconnected) || !failures.is_empty() {
        return Err(wrong(&format!("the peer is {:?}", ends.client.down())));
    }
    match ends.client.send(1, b"more", Post::PLAIN) {
        Err(error) if Why::of(&error) == Some(Why::Down) => {
            Ok("the peer learns of it, and posts nothing more".to_owned())
        }
        other => Err(wrong(&format!("{other:?}"))),
    }
}

fn full_queue(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.client_domain, 64, Access::WRITE | Access::REMOTE_WRITE, 0)?;
    let source = Buffer::new(&*ends.server_domain, 64, Access::READ, 1)?;
    for id in 0..16 {
        ends.server.write(id, source.region.range(0, 64)?, target.at(0), Post::PLAIN)?;
    }
    match ends.server.write(16, source.region.range(0, 64)?, target.at(0), Post::PLAIN) {
        Err(error) if Why::of(&error) == Some(Why::QueueFull) => {}
        other => return Err(wrong(&format!("{other:?}"))),
    }
    for id in 0..16 {
        expect(&mut *ends.server, &Completion::Done { id, kind: Kind::Write })?;
    }
    for id in 0..1000 {
        if let Err(error) = ends.server.write(id, source.region.range(0, 64)?, target.at(0), Post::QUIET) {
            if Why::of(&error) != Some(Why::QueueFull) {
                return Err(error);
            }
            // Quiet ones leave the queue when it is polled.
            let mut out = Vec::new();
            while ends.server.write(id, source.region.range(0, 64)?, target.at(0), Post::QUIET).is_err() {
                ends.server.poll(&mut out)?;
            }
            if !out.is_empty() {
                return Err(wrong("a quiet operation has completed"));
            }
        }
    }
    Ok("the 17th of 16 is refused; 1000 quiet WRITEs without a completion".to_owned())
}

fn no_listener(fabric: &dyn Fabric, at: SocketAddr) -> Result<String> {
    let to = SocketAddr::new(at.ip(), 9);
    let domain = fabric.open(&Route::to(to).from(at.ip()))?;
    match domain.connect(to, &options("client")) {
        Err(error) if Why::of(&error) == Some(Why::Rejected) => Ok(error.to_string()),
        other => Err(wrong(&format!("{other:?}"))),
    }
}

fn rejected(fabric: &dyn Fabric, at: SocketAddr) -> Result<String> {
    let mut listener = fabric.listen(at)?;
    let to = listener.address();
    let rejecting = std::thread::spawn(move || match listener.next(LONG)? {
        Some(incoming) => incoming.reject(),
        None => Err(wrong("no peer came")),
    });
    let domain = fabric.open(&Route::to(to).from(at.ip()))?;
    let said = domain.connect(to, &options("client"));
    rejecting.join().map_err(|_| wrong("the server panicked"))??;
    match said {
        Err(error) if Why::of(&error) == Some(Why::Rejected) => Ok("the peer's no arrives".to_owned()),
        other => Err(wrong(&format!("{other:?}"))),
    }
}
