//! Calls that make, rename and remove files, and say who may use them: of version 3, and the operations of version 4.

use crate::calling::{Calling, Refused, Results, arguments};
use crate::files::{Files, Made};
use crate::words::{In, Out};
use crate::{Asked, lock};

const NOT_PERMITTED: u32 = 1;
const NO_ENTRY: u32 = 2;
const EXISTS: u32 = 17;
const STALE: u32 = 70;
const MODIFY: u32 = 4;

/// A path below the folder of a handle.
pub(crate) fn below(folder: &[u8], name: &[u8]) -> Option<String> {
    Files::directory(folder).map(|folder| format!("{folder}/{}", String::from_utf8_lossy(name)))
}

/// What SETATTR sets: mode, owner and group.
type Rights = [Option<u32>; 3];

/// Makes a file; a status if that fails.
fn create(calling: &mut Calling<'_>, folder: &[u8], name: &[u8], mode: u32) -> u32 {
    if let Some(status) = calling.asks(folder, Asked::Make, 0, 0) {
        return status;
    }
    let user = calling.user.unwrap_or(65534);
    let Some(path) = below(folder, name) else { return STALE };
    match lock(&calling.shared.files).make(&path, mode, user) {
        Made::New => 0,
        Made::There => EXISTS,
    }
}

fn rename(calling: &mut Calling<'_>, (old, name): (&[u8], &[u8]), (new, other): (&[u8], &[u8])) -> u32 {
    if let Some(status) = calling.asks(old, Asked::Rename, 0, 0) {
        return status;
    }
    let (Some(from), Some(to)) = (below(old, name), below(new, other)) else { return STALE };
    if lock(&calling.shared.files).rename(&from, &to) { 0 } else { NO_ENTRY }
}

fn remove(calling: &mut Calling<'_>, folder: &[u8], name: &[u8]) -> u32 {
    if let Some(status) = calling.asks(folder, Asked::Remove, 0, 0) {
        return status;
    }
    let Some(path) = below(folder, name) else { return STALE };
    if lock(&calling.shared.files).remove(&path) { 0 } else { NO_ENTRY }
}

/// Nobody gives files away.
fn set(calling: &mut Calling<'_>, handle: &[u8], [mode, owner, group]: Rights) -> u32 {
    if let Some(status) = calling.asks(handle, Asked::Other, 0, 0) {
        return status;
    }
    let mut files = lock(&calling.shared.files);
    let Some(file) = files.file(handle) else { return STALE };
    if owner.is_some_and(|owner| owner != file.owner) || group.is_some_and(|group| group != file.group) {
        return NOT_PERMITTED;
    }
    file.mode = mode.unwrap_or(file.mode);
    0
}

/// Which of the rights asked for the file's mode gives its owner.
fn allowed(calling: &Calling<'_>, handle: &[u8], asked: u32) -> Option<u32> {
    let mode = lock(&calling.shared.files).file(handle)?.mode;
    Some(if mode & 0o200 == 0 { asked & !MODIFY } else { asked })
}

// ---- version 3 --------------------------------------------------------------------------------------------------

fn rights3(from: &mut In<'_>) -> Option<Rights> {
    let mut rights = [None; 3];
    for right in &mut rights {
        if from.word()? == 1 {
            *right = Some(from.word()?);
        }
    }
    // Neither size nor times.
    (from.word()?, from.word()?, from.word()?).eq(&(0, 0, 0)).then_some(rights)
}

pub(crate) fn call3(calling: &mut Calling<'_>, procedure: u32, handle: &[u8], from: &mut In<'_>) -> Results {
    Ok(match procedure {
        2 => {
            let (rights, guard) = (arguments(rights3(from))?, arguments(from.word())?);
            if guard != 0 {
                return Err(Refused::Arguments);
            }
            Out::default().words(&[set(calling, handle, rights), 0, 0])
        }
        4 => {
            let asked = arguments(from.word())?;
            match allowed(calling, handle, asked) {
                Some(allowed) => Out::default().words(&[0, 0, allowed]),
                None => Out::default().words(&[STALE, 0]),
            }
        }
        8 => {
            let (name, how) = (arguments(from.bytes())?, arguments(from.word())?);
            let [mode, None, None] = arguments(rights3(from))? else { return Err(Refused::Arguments) };
            if how != 1 {
                return Err(Refused::Arguments);
            }
            match create(calling, handle, name, arguments(mode)?) {
                // The client has to look the handle up.
                0 => Out::default().words(&[0, 0, 0, 0, 0]),
                status => Out::default().words(&[status, 0, 0]),
            }
        }
        12 => {
            let name = arguments(from.bytes())?;
            Out::default().words(&[remove(calling, handle, name), 0, 0])
        }
        14 => {
            let (name, new, other) =
                (arguments(from.bytes())?, arguments(from.bytes())?, arguments(from.bytes())?);
            Out::default().words(&[rename(calling, (handle, name), (new, other)), 0, 0, 0, 0])
        }
        _ => return Err(Refused::NoProcedure),
    })
}

