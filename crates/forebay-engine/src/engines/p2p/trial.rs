//! Whether a drive really reaches a device's memory: found out by bytes that are moved and compared.
//!
//! A call that succeeds proves nothing: where something leads DMA astray, reads end well and their bytes are elsewhere. So
//! a trial fills the memory with other bytes first, has the drive move some, and compares them with what an ordinary
//! O_DIRECT call on host memory says. It also looks whether the bytes went through the page cache: some file systems do
//! that silently, and then no drive has reached anything.
//!
//! Read trials use the file to be read. The result holds for its file system, or for that file alone where several
//! drives may be behind the file system (overlay). Write trials use an unnamed file (`O_TMPFILE`) of the same mount.
//! Where that fails, or proves nothing (block devices), they write a part of the caller's own bytes to its final place.
//! Wrong bytes found afterwards are rewritten from host memory.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, DeviceRange, HostRange, Wait, fill_pattern};

use crate::engines::trial_memory::TrialMemory;
use crate::io::refusal;
use crate::request::file::File;
use crate::request::receipt::Refusal;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::runtime::sys::{self, Pages};
use crate::source::piece::{Direction, Piece};
use crate::source::{Descriptors, DirectAlignment};

/// Bytes of a trial, at most.
const SAMPLE_BYTES: usize = 64 << 10;
/// Memory that is aligned to less than a sector is left alone: drives are said to take multiples of 4 bytes, but bytes were
/// seen to get lost there, below a length.
const SECTOR: u64 = 512;
/// Places of a file, or of the bytes to write, that are searched for bytes that prove something.
const SAMPLE_PLACES: u64 = 4;
/// Single files that are remembered.
const MAX_FILES: usize = 256;
/// How long it is left alone where a trial could not tell.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The alignment of memory that a trial, and so the engine, requires.
pub(crate) fn memory_alignment(direct: DirectAlignment) -> u64 {
    u64::from(direct.memory).max(SECTOR)
}

pub(crate) type Verdict = std::result::Result<(), Arc<Refusal>>;

/// The subject of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    device_id: DeviceId,
    /// Device number of the file system, or of the block device.
    mount: u64,
    /// The open file, where that number does not tell which drive its bytes are on.
    file: Option<u64>,
    direction: Direction,
}

/// The device's part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId {
    boot: u128,
    device: [u8; 16],
}

impl DeviceId {
    pub(crate) fn of(device: &dyn Device) -> Self {
        Self { boot: boot(), device: device.info().uuid }
    }
}

impl Key {
    pub(crate) fn new(device_id: DeviceId, file: &Descriptors, direction: Direction) -> Self {
        Self { device_id, mount: file.nature.mount, file: alone(file), direction }
    }
}

/// The number of an open file whose verdict holds for no other file. File systems without a block device of their own
/// (overlay, btrfs, …) lead to other drives from file to file, and the kernel gives their numbers anew after they are
/// gone.
fn alone(file: &Descriptors) -> Option<u64> {
    let is_alone = || libc::major(file.nature.mount) == 0 || sys::is_realtime(file.buffered.as_raw_fd());
    file.is_alone.get_or_init(is_alone).then_some(file.id)
}

/// The kernel's number for this boot.
fn boot() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or_default()
}

