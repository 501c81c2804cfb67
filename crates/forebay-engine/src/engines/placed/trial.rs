//! Whether a server's bytes really arrive in a device's memory: found out by bytes that are moved and compared, before the engine is
//! used, and beside the transfers that ask for it. A reply proves nothing: where something leads a NIC's writes astray, calls end well and their bytes are elsewhere.
//!
//! A trial fills memory of its own with other bytes, has the server place some of the file there, and compares them with what
//! comes the other way. Bytes that are all the same prove nothing. The result holds for the server's file system, the device and the NIC.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, HostRange, Wait};
use forebay_source::{DeviceRange, FileReplaced, Place, PlaceScope, Source};

use super::memory;
use super::refusals::{error_refusal, refusal};
use super::server_file::ServerFile;
use crate::engines::task_thread::{TaskThread, answer};
use crate::engines::trial_memory::TrialMemory;
use crate::request::file::File;
use crate::request::receipt::Refusal;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;

/// Bytes of a trial, at most.
const SAMPLE: usize = 64 << 10;
/// Places of a file that are looked at for bytes that prove something.
const PLACES: u64 = 4;
/// Where the trial's memory begins in its allocation: as badly aligned as a caller's may be.
const MISALIGNMENT: u64 = 4099;
/// A way is not used before this has passed since a transfer by it failed, and not tried again since a trial of it was unclear.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) type Verdict = std::result::Result<(), Arc<Refusal>>;

/// The subject of a verdict.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    scope: PlaceScope,
    device: [u8; 16],
    nic: String,
}

impl Key {
    pub(super) fn new(place: &dyn Place, device: &dyn Device, nic: &str) -> Self {
        Self { scope: place.scope(), device: device.info().uuid, nic: nic.to_owned() }
    }
}

/// The process's verdicts.
#[derive(Debug, Default)]
struct Trials {
    known: Mutex<Vec<(Key, KnownVerdict)>>,
    paused: Mutex<Vec<Pause>>,
    /// Those that will be tried soon.
    begun: Mutex<Vec<Key>>,
    /// One trial at a time.
    turn: Mutex<()>,
}

impl Trials {
    /// Whether the way is to be tried now: nobody else has begun to.
    fn begin(key: &Key) -> bool {
        let mut begun = lock(&Self::of_process().begun);
        let is_new = !begun.contains(key);
        if is_new {
            begun.push(key.clone());
        }
        is_new
    }
}

/// A way that a thread is about to try: no other begins before this is dropped.
struct TrialGuard(Key);

impl Drop for TrialGuard {
    fn drop(&mut self) {
        lock(&Trials::of_process().begun).retain(|other| *other != self.0);
    }
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for Trials {
    const NAME: &'static str = "trials of placing";
}

/// The result of the last trial of a way.
#[derive(Clone, Debug)]
struct KnownVerdict {
    verdict: Verdict,
    /// The verdict holds until then, or for good.
    until: Option<Instant>,
}

/// A transfer failed: the way is left alone until then.
#[derive(Debug)]
struct Pause {
    key: Key,
    /// For one file alone.
    file: Option<Weak<dyn Source>>,
    until: Instant,
    refusal: Arc<Refusal>,
}

impl Pause {
    fn holds_for(&self, key: &Key, file: &File) -> bool {
        let is_of = |other: &Weak<dyn Source>| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(file.source()));
        Instant::now() < self.until && self.key == *key && self.file.as_ref().is_none_or(is_of)
    }
}

fn known(key: &Key, file: &File) -> Option<Verdict> {
    let paused = lock(&Trials::of_process().paused);
    if let Some(pause) = paused.iter().find(|pause| pause.holds_for(key, file)) {
        return Some(Err(pause.refusal.clone()));
    }
    drop(paused);
    let all = lock(&Trials::of_process().known);
    let (_, found) = all.iter().find(|(known, _)| known == key)?;
    found.until.is_none_or(|until| Instant::now() < until).then(|| found.verdict.clone())
}

/// Why the way was refused last, whether or not that still holds.
fn last_refusal(key: &Key) -> Option<Arc<Refusal>> {
    let all = lock(&Trials::of_process().known);
    all.iter().find(|(known, _)| known == key)?.1.verdict.clone().err()
}

