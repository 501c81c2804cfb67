//! Reads that ask for more than their source has.
//!
//! A large one is cut at the source's length before it is planned: a file of megabytes of which terabytes are asked is no
//! more work than it has bytes. When all before the cut has come, the length is looked at once more, and what the source
//! has got meanwhile is read on. A length of 0 tells nothing, since files of /proc have that: such a source is read in growing
//! steps until it ends.

use std::sync::Arc;

use forebay_error::Result;

use super::Stage;
use crate::engines::staged::sync::MAX_CALLER_BYTES;
use crate::io::plan::Part;
use crate::request::completion::Completion;
use crate::request::transfer::Batch;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::tuning::plan::CHUNK;

/// A batch some of whose pieces go beyond the end.
pub(crate) struct PastEnd {
    /// As it was asked for.
    asked: Batch,
    /// Where it was cut.
    end: u64,
}

/// What a piece has of the first `end` bytes.
fn inside(piece: &Piece, end: u64) -> usize {
    end.saturating_sub(piece.offset).min(piece.len as u64) as usize
}

fn cut_at(asked: &Batch, end: u64) -> Batch {
    let pieces = asked.pieces.iter().map(|piece| Piece { len: inside(piece, end), ..*piece }).collect();
    Batch { pieces, ..asked.clone() }
}

/// Where to cut pieces of which what lies before `end` has been read: at the length, or in the next step.
fn end_of(asked: &Batch, end: u64) -> Result<u64> {
    let len = asked.file.len()?;
    if len > 0 {
        return Ok(len);
    }
    let next = asked.pieces.iter().map(|piece| piece.offset).filter(|offset| *offset >= end).min();
    Ok(next.unwrap_or(0).saturating_add(CHUNK).max(end.saturating_mul(2)))
}

impl PastEnd {
    /// Cuts a batch where it is worth a look: small pieces that meet the end are over by themselves.
    pub(crate) fn cut(batch: &mut Batch) -> Result<Option<Self>> {
        let is_read = batch.direction == Direction::Read;
        if !is_read || batch.pieces.iter().all(|piece| piece.len <= MAX_CALLER_BYTES) {
            return Ok(None);
        }
        let lately = batch.file.len_lately()?;
        if batch.pieces.iter().all(|piece| inside(piece, lately) == piece.len) {
            return Ok(None);
        }
        let end = end_of(batch, 0)?;
        if batch.pieces.iter().all(|piece| inside(piece, end) == piece.len) {
            return Ok(None);
        }
        let cut = cut_at(batch, end);
        Ok(Some(Self { asked: std::mem::replace(batch, cut), end }))
    }

    /// Before anything starts: cuts the completion's entries, of which the batch's begin at `base`, where the source ended, and has it
    /// look again later whether the source has grown.
    pub(crate) fn continue_later(self, completion: &Arc<Completion>, base: u32, stage: Stage) {
        for (entry, piece) in (base..).zip(&self.asked.pieces) {
            completion.cut(entry, inside(piece, self.end) as u64);
        }
        self.look_later(completion, base, stage);
    }

    fn look_later(self, completion: &Arc<Completion>, base: u32, stage: Stage) {
        // Weak: the completion owns this closure. The thread that ends the last work holds the completion.
        let this = Arc::downgrade(completion);
        let look = move || this.upgrade().is_some_and(|this| self.go_on(&this, base, &stage));
        completion.look_again(Box::new(look));
    }

    /// Reads what the source has got since, as more works of the same completion. Whether there is anything.
    fn go_on(mut self, completion: &Arc<Completion>, base: u32, stage: &Stage) -> bool {
        let Ok(now) = end_of(&self.asked, self.end) else { return false };
        if now <= self.end || completion.is_cancelled() || completion.has_failed() {
            return false;
        }
        let parts: Vec<_> = (0..)
            .zip(&self.asked.pieces)
            .filter(|(entry, piece)| {
                let (before, after) = (inside(piece, self.end), inside(piece, now));
                after > before && completion.good(base + entry) == before as u64
            })
            .map(|(entry, piece)| {
                let (before, after) = (inside(piece, self.end), inside(piece, now));
                completion.extend(base + entry, after as u64);
                let start = piece.offset + before as u64;
                Part::Range { entry, start, end: piece.offset + after as u64 }
            })
            .collect();
        if parts.is_empty() {
            return false;
        }
        let staged = stage.plan(&Arc::new(cut_at(&self.asked, now)), Warmth::Mixed, Some(&parts));
        completion.expect(staged.works());
        self.end = now;
        self.look_later(completion, base, stage.clone());
        stage.submit(&staged.job(base, completion.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::file::File;
    use crate::request::transfer::Memory;

    /// A file of /proc tells no length: steps double, and go to a piece that lies behind them.
    #[test]
    fn steps_into_what_tells_no_length() {
        let file = File::open("/proc/version").unwrap();
        let memory = Memory::new(forebay_gpu::host::device(), 0);
        let pieces = [77, 1 << 40].map(|offset| Piece { offset, address: 0, len: 1 << 46 }).to_vec();
        let mut asked = Batch { file, memory, direction: Direction::Read, pieces, allow_short: true };
        let first = 77 + CHUNK;
        assert_eq!(end_of(&asked, 0).unwrap(), first);
        assert_eq!(end_of(&asked, first).unwrap(), (1 << 40) + CHUNK, "the second piece may have bytes");
        asked.pieces.pop();
        assert_eq!(end_of(&asked, first).unwrap(), 2 * first);
        assert_eq!(end_of(&asked, u64::MAX - 5).unwrap(), u64::MAX);
        let cut = PastEnd::cut(&mut asked).unwrap().unwrap();
        assert_eq!((cut.end, asked.pieces[0].len as u64), (first, CHUNK));
    }
}
