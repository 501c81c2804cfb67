//! Version 3, mountd and the portmapper.

use std::sync::atomic::Ordering;

use crate::calling::{Calling, Refused, Results, arguments};
use crate::files::{File, Files};
use crate::words::{In, Out};
use crate::{Asked, Fault, lock, make};

const STALE: u32 = 70;
const NO_ENTRY: u32 = 2;
const NOT_DIRECTORY: u32 = 20;
const TOO_SMALL: u32 = 10005;

pub(crate) fn portmap(calling: &Calling<'_>, procedure: u32, from: &mut In<'_>) -> Results {
    match procedure {
        0 => Ok(Out::default()),
        3 => {
            let (program, _version) = (arguments(from.word())?, arguments(from.word())?);
            let is_ours = [100_003, 100_005].contains(&program);
            Ok(Out::default().word(if is_ours { calling.shared.port.into() } else { 0 }))
        }
        _ => Err(Refused::NoProcedure),
    }
}

/// Version 4 of the portmapper: the list of what there is.
pub(crate) fn rpcbind(calling: &mut Calling<'_>, procedure: u32) -> Results {
    if procedure != 4 {
        return if procedure == 0 { Ok(Out::default()) } else { Err(Refused::NoProcedure) };
    }
    if let Some(status) = calling.asks(&[], Asked::List, 0, 0) {
        return Ok(Out::default().word(status));
    }
    let entry = |out: Out, transport: &str, port: u16| {
        let address = format!("0.0.0.0.{}.{}", port >> 8, port & 255);
        let out = out.words(&[1, 100_003, 3]).bytes(transport.as_bytes());
        out.bytes(address.as_bytes()).bytes(b"superuser")
    };
    let mut out = entry(Out::default(), "tcp", calling.shared.port);
    if let Some(port) = *lock(&calling.shared.listed_rdma) {
        out = entry(out, "rdma", port);
    }
    Ok(out.word(0))
}

pub(crate) fn mount(calling: &mut Calling<'_>, procedure: u32, from: &mut In<'_>) -> Results {
    match procedure {
        0 => Ok(Out::default()),
        1 => {
            let path = String::from_utf8_lossy(arguments(from.bytes())?).into_owned();
            if let Some(status) = calling.asks(&[], Asked::Open, 0, 0) {
                return Ok(Out::default().word(status));
            }
            let handle = lock(&calling.shared.files).handle(&path);
            Ok(match handle.filter(|handle| Files::directory(handle).is_some()) {
                Some(handle) => Out::default().word(0).bytes(&handle).words(&[1, 1]),
                None => Out::default().word(NO_ENTRY),
            })
        }
        _ => Err(Refused::NoProcedure),
    }
}

fn attributes(out: Out, kind_and_rights: [u32; 5], id: u64, size: u64, changes: u64) -> Out {
    out.words(&kind_and_rights).long(size).long(size).words(&[0, 0]).long(1).long(id).words(&[
        0,
        0,
        1000,
        changes as u32,
        1000,
        changes as u32,
    ])
}

fn facts(out: Out, files: &mut Files, handle: &[u8]) -> Option<Out> {
    if Files::directory(handle).is_some() {
        return Some(attributes(out, [2, 0o755, 1, 0, 0], 1, 4096, 1));
    }
    Some(of_file(out, files.file(handle)?))
}

fn of_file(out: Out, file: &File) -> Out {
    let rights = [1, file.mode, 1, file.owner, file.group];
    attributes(out, rights, file.id, file.len() as u64, file.changes())
}

pub(crate) fn call(calling: &mut Calling<'_>, procedure: u32, from: &mut In<'_>) -> Results {
    if procedure == 0 {
        return Ok(Out::default());
    }
    let handle = arguments(from.bytes())?;
    match procedure {
        1 => {
            if let Some(status) = calling.asks(handle, Asked::Other, 0, 0) {
                return Ok(Out::default().word(status));
            }
            let found = facts(Out::default().word(0), &mut lock(&calling.shared.files), handle);
            Ok(found.unwrap_or_else(|| Out::default().word(STALE)))
        }
        3 => {
            let name = String::from_utf8_lossy(arguments(from.bytes())?).into_owned();
            if let Some(status) = calling.asks(handle, Asked::Open, 0, 0) {
                return Ok(Out::default().words(&[status, 0]));
            }
            let mut files = lock(&calling.shared.files);
            let path = Files::directory(handle).map(|directory| format!("{directory}/{name}"));
            let Some(found) = path.and_then(|path| files.handle(&path)) else {
                return Ok(Out::default().words(&[NO_ENTRY, 0]));
            };
            let out = Out::default().word(0).bytes(&found).word(1);
            Ok(facts(out, &mut files, &found).unwrap_or_default().word(0))
        }
        6 => read(calling, handle, from),
        7 => write(calling, handle, from),
        16 | 17 => read_dir(calling, handle, procedure == 17, from),
        19 => {
            let most = calling.shared.most() as u32;
            Ok(Out::default()
                .words(&[0, 0, most, most, 1, most, most, 1, 4096])
                .long(1 << 50)
                .words(&[0, 1, 0x1b]))
        }
        21 => commit(calling, handle, from),
        _ => make::call3(calling, procedure, handle, from),
    }
}

