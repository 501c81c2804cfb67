//! Calls that make, rename and remove files, and say who may use them: version 3 (RFC 1813), and 4 (RFC 7530, 8881).

use crate::protocol::handle::NfsHandle;
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::{self, CallOutcome};
use crate::protocol::v4;
use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// Procedures of version 3.
pub mod procedure {
    /// Sets mode and owner.
    pub const SETATTR: u32 = 2;
    /// What the caller may do.
    pub const ACCESS: u32 = 4;
    /// Makes a file.
    pub const CREATE: u32 = 8;
    /// Removes one.
    pub const REMOVE: u32 = 12;
    /// Gives one another name.
    pub const RENAME: u32 = 14;
}

/// Operations of version 4.
pub mod op {
    /// What the caller may do.
    pub const ACCESS: u32 = 3;
    /// Ends an open.
    pub const CLOSE: u32 = 4;
    /// Opens a file, or makes one.
    pub const OPEN: u32 = 18;
    /// Tells that an open is this client's, in 4.0.
    pub const OPEN_CONFIRM: u32 = 20;
    /// Removes a name.
    pub const REMOVE: u32 = 28;
    /// Gives a file another name.
    pub const RENAME: u32 = 29;
    /// Keeps the current handle as the other one.
    pub const SAVEFH: u32 = 32;
    /// Sets mode and owner.
    pub const SETATTR: u32 = 34;
    /// Gets a client id, in 4.0.
    pub const SETCLIENTID: u32 = 35;
    /// Has it count.
    pub const SETCLIENTID_CONFIRM: u32 = 36;
}

/// ACCESS: the bytes of a file may be changed.
pub const MODIFY: u32 = 4;

/// The most bytes of a name of a user or group.
const MAX_OWNER_BYTES: usize = 256;

/// The rights to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRights {
    /// What owner, group and others may do: `0o777` at most.
    pub mode: u32,
    /// The owner: the four bytes of a number in version 3, a name in version 4.
    pub owner: Vec<u8>,
    /// The group, alike.
    pub group: Vec<u8>,
}

/// Rights that are set; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetRights<'a> {
    /// As of [`FileRights`].
    pub mode: Option<u32>,
    /// As of [`FileRights`].
    pub owner: Option<&'a [u8]>,
    /// As of [`FileRights`].
    pub group: Option<&'a [u8]>,
}

/// Whether a call was carried out.
pub fn get_status(from: &mut XdrReader<'_>) -> CallOutcome<()> {
    Ok(match from.u32()? {
        0 => Ok(()),
        status => Err(NfsStatus(status)),
    })
}

// ---- version 3 --------------------------------------------------------------------------------------------------

/// A name in a folder.
pub fn put_name3(to: &mut XdrWriter<'_>, folder: &NfsHandle, name: &[u8]) {
    v3::put_handle(to, folder);
    to.opaque(name);
}

/// Makes a file that is not there yet.
pub fn put_create3(to: &mut XdrWriter<'_>, folder: &NfsHandle, name: &[u8], mode: u32) {
    const GUARDED: u32 = 1;
    put_name3(to, folder, name);
    to.u32(GUARDED);
    put_rights3(to, SetRights { mode: Some(mode), ..SetRights::default() });
}

/// Arguments of SETATTR.
pub fn put_set3(to: &mut XdrWriter<'_>, file: &NfsHandle, rights: SetRights<'_>) {
    v3::put_handle(to, file);
    put_rights3(to, rights);
    to.u32(0);
}

fn put_rights3(to: &mut XdrWriter<'_>, rights: SetRights<'_>) {
    let mode = rights.mode.map(u32::to_be_bytes);
    for value in [mode.as_ref().map(<[u8; 4]>::as_slice), rights.owner, rights.group] {
        to.u32(value.is_some().into());
        to.raw(value.unwrap_or_default());
    }
    // Neither size nor times.
    to.words(&[0, 0, 0]);
}

/// The rights in the results of GETATTR.
pub fn get_rights3(from: &mut XdrReader<'_>) -> CallOutcome<FileRights> {
    if let Err(status) = get_status(from)? {
        return Ok(Err(status));
    }
    let ([_kind, mode, _links], owner, group) = (from.words()?, from.array::<4>()?, from.array::<4>()?);
    Ok(Ok(FileRights { mode: mode & 0o777, owner: owner.to_vec(), group: group.to_vec() }))
}

/// Results of ACCESS.
pub fn get_access3(from: &mut XdrReader<'_>) -> CallOutcome<u32> {
    if let Err(status) = get_status(from)? {
        return Ok(Err(status));
    }
    v3::skip_attributes(from)?;
    Ok(Ok(from.u32()?))
}