/// The process's verdicts.
#[derive(Debug, Default)]
struct Trials {
    known: Mutex<Vec<(Key, KnownVerdict)>>,
    /// One trial at a time.
    turn: Mutex<()>,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for Trials {
    const NAME: &'static str = "trials of p2p";
}

#[derive(Clone, Debug)]
struct KnownVerdict {
    verdict: Verdict,
    /// When the verdict ends; `None`: never.
    until: Option<Instant>,
}

/// The verdict so far, if there is one.
pub(crate) fn known(key: &Key) -> Option<Verdict> {
    let all = lock(&Trials::of_process().known);
    let (_, found) = all.iter().find(|(known, _)| known == key)?;
    let holds = found.until.is_none_or(|until| Instant::now() < until);
    holds.then(|| found.verdict.clone())
}

fn learn(key: Key, verdict: Verdict, until: Option<Instant>) {
    let mut all = lock(&Trials::of_process().known);
    all.retain(|(known, _)| *known != key);
    // Files come and go; a dropped verdict is tried again.
    if all.iter().filter(|(known, _)| known.file.is_some()).count() >= MAX_FILES
        && let Some(oldest) = all.iter().position(|(known, _)| known.file.is_some())
    {
        all.remove(oldest);
    }
    all.push((key, KnownVerdict { verdict, until }));
}

/// Refuses a way for the rest of the process.
pub(crate) fn refuse(key: Key, refusal: Arc<Refusal>) {
    learn(key, Err(refusal), None);
}

/// Why a trial failed.
enum TrialOutcome {
    /// The drive does not reach the memory.
    Refused(Arc<Refusal>),
    /// The trial could not tell whether the drive reaches the memory.
    Unclear(Arc<Refusal>),
}

impl From<Error> for TrialOutcome {
    fn from(error: Error) -> Self {
        Self::Unclear(refusal::refusal(
            format!("cannot try whether the drive reaches this memory: {error}"),
            error.hints().first().map(String::as_str),
        ))
    }
}

type TrialResult = std::result::Result<(), TrialOutcome>;

fn no(refusal: Arc<Refusal>) -> TrialOutcome {
    TrialOutcome::Refused(refusal)
}

fn unclear(text: &str) -> TrialOutcome {
    TrialOutcome::Unclear(refusal::refusal(text, None))
}

/// The verdict on a device and the mount of a file; the first question moves some bytes. `piece` is an aligned one that
/// the caller wants to move.
pub(crate) fn verdict(
    key: Key,
    memory: &Samples,
    file: &File,
    descriptors: &Descriptors,
    piece: Piece,
) -> Verdict {
    if let Some(verdict) = known(&key) {
        return verdict;
    }
    let _turn = lock(&Trials::of_process().turn);
    if let Some(verdict) = known(&key) {
        return verdict;
    }
    let (verdict, until) = match run(key, memory, file, descriptors, piece) {
        Ok(()) => (Ok(()), None),
        Err(TrialOutcome::Refused(refusal)) => (Err(refusal), None),
        Err(TrialOutcome::Unclear(refusal)) => (Err(refusal), Instant::now().checked_add(RETRY_PAUSE)),
    };
    learn(key, verdict.clone(), until);
    verdict
}

fn run(key: Key, memory: &Samples, file: &File, descriptors: &Descriptors, piece: Piece) -> TrialResult {
    let Some((fd, alignment)) = &descriptors.direct else { return Err(unclear("the file has no O_DIRECT")) };
    let step = u64::from(alignment.offset).max(sys::page()) as usize;
    let trial = Trial { device: &memory.device, file: descriptors, fd: fd.as_raw_fd(), step };
    let mut kept = lock(&memory.kept);
    let memory = memory.sample(&mut kept, memory_alignment(*alignment))?;
    let other = || if key.file.is_none() { scratch(file, descriptors) } else { None };
    match key.direction {
        Direction::Read => match trial.read_file(memory) {
            Err(TrialOutcome::Unclear(refusal)) => match other() {
                Some(scratch) => trial.on(&scratch).read_scratch(memory),
                None => Err(TrialOutcome::Unclear(refusal)),
            },
            tried => tried,
        },
        Direction::Write => match other() {
            Some(scratch) => trial.on(&scratch).write_scratch(memory),
            None => trial.write_in_place(piece),
        },
    }
}

/// Device memory for trials: allocated for the first, and kept.
pub(crate) struct Samples {
    device: Arc<dyn Device>,
    kept: Mutex<Option<TakenSample>>,
}

impl Samples {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, kept: Mutex::default() }
    }

    /// The memory, as badly aligned as any that the engine takes.
    fn sample<'a>(&self, kept: &'a mut Option<TakenSample>, alignment: u64) -> Result<&'a TakenSample> {
        let fits = |sample: &TakenSample| {
            sample.room >= SAMPLE_BYTES + alignment as usize && sample.memory.is_there()
        };
        let mut sample = match kept.take().filter(fits) {
            Some(sample) => sample,
            None => TakenSample::new(&self.device, SAMPLE_BYTES + alignment as usize)?,
        };
        sample.address = sample.memory.start + alignment;
        Ok(kept.insert(sample))
    }
}

struct TakenSample {
    memory: TrialMemory,
    room: usize,
    address: u64,
}

impl TakenSample {
    fn new(device: &Arc<dyn Device>, room: usize) -> Result<Self> {
        let memory = TrialMemory::new(device, room)?;
        let address = memory.start;
        Ok(Self { memory, room, address })
    }

    fn set(&self, bytes: &[u8]) -> Result<()> {
        let stream = self.memory.device.stream(Context::PRIMARY)?;
        // SAFETY: the memory has SAMPLE_BYTES bytes, and no caller has more; the copy is waited for.
        unsafe { stream.copy_in(self.address, HostRange::of(bytes)) }?;
        stream.synchronize(Wait::Block)?;
        super::settle(self.address);
        Ok(())
    }
}

fn bytes_at(device: &dyn Device, memory: DeviceRange) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.len];
    let stream = device.stream(Context::PRIMARY)?;
    // SAFETY: the caller names valid memory; the copy ends before this returns.
    unsafe { stream.copy_out(HostRange::of_mut(&mut bytes), memory.start) }?;
    stream.synchronize(Wait::Block)?;
    Ok(bytes)
}