fn read_dir(calling: &mut Calling<'_>, handle: &[u8], is_plus: bool, from: &mut In<'_>) -> Results {
    let (cookie, _verifier) = (arguments(from.long())?, arguments(from.long())?);
    let room = arguments(from.word())?;
    let room = if is_plus { arguments(from.word())? } else { room } as usize;
    if let Some(status) = calling.asks(handle, Asked::Names, cookie, room as u32) {
        return Ok(Out::default().words(&[status, 0]));
    }
    let mut files = lock(&calling.shared.files);
    if let Some(Fault::Names(names)) = &calling.fault {
        let out = Out::default().words(&[0, 0]).raw(&files.verifier());
        let without_attributes = if is_plus { &[0, 0][..] } else { &[] };
        let entry = |out: Out, (name, cookie): &(&str, u64)| {
            out.word(1).long(7).bytes(name.as_bytes()).long(*cookie).words(without_attributes)
        };
        return Ok(names.iter().fold(out, entry).words(&[0, 0]));
    }
    let Some(directory) = Files::directory(handle) else {
        return Ok(Out::default().words(&[NOT_DIRECTORY, 0]));
    };
    // `.` and `..` come first, with the cookies 1 and 2.
    let dots = [".", ".."].map(|name| (name.to_owned(), handle.to_vec()));
    let names =
        dots.into_iter().skip(cookie as usize).chain(files.names(directory, cookie.saturating_sub(2)));
    let (mut out, mut at) = (Out::default().words(&[0, 0]).raw(&files.verifier()), cookie);
    for (name, handle) in names {
        let mut entry = Out::default().word(1).long(7).bytes(name.as_bytes()).long(at + 1);
        if is_plus {
            entry = facts(entry.word(1), &mut files, &handle).unwrap_or_default().word(1).bytes(&handle);
        }
        if out.0.len() + entry.0.len() + 8 > room {
            return Ok(if at == cookie { Out::default().words(&[TOO_SMALL, 0]) } else { out.words(&[0, 0]) });
        }
        (out, at) = (out.raw(&entry.0), at + 1);
    }
    let is_end = files.names(directory, at.saturating_sub(2)).is_empty();
    Ok(out.words(&[0, is_end.into()]))
}

fn read(calling: &mut Calling<'_>, handle: &[u8], from: &mut In<'_>) -> Results {
    let (offset, count) = (arguments(from.long())?, arguments(from.word())?);
    if let Some(status) = calling.asks(handle, Asked::Read, offset, count) {
        return Ok(Out::default().words(&[status, 0]));
    }
    let mut files = lock(&calling.shared.files);
    let Some(file) = files.file(handle) else { return Ok(Out::default().words(&[STALE, 0])) };
    let start = (offset as usize).min(file.len());
    let end = (start + calling.moved(count)).min(file.len());
    let is_end = end == file.len();
    calling.payload = end - start;
    let out = if calling.shared.hides_states.load(Ordering::Relaxed) {
        Out::default().words(&[0, 0])
    } else {
        of_file(Out::default().words(&[0, 1]), file)
    };
    Ok(out.words(&[(end - start) as u32, is_end.into()]).bytes(&file.bytes(start..end)))
}

fn write(calling: &mut Calling<'_>, handle: &[u8], from: &mut In<'_>) -> Results {
    let (offset, count) = (arguments(from.long())?, arguments(from.word())?);
    let (stable, bytes) = (arguments(from.word())?, arguments(from.bytes())?);
    if bytes.len() != count as usize || stable > 2 {
        return Err(Refused::Arguments);
    }
    if let Some(status) = calling.asks(handle, Asked::Write, offset, count) {
        return Ok(Out::default().words(&[status, 0, 0]));
    }
    let taken = calling.moved(count);
    let mut files = lock(&calling.shared.files);
    let verifier = files.verifier();
    let Some(file) = files.file(handle) else { return Ok(Out::default().words(&[STALE, 0, 0])) };
    file.write(offset, &bytes[..taken], stable == 2);
    Ok(Out::default().words(&[0, 0, 0, taken as u32, stable]).raw(&verifier))
}

fn commit(calling: &mut Calling<'_>, handle: &[u8], from: &mut In<'_>) -> Results {
    let (offset, count) = (arguments(from.long())?, arguments(from.word())?);
    if let Some(status) = calling.asks(handle, Asked::Commit, offset, count) {
        return Ok(Out::default().words(&[status, 0, 0]));
    }
    let mut files = lock(&calling.shared.files);
    let verifier = files.verifier();
    let Some(file) = files.file(handle) else { return Ok(Out::default().words(&[STALE, 0, 0])) };
    file.commit();
    Ok(Out::default().words(&[0, 0, 0]).raw(&verifier))
}
