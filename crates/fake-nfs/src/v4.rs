//! Version 4: compounds, without opens; sessions from 4.1 on.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use crate::calling::{Calling, Refused, Results, arguments};
use crate::files::Files;
use crate::words::{In, Out};
use crate::{Asked, Fault, lock, make};

const STALE: u32 = 70;
const NO_ENTRY: u32 = 2;

/// Clients and their sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) next: u64,
    clients: HashMap<u64, u32>,
    /// Clients that have a session, by what they say of themselves: verifier and owner.
    known: HashMap<Vec<u8>, u64>,
    slots: HashMap<[u8; 16], Vec<u32>>,
    /// Bytes of a call, and of a reply, and operations that each takes.
    granted: HashMap<[u8; 16], (u64, u32)>,
    /// Connections that sessions know.
    bound: HashSet<([u8; 16], u64)>,
    /// Stateids of files that are open.
    pub(crate) opens: HashSet<[u8; 16]>,
    /// Clients of version 4.0, by what they say of themselves.
    pub(crate) clients40: HashMap<Vec<u8>, make::Client40>,
    /// Of each owner of 4.0, by the stateid of its open: the number of its last call, its status, and what else was answered.
    pub(crate) last40: HashMap<[u8; 16], (u32, u32, Vec<u8>)>,
}

impl Sessions {
    pub(crate) fn forget(&mut self) {
        self.clients.clear();
        self.known.clear();
        self.slots.clear();
        self.bound.clear();
        self.opens.clear();
        self.clients40.clear();
        self.last40.clear();
    }

    pub(crate) fn count(&self) -> (usize, usize) {
        (self.slots.len(), self.clients.len())
    }
}

pub(crate) fn call(calling: &mut Calling<'_>, procedure: u32, from: &mut In<'_>, most: u32) -> Results {
    match procedure {
        0 => return Ok(Out::default()),
        1 => {}
        _ => return Err(Refused::NoProcedure),
    }
    let tag = arguments(from.bytes())?;
    let (minor, count) = (arguments(from.word())?, arguments(from.word())?);
    if minor > most {
        return Ok(Out::default().word(10021).bytes(tag).word(0));
    }
    let mut compound = Compound {
        current: Vec::new(),
        saved: Vec::new(),
        minor,
        count,
        is_first: true,
        is_placed: false,
        most: u64::MAX,
        has_read: false,
    };
    let (mut results, mut done, mut status) = (Out::default(), 0, 0);
    for _ in 0..count {
        let op = arguments(from.word())?;
        let (found, body) = compound.run(calling, op, from)?;
        compound.is_first = false;
        results = results.words(&[op, found]).raw(&body.0);
        (status, done) = (found, done + 1);
        if status != 0 {
            break;
        }
    }
    Ok(Out::default().word(status).bytes(tag).word(done).raw(&results.0))
}

struct Compound {
    current: Vec<u8>,
    saved: Vec<u8>,
    minor: u32,
    /// Its operations.
    count: u32,
    is_first: bool,
    is_placed: bool,
    /// Bytes of a call that its session takes.
    most: u64,
    has_read: bool,
}

type Done = Result<(u32, Out), Refused>;

impl Compound {
    fn run(&mut self, calling: &mut Calling<'_>, op: u32, from: &mut In<'_>) -> Done {
        let outside = [41, 42, 43, 44, 57].contains(&op);
        if self.minor > 0 && !self.is_placed && !outside && op != 53 {
            return Ok((10071, Out::default()));
        }
        match op {
            41 => bind(calling, from),
            42 => exchange(calling, from),
            43 => create(calling, from),
            44 => destroy(calling, from),
            53 => self.sequence(calling, from),
            57 => {
                let client = arguments(from.long())?;
                let known = lock(&calling.shared.sessions).clients.remove(&client);
                Ok((if known.is_some() { 0 } else { 10022 }, Out::default()))
            }
            58 => {
                arguments(from.word())?;
                Ok((0, Out::default()))
            }
            5 => self.commit(calling, from),
            9 => self.getattr(calling, from),
            10 => Ok((0, Out::default().bytes(&self.current))),
            15 => {
                let name = String::from_utf8_lossy(arguments(from.bytes())?).into_owned();
                if let Some(status) = calling.asks(&self.current, Asked::Open, 0, 0) {
                    return Ok((status, Out::default()));
                }
                let path = Files::directory(&self.current).map(|directory| format!("{directory}/{name}"));
                let found = path.and_then(|path| lock(&calling.shared.files).handle(&path));
                Ok((if found.is_some() { 0 } else { NO_ENTRY }, {
                    self.current = found.unwrap_or_default();
                    Out::default()
                }))
            }
            22 => {
                self.current = arguments(from.bytes())?.to_vec();
                Ok((0, Out::default()))
            }
            24 => {
                let root = lock(&calling.shared.files).handle("/");
                self.current = root.unwrap_or_default();
                Ok((0, Out::default()))
            }
            25 => self.read(calling, from),
            26 => self.read_dir(calling, from),
            38 => self.write(calling, from),
            32 => {
                self.saved.clone_from(&self.current);
                Ok((0, Out::default()))
            }
            _ => make::operate(calling, (self.minor, op), (&self.current, &self.saved), from),
        }
    }

