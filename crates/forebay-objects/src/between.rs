//! Objects that go from one server to another: their bytes go through this machine.

use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Direction, Fill, HostRange, Request, Requests, Upload};

use crate::calls::upload::{Like, ObjectUpload, parts};
use crate::calls::{Bucket, ObjectHead, kept_headers};
use crate::fetch::{ObjectFetch, Target};

/// Parts in memory at a time.
const PARTS: usize = 4;

/// A part was read, or written.
struct Ended {
    slot: usize,
    direction: Direction,
    result: Result<usize>,
}

impl Bucket {
    /// Writes an object of another server to `key` of this bucket, with its metadata. Where the source keeps a CRC-64/NVME, the bytes
    /// are compared with it before the new object has its name. Returns the number of bytes.
    pub fn bring(&self, source: &Self, source_key: &str, key: &str) -> Result<u64> {
        let head = source.head_reply(source_key, None)?;
        let object = ObjectHead::of(&head)?;
        let has_tags = head.header("x-amz-tagging-count").is_some_and(|count| count != "0");
        let tags = if has_tags { source.tags(source_key)? } else { None };
        let tags = tags.map(|tags| ("x-amz-tagging".to_owned(), tags));
        let crc64 = object.crc64().map(str::to_owned);
        let like = Like { headers: kept_headers(&head).chain(tags).collect(), crc64 };
        let upload = ObjectUpload::like(self.clone(), key, like);
        let (bucket, etag, len) = (source.name.clone(), object.etag, object.len);
        let target = Target { bucket, key: source_key.to_owned(), version: None, etag, len };
        let fetch = ObjectFetch::new(source.endpoint_now()?, target, Vec::new(), None);
        let passed = pass(&fetch, &upload, len);
        fetch.close();
        let done = passed.and_then(|()| Box::new(upload).finish(false));
        done.map(|_| len).map_err(|error| match error.kind() {
            ErrorKind::Corrupt => error.hint(format!(
                "copy it again, or look at the source: forebay verify -f {}",
                forebay_error::quoted(&source.url(source_key))
            )),
            _ => error,
        })
    }
}

/// Passes all bytes on, part by part.
fn pass(fetch: &ObjectFetch, upload: &ObjectUpload, len: u64) -> Result<()> {
    let to = upload.source();
    let Fill::Requests(to) = to.fill() else { return Ok(()) };
    let (sender, ends) = channel();
    let mut pass = Pass { fetch, to, sender, len, number: 1, slots: Vec::new(), under_way: 0 };
    for slot in 0..PARTS {
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
        let part = parts::range(self.number);
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