fn learn(key: &Key, verdict: Verdict, until: Option<Instant>) {
    let mut all = lock(&Trials::of_process().known);
    all.retain(|(known, _)| known != key && known.scope.server.strong_count() > 0);
    all.push((key.clone(), KnownVerdict { verdict, until }));
}

/// Leaves the way alone for a moment, for this file alone or for all: a transfer of the file failed there.
pub(super) fn pause(key: &Key, file: &File, error: &Error, refusal: &Arc<Refusal>) {
    // Where one file was removed or replaced, the others can still be placed. After any other error perhaps not: the server is
    // busy, a queue is full.
    let file = error.is_caused_by::<FileReplaced>().then(|| Arc::downgrade(file.source()));
    let mut all = lock(&Trials::of_process().paused);
    let now = Instant::now();
    all.retain(|pause| now < pause.until);
    all.push(Pause { key: key.clone(), file, until: now + PAUSE, refusal: refusal.clone() });
}

/// Why a trial failed.
enum TrialOutcome {
    /// The bytes do not arrive.
    Refused(Arc<Refusal>),
    /// Whether they arrive is not known yet.
    Unclear(Arc<Refusal>),
    /// The file was not read either.
    Failed(Error, Arc<Refusal>),
}

impl From<Error> for TrialOutcome {
    fn from(error: Error) -> Self {
        let reason = format!("cannot try whether the server reaches this memory: {error}");
        let refusal = refusal(reason, error.hints().first().map(String::as_str));
        Self::Failed(error, refusal)
    }
}

fn unclear(text: &str) -> TrialOutcome {
    TrialOutcome::Unclear(refusal(text, None))
}

/// Tries ways beside transfers, in memory that the device keeps for it: nothing is allocated while a transfer waits.
pub(super) struct Tester {
    device: Arc<dyn Device>,
    thread: TaskThread,
    memory: Mutex<Option<TrialMemory>>,
}

impl Tester {
    pub(super) fn new(device: Arc<dyn Device>, thread: TaskThread) -> Arc<Self> {
        Arc::new(Self { device, thread, memory: Mutex::default() })
    }

    /// The verdict on a way. Where there is none the way is tried beside the transfer that asks, which goes another way; it waits
    /// where it may go no other (`waits`).
    pub(super) fn verdict(self: &Arc<Self>, key: &Key, server: &ServerFile, waits: bool) -> Verdict {
        if let Some(verdict) = known(key, &server.file) {
            return verdict;
        }
        // The last verdict holds until a new one is known.
        let meanwhile = last_refusal(key).unwrap_or_else(under_way);
        if !waits && !Trials::begin(key) {
            return Err(meanwhile);
        }
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let begun = (!waits).then(|| TrialGuard(key.clone()));
        let (this, key, tried) = (self.clone(), key.clone(), server.clone());
        self.thread.add(Box::new(move || {
            let verdict = answer(|| Ok(this.judge(&key, &tried)));
            drop(begun);
            // A caller that closes the file finds it released.
            drop(tried);
            // The receiver may be gone.
            let _ = tell.send(verdict.unwrap_or_else(|error| Err(error_refusal(&error))));
        }));
        if !waits {
            return Err(meanwhile);
        }
        // Trials of other ways may be before it, of servers that do not answer.
        told.recv_timeout(server.place.deadline()).unwrap_or(Err(meanwhile))
    }

    /// Tries a way, unless another session has done so meanwhile.
    fn judge(&self, key: &Key, server: &ServerFile) -> Verdict {
        let _turn = lock(&Trials::of_process().turn);
        if let Some(verdict) = known(key, &server.file) {
            return verdict;
        }
        let mut memory = lock(&self.memory);
        let kept = memory.take().filter(TrialMemory::is_there);
        let tried = match kept
            .map_or_else(|| TrialMemory::new(&self.device, SAMPLE + 2 * MISALIGNMENT as usize), Ok)
        {
            Ok(made) => run(server, memory.insert(made)),
            Err(error) => Err(error.into()),
        };
        let (verdict, until) = match tried {
            Ok(()) => (Ok(()), None),
            Err(TrialOutcome::Refused(refusal)) => (Err(refusal), None),
            Err(TrialOutcome::Failed(error, refusal)) if error.is_caused_by::<FileReplaced>() => {
                pause(key, &server.file, &error, &refusal);
                return Err(refusal);
            }
            Err(TrialOutcome::Unclear(refusal) | TrialOutcome::Failed(_, refusal)) => {
                (Err(refusal), Instant::now().checked_add(PAUSE))
            }
        };
        learn(key, verdict.clone(), until);
        verdict
    }
}