// ---- version 4 --------------------------------------------------------------------------------------------------

/// Gets a client id of version 4.0. The server cannot call this client back, and gives no delegations.
pub fn put_client40(to: &mut XdrWriter<'_>, verifier: [u8; 8], owner: &[u8]) {
    to.u32(op::SETCLIENTID);
    to.raw(&verifier);
    to.opaque(owner);
    to.u32(0x4000_0000);
    to.opaque(b"tcp");
    to.opaque(b"0.0.0.0.0.0");
    to.u32(0);
}

/// The client id, and what confirms it.
pub fn get_client40(from: &mut XdrReader<'_>) -> CallOutcome<(u64, [u8; 8])> {
    Ok(match v4::get_op(from, op::SETCLIENTID)? {
        Ok(()) => Ok((from.u64()?, from.array()?)),
        Err(status) => Err(status),
    })
}

/// An open of a file.
#[derive(Clone, Copy, Debug)]
pub struct OpenOwner<'a> {
    /// The client, in version 4.0; a session has one.
    pub client: Option<u64>,
    /// Of this open alone: in version 4.0 it is the owner's first call.
    pub name: &'a [u8],
}

/// Opens a file for reading and writing, and makes it with a mode if one is given.
pub fn put_open4(to: &mut XdrWriter<'_>, owner: OpenOwner<'_>, name: &[u8], mode: Option<u32>) {
    const BOTH: u32 = 3;
    const NO_DELEGATION: u32 = 0x400;
    const GUARDED: u32 = 1;
    let access = if owner.client.is_some() { BOTH } else { BOTH | NO_DELEGATION };
    to.words(&[op::OPEN, 0, access, 0]);
    to.u64(owner.client.unwrap_or(0));
    to.opaque(owner.name);
    to.u32(mode.is_some().into());
    if let Some(mode) = mode {
        to.u32(GUARDED);
        put_rights4(to, SetRights { mode: Some(mode), ..SetRights::default() });
    }
    // By its name in the current folder.
    to.u32(0);
    to.opaque(name);
}

/// The stateid of an open, and whether it is to be confirmed.
pub fn get_open4(from: &mut XdrReader<'_>) -> CallOutcome<([u8; 16], bool)> {
    const CONFIRM: u32 = 2;
    if let Err(status) = v4::get_op(from, op::OPEN)? {
        return Ok(Err(status));
    }
    let state = from.array()?;
    // How the folder changed.
    from.skip(20)?;
    Ok(Ok((state, from.u32()? & CONFIRM != 0)))
}

/// Confirms an open.
pub fn put_confirm40(to: &mut XdrWriter<'_>, state: &[u8; 16], sequence: u32) {
    to.u32(op::OPEN_CONFIRM);
    to.raw(state);
    to.u32(sequence);
}

/// Its stateid from now on.
pub fn get_confirm40(from: &mut XdrReader<'_>) -> CallOutcome<[u8; 16]> {
    Ok(match v4::get_op(from, op::OPEN_CONFIRM)? {
        Ok(()) => Ok(from.array()?),
        Err(status) => Err(status),
    })
}

/// Ends an open.
pub fn put_close4(to: &mut XdrWriter<'_>, state: &[u8; 16], sequence: u32) {
    to.words(&[op::CLOSE, sequence]);
    to.raw(state);
}

/// Whether the open has ended.
pub fn get_close4(from: &mut XdrReader<'_>) -> CallOutcome<()> {
    v4::get_op(from, op::CLOSE)
}

/// Sets rights of the current file.
pub fn put_set4(to: &mut XdrWriter<'_>, rights: SetRights<'_>) {
    to.u32(op::SETATTR);
    v4::put_no_state(to);
    put_rights4(to, rights);
}

/// Attributes mode, owner and owner_group, in their second word.
const RIGHTS: [u32; 3] = [1 << 1, 1 << 4, 1 << 5];

fn put_rights4(to: &mut XdrWriter<'_>, rights: SetRights<'_>) {
    let mut place = [0; 2 * MAX_OWNER_BYTES + 16];
    let mut values = XdrWriter::new(&mut place);
    let mut set = 0;
    if let Some(mode) = rights.mode {
        set |= RIGHTS[0];
        values.u32(mode);
    }
    for (bit, name) in [(RIGHTS[1], rights.owner), (RIGHTS[2], rights.group)] {
        if let Some(name) = name {
            set |= bit;
            values.opaque(name);
        }
    }
    let len = values.len();
    to.words(&[2, 0, set]);
    to.opaque(&place[..len]);
}

