//! The token: a queue end and memory in 44 bytes, little-endian, in 88 digits.

use std::fmt;

use forebay_verbs::{QueueEnd, Remote};

use crate::hex::{array, hex};

/// Reliable connections; 0 is NVIDIA's dynamic kind.
const RELIABLE: u8 = 1;

/// An end of a connection as the token has it, with the memory behind it. Sequence number and MTU stand elsewhere, or nowhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EndToken {
    /// The queue pair's number.
    pub number: u32,
    /// The address of its port.
    pub gid: [u8; 16],
    /// The port's number in its subnet.
    pub lid: u16,
    /// The device's port.
    pub port: u8,
    /// Memory; zeros where READY names it.
    pub memory: Remote,
    /// Bytes of it.
    pub bytes: u64,
}

impl EndToken {
    /// Of an end, without memory.
    pub const fn of(end: &QueueEnd) -> Self {
        let memory = Remote { key: 0, address: 0 };
        Self { number: end.number, gid: end.gid, lid: end.lid, port: end.port, memory, bytes: 0 }
    }

    /// The end, with what the token lacks.
    pub const fn end(&self, first: u32, mtu: u32) -> QueueEnd {
        QueueEnd { number: self.number, first, gid: self.gid, lid: self.lid, port: self.port, mtu }
    }

    /// 88 digits.
    pub fn text(&self) -> String {
        let mut bytes = [0; 44];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&[RELIABLE]);
        put(&self.number.to_le_bytes());
        put(&self.gid);
        put(&self.memory.key.to_le_bytes());
        put(&self.memory.address.to_le_bytes());
        put(&self.bytes.to_le_bytes());
        put(&[self.port]);
        put(&self.lid.to_le_bytes());
        hex(&bytes)
    }

    /// Of 88 digits; none if it is no token of a reliable connection.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 44] = array(&text.trim().to_ascii_lowercase())?;
        let (transport, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (port, lid) = rest.split_first()?;
        (*transport == RELIABLE).then_some(())?;
        Some(Self {
            number: u32::from_le_bytes(*number),
            gid: *gid,
            lid: u16::from_le_bytes(lid.try_into().ok()?),
            port: *port,
            memory: Remote { key: u32::from_le_bytes(*key), address: u64::from_le_bytes(*address) },
            bytes: u64::from_le_bytes(*len),
        })
    }
}

impl fmt::Debug for EndToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndToken")
            .field("number", &self.number)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
