//! A whole source, as a program may add it: several files, end to end, as one.
//! The contract suite runs over it. `cargo run -p forebay-engine --example toy_source -- FILE FILE`
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::source::{Answer, Fill, Request, Requests, StateToken};
use forebay_engine::{Direction, File, Session, Source};
use forebay_error::{Error, Result};

/// Files of `part` bytes each; the last one may have fewer, or grow.
#[derive(Debug)]
pub(crate) struct Parts {
    files: Vec<std::fs::File>,
    part: u64,
}
impl Parts {
    /// The first file's length is that of all but the last.
    pub(crate) fn open(paths: &[impl AsRef<Path>]) -> std::io::Result<Self> {
        let open = |path: &_| std::fs::File::options().read(true).write(true).open(path);
        let files = paths.iter().map(open).collect::<std::io::Result<Vec<_>>>()?;
        Ok(Self { part: files[0].metadata()?.len(), files })
    }

    /// Moves what one file has of a request, from `done` bytes on.
    fn step(&self, request: &Request, done: usize) -> std::io::Result<usize> {
        let offset = request.offset + done as u64;
        let index = ((offset / self.part.max(1)) as usize).min(self.files.len() - 1);
        let at = offset - index as u64 * self.part;
        let most = if index + 1 < self.files.len() { (self.part - at) as usize } else { usize::MAX };
        // SAFETY: the request's memory is valid, and nobody else's, until it is answered.
        let bytes = unsafe { request.memory.after(done).first(most).bytes_mut() };
        match request.direction {
            Direction::Read => self.files[index].read_at(bytes, at),
            Direction::Write => self.files[index].write_at(bytes, at),
        }
    }
}
impl Requests for Parts {
    fn start(&self, request: Request, done: Answer) {
        let mut moved = 0;
        while moved < request.memory.len {
            match self.step(&request, moved) {
                Ok(0) => break,
                Ok(bytes) => moved += bytes,
                Err(error) => return done(Err(Error::from_io(&error, "cannot move a part"))),
            }
        }
        done(Ok(moved));
    }
}
impl Source for Parts {
    fn name(&self) -> String {
        format!("{} parts of {} bytes", self.files.len(), self.part)
    }
    fn len(&self) -> Result<u64> {
        let last = self.files[self.files.len() - 1].metadata();
        let all = last.map(|last| (self.files.len() as u64 - 1) * self.part + last.len());
        all.map_err(|error| Error::from_io(&error, "cannot ask for the length"))
    }
    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }
    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }
    fn sync(&self) -> Result<()> {
        let synced = self.files.iter().try_for_each(std::fs::File::sync_data);
        synced.map_err(|error| Error::from_io(&error, "cannot make it durable"))
    }
}

#[allow(dead_code)] // The contract suite uses the source alone.
fn main() -> Result<()> {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    let parts = Parts::open(&paths).map_err(|error| Error::from_io(&error, "cannot open a part"))?;
    let (file, session) = (File::from_source(Arc::new(parts))?, Session::open()?);
    let mut buffer = session.buffer(0, file.len()? as usize)?;
    session.read(&file, 0, &mut buffer).map(|receipt| println!("{receipt}"))
}