/// Asks for the rights of the current file.
pub fn put_get_rights4(to: &mut XdrWriter<'_>) {
    to.words(&[v4::op::GETATTR, 2, 0, RIGHTS[0] | RIGHTS[1] | RIGHTS[2]]);
}

/// The rights.
pub fn get_rights4(from: &mut XdrReader<'_>) -> CallOutcome<FileRights> {
    if let Err(status) = v4::get_op(from, v4::op::GETATTR)? {
        return Ok(Err(status));
    }
    if from.words()? != [2, 0, RIGHTS[0] | RIGHTS[1] | RIGHTS[2]] {
        return Err(Malformed("other attributes than were asked for"));
    }
    let mut values = XdrReader::new(from.opaque(2 * MAX_OWNER_BYTES + 16)?);
    let mode = values.u32()? & 0o777;
    let mut name = || values.opaque(MAX_OWNER_BYTES).map(<[u8]>::to_vec);
    Ok(Ok(FileRights { mode, owner: name()?, group: name()? }))
}

/// Attribute acl, in the first word.
const ACL: u32 = 1 << 12;
/// The most bytes of an access list that is read.
const MAX_ACL_BYTES: usize = 24 << 10;

/// Asks for the access list of the current file.
pub fn put_get_acl4(to: &mut XdrWriter<'_>) {
    to.words(&[v4::op::GETATTR, 1, ACL]);
}

/// The access list, as the server wrote it; `None`: it has none to tell.
pub fn get_acl4(from: &mut XdrReader<'_>) -> CallOutcome<Option<Vec<u8>>> {
    if let Err(status) = v4::get_op(from, v4::op::GETATTR)? {
        return Ok(Err(status));
    }
    let (mut told, words) = (0, from.u32()?);
    for at in 0..words {
        let word = from.u32()?;
        if at == 0 {
            told = word;
        }
        if at > 7 || word & !if at == 0 { ACL } else { 0 } != 0 {
            return Err(Malformed("attributes that were not asked for"));
        }
    }
    let values = from.opaque(MAX_ACL_BYTES)?;
    Ok(Ok((told & ACL != 0).then(|| values.to_vec())))
}

/// Sets the access list of the current file.
pub fn put_set_acl4(to: &mut XdrWriter<'_>, acl: &[u8]) {
    to.u32(op::SETATTR);
    v4::put_no_state(to);
    to.words(&[1, ACL]);
    to.opaque(acl);
}

/// Whether an access list says more than mode bits do: it names users or groups, or gives the group less than the mode does, whose
/// bits for the group are then the most that anybody named has (the mask). What cannot be read says more.
pub fn is_more_than_mode(acl: &[u8], mode: u32) -> bool {
    let group = allowed_to_group(acl);
    // READ_DATA, WRITE_DATA, EXECUTE.
    let bits = [(0o40, 1), (0o20, 2), (0o10, 0x20)];
    let asked = bits.iter().filter(|(bit, _)| mode & bit != 0).fold(0, |asked, (_, right)| asked | right);
    !matches!(group, Ok(Some(allowed)) if allowed & asked == asked)
}

/// What an access list allows the file's group; `None`: it names others, too.
fn allowed_to_group(acl: &[u8]) -> Result<Option<u32>, Malformed> {
    const ALLOW: u32 = 0;
    let (mut from, mut allowed) = (XdrReader::new(acl), 0);
    for _ in 0..from.u32()? {
        let ([kind, _flags, rights], who) = (from.words()?, from.opaque(MAX_OWNER_BYTES)?);
        match who {
            b"OWNER@" | b"EVERYONE@" => {}
            b"GROUP@" => allowed |= if kind == ALLOW { rights } else { 0 },
            _ => return Ok(None),
        }
    }
    Ok(Some(allowed))
}

/// Results of ACCESS.
pub fn get_access4(from: &mut XdrReader<'_>) -> CallOutcome<u32> {
    Ok(match v4::get_op(from, op::ACCESS)? {
        Ok(()) => {
            let [_known, allowed] = from.words()?;
            Ok(allowed)
        }
        Err(status) => Err(status),
    })
}

/// The heads of results that have nothing else.
pub fn get_heads(from: &mut XdrReader<'_>, operations: &[u32]) -> CallOutcome<()> {
    for expected in operations {
        if let Err(status) = v4::get_op(from, *expected)? {
            return Ok(Err(status));
        }
    }
    Ok(Ok(()))
}
