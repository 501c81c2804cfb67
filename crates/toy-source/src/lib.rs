//! A whole scheme, as a crate may add it: `mem://NAME` names bytes of this process. It needs `forebay-source` and no engine.
mod for_tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Access, Answer, Direction, Facts, Fill, Opener, Request, Requests, Source, StateToken, Upload,
};

pub use for_tests::snapshot;

/// The files of the process, by their URLs.
static FILES: Mutex<BTreeMap<String, Arc<Bytes>>> = Mutex::new(BTreeMap::new());

/// Opens `mem://` URLs from now on.
pub fn register() {
    forebay_source::register(Arc::new(Memory));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Memory;

impl Opener for Memory {
    fn scheme(&self) -> &'static str {
        "mem"
    }

    fn open(&self, url: &Path, access: Access) -> Result<Arc<dyn Source>> {
        let name = url.to_string_lossy().into_owned();
        let mut files = lock(&FILES);
        if access.make {
            files.insert(name.clone(), Bytes::new(&name));
        }
        let missing = || Error::new(ErrorKind::NotFound, "no such bytes").with("url", &name);
        files.get(&name).map(|file| file.clone() as Arc<dyn Source>).ok_or_else(missing)
    }

    fn make(&self, url: &Path, _mode: u32) -> Result<Box<dyn Upload>> {
        Ok(Box::new(NewBytes(Bytes::new(&url.to_string_lossy()))))
    }
}

/// A file that has no URL yet.
#[derive(Debug)]
struct NewBytes(Arc<Bytes>);

impl Upload for NewBytes {
    fn source(&self) -> Arc<dyn Source> {
        self.0.clone()
    }

    fn finish(self: Box<Self>, _durable: bool) -> Result<Vec<String>> {
        lock(&FILES).insert(self.0.name.clone(), self.0.clone());
        Ok(Vec::new())
    }
}

/// A file: its bytes, and how often they were written.
#[derive(Debug)]
struct Bytes {
    name: String,
    now: Mutex<(Vec<u8>, u64)>,
}

impl Bytes {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), now: Mutex::default() })
    }
}

impl Source for Bytes {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> Result<u64> {
        Ok(lock(&self.now).0.len() as u64)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    fn state(&self) -> Result<Option<StateToken>> {
        let token = || StateToken::new(&lock(&self.now).1.to_le_bytes());
        Ok(for_tests::has_state(&self.name).then(token))
    }

    fn facts(&self) -> Facts {
        Facts { way: Some("bytes of this process".to_owned()), ..Facts::default() }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Requests for Bytes {
    fn start(&self, request: Request, done: Answer) {
        let (mut now, start) = (lock(&self.now), request.offset as usize);
        if request.direction == Direction::Write {
            let end = now.0.len().max(start + request.memory.len);
            now.0.resize(end, 0);
            now.1 += 1;
        }
        let end = now.0.len().min(start + request.memory.len).max(start);
        let memory = request.memory.first(end - start);
        match request.direction {
            _ if start == end => {}
            // SAFETY: the memory is valid, and nobody else's, until the request is answered.
            Direction::Read => unsafe { memory.bytes_mut() }.copy_from_slice(&now.0[start..end]),
            // SAFETY: as above; it is only read.
            Direction::Write => now.0[start..end].copy_from_slice(unsafe { memory.bytes() }),
        }
        drop(now);
        done(Ok(end - start));
    }
}