// ---- version 4 --------------------------------------------------------------------------------------------------

fn rights4(from: &mut In<'_>) -> Option<Rights> {
    let (words, low, high) = (from.word()?, from.word()?, from.word()?);
    let mut values = In(from.bytes()?);
    let mut rights = [None; 3];
    if high & 1 << 1 != 0 {
        rights[0] = Some(values.word()?);
    }
    for (bit, right) in [(4, 1), (5, 2)] {
        if high & 1 << bit != 0 {
            rights[right] = std::str::from_utf8(values.bytes()?).ok()?.parse().ok();
        }
    }
    (words == 2 && low == 0 && values.0.is_empty()).then_some(rights)
}

fn set_acl(calling: &Calling<'_>, handle: &[u8], from: &mut In<'_>) -> Option<u32> {
    const INVALID: u32 = 22;
    let (words, attributes, acl) = (from.word()?, from.word()?, from.bytes()?);
    if (words, attributes) != (1, 1 << 12) {
        return None;
    }
    if acl.windows(8).any(|who| who == b"refused@") {
        return Some(INVALID);
    }
    let mut files = lock(&calling.shared.files);
    let Some(file) = files.file(handle) else { return Some(STALE) };
    file.acl = Some(acl.to_vec());
    Some(0)
}

/// In 4.0 the calls of an owner have numbers. One that comes again is answered as before, also where the answer asked to wait.
fn in_order(
    calling: &mut Calling<'_>,
    (state, number): ([u8; 16], u32),
    call: impl FnOnce(&mut Calling<'_>) -> (u32, Out),
) -> (u32, Out) {
    const DO_NOT_COUNT: [u32; 2] = [10022, 10025];
    const BAD_NUMBER: u32 = 10026;
    let last = lock(&calling.shared.sessions).last40.get(&state).cloned();
    match last {
        Some((last, status, body)) if last == number => return (status, Out(body)),
        Some((last, ..)) if last + 1 != number => return (BAD_NUMBER, Out::default()),
        _ => {}
    }
    let (status, out) = call(calling);
    if !DO_NOT_COUNT.contains(&status) {
        lock(&calling.shared.sessions).last40.insert(state, (number, status, out.0.clone()));
    }
    (status, out)
}

fn open(calling: &mut Calling<'_>, minor: u32, folder: &[u8], from: &mut In<'_>) -> Option<(u32, Out)> {
    let (number, access, deny, client) = (from.word()?, from.word()?, from.word()?, from.long()?);
    let (owner, makes) = (from.bytes()?, from.word()?);
    let mode = if makes == 1 {
        let is_guarded = from.word()? == 1;
        rights4(from)?[0].filter(|_| is_guarded)
    } else {
        None
    };
    let (claim, name) = (from.word()?, from.bytes()?);
    let is_right = if minor == 0 { access == 3 } else { access == 0x403 && client == 0 };
    if !is_right || (deny, claim) != (0, 0) || owner.is_empty() {
        return None;
    }
    let state: [u8; 16] = *[owner, &[7; 16]].concat().first_chunk()?;
    let path = below(folder, name)?;
    let opened = |calling: &mut Calling<'_>| {
        let status = match mode {
            Some(mode) => create(calling, folder, name, mode),
            None if lock(&calling.shared.files).handle(&path).is_none() => NO_ENTRY,
            None => 0,
        };
        if status != 0 {
            return (status, Out::default());
        }
        lock(&calling.shared.sessions).opens.insert(state);
        // How the folder changed; whether it is to be confirmed, no attributes, no delegation.
        let out = Out::default().raw(&state).word(1).long(1).long(2);
        (0, out.words(&[if minor == 0 { 2 } else { 0 }, 0, 0]))
    };
    if minor > 0 {
        return Some(opened(calling));
    }
    let is_known = |known: &Client40| known.is_confirmed && known.id == client;
    if !lock(&calling.shared.sessions).clients40.values().any(is_known) {
        return Some((STALE_CLIENT, Out::default()));
    }
    Some(in_order(calling, (state, number), opened))
}

