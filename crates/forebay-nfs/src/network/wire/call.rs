//! A call on a connection, with its bytes.

use std::sync::Arc;
use std::time::Instant;

use forebay_remote::retry::RetryPauses;
use forebay_verbs::{Domain, RegisteredMemory};

use crate::network::job::{FileTarget, IoJob, JobPart};
use crate::protocol::io_call::{IoCall, IoOperation};
use crate::protocol::v4::SequenceSlot;
use crate::protocol::xdr::pad;

/// The most bytes of a call before the bytes of a WRITE: record mark, header, credential, handle, place in a session.
pub(super) const HEADER: usize = 640;

/// Room in front of it for the header of RDMA.
pub(super) const RDMA_HEADER: usize = 64;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    /// Free.
    Free,
    /// To be sent, or partly sent.
    Queued,
    /// Waits for its reply.
    Sent,
    /// Its reply is being received.
    Receiving,
    /// To be sent again then.
    Parked(Instant),
}

/// A call with its bytes.
pub(crate) struct WireCall {
    pub(crate) xid: u32,
    pub(crate) state: CallState,
    pub(crate) part: Option<JobPart>,
    pub(crate) job: Option<Arc<IoJob>>,
    pub(crate) place: Option<SequenceSlot>,
    pub(super) header: [u8; RDMA_HEADER + HEADER],
    /// The file, where the header is that of a READ of version 3: the next one of it differs in number and range alone.
    pub(super) reads: Option<Arc<FileTarget>>,
    /// Of the header, without what RDMA puts in front.
    pub(super) len: usize,
    /// Bytes that were sent.
    pub(super) sent: usize,
    /// The session, and the number of the last call in its slot.
    pub(super) sequence: (u32, u32),
    /// A connection before has sent it: the server may have seen it, and its number.
    pub(super) is_known: bool,
    /// When it last got anywhere.
    pub(crate) began: Instant,
    /// When it was last put among those to be sent.
    pub(super) asked: Instant,
    /// Replies to calls of its wire until then.
    pub(super) answered_before: u64,
    pub(super) pauses: RetryPauses,
}

/// What to send next of a call: up to three ranges.
pub(crate) type SendRanges = [(*const u8, usize); 3];

impl WireCall {
    /// Makes the header that of a READ of another range of the same file: number and range stand at both its ends.
    pub(super) fn read_another(&mut self, io: IoCall) {
        let (xid, call) = (self.xid, &mut self.header[RDMA_HEADER + 4..RDMA_HEADER + self.len]);
        if let Some(place) = call.first_chunk_mut() {
            *place = xid.to_be_bytes();
        }
        if let Some(place) = call.last_chunk_mut::<12>() {
            place[..8].copy_from_slice(&io.offset.to_be_bytes());
            place[8..].copy_from_slice(&io.count.to_be_bytes());
        }
    }

    /// Bytes of the call without a record mark, and without those of a WRITE.
    pub(crate) const fn message_len(&self) -> usize {
        self.len - 4
    }

    /// Where the header of RDMA goes, which has `len` bytes: in front of the call, over the record mark.
    pub(crate) fn rdma_header(&mut self, len: usize) -> &mut [u8] {
        &mut self.header[RDMA_HEADER + 4 - len..RDMA_HEADER + 4]
    }

    /// The call behind a header of RDMA, without the bytes of a WRITE.
    pub(crate) fn message(&self, header_len: usize) -> &[u8] {
        &self.header[RDMA_HEADER + 4 - header_len..RDMA_HEADER + self.len]
    }

    /// The session that it was asked in.
    pub(crate) const fn epoch(&self) -> u32 {
        self.sequence.0
    }

    /// The memory of its bytes, where that was registered before.
    pub(crate) fn registered(&self) -> Option<&RegisteredMemory> {
        self.job.as_ref()?.registered()
    }

    /// Whether connections of a domain reach the memory of its bytes.
    pub(crate) fn is_of(&self, domain: &Arc<dyn Domain>) -> bool {
        self.registered().is_none_or(|registered| registered.is_of(domain))
    }

    /// Bytes of a WRITE, with their pad.
    pub(super) fn payload(&self) -> usize {
        match &self.part {
            Some(part) if matches!(part.io.operation, IoOperation::Write { .. }) => {
                let count = part.io.count as usize;
                count + pad(count)
            }
            _ => 0,
        }
    }

    /// The part not sent yet: of the header, of the bytes, of the pad.
    pub(super) fn left(&self) -> SendRanges {
        let count = self.part.as_ref().map_or(0, |part| part.io.count as usize).min(self.payload());
        let buffer = self.part.as_ref().map_or(std::ptr::null(), |part| part.memory.start.cast_const());
        let parts = [
            (self.header[RDMA_HEADER..].as_ptr(), self.len),
            (buffer, count),
            ([0u8; 3].as_slice().as_ptr(), self.payload() - count),
        ];
        let mut sent = self.sent;
        parts.map(|(start, len)| {
            let done = sent.min(len);
            sent -= done;
            (start.wrapping_add(done), len - done)
        })
    }
}
