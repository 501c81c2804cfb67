//! Reading a trace, whatever it holds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, ErrorKind as IoKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::{elsewhere, files};
use forebay_error::{Error, ErrorKind, Result};

use crate::header::{HEADER, TraceHeader};
use crate::record::{RECORD, Record};
use crate::slots::{self, NamePart};

/// Goes through a trace, also one that is still being written or was cut off.
///
/// Iterating gives the calls in the order of their slots, which is about the order in which they ended. A file's name
/// is known when its first call comes.
#[derive(Debug)]
pub struct TraceReader<R = BufReader<File>> {
    input: R,
    header: TraceHeader,
    names: HashMap<u32, Name>,
    skipped: u64,
    over: bool,
}

#[derive(Debug, Default)]
struct Name {
    bytes: Vec<u8>,
    have: usize,
}

impl TraceReader {
    /// Opens a trace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = files::open_named(path, "cannot open trace").map_err(|error| {
            let meant = elsewhere::repository_hint(path).filter(|_| error.kind() == ErrorKind::NotFound);
            if !error.hints().is_empty() {
                return error;
            }
            error.hint(meant.unwrap_or_else(|| "make one with: forebay run --trace FILE -- CMD".to_owned()))
        })?;
        Self::new(BufReader::with_capacity(1 << 20, file)).map_err(|error| error.with("path", path.display()))
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace from anything.
    pub fn new(mut input: R) -> Result<Self> {
        let mut bytes = Vec::with_capacity(HEADER);
        input
            .by_ref()
            .take(HEADER as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::from_io(&error, "cannot read trace"))?;
        let header = TraceHeader::decode(&bytes)?;
        Ok(Self { input, header, names: HashMap::new(), skipped: 0, over: false })
    }

    /// Its writer.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The name of a file that was met so far.
    pub fn name(&self, file: u32) -> Option<&Path> {
        let name = self.names.get(&file)?;
        (name.have == name.bytes.len()).then(|| Path::new(OsStr::from_bytes(&name.bytes)))
    }

    /// Slots met so far that hold something that this release does not know.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn learn(&mut self, slot: &[u8; RECORD]) {
        let Some(NamePart { file, at, total, bytes }) = slots::part(slot) else {
            self.skipped += 1;
            return;
        };
        let name = self.names.entry(file).or_default();
        if name.bytes.len() != total {
            // The first part, or a damaged one.
            *name = Name { bytes: vec![0; total], have: 0 };
        }
        name.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        name.have += bytes.len();
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut slot = [0; RECORD];
        while !self.over {
            match self.input.read_exact(&mut slot) {
                Ok(()) => {}
                // A cut slot is none.
                Err(error) if error.kind() == IoKind::UnexpectedEof => {
                    self.over = true;
                    break;
                }
                Err(error) => {
                    self.over = true;
                    return Some(Err(Error::from_io(&error, "cannot read trace")));
                }
            }
            match slot[0] {
                // Reserved and never filled, or the tail.
                0 => {}
                slots::NAME => self.learn(&slot),
                _ => match Record::decode(&slot) {
                    Some(record) => return Some(Ok(record)),
                    None => self.skipped += 1,
                },
            }
        }
        None
    }
}
