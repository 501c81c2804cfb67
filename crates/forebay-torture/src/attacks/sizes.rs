//! Sizes and offsets at every limit: what `cuFileRead` and a session answer is what `pread` would say, and it comes back.

use std::fs::File as Plain;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::{Direction, File, Memory as Place, Session, Transfer};

use crate::bytes::{difference, make, open};
use crate::cufile::{Handle, cufile, told};
use crate::gpu::{Memory, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const KEY: u64 = 8;
const MIB: u64 = 1 << 20;
const ROOM: u64 = 40 * MIB;
/// Sizes that no memory has: reads end where the file ends.
const HUGE: &[u64] = &[
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    1 << 32,
    (1 << 32) + 1,
    1 << 40,
    1 << 46,
    (1 << 47) - 1,
];

struct Subject {
    trial: &'static Trial,
    plain: Plain,
    handle: Handle,
    file: File,
    session: Session,
    memory: Memory,
    host: Host,
    len: u64,
}

/// Host memory of [`ROOM`], by its address: the library writes into it.
struct Host {
    address: u64,
}

impl Host {
    fn new() -> Self {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), ROOM as usize, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap");
        Self { address: at as u64 }
    }

    fn get(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: no transfer runs, and `len` is at most what a file has.
        unsafe { std::ptr::copy_nonoverlapping(self.address as *const u8, bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: it is unmapped once.
        unsafe { libc::munmap(self.address as *mut libc::c_void, ROOM as usize) };
    }
}

pub fn run(trial: &'static Trial) -> Outcome {
    let mut random = trial.random("sizes");
    while !trial.is_over() {
        let path = trial.place(&mut random).join("file");
        let len = random.one_of(&[0, 1, 4095, 4096, 4097, MIB - 1, 8 * MIB + 1, 32 * MIB]);
        let subject = Subject::new(trial, &path, len, &mut random);
        for _ in 0..60 {
            subject.one(&mut random);
        }
        if len > MIB {
            subject.shrinking(&mut random);
        }
        cufile().deregister(subject.handle);
    }
    Ok(())
}

impl Subject {
    fn new(trial: &'static Trial, path: &Path, len: u64, random: &mut Random) -> Self {
        make(path, KEY, len);
        let flags = random.one_of(&[0, libc::O_DIRECT]);
        let plain = open(path, flags).or_else(|_| open(path, 0)).expect("a new file");
        if random.once_in(2) {
            crate::bytes::forget_pages(&plain);
        }
        let handle = cufile().register(plain.as_raw_fd()).expect("a registered file");
        let memory = gpu().memory(ROOM as usize);
        let session = Session::open().expect("a session");
        Self {
            trial,
            plain,
            handle,
            file: File::open(path).expect("a new file"),
            session,
            memory,
            host: Host::new(),
            len,
        }
    }

    fn one(&self, random: &mut Random) {
        let near = |at: u64, random: &mut Random| (at + random.below(3)).saturating_sub(1);
        let offset = match random.below(5) {
            0 => 0,
            1 => near(random.one_of(&[4096, 512, MIB]), random),
            2 => near(self.len, random),
            3 => random.below(self.len + 2),
            _ => random.one_of(&[1 << 31, 1 << 40, (1 << 63) - 1, (1 << 63) - 4096, (1 << 63) - 4097]),
        };
        let size = match random.below(4) {
            0 => near(random.one_of(&[1, 4096, 64 << 10, MIB, 4 * MIB]), random),
            1 => near(self.len.saturating_sub(offset.min(self.len)), random),
            2 => random.below(self.len + 4097),
            _ => random.one_of(HUGE),
        };
        self.read(offset, size);
        self.read_by_session(offset, size);
        if random.once_in(10) {
            self.negative(random);
        }
    }

    /// What `pread` says: an end of the range that no offset can be is refused by the kernel.
    fn wanted(&self, offset: u64, size: u64) -> Option<u64> {
        let fits = offset.checked_add(size).is_some_and(|end| i64::try_from(end).is_ok());
        fits.then(|| self.len.saturating_sub(offset).min(size))
    }

    fn judge(
        &self,
        what: &str,
        found: &Result<u64, String>,
        (offset, size): (u64, u64),
        bytes: impl Fn(usize) -> Vec<u8>,
    ) {
        self.trial.add("reads", 1);
        let wanted = self.wanted(offset, size);
        let len = self.len;
        let is_right = match (found, wanted) {
            (Ok(found), Some(wanted)) => *found == wanted,
            // The file ends before such an offset in any case; 0 is as acceptable as the kernel's EINVAL.
            (Ok(found), None) => *found == 0,
            (Err(_), wanted) => wanted.is_none(),
        };
        self.trial.check(is_right, || {
            format!(
                "{what} of {size} bytes at {offset} of a file of {len} gave {found:?}, pread says {wanted:?}"
            )
        });
        if is_right && let Ok(found) = *found {
            let wrong = difference(&bytes(found as usize), KEY, offset);
            self.trial.add("bytes compared", found);
            self.trial.check(wrong.is_none(), || {
                format!("{what} of {size} bytes at {offset}: byte {wrong:?} is wrong")
            });
        }
    }

    fn read(&self, offset: u64, size: u64) {
        let call = |base| {
            let what = || format!("cuFileRead of {size} bytes at {offset} of a file of {}", self.len);
            self.trial.call(what, || cufile().read(self.handle, base, size as usize, offset))
        };
        let found = call(self.host.address);
        let found = u64::try_from(found).map_err(|_| found.to_string());
        self.judge("cuFileRead into host memory", &found, (offset, size), |len| self.host.get(len));
        let found = call(self.memory.address);
        if size > ROOM {
            // Unlike host memory, the GPU's is known to end.
            self.trial.check(found == -(libc::EIO as isize), || {
                format!("cuFileRead of {size} bytes into {ROOM} of a GPU's gave {found}, not -EIO")
            });
            return;
        }
        let found = u64::try_from(found).map_err(|_| found.to_string());
        self.judge("cuFileRead", &found, (offset, size), |len| self.memory.get(0, len));
    }

    fn read_by_session(&self, offset: u64, size: u64) {
        let host = &self.session.devices().host;
        let transfer = Transfer {
            file: self.file.clone(),
            offset,
            memory: Place::new(host.clone(), self.host.address),
            len: size as usize,
            direction: Direction::Read,
            allow_short: true,
        };
        let what = || format!("Session::run of {size} bytes at {offset} of a file of {}", self.len);
        // SAFETY: reads end where the file ends, before the memory does.
        let found = self.trial.call(what, || unsafe { self.session.run(&transfer) });
        let found = found.map(|receipt| receipt.bytes()).map_err(|error| error.to_string());
        self.judge("Session::run", &found, (offset, size), |len| self.host.get(len));
    }

    fn negative(&self, random: &mut Random) {
        let offset = random.one_of(&[-1, -4096, i64::MIN, i64::MIN + 1]);
        let size = random.one_of(&[0, 1, 4096, MIB as usize]);
        let base = self.memory.address;
        let (by_offset, by_base) = self.trial.call(
            || format!("calls of {size} bytes at {offset}"),
            || {
                let call = |function: unsafe extern "C-unwind" fn(Handle, u64, usize, i64, i64) -> isize,
                            at,
                            skip| {
                    // SAFETY: memory of the GPU, by its address.
                    told(unsafe { function(self.handle, base, size, at, skip) })
                };
                let (read, write) = (cufile().raw_read, cufile().raw_write);
                (
                    [call(read, offset, 0), call(write, offset, 0)],
                    [call(read, 0, offset), call(write, 0, offset)],
                )
            },
        );
        self.trial.add("negative offsets", 4);
        self.trial.check(by_offset == [-5022; 2], || {
            format!("a file offset of {offset}, {size} bytes: {by_offset:?}")
        });
        self.trial.check(by_base == [-5030; 2], || {
            format!("an offset of {offset} in memory, {size} bytes: {by_base:?}")
        });
    }

    /// Reads while the file is cut short and made whole again: as many bytes as it had at some moment.
    fn shrinking(&self, random: &mut Random) {
        let (short, stop) = (random.between(1, self.len - 1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = self.plain.set_len(short);
                    let _ = self.plain.set_len(self.len);
                }
            });
            for _ in 0..20 {
                let size = random.one_of(&[self.len, self.len + 1, ROOM, 1 << 40]);
                let what = || format!("cuFileRead of {size} bytes of a file that shrinks");
                let found =
                    self.trial.call(what, || cufile().read(self.handle, self.host.address, size as usize, 0));
                self.trial.add("reads of files that shrink", 1);
                let is_right = u64::try_from(found).is_ok_and(|found| (short..=self.len).contains(&found));
                let len = self.len;
                self.trial.check(is_right, || {
                    format!("cuFileRead of {size} bytes of a file of {short} to {len} bytes gave {found}")
                });
                // Bytes that were never truncated are still the file's.
                let kept = short.min(ROOM) as usize;
                let wrong = if is_right { difference(&self.host.get(kept), KEY, 0) } else { None };
                self.trial
                    .check(wrong.is_none(), || format!("of a file that shrinks byte {wrong:?} is wrong"));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