fn under_way() -> Arc<Refusal> {
    refusal("a trial whether the server reaches this memory is in progress", None)
}

fn run(server: &ServerFile, memory: &TrialMemory) -> std::result::Result<(), TrialOutcome> {
    server.settle()?;
    let before = server.place.state()?;
    let (offset, held) = sample(server)?;
    let others: Vec<u8> = held.iter().map(|byte| !byte).collect();
    memory.set(&others)?;
    memory.place(server, offset, held.len())?;
    let got = memory.bytes(held.len())?;
    if got == held {
        return Ok(());
    }
    if server.place.state()? != before || server.held(held.len(), offset)? != held {
        return Err(unclear("the file changed while a read of it was tried"));
    }
    if server.is_mounted && server.by_host(held.len(), offset)? == got {
        return Err(unclear("this host's page cache holds other bytes of the file than the server"));
    }
    let first = got.iter().zip(&held).position(|(got, held)| got != held).unwrap_or_default();
    Err(TrialOutcome::Refused(refusal(
        format!("a trial read succeeded, but its bytes did not arrive (first wrong byte at {first})"),
        Some(
            "something between NIC and GPU leads DMA astray; try iommu=pt on the kernel's command line, and look for DMAR or \
             AMD-Vi faults in dmesg",
        ),
    )))
}

/// A range of the file whose bytes prove something, and the bytes.
fn sample(server: &ServerFile) -> std::result::Result<(u64, Vec<u8>), TrialOutcome> {
    let len = server.file.len()?;
    let mut last = None;
    for place in 0..PLACES {
        let offset = len / PLACES * place;
        let room = (len - offset).min(SAMPLE as u64) as usize;
        if room == 0 || last.replace(offset) == Some(offset) {
            continue;
        }
        let held = server.held(room, offset)?;
        if held.len() == room && !is_uniform(&held) {
            return Ok((offset, held));
        }
    }
    Err(unclear("the file holds no bytes to try a read with: it is too short, or the same byte all over"))
}

impl TrialMemory {
    fn set(&self, bytes: &[u8]) -> Result<()> {
        let stream = self.device.stream(Context::PRIMARY)?;
        // SAFETY: the memory has room for them, and no caller has more; the copy is waited for.
        unsafe { stream.copy_in(self.start + MISALIGNMENT, HostRange::of(bytes)) }?;
        stream.synchronize(Wait::Block)
    }

    fn bytes(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.device.flush_writes(Context::PRIMARY)?;
        let stream = self.device.stream(Context::PRIMARY)?;
        // SAFETY: the memory has that many bytes; the copy ends before this returns.
        unsafe { stream.copy_out(HostRange::new(bytes.as_mut_ptr(), len), self.start + MISALIGNMENT) }?;
        stream.synchronize(Wait::Block)?;
        Ok(bytes)
    }

    /// Has the server place a range, and waits.
    fn place(&self, server: &ServerFile, offset: u64, len: usize) -> std::result::Result<(), TrialOutcome> {
        let allocation = self.device.allocation(self.start)?;
        let domain = server.place.domain()?;
        // A fault of this memory does not concern the caller's, which is registered already.
        let registered = memory::register(self.device.as_ref(), &domain, &allocation);
        let registered = registered.map_err(TrialOutcome::Unclear)?;
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let answer = Box::new(move |result| drop(tell.send(result)));
        let range = DeviceRange::new(self.start + MISALIGNMENT, len);
        // SAFETY: the memory is the trial's alone, and the answer is waited for.
        unsafe { server.place.place(offset, range, registered, answer) };
        let answered = told
            .recv()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a request was not answered")));
        match answered {
            Ok(bytes) if bytes == len => Ok(()),
            Ok(_) => Err(unclear("the file became shorter while a read of it was tried")),
            Err(error) => Err(TrialOutcome::Unclear(error_refusal(&error))),
        }
    }
}

/// Whether all bytes are the same: such bytes may be there for other reasons.
fn is_uniform(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == bytes[0])
}