    fn sequence(&mut self, calling: &Calling<'_>, from: &mut In<'_>) -> Done {
        let session: [u8; 16] = arguments(from.raw(16))?.try_into().map_err(|_| Refused::Arguments)?;
        let (number, slot) = (arguments(from.word())?, arguments(from.word())?);
        arguments(from.raw(8))?;
        if let Some(status) = calling.shared.refused_place() {
            return Ok((status, Out::default()));
        }
        let mut sessions = lock(&calling.shared.sessions);
        let Some(slots) = sessions.slots.get_mut(&session) else { return Ok((10052, Out::default())) };
        let highest = slots.len() as u32 - 1;
        let Some(last) = slots.get_mut(slot as usize).filter(|_| self.is_first) else {
            calling.shared.wrong_slots.fetch_add(1, Ordering::Relaxed);
            return Ok((10053, Out::default()));
        };
        // A call that is sent again is carried out again: all that clients of this server send may be.
        if number != *last && number != last.wrapping_add(1) {
            calling.shared.wrong_slots.fetch_add(1, Ordering::Relaxed);
            return Ok((10063, Out::default()));
        }
        *last = number;
        sessions.bound.insert((session, calling.connection));
        self.is_placed = true;
        let (most, operations) = sessions.granted.get(&session).copied().unwrap_or((u64::MAX, u32::MAX));
        if self.count > operations {
            const TOO_MANY_OPERATIONS: u32 = 10070;
            return Ok((TOO_MANY_OPERATIONS, Out::default()));
        }
        self.most = most;
        Ok((0, Out::default().raw(&session).words(&[number, slot, highest, highest, 0])))
    }

