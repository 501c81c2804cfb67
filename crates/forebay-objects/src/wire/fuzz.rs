//! Replies from any bytes.

use super::call::Method;
use super::framing::{Framing, Next};
use super::head::HeadReader;

/// A reply to a GET that comes in pieces of this size: its status, its body, and whether that has ended. `None`: it is no reply.
pub fn reply(bytes: &[u8], piece: usize) -> Option<(u16, Vec<u8>, bool)> {
    let mut start = 0;
    let mut reader = HeadReader::default();
    let mut came = 0;
    let head = loop {
        if came == bytes.len() {
            return None;
        }
        came = (came + piece).min(bytes.len());
        match reader.read(&bytes[start..came], Method::Get).ok()? {
            Some(head) if head.is_interim() => {
                start += head.bytes;
                // What came behind it is the beginning of the next one.
                reader = HeadReader::default();
                came = start;
            }
            Some(head) => break head,
            None => {}
        }
    };
    let mut rest = &bytes[start + head.bytes..];
    let (mut framing, mut body) = (head.framing, Vec::new());
    while !rest.is_empty() && framing.next() != Next::End {
        let len = one(&mut framing, &rest[..piece.min(rest.len())], &mut body)?;
        rest = &rest[len..];
    }
    Some((head.head.status, body, framing.closed(0).is_ok()))
}

fn one(framing: &mut Framing, bytes: &[u8], body: &mut Vec<u8>) -> Option<usize> {
    let Next::Body(most) = framing.next() else { return framing.decode(bytes).ok() };
    let len = bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    body.extend_from_slice(&bytes[..len]);
    framing.received(len as u64);
    Some(len)
}
