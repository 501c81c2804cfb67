//! A thread that reads and writes a file of known bytes by all the ways that cuFile has, and compares.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::bytes::{difference, make, open, pattern};
use crate::cufile::{Handle, Params, cufile};
use crate::gpu::{Gpu, Memory, gpu};
use crate::random::Random;
use crate::trial::Trial;

const MIB: u64 = 1 << 20;
/// The longest transfer.
const MOST: u64 = 4 * MIB;
/// What each worker may write.
const REGION: u64 = 8 * MIB;

/// A file whose first part is only read; behind it each worker has a region of its own to write.
pub struct TestFile {
    pub path: PathBuf,
    /// The registered descriptor.
    pub fd: RawFd,
    pub handle: Handle,
    key: u64,
    fixed: u64,
    plain: File,
}

impl TestFile {
    pub fn new(path: &Path, key: u64, fixed: u64, workers: u64, flags: i32) -> Self {
        make(path, key, fixed + workers * REGION);
        let file = open(path, flags).or_else(|_| open(path, 0)).expect("the new file can be opened");
        let fd = file.into_raw_fd();
        let handle = cufile().register(fd).unwrap_or_else(|code| panic!("cuFileHandleRegister: {code}"));
        Self { path: path.to_owned(), fd, handle, key, fixed, plain: open(path, 0).expect("the new file") }
    }

    /// Where bytes read from the fixed part differ first from what is there.
    pub fn difference(&self, bytes: &[u8], at: u64) -> Option<usize> {
        difference(bytes, self.key, at)
    }

    /// Makes its pages cold.
    pub fn forget_pages(&self) {
        crate::bytes::forget_pages(&self.plain);
    }

    /// Ends the registration and closes the descriptor.
    pub fn close(&self) {
        cufile().deregister(self.handle);
        crate::bytes::close(self.fd);
    }
}

/// What a call may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All the bytes, and the right ones.
    AllGood,
    /// That, or an error.
    GoodOrError,
}

pub struct Worker<'a> {
    trial: &'static Trial,
    test_file: &'a TestFile,
    rule: Rule,
    memory: Memory,
    stream: u64,
    gpu: &'static Gpu,
    region: u64,
    random: Random,
}

impl<'a> Worker<'a> {
    pub fn new(trial: &'static Trial, test_file: &'a TestFile, rule: Rule, number: u64) -> Self {
        let gpu = gpu();
        let memory = gpu.memory(MOST as usize);
        if number.is_multiple_of(3) {
            // SAFETY: no memory is touched.
            let status = unsafe { (cufile().buf_register)(memory.address, MOST as usize, 0) };
            trial.check(status.code == 0, || format!("cuFileBufRegister: {status:?}"));
        }
        let stream = gpu.fake.create_stream(u32::from(number.is_multiple_of(2))).expect("a stream");
        let (region, random) = (test_file.fixed + number * REGION, trial.random(&format!("worker {number}")));
        Self { trial, test_file, rule, memory, stream, gpu, region, random }
    }

    /// One transfer or batch.
    pub fn one(&mut self) {
        match self.random.below(8) {
            0 | 1 => self.read(),
            2 => self.read_to_host(),
            3 => self.read_on_stream(),
            4 => self.batch(),
            5 => self.write_on_stream(),
            _ => self.write(),
        }
    }

    /// A range of memory that is only read.
    fn range(&mut self) -> (u64, usize) {
        let len = self.random.len(MOST.min(self.test_file.fixed));
        (self.random.below(self.test_file.fixed - len + 1), len as usize)
    }

    /// Judges the result of a call; whether its bytes are to be looked at.
    fn came(&self, what: &str, found: isize, len: usize) -> bool {
        if found == len as isize {
            return true;
        }
        self.trial.add("errors", 1);
        let allowed = self.rule == Rule::GoodOrError && found < 0;
        self.trial.check(allowed, || format!("{what} of {len} bytes gave {found}"));
        false
    }

    fn compare(&self, what: &str, bytes: &[u8], key: u64, at: u64) {
        self.trial.add("bytes compared", bytes.len() as u64);
        if let Some(first) = difference(bytes, key, at) {
            let len = bytes.len();
            self.trial.fail(format!(
                "{what} of {len} bytes at {at}: byte {first} is {}, which is wrong",
                bytes[first]
            ));
        }
    }

    fn read(&mut self) {
        let (offset, len) = self.range();
        let skew = self.random.below(MOST - len as u64 + 1) as usize;
        let base = self.memory.address + skew as u64;
        let found = self.trial.call(
            || format!("cuFileRead of {len} at {offset}"),
            || cufile().read(self.test_file.handle, base, len, offset),
        );
        self.trial.add("reads", 1);
        if self.came("cuFileRead", found, len) {
            self.compare("cuFileRead", &self.memory.get(skew, len), self.test_file.key, offset);
        }
    }

    fn read_to_host(&mut self) {
        let (offset, len) = self.range();
        let mut bytes = vec![0xEE; len];
        let base = bytes.as_mut_ptr() as u64;
        let found = self.trial.call(
            || format!("cuFileRead of {len} at {offset} into host memory"),
            || cufile().read(self.test_file.handle, base, len, offset),
        );
        self.trial.add("reads", 1);
        if self.came("cuFileRead into host memory", found, len) {
            self.compare("cuFileRead into host memory", &bytes, self.test_file.key, offset);
        }
    }

