//! NFS version 4 (RFC 7530, 8881): operations of a COMPOUND, as far as reads and writes without an open need them.

use crate::protocol::handle::{CallLimits, FileAttributes, FileKind, FileState, NfsHandle, NfsVersion};
use crate::protocol::rpc::RpcProgram;
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::CallOutcome;
use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// The program.
pub const PROGRAM: RpcProgram = RpcProgram { number: 100_003, version: 4 };
/// Its one procedure.
pub const COMPOUND: u32 = 1;

/// Operations.
pub mod op {
    /// Makes writes durable.
    pub const COMMIT: u32 = 5;
    /// Facts about the current file.
    pub const GETATTR: u32 = 9;
    /// The current handle.
    pub const GETFH: u32 = 10;
    /// Goes to a name in the current directory.
    pub const LOOKUP: u32 = 15;
    /// Goes to a handle.
    pub const PUTFH: u32 = 22;
    /// Goes to the root.
    pub const PUTROOTFH: u32 = 24;
    /// Reads.
    pub const READ: u32 = 25;
    /// The names in the current directory.
    pub const READDIR: u32 = 26;
    /// Writes.
    pub const WRITE: u32 = 38;
    /// Has a session know a connection.
    pub const BIND_CONN_TO_SESSION: u32 = 41;
    /// Gets a client id.
    pub const EXCHANGE_ID: u32 = 42;
    /// Opens a session.
    pub const CREATE_SESSION: u32 = 43;
    /// Ends a session.
    pub const DESTROY_SESSION: u32 = 44;
    /// Names the slot that a compound stands in.
    pub const SEQUENCE: u32 = 53;
    /// Ends a client id.
    pub const DESTROY_CLIENTID: u32 = 57;
    /// There is nothing to reclaim.
    pub const RECLAIM_COMPLETE: u32 = 58;
}

/// Attributes that are asked for: type, change, size, fsid, fileid, maxread, maxwrite, time_modify.
const WANTED: [u32; 2] = [1 << 1 | 1 << 3 | 1 << 4 | 1 << 8 | 1 << 20 | 1 << 30 | 1 << 31, 1 << (53 - 32)];

/// Those that distinguish states of a file: change, size.
const OF_STATE: u32 = 1 << 3 | 1 << 4;

/// The place of a call in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceSlot {
    /// The session.
    pub session: [u8; 16],
    /// The slot.
    pub slot: u32,
    /// The number of this call in the slot.
    pub sequence: u32,
    /// The highest slot in use.
    pub highest: u32,
}

/// Begins a compound of `count` operations, and one more for its place in a session.
pub fn begin(to: &mut XdrWriter<'_>, version: NfsVersion, place: Option<&SequenceSlot>, count: u32) {
    let minor = match version {
        NfsVersion::V3 => 0,
        NfsVersion::V4(minor) => u32::from(minor),
    };
    to.u32(0);
    to.u32(minor);
    to.u32(count + u32::from(place.is_some()));
    if let Some(place) = place {
        to.u32(op::SEQUENCE);
        to.raw(&place.session);
        to.words(&[place.sequence, place.slot, place.highest, 0]);
    }
}

/// Goes to a handle.
pub fn put_handle(to: &mut XdrWriter<'_>, handle: &NfsHandle) {
    to.u32(op::PUTFH);
    to.opaque(handle.bytes());
}

/// The stateid that stands for no open.
pub fn put_no_state(to: &mut XdrWriter<'_>) {
    to.raw(&[0; 16]);
}

/// Asks for facts.
pub fn put_getattr(to: &mut XdrWriter<'_>) {
    to.u32(op::GETATTR);
    to.u32(WANTED.len() as u32);
    to.words(&WANTED);
}

/// Asks for the file's state.
pub fn put_get_state(to: &mut XdrWriter<'_>) {
    to.words(&[op::GETATTR, 1, OF_STATE]);
}

/// The file's state.
pub fn get_state(from: &mut XdrReader<'_>) -> CallOutcome<FileState> {
    if let Err(status) = get_op(from, op::GETATTR)? {
        return Ok(Err(status));
    }
    let other = Malformed("other attributes than were asked for");
    let words = from.u32()?;
    for at in 0..words.min(8) {
        if from.u32()? != if at == 0 { OF_STATE } else { 0 } {
            return Err(other);
        }
    }
    if !(1..=8).contains(&words) {
        return Err(other);
    }
    let mut values = XdrReader::new(from.opaque(64)?);
    let change = values.u64()?;
    Ok(Ok(FileState { size: values.u64()?, change }))
}