    fn getattr(&mut self, calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
        let words = arguments(from.word())?;
        let mut wanted = [0u32; 3];
        for index in 0..words as usize {
            *arguments(wanted.get_mut(index))? = arguments(from.word())?;
        }
        if self.has_read && calling.shared.hides_states.load(Ordering::Relaxed) {
            const NOT_SUPPORTED: u32 = 10004;
            return Ok((NOT_SUPPORTED, Out::default()));
        }
        let one_less = |left: u64| left.checked_sub(1);
        let delayed = &calling.shared.delayed_states;
        if self.has_read && delayed.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            const DELAY: u32 = 10008;
            return Ok((DELAY, Out::default()));
        }
        // What goes wrong with a READ before it goes wrong with the reply as a whole.
        if !self.has_read
            && let Some(status) = calling.asks(&self.current, Asked::Other, 0, 0)
        {
            return Ok((status, Out::default()));
        }
        let most = calling.shared.most();
        let mut files = lock(&calling.shared.files);
        let name = |id: u32| Out::default().bytes(id.to_string().as_bytes());
        let acl = files.file(&self.current).and_then(|file| file.acl.clone());
        if acl.is_none() {
            wanted[0] &= !(1 << 12);
        }
        let ((kind, id, size, changes), (mode, owner, group)) = match files.file(&self.current) {
            Some(file) => {
                ((1, file.id, file.len() as u64, file.changes()), (file.mode, file.owner, file.group))
            }
            None if Files::directory(&self.current).is_some() => ((2, 1, 4096, 1), (0o755, 0, 0)),
            None => return Ok((STALE, Out::default())),
        };
        let all = [
            (1, Out::default().word(kind)),
            (3, Out::default().long(changes)),
            (4, Out::default().long(size)),
            (8, Out::default().long(1).long(1)),
            (12, Out::default().raw(&acl.unwrap_or_default())),
            (20, Out::default().long(id)),
            (30, Out::default().long(most)),
            (31, Out::default().long(most)),
            (33, Out::default().word(mode)),
            (36, name(owner)),
            (37, name(group)),
            (53, Out::default().long(1000).word(changes as u32)),
        ];
        let is_wanted = |bit: usize| wanted[bit / 32] & 1 << (bit % 32) != 0;
        let values = all.into_iter().filter(|(bit, _)| is_wanted(*bit));
        let values = values.fold(Out::default(), |out, (_, value)| out.raw(&value.0));
        Ok((0, Out::default().words(&[2, wanted[0], wanted[1]]).bytes(&values.0)))
    }

    fn read_dir(&mut self, calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
        let (cookie, _verifier) = (arguments(from.long())?, arguments(from.long())?);
        let (_names, room) = (arguments(from.word())?, arguments(from.word())?);
        // The type, or why it is unknown.
        if [arguments(from.word())?, arguments(from.word())?] != [1, 1 << 1 | 1 << 11] {
            return Err(Refused::Arguments);
        }
        if let Some(status) = calling.asks(&self.current, Asked::Names, cookie, room) {
            return Ok((status, Out::default()));
        }
        let files = lock(&calling.shared.files);
        if let Some(Fault::Names(names)) = &calling.fault {
            let entry = |out: Out, (name, cookie): &(&str, u64)| {
                out.word(1).long(*cookie).bytes(name.as_bytes()).words(&[0, 0])
            };
            let out = Out::default().raw(&files.verifier());
            return Ok((0, names.iter().fold(out, entry).words(&[0, 0])));
        }
        let Some(directory) = Files::directory(&self.current) else { return Ok((20, Out::default())) };
        // Cookies 0 to 2 are reserved.
        let first = cookie.saturating_sub(2);
        let (mut out, mut at) = (Out::default().raw(&files.verifier()), first);
        for (name, handle) in files.names(directory, first) {
            let kind = if Files::directory(&handle).is_some() { 2 } else { 1 };
            let entry = Out::default().word(1).long(at + 3).bytes(name.as_bytes());
            let entry = entry.words(&[1, 1 << 1]).bytes(&Out::default().word(kind).0);
            if out.0.len() + entry.0.len() + 8 > room as usize {
                break;
            }
            (out, at) = (out.raw(&entry.0), at + 1);
        }
        let is_end = files.names(directory, at).is_empty();
        if at == first && !is_end {
            const TOO_SMALL: u32 = 10005;
            return Ok((TOO_SMALL, Out::default()));
        }
        Ok((0, out.words(&[0, is_end.into()])))
    }

    fn read(&mut self, calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
        self.has_read = true;
        let state = arguments(from.raw(16))?;
        let (offset, count) = (arguments(from.long())?, arguments(from.word())?);
        if let Some(status) = calling.asks(&self.current, Asked::Read, offset, count) {
            return Ok((status, Out::default()));
        }
        if u64::from(count) > self.most {
            const REPLY_TOO_BIG: u32 = 10066;
            return Ok((REPLY_TOO_BIG, Out::default()));
        }
        if state != [0; 16] {
            return Ok((10025, Out::default()));
        }
        let mut files = lock(&calling.shared.files);
        let Some(file) = files.file(&self.current) else { return Ok((STALE, Out::default())) };
        let start = (offset as usize).min(file.len());
        let end = (start + calling.moved(count)).min(file.len());
        let is_end = end == file.len();
        calling.payload = end - start;
        Ok((0, Out::default().word(is_end.into()).bytes(&file.bytes(start..end))))
    }

    fn write(&mut self, calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
        arguments(from.raw(16))?;
        let (offset, stable) = (arguments(from.long())?, arguments(from.word())?);
        let bytes = arguments(from.bytes())?;
        let count = bytes.len() as u32;
        if let Some(status) = calling.asks(&self.current, Asked::Write, offset, count) {
            return Ok((status, Out::default()));
        }
        if u64::from(count) > self.most {
            const CALL_TOO_BIG: u32 = 10065;
            return Ok((CALL_TOO_BIG, Out::default()));
        }
        let taken = calling.moved(count);
        let mut files = lock(&calling.shared.files);
        let verifier = files.verifier();
        let Some(file) = files.file(&self.current) else { return Ok((STALE, Out::default())) };
        file.write(offset, &bytes[..taken], stable == 2);
        Ok((0, Out::default().words(&[taken as u32, stable]).raw(&verifier)))
    }

    fn commit(&mut self, calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
        let (offset, count) = (arguments(from.long())?, arguments(from.word())?);
        if let Some(status) = calling.asks(&self.current, Asked::Commit, offset, count) {
            return Ok((status, Out::default()));
        }
        let mut files = lock(&calling.shared.files);
        let verifier = files.verifier();
        let Some(file) = files.file(&self.current) else { return Ok((STALE, Out::default())) };
        file.commit();
        Ok((0, Out::default().raw(&verifier)))
    }
}