/// OPEN_CONFIRM and CLOSE.
fn end(
    calling: &mut Calling<'_>,
    (minor, op): (u32, u32),
    current: &[u8],
    from: &mut In<'_>,
) -> Option<(u32, Out)> {
    let is_close = op == 4;
    let before = if is_close { from.word()? } else { 0 };
    let state: [u8; 16] = from.raw(16)?.try_into().ok()?;
    let number = if is_close { before } else { from.word()? };
    let ended = |calling: &mut Calling<'_>| {
        if let Some(status) = calling.asks(current, Asked::Close, 0, 0) {
            return (status, Out::default());
        }
        let opens = &mut lock(&calling.shared.sessions).opens;
        let was_open = if is_close { opens.remove(&state) } else { opens.contains(&state) };
        (if was_open { 0 } else { 10025 }, Out::default().raw(&state))
    };
    Some(if minor == 0 { in_order(calling, (state, number), ended) } else { ended(calling) })
}

const STALE_CLIENT: u32 = 10022;

/// A client of version 4.0.
pub(crate) struct Client40 {
    pub(crate) id: u64,
    /// What confirms it: another for each time that it asks.
    pub(crate) confirm: u64,
    pub(crate) is_confirmed: bool,
}

/// SETCLIENTID.
fn client(calling: &Calling<'_>, from: &mut In<'_>) -> Option<(u32, Out)> {
    from.raw(8)?;
    let owner = from.bytes()?.to_vec();
    from.word()?;
    from.bytes()?;
    from.bytes()?;
    from.word()?;
    let mut sessions = lock(&calling.shared.sessions);
    sessions.next += 1;
    let confirm = sessions.next;
    let new = Client40 { id: confirm, confirm, is_confirmed: false };
    let known = sessions.clients40.entry(owner).or_insert(new);
    known.confirm = confirm;
    Some((0, Out::default().long(known.id).long(confirm)))
}

/// SETCLIENTID_CONFIRM.
fn confirm_client(calling: &Calling<'_>, from: &mut In<'_>) -> Option<(u32, Out)> {
    let told = (from.long()?, from.long()?);
    let mut sessions = lock(&calling.shared.sessions);
    let known = sessions.clients40.values_mut().find(|known| (known.id, known.confirm) == told);
    let status = known.map_or(STALE_CLIENT, |known| {
        known.is_confirmed = true;
        0
    });
    Some((status, Out::default()))
}

/// An operation of version 4 on the current file, and the one that was saved.
pub(crate) fn operate(
    calling: &mut Calling<'_>,
    (minor, op): (u32, u32),
    (current, saved): (&[u8], &[u8]),
    from: &mut In<'_>,
) -> Result<(u32, Out), Refused> {
    let change = |out: Out| out.word(1).long(1).long(2);
    Ok(match op {
        3 => {
            let asked = arguments(from.word())?;
            match allowed(calling, current, asked) {
                Some(allowed) => (0, Out::default().words(&[asked, allowed])),
                None => (STALE, Out::default()),
            }
        }
        18 => arguments(open(calling, minor, current, from))?,
        4 => arguments(end(calling, (minor, op), current, from))?,
        20 if minor == 0 => arguments(end(calling, (minor, op), current, from))?,
        28 => {
            let name = arguments(from.bytes())?;
            (remove(calling, current, name), change(Out::default()))
        }
        29 => {
            let (old, new) = (arguments(from.bytes())?, arguments(from.bytes())?);
            let status = rename(calling, (saved, old), (current, new));
            (status, if status == 0 { change(change(Out::default())) } else { Out::default() })
        }
        34 => {
            arguments(from.raw(16))?;
            let status = if In(from.0).word() == Some(1) {
                arguments(set_acl(calling, current, from))?
            } else {
                set(calling, current, arguments(rights4(from))?)
            };
            (status, Out::default().word(0))
        }
        35 if minor == 0 => arguments(client(calling, from))?,
        36 if minor == 0 => arguments(confirm_client(calling, from))?,
        _ => (10044, Out::default()),
    })
}