/// The begin of a reply, up to the first operation that was asked for; fails with the compound's status if the place in the session
/// was refused.
pub fn get_begin(from: &mut XdrReader<'_>, place: Option<&SequenceSlot>) -> CallOutcome<()> {
    let status = from.u32()?;
    from.opaque(256)?;
    let count = from.u32()?;
    if count > 32 {
        return Err(Malformed("a compound has more results than operations"));
    }
    if count == 0 {
        return match status {
            0 => Err(Malformed("a compound without results")),
            status => Ok(Err(NfsStatus(status))),
        };
    }
    let Some(place) = place else { return Ok(Ok(())) };
    if let Err(status) = get_op(from, op::SEQUENCE)? {
        return Ok(Err(status));
    }
    let (session, sequence, slot) = (from.array::<16>()?, from.u32()?, from.u32()?);
    if (session, sequence, slot) != (place.session, place.sequence, place.slot) {
        return Err(Malformed("the reply of another slot"));
    }
    from.skip(12)?;
    Ok(Ok(()))
}

/// The head of the next result.
pub fn get_op(from: &mut XdrReader<'_>, expected: u32) -> CallOutcome<()> {
    if from.u32()? != expected {
        return Err(Malformed("the result of another operation"));
    }
    Ok(match from.u32()? {
        0 => Ok(()),
        status => Err(NfsStatus(status)),
    })
}

/// What stands before the bytes of a READ: their number, and whether the file ends behind them.
pub fn get_read(from: &mut XdrReader<'_>) -> CallOutcome<(u32, bool)> {
    if let Err(status) = get_op(from, op::READ)? {
        return Ok(Err(status));
    }
    let is_end = from.bool()?;
    Ok(Ok((from.u32()?, is_end)))
}

/// Results of WRITE: bytes, how durable they are, the verifier.
pub fn get_write(from: &mut XdrReader<'_>) -> CallOutcome<(u32, u32, [u8; 8])> {
    if let Err(status) = get_op(from, op::WRITE)? {
        return Ok(Err(status));
    }
    Ok(Ok((from.u32()?, from.u32()?, from.array()?)))
}

/// Results of COMMIT: the verifier.
pub fn get_commit(from: &mut XdrReader<'_>) -> CallOutcome<[u8; 8]> {
    if let Err(status) = get_op(from, op::COMMIT)? {
        return Ok(Err(status));
    }
    Ok(Ok(from.array()?))
}

/// Results of GETFH.
pub fn get_handle(from: &mut XdrReader<'_>) -> CallOutcome<NfsHandle> {
    if let Err(status) = get_op(from, op::GETFH)? {
        return Ok(Err(status));
    }
    Ok(Ok(NfsHandle::new(from.opaque(NfsHandle::MAX_BYTES)?)?))
}

/// Results of GETATTR: facts, and limits.
pub fn get_attributes(from: &mut XdrReader<'_>) -> CallOutcome<(FileAttributes, CallLimits)> {
    if let Err(status) = get_op(from, op::GETATTR)? {
        return Ok(Err(status));
    }
    let words = from.u32()? as usize;
    if words > 8 {
        return Err(Malformed("a bitmap is too long"));
    }
    let mut told = [0u32; 8];
    for word in &mut told[..words] {
        *word = from.u32()?;
    }
    if told[0] & !WANTED[0] != 0 || told[1] & !WANTED[1] != 0 || told[2..].iter().any(|word| *word != 0) {
        return Err(Malformed("attributes that were not asked for"));
    }
    let mut values = XdrReader::new(from.opaque(1024)?);
    let mut found = FileAttributes {
        kind: FileKind::Other,
        size: 0,
        file_system: (0, 0),
        file_id: 0,
        modified: (0, 0),
        change: 0,
    };
    let (mut read, mut write) = (u64::from(CallLimits::MAX_BYTES), u64::from(CallLimits::MAX_BYTES));
    for bit in (0..64).filter(|bit| told[bit / 32] & 1 << (bit % 32) != 0) {
        match bit {
            1 => found.kind = FileKind::of(values.u32()?),
            3 => found.change = values.u64()?,
            4 => found.size = values.u64()?,
            8 => found.file_system = (values.u64()?, values.u64()?),
            20 => found.file_id = values.u64()?,
            30 => read = values.u64()?,
            31 => write = values.u64()?,
            _ => found.modified = (values.u64()?, values.u32()?),
        }
    }
    // Type, change and size are attributes that every server has.
    if told[0] & 0b1_1010 != 0b1_1010 {
        return Err(Malformed("the size of a file is missing"));
    }
    Ok(Ok((found, CallLimits::of_told(read, write))))
}

