//! The usual reply to a READ of version 3 over RDMA, read at fixed offsets: success, with the file's attributes, and
//! the bytes are in the one segment that was offered. What differs in any word is left to
//! [`rdma::reply`](crate::protocol::rdma::reply) and what follows it.

use crate::protocol::handle::FileState;

/// 32-bit words of it: 13 of RDMA, 6 of RPC, status, attributes (1 and 21), and 3 in front of the bytes.
const WORDS: usize = 45;

/// What it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadReply {
    pub(super) xid: u32,
    pub(super) credits: u32,
    /// Bytes that were put into the segment.
    pub(super) written: u32,
    pub(super) count: u32,
    pub(super) is_end: bool,
    pub(super) state: FileState,
}

impl ReadReply {
    /// The reply in a message, if it is such a one.
    #[inline]
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        let (words, _) = message.as_chunks::<4>().0.split_first_chunk::<WORDS>()?;
        let at = |index: usize| u32::from_be_bytes(words[index]);
        // Version, a message, no read list, one write chunk of one segment, no more, no reply chunk.
        let is_rdma = matches!((at(1), at(3), at(4), at(5), at(6), at(11), at(12)), (1, 0, 0, 1, 1, 0, 0));
        // A reply, accepted, an empty verifier, done.
        let is_rpc = matches!((at(14), at(15), at(17), at(18)), (1, 0, 0, 0)) && at(13) == at(0);
        let is_read = matches!((at(19), at(20), at(43)), (0, 1, 0 | 1)) && at(42) == at(44);
        if !(is_rdma && is_rpc && is_read) {
            return None;
        }
        let long = |index: usize| u64::from(at(index)) << 32 | u64::from(at(index + 1));
        Some(Self {
            xid: at(0),
            credits: at(2),
            written: at(8),
            count: at(42),
            is_end: at(43) == 1,
            // Of fattr3: size and ctime.
            state: FileState { size: long(26), change: long(40) },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::handle::NfsVersion;
    use crate::protocol::io_call::{IoCall, IoOperation, IoReply};
    use crate::protocol::rdma::{self, ReplyBody, ReplyHeader};
    use crate::protocol::rpc;
    use crate::protocol::xdr::XdrReader;

    fn usual() -> [u32; WORDS] {
        let mut words = [0; WORDS];
        words[..13].copy_from_slice(&[9, 1, 32, 0, 0, 1, 1, 7, 500, 3, 4, 0, 0]);
        words[13..21].copy_from_slice(&[9, 1, 0, 0, 0, 0, 0, 1]);
        for (index, word) in words.iter_mut().enumerate().take(42).skip(21) {
            *word = 100 + index as u32;
        }
        words[42..].copy_from_slice(&[500, 0, 500]);
        words
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// The same by what reads any reply.
    fn by_parts(message: &[u8]) -> Option<ReadReply> {
        let mut from = XdrReader::new(message);
        let ReplyHeader { xid, credits, body: ReplyBody::Message(Some(written)) } =
            rdma::reply(&mut from).ok()?
        else {
            return None;
        };
        assert_eq!(rpc::reply_xid(&mut from).ok()?, xid);
        let io = IoCall { operation: IoOperation::Read, offset: 0, count: u32::MAX, tells_state: true };
        match io.decode(&mut from, NfsVersion::V3, None).ok()? {
            IoReply::Read { count, is_end, state: Some(state) } => {
                Some(ReadReply { xid, credits, written: written as u32, count, is_end, state })
            }
            _ => None,
        }
    }

    #[test]
    fn the_usual_reply_is_read_at_once() {
        let message = bytes(&usual());
        let read = ReadReply::of(&message);
        assert!(read.is_some() && read == by_parts(&message), "{read:?}");
        assert_eq!(ReadReply::of(&message[..message.len() - 1]), None);
    }

    proptest! {
        /// Whatever words differ, it is read as any reply is, or left to what reads any.
        #[test]
        fn replies_are_read_alike(changes in prop::collection::vec((0..WORDS, 0u32..4), 0..4)) {
            let mut words = usual();
            for (at, value) in changes {
                words[at] = value;
            }
            let message = bytes(&words);
            if let Some(read) = ReadReply::of(&message) {
                prop_assert_eq!(Some(read), by_parts(&message));
            }
        }
    }
}
