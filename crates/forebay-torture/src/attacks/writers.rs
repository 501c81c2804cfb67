//! Nine kinds of writers beside readers of versioned blocks.
//!
//! Each block says which version of it it is. A writer makes known which versions it begins, and then that they are
//! over. So for each block of each read it is known which versions were current at some moment between the read's begin
//! and end: if nothing was written meanwhile there is one, and it must be that one.

mod kinds;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use forebay::{Buffer, Error, ErrorKind, File, Offsets, ReadPiece, Receipt, Session, Way};

use crate::block::{self, Cell, Kind, SIZE, State};
use crate::cufile::{Handle, cufile};
use crate::gpu::{Memory, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Skip, Trial};

const BLOCK: u64 = SIZE as u64;
const READERS: usize = 3;
const WRITERS: usize = 2;

/// A file by its inode, with the history of its blocks.
pub struct Inode {
    id: u64,
    file: File,
    cells: Vec<Cell>,
    /// Held by the one who writes, or by a reader that wants no writer.
    writing: Mutex<()>,
    /// The same file for libcufile.
    handle: Handle,
    _plain: OwnedFd,
}

/// A name, and the inode that it has now.
pub struct Subject {
    path: PathBuf,
    /// Blocks, and as many more that come and go at the end.
    blocks: u64,
    now: RwLock<Arc<Inode>>,
}

impl Drop for Inode {
    fn drop(&mut self) {
        cufile().deregister(self.handle);
    }
}

impl Inode {
    /// A new file with `blocks` blocks, and none of the `more` behind them.
    fn make(path: &Path, id: u64, blocks: u64, more: u64) -> Arc<Self> {
        let mut bytes = Vec::with_capacity(blocks as usize * SIZE);
        (0..blocks).for_each(|index| block::append(&mut bytes, id, index, 1));
        std::fs::write(path, bytes).expect("room for a file");
        let kind = |index| if index < blocks { Kind::Data } else { Kind::Gone };
        let cells = (0..blocks + more).map(|index| Cell::new(kind(index))).collect();
        let file = File::options().read(true).write(true).open(path).expect("the new file");
        let plain: OwnedFd = crate::bytes::open(path, 0).expect("the new file").into();
        let handle = cufile().register(plain.as_raw_fd()).expect("a registered file");
        Arc::new(Self { id, file, cells, writing: Mutex::default(), handle, _plain: plain })
    }

    fn over(&self, first: u64, count: u64) -> Vec<State> {
        self.cells[first as usize..(first + count) as usize].iter().map(Cell::over).collect()
    }

    fn begun(&self, first: u64, count: u64) -> Vec<State> {
        self.cells[first as usize..(first + count) as usize].iter().map(Cell::begun).collect()
    }
}

impl Subject {
    fn now(&self) -> Arc<Inode> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub fn run(trial: &'static Trial) -> Outcome {
    fake_cuda::install().map_err(Skip)?;
    let mut random = trial.random("writers");
    gpu().fake.set_delay_us(random.one_of(&[0, 20, 1000]));
    let session = Session::open().expect("a session");
    let mut subjects = Vec::new();
    for (number, folder) in [Some(trial.disk()), trial.memory()].into_iter().flatten().enumerate() {
        for (size, blocks) in [64, 2500, 8000].into_iter().enumerate() {
            let (path, id) =
                (folder.join(format!("file-{size}")), (number * 3 + size + 1) as u64 * 1_000_000);
            let now = RwLock::new(Inode::make(&path, id, blocks, blocks / 8));
            subjects.push(Subject { path, blocks, now });
        }
    }
    std::thread::scope(|scope| {
        let (subjects, session) = (&subjects, &session);
        for number in 0..WRITERS {
            scope.spawn(move || {
                kinds::write(trial, session, subjects, Random::new(trial.seed, &format!("writer {number}")));
            });
        }
        for number in 0..READERS {
            let random = Random::new(trial.seed, &format!("reader {number}"));
            scope.spawn(move || {
                Reader { trial, session, random, memory: gpu().memory(4 << 20) }.read(subjects);
            });
        }
    });
    Ok(())
}

struct Reader<'a> {
    trial: &'static Trial,
    session: &'a Session,
    random: Random,
    memory: Memory,
}

/// Bytes that a read gave, from a block on, with what its blocks were before.
struct Got<'a> {
    first: u64,
    bytes: &'a [u8],
    low: &'a [State],
}