/// Asks for a client id, for an owner that no other process has.
pub fn put_exchange_id(to: &mut XdrWriter<'_>, verifier: [u8; 8], owner: &[u8]) {
    to.u32(op::EXCHANGE_ID);
    to.raw(&verifier);
    to.opaque(owner);
    // USE_NON_PNFS; no state protection; no implementation.
    to.words(&[0x0001_0000, 0, 0]);
}

/// A client id, and what the server says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId<'a> {
    /// Its number.
    pub client: u64,
    /// The number of its first session.
    pub sequence: u32,
    /// The server's owner: addresses with the same minor and major id share sessions (RFC 8881 §2.10.5).
    pub minor: u64,
    /// Its major id.
    pub major: &'a [u8],
    /// Where what it numbers is unique.
    pub scope: &'a [u8],
}

/// Results of EXCHANGE_ID.
pub fn get_exchange_id<'a>(from: &mut XdrReader<'a>) -> CallOutcome<ClientId<'a>> {
    if let Err(status) = get_op(from, op::EXCHANGE_ID)? {
        return Ok(Err(status));
    }
    let (client, sequence, _flags, protection) = (from.u64()?, from.u32()?, from.u32()?, from.u32()?);
    if protection != 0 {
        return Err(Malformed("a state protection that was not asked for"));
    }
    let (minor, major, scope) = (from.u64()?, from.opaque(1024)?, from.opaque(1024)?);
    Ok(Ok(ClientId { client, sequence, minor, major, scope }))
}

/// Has a session know the connection, for calls to the server.
pub fn put_bind(to: &mut XdrWriter<'_>, session: &[u8; 16]) {
    /// CDFC4_FORE; not for RDMA.
    const FORE: [u32; 2] = [1, 0];
    to.u32(op::BIND_CONN_TO_SESSION);
    to.raw(session);
    to.words(&FORE);
}

/// Whether it knows it now.
pub fn get_bind(from: &mut XdrReader<'_>, session: &[u8; 16]) -> CallOutcome<()> {
    if let Err(status) = get_op(from, op::BIND_CONN_TO_SESSION)? {
        return Ok(Err(status));
    }
    if from.array::<16>()? != *session {
        return Err(Malformed("a connection was bound to another session"));
    }
    from.skip(8)?;
    Ok(Ok(()))
}

/// Operations of a compound at most, of those without a session, too: Linux's servers before 5.19 take no more.
pub const OPERATIONS: u32 = 16;

/// Opens a session of `slots` slots.
pub fn put_create_session(to: &mut XdrWriter<'_>, client: u64, sequence: u32, slots: u32) {
    to.u32(op::CREATE_SESSION);
    to.u64(client);
    to.words(&[sequence, 0]);
    let most = CallLimits::MAX_BYTES + 4096;
    // Pad, request, response, cached response, operations, slots, no RDMA: for calls, and for calls back, of which there are none.
    to.words(&[0, most, most, 0, OPERATIONS, slots, 0]);
    to.words(&[0, 4096, 4096, 0, 2, 1, 0]);
    // The program of calls back, with one kind of credential: none.
    to.words(&[0x4000_0000, 1, 0]);
}

/// What a server granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedSession {
    /// The session.
    pub session: [u8; 16],
    /// Bytes of a reply.
    pub reply: u32,
    /// Bytes of a call.
    pub call: u32,
    /// Operations of a compound.
    pub operations: u32,
    /// Slots.
    pub slots: u32,
}

/// Results of CREATE_SESSION.
pub fn get_create_session(from: &mut XdrReader<'_>) -> CallOutcome<GrantedSession> {
    if let Err(status) = get_op(from, op::CREATE_SESSION)? {
        return Ok(Err(status));
    }
    let session = from.array()?;
    from.skip(8)?;
    let (_pad, call, reply, _cached, operations, slots) =
        (from.u32()?, from.u32()?, from.u32()?, from.u32()?, from.u32()?, from.u32()?);
    if slots == 0 {
        return Err(Malformed("a session without slots"));
    }
    Ok(Ok(GrantedSession { session, reply, call, operations, slots }))
}
