//! NFS version 3 (RFC 1813), with its MOUNT protocol and the portmapper: arguments and results.

use crate::protocol::handle::{CallLimits, FileAttributes, FileKind, FileState, NfsHandle};
use crate::protocol::rpc::RpcProgram;
use crate::protocol::status::NfsStatus;
use crate::protocol::xdr::{self, Malformed, XdrReader, XdrWriter};

/// The program.
pub const PROGRAM: RpcProgram = RpcProgram { number: 100_003, version: 3 };
/// Of mountd.
pub const MOUNT: RpcProgram = RpcProgram { number: 100_005, version: 3 };
/// Of the portmapper.
pub const PORTMAP: RpcProgram = RpcProgram { number: 100_000, version: 2 };

/// Procedure of the portmapper: on which port a program listens.
pub const GETPORT: u32 = 3;
/// Procedure of mountd: the handle of an exported directory.
pub const MNT: u32 = 1;
/// Facts about a file.
pub const GETATTR: u32 = 1;
/// The handle of a name in a directory.
pub const LOOKUP: u32 = 3;
/// Reads.
pub const READ: u32 = 6;
/// Writes.
pub const WRITE: u32 = 7;
/// What the server takes.
pub const FSINFO: u32 = 19;
/// Makes writes durable.
pub const COMMIT: u32 = 21;

/// The most bytes of a handle.
pub(super) const MAX_HANDLE_BYTES: usize = 64;

/// Results, or the status of a call that failed.
pub type CallOutcome<T> = Result<Result<T, NfsStatus>, Malformed>;

/// Which port has a program over TCP.
pub fn put_getport(to: &mut XdrWriter<'_>, program: RpcProgram) {
    to.words(&[program.number, program.version, 6, 0]);
}

/// The port; `None`: the program is not registered.
pub fn get_port(from: &mut XdrReader<'_>) -> Result<Option<u16>, Malformed> {
    match from.u32()? {
        0 => Ok(None),
        port => u16::try_from(port).map(Some).map_err(|_| Malformed("a port beyond 65535")),
    }
}

/// The handle of a mounted directory.
pub fn get_mount(from: &mut XdrReader<'_>) -> CallOutcome<NfsHandle> {
    Ok(match from.u32()? {
        0 => Ok(NfsHandle::new(from.opaque(MAX_HANDLE_BYTES)?)?),
        status => Err(NfsStatus(status)),
    })
}

/// A handle as an argument.
pub fn put_handle(to: &mut XdrWriter<'_>, handle: &NfsHandle) {
    to.opaque(handle.bytes());
}

/// Results of LOOKUP.
pub fn get_lookup(from: &mut XdrReader<'_>) -> CallOutcome<NfsHandle> {
    Ok(match from.u32()? {
        0 => Ok(NfsHandle::new(from.opaque(MAX_HANDLE_BYTES)?)?),
        status => Err(NfsStatus(status)),
    })
}

/// Results of GETATTR.
pub fn get_attributes(from: &mut XdrReader<'_>) -> CallOutcome<FileAttributes> {
    Ok(match from.u32()? {
        0 => Ok(attributes(from)?),
        status => Err(NfsStatus(status)),
    })
}

pub(super) fn attributes(from: &mut XdrReader<'_>) -> Result<FileAttributes, Malformed> {
    let kind = FileKind::of(from.u32()?);
    from.skip(16)?;
    let size = from.u64()?;
    from.skip(16)?;
    let file_system = (from.u64()?, 0);
    let file_id = from.u64()?;
    from.skip(8)?;
    let modified = (u64::from(from.u32()?), from.u32()?);
    let change = from.u64()?;
    Ok(FileAttributes { kind, size, file_system, file_id, modified, change })
}

/// Leaves out a `post_op_attr`.
pub(super) fn skip_attributes(from: &mut XdrReader<'_>) -> Result<(), Malformed> {
    if from.bool()? { from.skip(84) } else { Ok(()) }
}

/// The file's state in a `post_op_attr`, which a server may leave out.
fn state(from: &mut XdrReader<'_>) -> Result<Option<FileState>, Malformed> {
    if !from.bool()? {
        return Ok(None);
    }
    from.skip(20)?;
    let size = from.u64()?;
    from.skip(48)?;
    Ok(Some(FileState { size, change: from.u64()? }))
}

/// Leaves out a `wcc_data`.
fn skip_both_attributes(from: &mut XdrReader<'_>) -> Result<(), Malformed> {
    if from.bool()? {
        from.skip(24)?;
    }
    skip_attributes(from)
}

/// Results of FSINFO.
pub fn get_limits(from: &mut XdrReader<'_>) -> CallOutcome<CallLimits> {
    let status = from.u32()?;
    if status != 0 {
        return Ok(Err(NfsStatus(status)));
    }
    skip_attributes(from)?;
    let (read, _, _, write) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
    Ok(Ok(CallLimits::of_told(read.into(), write.into())))
}

/// What stands before the bytes of a READ: their number, whether the file ends behind them, and its state.
#[inline]
pub fn get_read(from: &mut XdrReader<'_>) -> CallOutcome<(u32, bool, Option<FileState>)> {
    let status = from.u32()?;
    if status != 0 {
        return Ok(Err(NfsStatus(status)));
    }
    let state = state(from)?;
    let [count, is_end, len] = from.words()?;
    if count != len {
        return Err(Malformed("a READ has two lengths"));
    }
    Ok(Ok((count, xdr::truth(is_end)?, state)))
}

/// Results of WRITE: bytes, how durable they are, the verifier.
pub fn get_write(from: &mut XdrReader<'_>) -> CallOutcome<(u32, u32, [u8; 8])> {
    let status = from.u32()?;
    if status != 0 {
        return Ok(Err(NfsStatus(status)));
    }
    skip_both_attributes(from)?;
    Ok(Ok((from.u32()?, from.u32()?, from.array()?)))
}

/// Results of COMMIT: the verifier.
pub fn get_commit(from: &mut XdrReader<'_>) -> CallOutcome<[u8; 8]> {
    let status = from.u32()?;
    if status != 0 {
        return Ok(Err(NfsStatus(status)));
    }
    skip_both_attributes(from)?;
    Ok(Ok(from.array()?))
}