/// A nameless file on the mount of another; gone when it is closed.
fn scratch(file: &File, descriptors: &Descriptors) -> Option<OwnedFd> {
    if !descriptors.nature.is_regular {
        return None;
    }
    let link = || std::fs::read_link(format!("/proc/thread-self/fd/{}", file.raw_fd()?)).ok();
    let path = file.path().map(PathBuf::from).or_else(link)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| std::path::Path::new("."));
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_DIRECT;
    let opened = sys::open(folder, flags, 0o600).ok()?;
    let is_there = sys::stat(opened.as_raw_fd()).is_ok_and(|stat| stat.st_dev == descriptors.nature.mount);
    is_there.then_some(opened)
}

/// Bytes that no file has by chance.
fn test_bytes(key: u64) -> Vec<u8> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut bytes = vec![0; SAMPLE_BYTES];
    fill_pattern(&mut bytes, key ^ clock.as_nanos() as u64, 0);
    bytes
}

/// A file on which a trial runs.
#[derive(Clone, Copy)]
struct Trial<'a> {
    device: &'a Arc<dyn Device>,
    file: &'a Descriptors,
    /// An O_DIRECT descriptor.
    fd: RawFd,
    /// Offsets and lengths are multiples of it.
    step: usize,
}

impl Trial<'_> {
    fn on(self, scratch: &OwnedFd) -> Self {
        Self { fd: scratch.as_raw_fd(), ..self }
    }

    /// A call on any memory: bytes, or a negative errno.
    fn call(&self, direction: Direction, memory: HostRange, offset: u64) -> isize {
        loop {
            // SAFETY: the caller names valid memory that nobody else uses.
            let done = unsafe {
                match direction {
                    Direction::Read => self.file.calls.read(self.fd, memory, offset, false),
                    Direction::Write => self.file.calls.write(self.fd, memory, offset),
                }
            };
            if done != -(libc::EINTR as isize) {
                return done;
            }
        }
    }

    /// The drive's bytes, through host memory.
    fn read_back(&self, len: usize, offset: u64) -> Result<Vec<u8>> {
        let pages = Pages::new(len)?;
        match self.call(Direction::Read, pages.range().first(len), offset) {
            got if got < 0 => Err(Error::from_errno(-got as i32, "cannot read the file")),
            got => {
                // SAFETY: mapped, and this thread's alone; the kernel has filled `got` bytes.
                let bytes = unsafe { pages.range().first(got as usize).bytes() };
                Ok(bytes.to_vec())
            }
        }
    }

    /// Has the drive take bytes from host memory.
    fn write_file(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let pages = Pages::new(bytes.len())?;
        let memory = pages.range().first(bytes.len());
        // SAFETY: mapped with room for all of them.
        unsafe { memory.bytes_mut() }.copy_from_slice(bytes);
        match self.call(Direction::Write, memory, offset) {
            put if put == bytes.len() as isize => Ok(()),
            put if put < 0 => Err(Error::from_errno(-put as i32, "cannot write a trial's bytes")),
            _ => Err(Error::new(ErrorKind::Io, "the file took only some of a trial's bytes")),
        }
    }

    /// Has the drive move bytes to or from the device's memory: a block, and then the rest. Drives report short and
    /// long ranges in different ways.
    fn place(&self, direction: Direction, memory: DeviceRange, offset: u64) -> TrialResult {
        let (memory, step) = (memory.as_host(), self.step);
        self.place_once(direction, memory.first(step), offset)?;
        if memory.len <= step {
            return Ok(());
        }
        self.place_once(direction, memory.after(step), offset + step as u64)
    }

    fn place_once(&self, direction: Direction, memory: HostRange, offset: u64) -> TrialResult {
        let len = memory.len;
        let cached = self.resident(offset, len);
        match self.call(direction, memory, offset) {
            done if done == len as isize => {}
            done if done < 0 => {
                let errno = -done as i32;
                let refusal = refusal::of_errno(errno, direction);
                return Err(if refusal::is_of_the_way(errno) {
                    no(refusal)
                } else {
                    TrialOutcome::Unclear(refusal)
                });
            }
            done => return Err(no(refusal::short(len, done as usize))),
        }
        // A page that has come into the page cache meanwhile may come from another process: not for good.
        if cached == Some(0) && self.resident(offset, len).is_some_and(|bytes| bytes > 0) {
            return Err(unclear(
                "the file system moves the bytes through the page cache in spite of O_DIRECT",
            ));
        }
        Ok(())
    }

    /// Bytes of a range in the page cache, where the kernel tells.
    fn resident(&self, offset: u64, len: usize) -> Option<u64> {
        sys::cachestat(self.fd, offset, len as u64).ok()
    }

    /// Reads the file's own bytes.
    fn read_file(&self, memory: &TakenSample) -> TrialResult {
        let len = sys::length(self.fd)?;
        let mut last = None;
        for place in 0..SAMPLE_PLACES {
            let offset = len / SAMPLE_PLACES * place / self.step as u64 * self.step as u64;
            let room = (len - offset).min(SAMPLE_BYTES as u64) as usize / self.step * self.step;
            if room == 0 || last == Some(offset) {
                continue;
            }
            last = Some(offset);
            let read_back = self.read_back(room, offset)?;
            if read_back.len() == room && !is_uniform(&read_back) {
                return self.compare_read(memory, &read_back, offset);
            }
        }
        Err(unclear("the file holds no bytes to try a read with: it is too short, or the same byte all over"))
    }

    fn compare_read(&self, memory: &TakenSample, read_back: &[u8], offset: u64) -> TrialResult {
        let others: Vec<u8> = read_back.iter().map(|byte| !byte).collect();
        memory.set(&others)?;
        // SAFETY: no pointers are passed. Whether a read goes through the page cache shows only where it is empty.
        unsafe {
            libc::posix_fadvise(self.fd, offset as i64, read_back.len() as i64, libc::POSIX_FADV_DONTNEED)
        };
        let placed = DeviceRange::new(memory.address, read_back.len());
        self.place(Direction::Read, placed, offset)?;
        let got = bytes_at(self.device.as_ref(), placed)?;
        match first_difference(&got, read_back) {
            None => Ok(()),
            Some(_) if self.read_back(read_back.len(), offset)? != read_back => {
                Err(unclear("the file changed while a read of it was tried"))
            }
            Some(first) => Err(no(refusal::wrong_bytes(first, Direction::Read))),
        }
    }

    fn read_scratch(&self, memory: &TakenSample) -> TrialResult {
        let bytes = test_bytes(1);
        self.write_file(&bytes, 0)?;
        self.compare_read(memory, &bytes, 0)
    }

    fn write_scratch(&self, memory: &TakenSample) -> TrialResult {
        let bytes = test_bytes(2);
        let others: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        self.write_file(&others, 0)?;
        memory.set(&bytes)?;
        self.place(Direction::Write, DeviceRange::new(memory.address, bytes.len()), 0)?;
        match first_difference(&self.read_back(bytes.len(), 0)?, &bytes) {
            None => Ok(()),
            Some(first) => Err(no(refusal::wrong_bytes(first, Direction::Write))),
        }
    }

    /// Writes a part of the caller's bytes to its final place. The file may hold the same bytes already: a drive that
    /// reads the wrong memory would still replace them by others.
    fn write_in_place(&self, piece: Piece) -> TrialResult {
        let len = piece.len.min(SAMPLE_BYTES);
        let mut found = None;
        for place in 0..SAMPLE_PLACES {
            let at = (piece.len - len) / SAMPLE_PLACES as usize * place as usize / self.step * self.step;
            let bytes = bytes_at(self.device.as_ref(), DeviceRange::new(piece.address + at as u64, len))?;
            if !is_uniform(&bytes) {
                found = Some((at as u64, bytes));
                break;
            }
        }
        let Some((at, bytes)) = found else {
            return Err(unclear("the bytes to write are all the same, which proves nothing"));
        };
        let offset = piece.offset + at;
        let tried =
            self.place(Direction::Write, DeviceRange::new(piece.address + at, len), offset).and_then(|()| {
                match first_difference(&self.read_back(len, offset)?, &bytes) {
                    None => Ok(()),
                    Some(first) => Err(no(refusal::wrong_bytes(first, Direction::Write))),
                }
            });
        if tried.is_err() {
            // Whatever was written, the caller's bytes belong there. Where that fails, so will writing the whole piece,
            // which follows; the verdict is what must not be lost.
            let _ = self.write_file(&bytes, offset);
        }
        tried
    }
}

/// All bytes are the same: such bytes may be there for other reasons.
fn is_uniform(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == bytes[0])
}

/// The first byte in which they differ, lengths included.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    let common = a.len().min(b.len());
    Some(a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(common))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_drive_speak_for_each_other() {
        let program = std::env::current_exe().unwrap();
        for folder in [std::path::Path::new("/dev/shm"), program.parent().unwrap()] {
            let temporary = [(); 2].map(|()| tempfile::NamedTempFile::new_in(folder).unwrap());
            let files = temporary.each_ref().map(|file| File::open(file.path()).unwrap());
            let [one, other] = files.each_ref().map(|file| {
                let descriptors = file.descriptors().unwrap();
                (alone(descriptors), libc::major(descriptors.nature.mount))
            });
            assert_eq!(one.0 != other.0, one.1 == 0, "{folder:?}");
            assert_eq!(one.0.is_some(), one.1 == 0);
        }
    }
}
