//! Reading once more, by the lanes, what changed while a device pulled it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use super::version::FileVersion;
use crate::plan::Part;
use crate::receipt::{Election, Moved};
use crate::segment::Warmth;
use crate::source::Fill;
use crate::stage::Stage;
use crate::ticket::Completion;
use crate::transfer::{Batch, Direction};

/// How often it is tried until the file holds still.
const TRIES: usize = 3;
/// Two steps of the clock that files' times go by: a change within it may not show.
const STEP: Duration = Duration::from_millis(20);

/// What came of it.
pub(super) struct Again {
    /// For each entry: good bytes from its start, as far as the parts go.
    pub(super) entries: Vec<Result<u64>>,
    pub(super) moved: Moved,
}

/// Moves `parts` of the batch through the lanes until the file was the same before and after. A write is done once: its
/// bytes are what they are. It ends with the cancellation of the `whole`.
pub(super) fn again(
    stage: &Stage,
    batch: &Arc<Batch>,
    parts: &[Part],
    election: &Arc<Election>,
    whole: Option<&Completion>,
) -> Again {
    for _ in 0..TRIES {
        let Ok(before) = settled(batch) else { break };
        let done = stage.submit_parts(batch, Warmth::Mixed, parts, election, None, whole);
        done.wait(None);
        let is_cancelled = whole.is_some_and(Completion::is_cancelled);
        if is_cancelled
            || batch.direction == Direction::Write
            || version(batch).is_ok_and(|after| after == before)
        {
            return Again { entries: done.results(), moved: done.moved() };
        }
    }
    let error = Error::new(ErrorKind::Busy, "the file keeps changing while it is read")
        .hint("read it when its writer is done, or read a copy")
        .with("file", batch.file.name());
    Again { entries: vec![Err(error); batch.pieces.len()], moved: Moved::default() }
}

fn version(batch: &Batch) -> Result<FileVersion> {
    match batch.file.source().fill() {
        Fill::Descriptor(file) => FileVersion::of(file.buffered.as_raw_fd()),
        Fill::Requests(_) => Err(Error::new(ErrorKind::Internal, "only files are pulled")),
    }
}

/// The file's version, once the next change is sure to give it another.
fn settled(batch: &Batch) -> Result<FileVersion> {
    let seen = version(batch)?;
    if !seen.is_young(STEP) {
        return Ok(seen);
    }
    std::thread::sleep(STEP);
    version(batch)
}
