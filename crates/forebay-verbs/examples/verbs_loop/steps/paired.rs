//! Ends that are paired in band: the steps of all connections, and those of their own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_verbs::{
    Access, Completion, Domain, Down, Fabric, Failure, Kind, Options, Post, QueueEnd, Route, Why,
};

use super::ends::{Buffer, Ends, GUARD, LONG, Tell, ending, expect, message, next, options, same, wrong};
use super::{STEPS, Step};

/// A link that a test leaves cut is given up within seconds.
fn impatient() -> Options {
    Options { retries: 1, ..options("") }
}

pub(super) fn all(fabric: &dyn Fabric, at: SocketAddr, say: &mut dyn FnMut(String)) -> Result<()> {
    let route = Route::to(SocketAddr::new(at.ip(), 9)).from(at.ip());
    let domain = fabric.open(&route)?;
    match domain.end(&impatient()) {
        Err(error) if Why::of(&error) == Some(Why::Unsupported) => {
            say(format!("paired: {error}"));
            return Ok(());
        }
        end => say(format!("paired: {}", own(&*domain, end?.own())?)),
    }
    let of_its_own: &[(&str, Step)] = &[
        ("immediate", immediate),
        ("no receive for an immediate", no_receive),
        ("dropped", dropped),
        ("flushed", flushed),
    ];
    for (name, step) in STEPS.iter().chain(of_its_own) {
        let ends = Ends::pair(fabric, at, &options(""), |_| {});
        let said = ends.and_then(|mut ends| step(&mut ends)).map_err(|error| error.with("step", name))?;
        say(format!("paired, {name}: {said}"));
    }
    for mtu in [256, 1024] {
        let small: Tell = if mtu == 256 { |end| end.mtu = 256 } else { |end| end.mtu = 1024 };
        let said = super::writes(&mut Ends::pair(fabric, at, &options(""), small)?)?;
        say(format!("paired, MTU {mtu}: {said}"));
    }
    let wrong: [(&str, Tell); 4] = [
        ("sequence number too low", |end| end.first = (end.first.wrapping_sub(0x40_0000) & 0xff_ffff) | 1),
        (TOO_HIGH, |end| end.first = ((end.first + 0x40_0000) & 0xff_ffff) | 1),
        ("wrong queue pair", |end| end.number ^= 0x8000),
        ("wrong GID", |end| end.gid[15] ^= 0x40),
    ];
    for (name, tell) in wrong {
        let said = unreached(fabric, at, tell, name == TOO_HIGH).map_err(|error| error.with("step", name))?;
        say(format!("paired, {name}: {said}"));
    }
    Ok(())
}

/// A device takes packets before the expected one for repeated ones, acknowledges them, and drops their bytes.
const TOO_HIGH: &str = "sequence number too high";

/// The own end is the device's on the route.
fn own(domain: &dyn Domain, own: QueueEnd) -> Result<String> {
    own.check()?;
    if domain.end(&impatient())?.own().first == own.first {
        return Err(wrong("two ends have one sequence number"));
    }
    Ok(format!("{}, port {}, MTU {}", own.address(), own.port, own.mtu))
}

fn immediate(ends: &mut Ends) -> Result<String> {
    let source = Buffer::patterned(&*ends.server_domain, 1 << 20, Access::READ)?;
    let mut bytes = 0;
    for (round, len) in [1, 4096, 65_537, 1 << 20].into_iter().enumerate() {
        let number = 0xcafe_0000 + round as u32;
        let access = Access::WRITE | Access::REMOTE_WRITE;
        let target = Buffer::new(&*ends.client_domain, len + 8192, access, GUARD)?;
        let to = target.at(13);
        ends.server.write_with_immediate(4, source.region.range(0, len)?, to, number, Post::PLAIN)?;
        let Completion::Received(message) = next(&mut *ends.client)? else {
            return Err(wrong("no message came"));
        };
        if (message.immediate(), message.len()) != (Some(number), 0) {
            return Err(wrong(&format!("{message:?} came for number {number:#x}")));
        }
        ends.client.post_receive(message)?;
        target.has(13, &source.bytes()[..len])?;
        expect(&mut *ends.server, &Completion::Done { id: 4, kind: Kind::Write })?;
        bytes += target.bytes().len();
    }
    ends.server.send(5, b"plain", Post::PLAIN)?;
    message(&mut *ends.client, b"plain")?;
    Ok(format!(
        "4 WRITEs of 1 byte to 1 MiB, each with its number behind it, {bytes} bytes with guards compared"
    ))
}