fn bind(calling: &Calling<'_>, from: &mut In<'_>) -> Done {
    let session: [u8; 16] = arguments(from.raw(16))?.try_into().map_err(|_| Refused::Arguments)?;
    let (direction, by_rdma) = (arguments(from.word())?, arguments(from.word())?);
    if (direction, by_rdma) != (1, 0) {
        return Err(Refused::Arguments);
    }
    let mut sessions = lock(&calling.shared.sessions);
    if !sessions.slots.contains_key(&session) {
        return Ok((10052, Out::default()));
    }
    sessions.bound.insert((session, calling.connection));
    Ok((0, Out::default().raw(&session).words(&[1, 0])))
}

fn exchange(calling: &Calling<'_>, from: &mut In<'_>) -> Done {
    let mut who = arguments(from.raw(8))?.to_vec();
    who.extend(arguments(from.bytes())?);
    let (_flags, protection, implementations) =
        (arguments(from.word())?, arguments(from.word())?, arguments(from.word())?);
    if (protection, implementations) != (0, 0) {
        return Err(Refused::Arguments);
    }
    let mut sessions = lock(&calling.shared.sessions);
    let (major, minor) = lock(&calling.shared.owner).clone();
    let known = sessions.known.get(&who).copied().filter(|client| sessions.clients.contains_key(client));
    let (client, flags) = if let Some(client) = known {
        (client, 0x8001_0000)
    } else {
        sessions.next += 1;
        let client = sessions.next;
        sessions.clients.insert(client, 1);
        sessions.known.insert(who, client);
        (client, 0x0001_0000)
    };
    let out = Out::default().long(client).words(&[1, flags, 0]).long(minor);
    Ok((0, out.bytes(&major).bytes(b"fake").word(0)))
}

fn create(calling: &Calling<'_>, from: &mut In<'_>) -> Done {
    let (client, number, _flags) =
        (arguments(from.long())?, arguments(from.word())?, arguments(from.word())?);
    let mut fore = [0; 7];
    for word in &mut fore {
        *word = arguments(from.word())?;
    }
    arguments(from.raw(28 + 12))?;
    let most = calling.shared.session_bytes.load(Ordering::Relaxed);
    for bytes in &mut fore[1..3] {
        *bytes = most.min((*bytes).into()) as u32;
    }
    fore[5] = u64::from(fore[5]).min(calling.shared.slots.load(Ordering::Relaxed)) as u32;
    let mut sessions = lock(&calling.shared.sessions);
    let Some(expected) = sessions.clients.get_mut(&client) else { return Ok((10022, Out::default())) };
    if *expected != number {
        return Ok((10063, Out::default()));
    }
    *expected += 1;
    sessions.next += 1;
    let mut id = [7; 16];
    id[..8].copy_from_slice(&sessions.next.to_be_bytes());
    sessions.slots.insert(id, vec![0; fore[5] as usize]);
    sessions.granted.insert(id, (most, fore[4]));
    sessions.bound.insert((id, calling.connection));
    let attributes = |out: Out| out.words(&[0, fore[1], fore[2], 0, fore[4], fore[5], 0]);
    let out = attributes(Out::default().raw(&id).words(&[number, 0]));
    Ok((0, out.words(&[0, 4096, 4096, 0, 2, 1, 0])))
}

fn destroy(calling: &mut Calling<'_>, from: &mut In<'_>) -> Done {
    const NOT_BOUND: u32 = 10055;
    let session: [u8; 16] = arguments(from.raw(16))?.try_into().map_err(|_| Refused::Arguments)?;
    if let Some(status) = calling.asks(&[], Asked::End, 0, 0) {
        return Ok((status, Out::default()));
    }
    let mut sessions = lock(&calling.shared.sessions);
    if !sessions.slots.contains_key(&session) {
        return Ok((10052, Out::default()));
    }
    if !sessions.bound.contains(&(session, calling.connection)) {
        return Ok((NOT_BOUND, Out::default()));
    }
    sessions.slots.remove(&session);
    Ok((0, Out::default()))
}
