//! RPC over RDMA, version 1 (RFC 8166): the header in front of a call or a reply.

use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// A range of this side's memory, as the server may reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaSegment {
    /// The key.
    pub key: u32,
    /// Bytes.
    pub len: u32,
    /// The first byte.
    pub address: u64,
}

/// Where the bytes of a call go: not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaChunk {
    /// There are none.
    None,
    /// The server writes them there.
    Write(RdmaSegment),
    /// The server reads them from there; they belong at this place of the call.
    Read(u32, RdmaSegment),
}

const VERSION: u32 = 1;
/// A message follows.
const MESSAGE: u32 = 0;
/// The message went by a chunk.
const NO_MESSAGE: u32 = 1;
const ERROR: u32 = 4;

/// The most segments of a reply's chunk. We offer one.
const MAX_SEGMENTS: u32 = 16;

impl RdmaChunk {
    /// Bytes of the header of a call with it.
    pub const fn header_len(self) -> usize {
        match self {
            Self::None => 28,
            Self::Write(_) | Self::Read(..) => 52,
        }
    }
}

/// Writes the header of a call.
pub fn call(to: &mut XdrWriter<'_>, xid: u32, credits: u32, chunk: RdmaChunk) {
    let split =
        |place: RdmaSegment| (place.key, place.len, (place.address >> 32) as u32, place.address as u32);
    match chunk {
        RdmaChunk::None => to.words(&[xid, VERSION, credits, MESSAGE, 0, 0, 0]),
        RdmaChunk::Write(place) => {
            let (key, len, high, low) = split(place);
            to.words(&[xid, VERSION, credits, MESSAGE, 0, 1, 1, key, len, high, low, 0, 0]);
        }
        RdmaChunk::Read(position, place) => {
            let (key, len, high, low) = split(place);
            to.words(&[xid, VERSION, credits, MESSAGE, 1, position, key, len, high, low, 0, 0, 0]);
        }
    }
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The call's number.
    pub xid: u32,
    /// Calls that the server takes at a time.
    pub credits: u32,
    /// What follows.
    pub body: ReplyBody,
}

/// What follows the header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// A message, and how many bytes went into the write chunk, if there was one.
    Message(Option<u64>),
    /// The server speaks other versions of this header.
    OtherVersions(u32, u32),
    /// The server could not use the chunks.
    WrongChunks,
}

/// Reads the header of a reply; the message is the rest.
#[inline]
pub fn reply(from: &mut XdrReader<'_>) -> Result<ReplyHeader, Malformed> {
    // One segment was filled: all but few replies to a READ.
    if let Ok([xid, VERSION, credits, MESSAGE, 0, 1, 1, _key, len, _high, _low, 0, 0]) = from.clone().words()
    {
        from.skip(13 * 4)?;
        return Ok(ReplyHeader { xid, credits, body: ReplyBody::Message(Some(len.into())) });
    }
    let [xid, version, credits, procedure] = from.words()?;
    if version != VERSION {
        return Err(Malformed("another version of RPC over RDMA"));
    }
    let body = match procedure {
        MESSAGE => {
            if from.bool()? {
                return Err(Malformed("a reply that is to be read"));
            }
            let written = written(from)?;
            if from.bool()? {
                return Err(Malformed("a reply chunk that was not offered"));
            }
            ReplyBody::Message(written)
        }
        NO_MESSAGE => return Err(Malformed("a reply chunk that was not offered")),
        ERROR => match from.u32()? {
            1 => ReplyBody::OtherVersions(from.u32()?, from.u32()?),
            2 => ReplyBody::WrongChunks,
            _ => return Err(Malformed("an unknown error of RPC over RDMA")),
        },
        _ => return Err(Malformed("an unknown message of RPC over RDMA")),
    };
    Ok(ReplyHeader { xid, credits, body })
}

/// Bytes that went into the chunks of a write list.
#[inline]
fn written(from: &mut XdrReader<'_>) -> Result<Option<u64>, Malformed> {
    let mut sum = None;
    while from.bool()? {
        let count = from.u32()?;
        if sum.is_some() || count > MAX_SEGMENTS {
            return Err(Malformed("more write chunks than were offered"));
        }
        let mut bytes = 0;
        for _ in 0..count {
            let [_key, len, _high, _low] = from.words()?;
            bytes += u64::from(len);
        }
        sum = Some(bytes);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(chunk: RdmaChunk) -> Vec<u32> {
        let mut place = [0; 128];
        let mut writer = XdrWriter::new(&mut place);
        call(&mut writer, 9, 64, chunk);
        let len = writer.finish().unwrap();
        assert_eq!(len, chunk.header_len());
        place[..len].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn headers_are_those_of_rfc_8166() {
        let segment = RdmaSegment { key: 7, len: 100, address: 0x1_0000_0002 };
        assert_eq!(words(RdmaChunk::None), [9, 1, 64, 0, 0, 0, 0]);
        assert_eq!(words(RdmaChunk::Write(segment)), [9, 1, 64, 0, 0, 1, 1, 7, 100, 1, 2, 0, 0]);
        assert_eq!(words(RdmaChunk::Read(112, segment)), [9, 1, 64, 0, 1, 112, 7, 100, 1, 2, 0, 0, 0]);
    }

    fn read(words: &[u32]) -> Result<ReplyHeader, Malformed> {
        let bytes: Vec<_> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        reply(&mut XdrReader::new(&bytes))
    }

    #[test]
    fn replies_are_read_and_lies_refused() {
        let of = |body| Ok(ReplyHeader { xid: 9, credits: 32, body });
        assert_eq!(read(&[9, 1, 32, 0, 0, 0, 0]), of(ReplyBody::Message(None)));
        assert_eq!(read(&[9, 1, 32, 0, 0, 1, 1, 7, 55, 0, 0, 0, 0]), of(ReplyBody::Message(Some(55))));
        assert_eq!(read(&[9, 1, 32, 4, 1, 1, 2]), of(ReplyBody::OtherVersions(1, 2)));
        assert_eq!(read(&[9, 1, 32, 4, 2]), of(ReplyBody::WrongChunks));
        let lies: [&[u32]; 9] = [
            &[9, 2, 32, 0, 0, 0, 0],
            &[9, 1, 32, 1, 0, 0, 0],
            &[9, 1, 32, 3],
            &[9, 1, 32, 4, 3],
            &[9, 1, 32, 0, 1, 0, 0],
            &[9, 1, 32, 0, 0, 0, 1],
            &[9, 1, 32, 0, 0, 1, 17],
            &[9, 1, 32, 0, 0, 1, 0, 1, 0, 0, 0],
            &[9, 1, 32, 0, 0, 1, 1, 7, 55],
        ];
        for lie in lies {
            assert!(read(lie).is_err(), "{lie:?}");
        }
    }
}
