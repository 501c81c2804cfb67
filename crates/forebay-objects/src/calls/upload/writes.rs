//! The source that takes the writes of an upload.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Answer, Direction, Facts, Fill, HostRange, LateNote, Request, RequestShape, Requests, Source, StateToken,
};

use super::joint::{Joint, Piece};
use super::state::Shared;

/// Its bytes are not read before the object is whole.
#[derive(Debug)]
pub(super) struct Writes(pub(super) Arc<Shared>);

impl Source for Writes {
    fn name(&self) -> String {
        self.0.url()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().len)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    /// The end of the upload makes all of it durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }

    fn late_note(&self) -> Option<LateNote> {
        Some(Box::new(self.0.sent_bytes.late_note(self.0.bucket.endpoint.clone())))
    }

    fn facts(&self) -> Facts {
        let left_out = self.0.lock().not_by_file.iter().cloned().collect();
        Facts { way: Some("S3 by multipart upload".to_owned()), left_out, ..Facts::default() }
    }

    fn access(&self) -> (bool, bool) {
        (false, true)
    }
}

impl Requests for Writes {
    fn start(&self, request: Request, done: Answer) {
        match self.pieces(&request) {
            Ok(pieces) if pieces.is_empty() => done(Ok(request.memory.len)),
            Ok(pieces) => {
                let joint = Arc::new(Joint::new(request.memory.len, pieces.len(), done));
                for (number, at, memory) in pieces {
                    self.0.put(Piece { number, at, memory, joint: joint.clone() });
                }
            }
            Err(error) => done(Err(error)),
        }
    }

    fn shape(&self) -> RequestShape {
        RequestShape { preferred: RequestShape::ANY }
    }
}

impl Writes {
    /// Cuts a write at the ends of parts: number, place in the part, memory.
    fn pieces(&self, request: &Request) -> Result<Vec<(u32, usize, HostRange)>> {
        self.0.process.check()?;
        if request.direction == Direction::Read {
            return Err(Error::new(ErrorKind::Unsupported, "an object is read when it is whole")
                .hint("finish the upload, and open the URL"));
        }
        let (mut offset, mut rest) = (request.offset, request.memory);
        if self.is_only_length(offset, rest) {
            return Ok(Vec::new());
        }
        let (mut pieces, sizes) = (Vec::new(), self.0.like.sizes);
        while rest.len > 0 {
            let number = sizes.number_at(offset).ok_or_else(|| {
                Error::new(ErrorKind::NoSpace, "an object has at most 10 000 parts")
                    .with("offset", offset)
                    .hint("write several objects")
            })?;
            let part = sizes.range(number);
            let take = rest.len.min((part.end - offset) as usize);
            pieces.push((number, (offset - part.start) as usize, HostRange { len: take, ..rest }));
            (offset, rest) = (offset + take as u64, rest.after(take));
        }
        Ok(pieces)
    }

    /// Whether a request only makes the object longer: one zero beyond its end. It needs no memory for a part then.
    fn is_only_length(&self, offset: u64, memory: HostRange) -> bool {
        // SAFETY: the request's maker keeps the memory valid until the answer.
        if memory.len != 1 || unsafe { *memory.start } != 0 || self.0.like.sizes.number_at(offset).is_none() {
            return false;
        }
        let mut state = self.0.lock();
        let is_longer = offset >= state.len && state.error.is_none();
        if is_longer {
            state.len = offset + 1;
        }
        is_longer
    }
}
