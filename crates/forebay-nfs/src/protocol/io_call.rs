//! The calls that move bytes: READ, WRITE and COMMIT, alike for all versions.

use crate::protocol::handle::{FileState, NfsHandle, NfsVersion};
use crate::protocol::rpc::{self, Credential, RejectedCall};
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::{self, CallOutcome};
use crate::protocol::v4::{self, SequenceSlot, op};
use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter, pad};

/// A request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// Bytes of the file.
    Read,
    /// Bytes for the file; durable at once, or by a later COMMIT.
    Write {
        /// FILE_SYNC, otherwise UNSTABLE.
        durable: bool,
    },
    /// Makes bytes durable.
    Commit,
}

/// A call that moves bytes.
#[derive(Clone, Copy, Debug)]
pub struct IoCall {
    /// The request.
    pub operation: IoOperation,
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub count: u32,
    /// The reply to a READ is to tell the file's state.
    pub tells_state: bool,
}

/// The reply to an [`IoCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoReply {
    /// `count` bytes of the file follow.
    Read {
        /// Bytes.
        count: u32,
        /// The file ends behind them.
        is_end: bool,
        /// The file's state behind the READ, where the server tells it before the bytes.
        state: Option<FileState>,
    },
    /// Bytes were taken.
    Written {
        /// Bytes.
        count: u32,
        /// They are on stable storage.
        durable: bool,
        /// Changes when the server may have lost what was not durable.
        verifier: [u8; 8],
    },
    /// Bytes are durable, if the verifier is that of their WRITE.
    Committed {
        /// As of a WRITE.
        verifier: [u8; 8],
    },
    /// The operation failed.
    Failed(NfsStatus),
    /// The place in the session was refused: the slot stands where it stood.
    SequenceRefused(NfsStatus),
    /// It was not carried out.
    Rejected(RejectedCall),
}

/// FILE_SYNC of `stable_how`.
const FILE_SYNC: u32 = 2;

impl IoCall {
    /// Writes the call, of a file, without the bytes of a WRITE, which are sent behind it.
    pub fn encode(
        &self,
        to: &mut XdrWriter<'_>,
        (version, handle): (NfsVersion, &NfsHandle),
        xid: u32,
        who: &Credential,
        place: Option<&SequenceSlot>,
    ) {
        match version {
            NfsVersion::V3 => {
                let procedure = match self.operation {
                    IoOperation::Read => v3::READ,
                    IoOperation::Write { .. } => v3::WRITE,
                    IoOperation::Commit => v3::COMMIT,
                };
                rpc::call(to, xid, v3::PROGRAM, procedure, Some(who));
                v3::put_handle(to, handle);
            }
            NfsVersion::V4(_) => {
                rpc::call(to, xid, v4::PROGRAM, v4::COMPOUND, Some(who));
                v4::begin(to, version, place, 2 + u32::from(self.tells_state));
                v4::put_handle(to, handle);
                to.u32(match self.operation {
                    IoOperation::Read => op::READ,
                    IoOperation::Write { .. } => op::WRITE,
                    IoOperation::Commit => op::COMMIT,
                });
                if self.operation != IoOperation::Commit {
                    v4::put_no_state(to);
                }
            }
        }
        to.u64(self.offset);
        let IoOperation::Write { durable } = self.operation else {
            to.u32(self.count);
            if self.has_state_behind(version) {
                v4::put_get_state(to);
            }
            return;
        };
        if version == NfsVersion::V3 {
            to.u32(self.count);
        }
        to.u32(if durable { FILE_SYNC } else { 0 });
        to.u32(self.count);
    }

    /// Reads a reply from behind its number. The bytes of a READ are the rest. A reply never moves more than was asked.
    #[inline]
    pub fn decode(
        &self,
        from: &mut XdrReader<'_>,
        version: NfsVersion,
        place: Option<&SequenceSlot>,
    ) -> Result<IoReply, Malformed> {
        if let Err(rejected) = rpc::reply(from)? {
            return Ok(IoReply::Rejected(rejected));
        }
        if version != NfsVersion::V3 {
            if let Err(status) = v4::get_begin(from, place)? {
                return Ok(if place.is_some() {
                    IoReply::SequenceRefused(status)
                } else {
                    IoReply::Failed(status)
                });
            }
            if let Err(status) = v4::get_op(from, op::PUTFH)? {
                return Ok(IoReply::Failed(status));
            }
        }
        let is_v3 = version == NfsVersion::V3;
        let reply = match self.operation {
            IoOperation::Read if is_v3 => {
                v3::get_read(from)?.map(|(count, is_end, state)| IoReply::Read { count, is_end, state })
            }
            IoOperation::Read => {
                v4::get_read(from)?.map(|(count, is_end)| IoReply::Read { count, is_end, state: None })
            }
            IoOperation::Write { .. } => if is_v3 { v3::get_write(from)? } else { v4::get_write(from)? }.map(
                |(count, stable, verifier)| IoReply::Written {
                    count,
                    durable: stable >= FILE_SYNC,
                    verifier,
                },
            ),
            IoOperation::Commit => if is_v3 { v3::get_commit(from)? } else { v4::get_commit(from)? }
                .map(|verifier| IoReply::Committed { verifier }),
        };
        match reply {
            Ok(IoReply::Read { count, .. } | IoReply::Written { count, .. }) if count > self.count => {
                Err(Malformed("more bytes than were asked for"))
            }
            Ok(IoReply::Written { count: 0, .. }) if self.count > 0 => {
                Err(Malformed("a WRITE took no bytes"))
            }
            Ok(IoReply::Read { count: 0, is_end: false, .. }) if self.count > 0 => {
                Err(Malformed("a READ without bytes before the end"))
            }
            Ok(reply) => Ok(reply),
            Err(status) => Ok(IoReply::Failed(status)),
        }
    }

    /// Whether the file's state stands behind the bytes of the reply.
    pub fn has_state_behind(&self, version: NfsVersion) -> bool {
        self.tells_state && version != NfsVersion::V3
    }

    /// The file's state, from what stands behind `count` bytes of a READ. `None`: the server does not tell it; a status: it asks to
    /// wait.
    pub fn decode_behind(behind: &[u8], count: u32) -> CallOutcome<Option<FileState>> {
        let behind = behind.get(pad(count as usize)..).ok_or(Malformed("it ends early"))?;
        Ok(match v4::get_state(&mut XdrReader::new(behind))? {
            Ok(state) => Ok(Some(state)),
            Err(status) if status.is_to_wait() => Err(status),
            Err(_) => Ok(None),
        })
    }
}
