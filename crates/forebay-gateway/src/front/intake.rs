//! Bodies on their way into a store: gathered from the socket, written and summed on threads that may wait.

use std::mem;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use s3s::dto::StreamingBlob;
use s3s::{Body, S3Error, S3ErrorCode, S3Result, TrailingHeaders};
use tokio::task::JoinHandle;

use super::codes::{answer, answer_body};
use super::sums::{Summed, Sums};
use super::{blocking, turn};
use crate::store::{Condition, Draft, Facts, Meta, StoreResult};

/// Bytes that are gathered before a thread writes them.
const BATCH: usize = 512 << 10;
/// Frames below this are joined, so that a write has at least as much.
const JOIN: usize = 128 << 10;

/// Makes the draft, when the first bytes are there.
pub(crate) type Begin = Box<dyn FnOnce() -> StoreResult<Box<dyn Draft>> + Send>;

/// A body that came, but for its last batch.
struct Intake {
    begin: Option<Begin>,
    draft: Option<Box<dyn Draft>>,
    sums: Sums,
    joined: Vec<u8>,
    len: u64,
    last: Vec<Bytes>,
}

/// A draft that has all bytes of its body, which are right.
struct Received {
    draft: Box<dyn Draft>,
    len: u64,
    summed: Summed,
}

/// Where the intake is while the next batch is gathered.
enum Place {
    Here(Box<Intake>),
    Writing(JoinHandle<S3Result<Box<Intake>>>),
}

impl Place {
    async fn settle(self) -> S3Result<Box<Intake>> {
        match self {
            Self::Here(intake) => Ok(intake),
            Self::Writing(handle) => handle.await.map_err(S3Error::internal_error)?,
        }
    }
}

/// Reads a body into the draft that `begin` makes. While one batch is written the next is gathered: no more is held.
async fn receive(mut body: Body, said: Option<u64>, sums: Sums, begin: Begin) -> S3Result<Box<Intake>> {
    let intake =
        Intake { begin: Some(begin), draft: None, sums, joined: Vec::new(), len: 0, last: Vec::new() };
    let mut place = Place::Here(Box::new(intake));
    let mut came = 0;
    loop {
        let gathered = gather(&mut body).await;
        let mut intake = place.settle().await?;
        let (batch, is_last) = gathered?;
        came += batch.iter().map(|frame| frame.len() as u64).sum::<u64>();
        if is_last {
            if said.is_some_and(|said| said != came) {
                return Err(S3Error::new(S3ErrorCode::IncompleteBody));
            }
            intake.last = batch;
            return Ok(intake);
        }
        place = Place::Writing(turn().await?.start(move || {
            intake.write(batch)?;
            Ok(intake)
        }));
    }
}

/// Frames of a batch's length, and whether they are the last.
async fn gather(body: &mut Body) -> S3Result<(Vec<Bytes>, bool)> {
    let mut batch = Vec::new();
    let mut len = 0;
    while len < BATCH {
        match body.frame().await {
            None => return Ok((batch, true)),
            Some(Err(error)) => return Err(answer_body(&error)),
            Some(Ok(frame)) => {
                let Ok(bytes) = frame.into_data() else { continue };
                len += bytes.len();
                batch.push(bytes);
            }
        }
    }
    Ok((batch, false))
}

impl Intake {
    /// Writes the last batch and compares checksums. Blocks.
    fn finish(mut self: Box<Self>, trailers: Option<&HeaderMap>) -> S3Result<Received> {
        let last = mem::take(&mut self.last);
        self.write(last)?;
        let summed = self.sums.finish(trailers)?;
        let draft = self.draft.ok_or_else(|| S3Error::new(S3ErrorCode::InternalError))?;
        Ok(Received { draft, len: self.len, summed })
    }

    fn write(&mut self, batch: Vec<Bytes>) -> S3Result<()> {
        if let Some(begin) = self.begin.take() {
            self.draft = Some(begin().map_err(answer)?);
        }
        let mut joined = mem::take(&mut self.joined);
        for frame in batch {
            if frame.len() < JOIN {
                joined.extend_from_slice(&frame);
            } else {
                self.put(&mut joined)?;
                self.put_bytes(&frame)?;
            }
            if joined.len() >= BATCH {
                self.put(&mut joined)?;
            }
        }
        self.put(&mut joined)?;
        self.joined = joined;
        Ok(())
    }

    fn put(&mut self, joined: &mut Vec<u8>) -> S3Result<()> {
        self.put_bytes(joined)?;
        joined.clear();
        Ok(())
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> S3Result<()> {
        if let Some(draft) = self.draft.as_ref().filter(|_| !bytes.is_empty()) {
            self.sums.update(bytes);
            draft.write_at(bytes, self.len).map_err(answer)?;
            self.len += bytes.len() as u64;
        }
        Ok(())
    }
}

/// The body of a PUT, and all that is said of it.
pub(crate) struct Incoming {
    pub(crate) body: Option<StreamingBlob>,
    /// Its length, where the head has it.
    pub(crate) said: Option<u64>,
    pub(crate) trailers: Option<TrailingHeaders>,
    pub(crate) sums: Sums,
}

/// The length of a body, as a head has it.
pub(crate) fn len_said(len: Option<i64>) -> Option<u64> {
    len.and_then(|len| u64::try_from(len).ok())
}

/// Writes a body into the draft that `begin` makes, compares its checksums, and gives it its name.
pub(crate) async fn take_in(
    incoming: Incoming,
    begin: Begin,
    meta: Meta,
    condition: Condition,
) -> S3Result<Facts> {
    let Incoming { body, said, trailers, sums } = incoming;
    let intake = receive(body.map(Body::from).unwrap_or_default(), said, sums, begin).await?;
    let trailers = trailers.and_then(|trailers| trailers.take());
    blocking(move || {
        let Received { draft, len, summed } = intake.finish(trailers.as_ref())?;
        let meta = Meta { checksum: Some(summed.checksum), md5: summed.md5, ..meta };
        draft.publish(len, meta, &condition).map_err(answer)
    })
    .await
}