impl Reader<'_> {
    fn read(&mut self, subjects: &[Subject]) {
        while !self.trial.is_over() {
            let subject = &subjects[self.random.below(subjects.len() as u64) as usize];
            let inode = subject.now();
            // Some reads ask writers to wait: then only one version will do, and nothing may be busy.
            let quiet =
                self.random.once_in(3).then(|| inode.writing.lock().unwrap_or_else(PoisonError::into_inner));
            let len = inode.cells.len() as u64;
            match self.random.below(8) {
                0 | 1 => self.range(subject, &inode, quiet.is_some(), 16),
                2 => self.range(subject, &inode, quiet.is_some(), len),
                3 => self.whole(subject, &inode, quiet.is_some()),
                4 => self.pieces(subject, &inode, quiet.is_some()),
                5 => self.gather(subject, &inode, quiet.is_some()),
                6 => self.by_name(subject, &inode),
                _ => self.by_cufile(subject, &inode),
            }
        }
    }

    /// Blocks somewhere, mostly before what comes and goes.
    fn some(&mut self, subject: &Subject, inode: &Inode, most: u64) -> (u64, u64) {
        let end = if self.random.once_in(8) { inode.cells.len() as u64 } else { subject.blocks };
        let count = self.random.between(1, most.min(end));
        (self.random.below(end - count + 1), count)
    }

    fn range(&mut self, subject: &Subject, inode: &Inode, is_quiet: bool, most: u64) {
        let range = self.some(subject, inode, most);
        self.one(subject, inode, &inode.file, is_quiet, range);
    }

    /// All that is always there: large enough to be read in place.
    fn whole(&mut self, subject: &Subject, inode: &Inode, is_quiet: bool) {
        self.one(subject, inode, &inode.file, is_quiet, (0, subject.blocks));
    }

    /// By a descriptor that is opened for it: if the name has not changed meanwhile it is that inode.
    fn by_name(&mut self, subject: &Subject, inode: &Arc<Inode>) {
        let Ok(file) = File::open(&subject.path) else {
            return self.trial.fail("a name that is always there is gone");
        };
        if Arc::ptr_eq(inode, &subject.now()) {
            let range = self.some(subject, inode, subject.blocks);
            self.one(subject, inode, &file, false, range);
        }
    }

    fn buffer(&mut self, len: usize) -> Option<Buffer> {
        let is_host = self.random.once_in(5);
        if is_host { self.session.host_buffer(len).ok() } else { self.session.buffer(0, len).ok() }
    }

    fn one(
        &mut self,
        subject: &Subject,
        inode: &Inode,
        file: &File,
        is_quiet: bool,
        (first, count): (u64, u64),
    ) {
        let Some(mut buffer) = self.buffer(count as usize * SIZE) else { return };
        let low = inode.over(first, count);
        let read = self.trial.call(
            || format!("a read of {count} blocks"),
            || self.session.read(file, first * BLOCK, &mut buffer),
        );
        match read {
            Ok(receipt) => {
                let high = inode.begun(first, count);
                let bytes = buffer.to_vec().expect("memory of the GPU");
                self.count(&receipt);
                self.compare(
                    subject,
                    inode,
                    &Got { first, bytes: &bytes, low: &low },
                    &high,
                    &receipt.to_string(),
                );
            }
            Err(error) => self.refused(subject, inode, is_quiet, (first, &low), &error),
        }
    }

    fn pieces(&mut self, subject: &Subject, inode: &Inode, is_quiet: bool) {
        let ranges: Vec<_> = (0..self.random.between(1, 60)).map(|_| self.some(subject, inode, 16)).collect();
        let mut end = 0;
        let piece = |(first, count): &(u64, u64)| {
            let start = end;
            end += *count as usize * SIZE;
            ReadPiece { offset: first * BLOCK, range: start..end }
        };
        let pieces: Vec<_> = ranges.iter().map(piece).collect();
        let Some(buffer) = self.buffer(end) else { return };
        let lows: Vec<_> = ranges.iter().map(|(first, count)| inode.over(*first, *count)).collect();
        let outcome = self.trial.call(
            || "a batch".to_owned(),
            || self.session.read_batch(&inode.file, &pieces, buffer).map(forebay::Ticket::wait),
        );
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.trial.fail(format!("a batch was not taken: {error:?}")),
        };
        let bytes = outcome.buffer.to_vec().expect("memory of the GPU");
        self.count(&outcome.receipt);
        for (((first, count), low), (piece, entry)) in
            ranges.iter().zip(&lows).zip(pieces.iter().zip(&outcome.entries))
        {
            match entry {
                Ok(_) => {
                    let got = Got { first: *first, bytes: &bytes[piece.range.clone()], low };
                    self.compare(subject, inode, &got, &inode.begun(*first, *count), "a batch");
                }
                Err(error) => self.refused(subject, inode, is_quiet, (*first, low), error),
            }
        }
    }

    fn gather(&mut self, subject: &Subject, inode: &Inode, is_quiet: bool) {
        let device = self.session.device(0).expect("the software GPU");
        let refusals = [ErrorKind::Unsupported, ErrorKind::Busy];
        let map = match self.session.map(&inode.file, &device) {
            Ok(map) => map,
            Err(error) if refusals.contains(&error.kind()) => return self.trial.add("maps refused", 1),
            Err(error) => return self.trial.fail(format!("{}: map: {error:?}", subject.path.display())),
        };
        let blocks = (map.len() / BLOCK).min(subject.blocks);
        let firsts: Vec<u64> = (0..64).map(|_| self.random.below(blocks)).collect();
        let offsets: Vec<u64> = firsts.iter().map(|first| first * BLOCK).collect();
        let Ok(mut rows) = self.session.buffer(0, 64 * SIZE) else { return };
        let lows: Vec<_> = firsts.iter().map(|first| inode.over(*first, 1)).collect();
        match self
            .trial
            .call(|| "a gather".to_owned(), || map.gather(Offsets::Host(&offsets), SIZE, &mut rows))
        {
            Ok(_) => {
                self.trial.add("gathers", 1);
                let bytes = rows.to_vec().expect("memory of the GPU");
                for ((first, low), bytes) in firsts.iter().zip(&lows).zip(bytes.chunks(SIZE)) {
                    self.compare(
                        subject,
                        inode,
                        &Got { first: *first, bytes, low },
                        &inode.begun(*first, 1),
                        "a gather",
                    );
                }
            }
            Err(error) => self.refused(subject, inode, is_quiet, (firsts[0], &lows[0]), &error),
        }
    }

    /// Through the drop-in library, whose engine is another one than this program's.
    fn by_cufile(&mut self, subject: &Subject, inode: &Inode) {
        let (first, count) = self.some(subject, inode, 1024);
        let (len, low) = (count as usize * SIZE, inode.over(first, count));
        let found = self.trial.call(
            || format!("cuFileRead of {len}"),
            || cufile().read(inode.handle, self.memory.address, len, first * BLOCK),
        );
        let (high, busy) = (inode.begun(first, count), found == -(libc::EBUSY as isize));
        self.trial.add("reads by cuFile", 1);
        if found >= 0 {
            // What is not there is missing at the end.
            let is_short = found < len as isize;
            let may_be = !is_short || may_be_gone(&low, &high);
            self.trial.check(may_be, || {
                format!("{}: cuFileRead of {len} bytes gave {found}", subject.path.display())
            });
            let bytes = self.memory.get(0, found as usize / SIZE * SIZE);
            self.compare(subject, inode, &Got { first, bytes: &bytes, low: &low }, &high, "cuFileRead");
        } else {
            self.trial.add("busy", 1);
            self.trial.check(busy && low != high, || {
                format!("{}: cuFileRead of {len} bytes gave {found}", subject.path.display())
            });
        }
    }

    fn count(&self, receipt: &Receipt) {
        let in_place = receipt.moved[Way::Mapped] > 0;
        self.trial.add(if in_place { "reads in place" } else { "staged reads" }, 1);
    }

    /// A read that did not succeed: only for a reason that there was.
    fn refused(
        &self,
        subject: &Subject,
        inode: &Inode,
        is_quiet: bool,
        (first, low): (u64, &[State]),
        error: &Error,
    ) {
        let high = inode.begun(first, low.len() as u64);
        let is_right = match error.kind() {
            ErrorKind::Busy => !is_quiet,
            ErrorKind::ShortRead => may_be_gone(low, &high),
            _ => false,
        };
        self.trial.add(if error.kind() == ErrorKind::Busy { "busy" } else { "ends of files" }, 1);
        self.trial.check(is_right, || format!("{}: from block {first}: {error:?}", subject.path.display()));
    }

    fn compare(&self, subject: &Subject, inode: &Inode, got: &Got<'_>, high: &[State], what: &str) {
        self.trial.add("bytes compared", got.bytes.len() as u64);
        for (at, bytes) in got.bytes.chunks(SIZE).enumerate() {
            let (index, low, high) = (got.first + at as u64, got.low[at], high[at]);
            if let Err(seen) = block::is_good(bytes, (inode.id, index), (low, high)) {
                let (path, id) = (subject.path.display(), inode.id);
                return self.trial.fail(format!(
                    "{path} ({id}): block {index} is {seen:?}, over {low:?}, begun {high:?}: {what}"
                ));
            }
        }
    }
}

/// Whether one of the blocks may have been behind the end of the file.
fn may_be_gone(low: &[State], high: &[State]) -> bool {
    let may = |(low, high): (&State, &State)| {
        low.kind == Kind::Gone || high.kind == Kind::Gone || high.version > low.version + 1
    };
    low.iter().zip(high).any(may)
}