fn no_receive(ends: &mut Ends) -> Result<String> {
    let source = Buffer::new(&*ends.server_domain, 64, Access::READ, 1)?;
    let target = Buffer::new(&*ends.client_domain, 64, Access::WRITE | Access::REMOTE_WRITE, 0)?;
    for id in 0..9 {
        ends.server.write_with_immediate(id, source.region.range(0, 64)?, target.at(0), 1, Post::PLAIN)?;
    }
    let (_, failures) = ending(&mut *ends.server)?;
    if failures.first() != Some(&Failure::ReceiverNotReady) {
        return Err(wrong(&format!("{failures:?}, no receiver that is not ready")));
    }
    Ok(format!("the ninth for eight receives fails {failures:?}"))
}

/// A connection that was dropped takes nothing more, and its peer does not hear of it.
fn dropped(ends: &mut Ends) -> Result<String> {
    let target = Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let source = Buffer::new(&*ends.server_domain, 4096, Access::READ, 0x77)?;
    let spare = Ends::spare(&*ends.client_domain)?;
    drop(std::mem::replace(&mut ends.client, spare));
    ends.server.arm()?;
    if ends.server.down().is_some() {
        return Err(wrong("the peer has heard of it"));
    }
    let began = Instant::now();
    ends.server.write(1, source.region.range(0, 4096)?, target.at(0), Post::PLAIN)?;
    let (_, failures) = ending(&mut *ends.server)?;
    target.has(0, &[])?;
    if failures != [Failure::Unreachable] {
        return Err(wrong(&format!("{failures:?}, not unreachable")));
    }
    if began.elapsed() > Duration::from_secs(15) {
        return Err(wrong("that took more than 15 seconds"));
    }
    Ok(format!("the peer's WRITE fails {failures:?}, 8192 bytes unchanged"))
}

fn flushed(ends: &mut Ends) -> Result<String> {
    ends.client.disconnect();
    let mut out = Vec::with_capacity(64);
    let until = Instant::now() + LONG;
    while out.len() < 8 && Instant::now() < until {
        ends.client.wait(&mut out, Duration::from_millis(100))?;
        if out.is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let is_flushed = |one: &Completion| matches!(one, Completion::Failed { why: Failure::Flushed, .. });
    if out.len() != 8 || !out.iter().all(is_flushed) || ends.client.down() != Some(Down::Disconnected) {
        return Err(wrong(&format!("{out:?}, not 8 receives that were flushed")));
    }
    match ends.client.send(1, b"more", Post::PLAIN) {
        Err(error) if Why::of(&error) == Some(Why::Down) => {
            Ok("8 receives are flushed, and posts refused".to_owned())
        }
        other => Err(wrong(&format!("{other:?}"))),
    }
}

/// Each side has the other's end with a mistake in it: no byte arrives. A GID that no machine has is found out when they are paired.
fn unreached(fabric: &dyn Fabric, at: SocketAddr, tell: Tell, may_complete: bool) -> Result<String> {
    let mut ends = match Ends::pair(fabric, at, &impatient(), tell) {
        Err(error) if matches!(Why::of(&error), Some(Why::Unreachable | Why::NoRoute)) => {
            return Ok(format!("not paired: {error}"));
        }
        ends => ends?,
    };
    let target = Buffer::new(&*ends.client_domain, 8192, Access::WRITE | Access::REMOTE_WRITE, GUARD)?;
    let source = Buffer::new(&*ends.server_domain, 4096, Access::READ, 0x77)?;
    ends.server.write(1, source.region.range(0, 4096)?, target.at(0), Post::PLAIN)?;
    let ended = next(&mut *ends.server)?;
    same(target.bytes(), &[GUARD; 8192])?;
    match ended {
        Completion::Failed { why: Failure::Unreachable, .. } => {
            Ok("a WRITE fails [Unreachable], 8192 bytes unchanged".to_owned())
        }
        Completion::Done { .. } if may_complete => Ok("a WRITE completes, 8192 bytes unchanged".to_owned()),
        other => Err(wrong(&format!("{other:?}, not unreachable"))),
    }
}
