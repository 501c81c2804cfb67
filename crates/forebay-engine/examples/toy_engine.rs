//! A whole engine, as a program may add it: a thread for each batch, plain reads and writes, a bounce buffer.
//! It is elected before the lanes. The contract suite runs over it. `cargo run -p forebay-engine --example toy_engine -- FILE`
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forebay_config::Config;
use forebay_engine::{AskedBatch, Batch, CallerPolled, Claim, DeviceOptions, Direction, Engine};
use forebay_engine::{EngineCandidate, EngineKind, EngineParts, File, Moved, Onward, Permission, Piece};
use forebay_engine::{Session, Taken, Way, Work};
use forebay_error::{Error, Result};
use forebay_gpu::{HostRange, Wait};

/// Stands for election on every device.
pub(crate) struct ToyCandidate;
impl EngineCandidate for ToyCandidate {
    fn kind(&self) -> EngineKind {
        EngineKind::Registered("toy")
    }
    fn permission(&self, options: &DeviceOptions<'_>) -> Permission {
        options.permit(self.kind())
    }
    fn make(&self, _: &EngineParts<'_>, _: Permission) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(ToyEngine))
    }
}
/// Serves any file and any memory.
pub(crate) struct ToyEngine;
impl Engine for ToyEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Registered("toy")
    }
    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let file = asked.batch.file.duplicate_buffered()?.into();
        let work = Box::new(ToyWork { file, batch: asked.batch.clone() });
        Ok(Claim::Taken(Taken { work, bytes: asked.bytes(), left: Vec::new(), refusal: None }))
    }
}
struct ToyWork {
    file: std::fs::File,
    batch: Arc<Batch>,
}
impl Work for ToyWork {
    fn count(&self) -> usize {
        1
    }
    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        std::thread::spawn(move || {
            let mut moved = 0;
            for (entry, piece) in (onward.base..).zip(&self.batch.pieces) {
                let done = onward.completion.wait_to_copy().and_then(|()| self.carry(piece));
                moved += done.as_ref().map_or(0, |bytes| *bytes as u64);
                match done {
                    Ok(bytes) => onward.completion.cut(entry, bytes as u64),
                    Err(error) => onward.completion.fail(entry, 0, error),
                }
            }
            onward.completion.work_done(Moved::of(Way::Requested, moved));
        });
        None
    }
}
impl ToyWork {
    fn carry(&self, piece: &Piece) -> Result<usize> {
        let memory = &self.batch.memory;
        let stream = memory.device.stream(memory.context)?;
        let (mut room, mut done) = (vec![0; piece.len], 0);
        if self.batch.direction == Direction::Write {
            // SAFETY: the submitter keeps the piece's memory; the room lives until the stream is through.
            unsafe { stream.copy_out(HostRange::new(room.as_mut_ptr(), piece.len), piece.address) }?;
            stream.synchronize(Wait::Block)?;
            let written = self.file.write_all_at(&room, piece.offset);
            return written.map(|()| piece.len).map_err(|error| Error::from_io(&error, "cannot write"));
        }
        loop {
            let read = self.file.read_at(&mut room[done..], piece.offset + done as u64);
            match read.map_err(|error| Error::from_io(&error, "cannot read"))? {
                0 => break,
                bytes => done += bytes,
            }
        }
        // SAFETY: as above.
        unsafe { stream.copy_in(piece.address, HostRange::new(room.as_ptr(), done)) }?;
        stream.synchronize(Wait::Block).map(|()| done)
    }
}
#[allow(dead_code)] // Tests use the engine alone.
fn main() -> Result<()> {
    forebay_engine::register_candidate(EngineKind::Staged, ToyCandidate)?;
    let session = Session::with_config(Config::default())?;
    let file = File::open(std::env::args_os().nth(1).unwrap_or_else(|| "README.md".into()))?;
    let mut buffer = session.buffer(0, file.len()? as usize)?;
    session.read(&file, 0, &mut buffer).map(|receipt| println!("{receipt}"))
}