    fn batch(&mut self) {
        let count = self.random.between(1, 16) as usize;
        let room = MOST as usize / count;
        let ranges: Vec<_> = (0..count)
            .map(|_| {
                let (offset, len) = self.range();
                (offset, len.min(room))
            })
            .collect();
        let entry = |(at, (offset, len)): (usize, &(u64, usize))| {
            Params::new(
                self.test_file.handle,
                true,
                self.memory.address + (at * room) as u64,
                *len,
                *offset,
                at,
            )
        };
        let mut entries: Vec<_> = ranges.iter().enumerate().map(entry).collect();
        let results =
            self.trial.call(|| format!("a batch of {count} reads"), || cufile().run_batch(&mut entries));
        self.trial.add("batches", 1);
        match results {
            Ok(results) => {
                for (at, (found, (offset, len))) in results.iter().zip(&ranges).enumerate() {
                    if self.came("an entry of a batch", *found, *len) {
                        self.compare(
                            "a batch's entry",
                            &self.memory.get(at * room, *len),
                            self.test_file.key,
                            *offset,
                        );
                    }
                }
            }
            Err(code) => {
                let allowed = self.rule == Rule::GoodOrError;
                self.trial.check(allowed, || format!("a batch of {count} reads: {code}"));
            }
        }
    }

    fn on_stream(&mut self, is_read: bool, offset: u64, len: usize) -> Option<isize> {
        let (mut size, mut at, mut base_at, mut done) = (len, offset as i64, 0i64, isize::MIN);
        let function = if is_read { cufile().read_async } else { cufile().write_async };
        let what = if is_read { "cuFileReadAsync" } else { "cuFileWriteAsync" };
        self.trial.add("operations of streams", 1);
        self.trial.call(
            || format!("{what} of {len} at {offset}"),
            || {
                // SAFETY: the places live until the stream is waited for.
                let status = unsafe {
                    let (base, handle) = (self.memory.address, self.test_file.handle);
                    function(
                        handle,
                        base,
                        &raw mut size,
                        &raw mut at,
                        &raw mut base_at,
                        &raw mut done,
                        self.stream,
                    )
                };
                let allowed = status.code == 0 || self.rule == Rule::GoodOrError;
                self.trial.check(allowed, || format!("{what}: {status:?}"));
                self.gpu.synchronize(self.stream);
                // SAFETY: written by another thread before the stream went on.
                (status.code == 0).then(|| unsafe { std::ptr::read_volatile(&raw const done) })
            },
        )
    }

    fn read_on_stream(&mut self) {
        let (offset, len) = self.range();
        if let Some(found) = self.on_stream(true, offset, len)
            && self.came("cuFileReadAsync", found, len)
        {
            self.compare("cuFileReadAsync", &self.memory.get(0, len), self.test_file.key, offset);
        }
    }

    /// A range of this worker's own, and bytes for it.
    fn fresh(&mut self) -> (u64, usize, u64) {
        let len = self.random.len(MOST);
        let offset = self.region + self.random.below(REGION - len + 1);
        let key = self.random.next();
        self.memory.put(0, &pattern(key, offset, len as usize));
        (offset, len as usize, key)
    }

    fn write(&mut self) {
        let (offset, len, key) = self.fresh();
        let found = self.trial.call(
            || format!("cuFileWrite of {len} at {offset}"),
            || cufile().write(self.test_file.handle, self.memory.address, len, offset),
        );
        self.trial.add("writes", 1);
        if self.came("cuFileWrite", found, len) {
            self.read_back("cuFileWrite", offset, len, key);
        }
    }

    fn write_on_stream(&mut self) {
        let (offset, len, key) = self.fresh();
        if let Some(found) = self.on_stream(false, offset, len)
            && self.came("cuFileWriteAsync", found, len)
        {
            self.read_back("cuFileWriteAsync", offset, len, key);
        }
    }

    /// What the file has, by a descriptor that nobody plays with.
    fn read_back(&self, what: &str, offset: u64, len: usize, key: u64) {
        let mut bytes = vec![0; len];
        if let Err(error) = self.test_file.plain.read_exact_at(&mut bytes, offset) {
            // Closed with all the others: by its name then. That one may be closed as well.
            let again = open(&self.test_file.path, 0).map(ManuallyDrop::new).and_then(|file| {
                let again = file.read_exact_at(&mut bytes, offset);
                crate::bytes::close(file.as_raw_fd());
                again
            });
            if self.rule == Rule::GoodOrError && again.is_err() {
                return;
            }
            if !self.trial.check(again.is_ok(), || format!("reading back: {error}, {again:?}")) {
                return;
            }
        }
        self.compare(what, &bytes, key, offset);
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // SAFETY: no memory is touched; unregistered memory is refused.
        unsafe { (cufile().buf_deregister)(self.memory.address) };
        let _ = self.gpu.fake.destroy_stream(self.stream);
    }
}
