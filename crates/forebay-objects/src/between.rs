//! Objects that go from one server to another: their bytes go through this machine.

use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Direction, Fill, HostRange, Request, Requests, Upload};

use crate::calls::upload::parts::PartSizes;
use crate::calls::upload::{Like, ObjectUpload};
use crate::calls::{Bucket, ObjectHead, kept_headers};
use crate::fetch::{ObjectFetch, Target};

/// Parts in memory at a time, at most.
const PARTS: u64 = 4;
/// Bytes of these, unless one alone is longer: 525 MiB of an object of 5 TiB.
const MEMORY: u64 = 256 << 20;

/// An object that was copied between two servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// Bytes.
    pub len: u64,
    /// Which of both servers gave no checksum, so that the bytes were not compared on its side.
    pub not_compared: Option<&'static str>,
}

impl Brought {
    fn new(len: u64, has_source: bool, has_target: bool) -> Self {
        let not_compared = match (has_source, has_target) {
            (true, true) => None,
            (false, true) => Some(
                "the source keeps no CRC-64/NVME: the bytes were compared from this machine to the target alone",
            ),
            (true, false) => Some(
                "the target computes no CRC-64/NVME: the bytes were compared from the source to this machine alone",
            ),
            (false, false) => {
                Some("neither server has a CRC-64/NVME of the object: its bytes were not compared")
            }
        };
        Self { len, not_compared }
    }
}

/// A part was read, or written.
struct Ended {
    slot: usize,
    direction: Direction,
    result: Result<usize>,
}

impl Bucket {
    /// Writes an object of another server to `key` of this bucket, with its metadata. Where the source keeps a CRC-64/NVME, the bytes
    /// are compared with it before the new object has its name.
    pub fn bring(&self, source: &Self, source_key: &str, key: &str) -> Result<Brought> {
        let head = source.head_reply(source_key, None)?;
        let object = ObjectHead::of(&head)?;
        let has_tags = head.header("x-amz-tagging-count").is_some_and(|count| count != "0");
        let tags = if has_tags { source.tags(source_key)? } else { None };
        let tags = tags.map(|tags| ("x-amz-tagging".to_owned(), tags));
        let crc64 = object.crc64().map(str::to_owned);
        let (has_source, sizes) = (crc64.is_some(), PartSizes::of_len(object.len));
        let like = Like { headers: kept_headers(&head).chain(tags).collect(), crc64, sizes };
        let upload = ObjectUpload::like(self.clone(), key, like);
        let (bucket, etag, len) = (source.name.clone(), object.etag, object.len);
        let target = Target { bucket, key: source_key.to_owned(), version: None, etag, len };
        let fetch = ObjectFetch::new(source.endpoint_now()?, target, Vec::new(), None);
        let passed = pass(&fetch, &upload, len, sizes);
        fetch.close();
        let done = passed.and_then(|()| upload.finish_summed());
        done.map(|(_, has_target)| Brought::new(len, has_source, has_target)).map_err(|error| {
            match error.kind() {
                ErrorKind::Corrupt => error.hint(format!(
                    "copy it again, or look at the source: forebay verify -f {}",
                    forebay_error::quoted(&source.url(source_key))
                )),
                _ => error,
            }
        })
    }
}

/// Passes all bytes on, part by part.
fn pass(fetch: &ObjectFetch, upload: &ObjectUpload, len: u64, sizes: PartSizes) -> Result<()> {
    let to = upload.source();
    let Fill::Requests(to) = to.fill() else { return Ok(()) };
    let (sender, ends) = channel();
    let mut pass = Pass { fetch, to, sender, len, sizes, number: 1, slots: Vec::new(), under_way: 0 };
    let slots = (MEMORY / sizes.first()).clamp(1, PARTS);
    for slot in 0..slots as usize {
        pass.slots.push((Vec::new(), 0));
        pass.read_next(slot);
    }
    let passed = pass.run(&ends);
    if let Err(error) = &passed {
        // The memory is free when all that is under way has ended.
        fetch.fail_all(error);
        upload.fail(error);
        while pass.under_way > 0 && ends.recv().is_ok() {
            pass.under_way -= 1;
        }
    }
    passed
}

struct Pass<'a> {
    fetch: &'a ObjectFetch,
    to: &'a dyn Requests,
    sender: Sender<Ended>,
    len: u64,
    sizes: PartSizes,
    /// The part to be read next.
    number: u32,
    /// Memory of parts, and where in the object they begin.
    slots: Vec<(Vec<u8>, u64)>,
    under_way: usize,
}

impl Pass<'_> {
    fn run(&mut self, ends: &Receiver<Ended>) -> Result<()> {
        while self.under_way > 0 {
            let Ok(Ended { slot, direction, result }) = ends.recv() else { break };
            self.under_way -= 1;
            let (bytes, wanted) = (result?, self.slots[slot].0.len());
            match direction {
                Direction::Read if bytes < wanted => {
                    return Err(Error::new(ErrorKind::ShortRead, "the object ends too early"));
                }
                Direction::Read => self.start(slot, Direction::Write),
                Direction::Write => self.read_next(slot),
            }
        }
        Ok(())
    }

    /// Reads the next part, where there is one.
    fn read_next(&mut self, slot: usize) {
        let part = self.sizes.range(self.number);
        if part.start >= self.len {
            return;
        }
        self.number += 1;
        let len = part.end.min(self.len) - part.start;
        self.slots[slot].0.resize(len as usize, 0);
        self.slots[slot].1 = part.start;
        self.start(slot, Direction::Read);
    }

    fn start(&mut self, slot: usize, direction: Direction) {
        let (bytes, offset) = &mut self.slots[slot];
        let (offset, memory) = (*offset, HostRange::of_mut(bytes));
        let ahead = self.len - offset - memory.len as u64;
        let sender = self.sender.clone();
        let answer = Box::new(move |result| drop(sender.send(Ended { slot, direction, result })));
        self.under_way += 1;
        let request = Request { direction, offset, memory, ahead };
        match direction {
            // SAFETY: the slot's memory is left alone, and lives, until the answer was received.
            Direction::Read => unsafe { self.fetch.start(request, answer) },
            Direction::Write => self.to.start(request, answer),
        }
    }
}
