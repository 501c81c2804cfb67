//! Pins: registered windows of a file. Registers them, unregisters those that are not used any more, and notices that memory
//! runs short.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_config::files::read_kernel_text;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Device, HostRange};

use super::budget::{Reservation, cgroups};
use super::region::Region;
use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::runtime::traffic;
use crate::source::Descriptors;
use crate::tuning::machine::LONG_NAP;
use crate::tuning::mapped::{MEMORY_LOOK, MEMORY_STALLED};

/// The right to register or unregister, one at a time for all devices of the process: the driver serves one caller
/// only, and several at once take five times as long as one after the other.
#[derive(Debug)]
pub(crate) struct DriverTurn(());

/// Whether a thread registers or unregisters.
#[derive(Default)]
struct DriverTurns {
    turns: Mutex<Turns>,
    given_back: Condvar,
}

#[derive(Default)]
struct Turns {
    is_taken: bool,
    /// When copies have had their share of the driver.
    paused_until: Option<Instant>,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for DriverTurns {
    const NAME: &'static str = "turns to register";
}

impl DriverTurn {
    /// Waits for it, at most `limit`.
    pub(crate) fn take(limit: Duration) -> Option<Self> {
        let DriverTurns { turns, given_back } = DriverTurns::of_process();
        let turns = lock(turns);
        let (mut turns, waited) = given_back
            .wait_timeout_while(turns, limit, |turns| turns.is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && turns.is_taken {
            return None;
        }
        turns.is_taken = true;
        Some(Self(()))
    }

    /// As [`DriverTurn::take`], for windows registered beside copies. Does not wait: how long to, if it is not time
    /// yet.
    pub(super) fn take_unless_paused() -> std::result::Result<Self, Duration> {
        let mut turns = lock(&DriverTurns::of_process().turns);
        let left =
            turns.paused_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        if turns.is_taken || !left.is_zero() {
            return Err(left.max(LONG_NAP));
        }
        turns.is_taken = true;
        Ok(Self(()))
    }

    /// Gives it back. Nothing is registered beside copies for a while, on any device.
    pub(super) fn pause(self, pause: Duration) {
        lock(&DriverTurns::of_process().turns).paused_until = Some(Instant::now() + pause);
        drop(self);
    }
}

impl Drop for DriverTurn {
    fn drop(&mut self) {
        let DriverTurns { turns, given_back } = DriverTurns::of_process();
        lock(turns).is_taken = false;
        given_back.notify_one();
    }
}

/// The context that marks an error of registering itself.
pub(super) const DRIVER: &str = "device";

/// Registered pages of one window. Unregistering costs milliseconds: the last owner leaves that to the [`Reclaimer`].
#[derive(Debug, Default)]
pub(crate) struct Pin {
    /// Next to each other, from the beginning of the window on.
    parts: Vec<Registration>,
    /// No part ends between two multiples of this.
    piece: u64,
}

/// A range of a file to register.
pub(super) struct PinRange<'a> {
    pub(super) file: &'a Descriptors,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    /// Whether a write may be under way that takes pages from the file.
    pub(super) is_watched: bool,
}

impl Pin {
    /// Where its parts may end, once that is chosen by the first part.
    pub(super) fn piece_or(&mut self, choose: impl FnOnce() -> u64) -> u64 {
        if self.parts.is_empty() {
            self.piece = choose();
        }
        self.piece
    }

    /// Registers the next range of the region, and says how long that took. `check` tells whether the file is in the state
    /// that it should be in.
    pub(super) fn register(
        &mut self,
        reclaimer: &Arc<Reclaimer>,
        region: &Arc<Region>,
        reservation: &Arc<Reservation>,
        range: &PinRange<'_>,
        check: impl Fn() -> Result<()>,
    ) -> Result<Duration> {
        let PinRange { file, start, len, access, is_watched } = *range;
        let device = reclaimer.device.as_ref();
        let witness = is_watched.then(|| witness(file, (start, len))).transpose()?;
        let begun = Instant::now();
        if !file.is_memory {
            // The driver does that as well, and faster where pages are small.
            region.populate(start, len as usize)?;
        }
        let address = region.address(start);
        // SAFETY: the region is mapped as long as the pin holds it; it is unregistered before.
        unsafe { device.register(HostRange::new(address as *mut u8, len as usize), access) }.map_err(
            |error| {
                // Missing pages are the file's fault, not the driver's.
                check().err().unwrap_or_else(|| error.with(DRIVER, &device.info().name))
            },
        )?;
        let took = begun.elapsed();
        let (region, reclaimer, reservation) = (region.clone(), reclaimer.clone(), reservation.clone());
        self.parts.push(Registration { address, len, region, reclaimer, reservation });
        // The registered pages are of this state of the file, which was the same before and after.
        check()?;
        if witness.is_some_and(|witness| !witness.is_whole(0, len)) {
            return Err(Error::new(ErrorKind::Busy, "the file lost pages while they were registered"));
        }
        Ok(took)
    }

    /// Copies do not cross multiples of this in the file: there one registration may end and the next begin.
    pub(crate) fn piece(&self) -> u64 {
        self.piece
    }

    /// Where its first page is, for the CPU and the device alike.
    pub(crate) fn address(&self) -> Option<u64> {
        self.parts.first().map(|part| part.address)
    }

    /// Whether its pages are still the file's.
    pub(crate) fn is_whole(&self) -> bool {
        self.parts.first().is_none_or(|first| {
            let offset = first.address - first.region.address(0);
            first.region.is_whole(offset, self.len())
        })
    }

    /// Bytes that it keeps in memory.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        for part in self.parts.drain(..) {
            let reclaimer = part.reclaimer.clone();
            reclaimer.take(part);
        }
    }
}

/// The pages of a window that are the file's now, in a mapping of their own. They are all there for as long as none of
/// them is lost. The mapping that is registered does not tell that yet: a page that is lost while the driver works may be
/// brought back, as another one, with its neighbours.
fn witness(file: &Descriptors, (start, len): (u64, u64)) -> Result<Region> {
    let region = Region::map(file.for_pages(), (start, len), Access::ReadOnly)?;
    region.populate(0, len as usize)?;
    Ok(region)
}

/// Registered pages of a region.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) region: Arc<Region>,
    pub(super) reclaimer: Arc<Reclaimer>,
    /// Of the whole window.
    pub(super) reservation: Arc<Reservation>,
}

/// Unregisters unused windows: on its thread, as long as that runs.
#[derive(Debug)]
pub(super) struct Reclaimer {
    pub(super) device: Arc<dyn Device>,
    queue: Mutex<ReclaimQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ReclaimQueue {
    unused: Vec<Registration>,
    /// Regions (by address) of what is being unregistered at the moment.
    busy: Vec<usize>,
    is_open: bool,
}

impl Reclaimer {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, queue: Mutex::default(), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, ReclaimQueue> {
        lock(&self.queue)
    }

    /// Unregisters pages whose last user is gone: later, where its thread runs.
    pub(super) fn take(&self, registered: Registration) {
        let mut queue = self.queue();
        if queue.is_open {
            queue.unused.push(registered);
            drop(queue);
            self.changed.notify_all();
        } else {
            drop(queue);
            let reclaimer = registered.reclaimer.clone();
            traffic::when_clear(move || reclaimer.unregister(registered));
        }
    }

    fn unregister(&self, registered: Registration) {
        // Where another thread hangs in the driver this may hang too, or may not.
        let turn = DriverTurn::take(Duration::from_secs(1));
        // SAFETY: a pin registered it; its last owner is gone, so no work in flight uses it.
        let undone = unsafe { self.device.unregister(registered.address as *mut u8) };
        // A device that is lost has released the pages by itself, or keeps them as long as the process.
        drop((undone, turn));
        let Registration { region, reservation, .. } = registered;
        drop(region);
        drop(reservation);
    }

    /// From now on the last owner of a pin only queues it.
    pub(super) fn open(&self) {
        self.queue().is_open = true;
    }

    /// The body of the reclaimer's thread: works until a request to stop, and calls `look` from time to time.
    pub(super) fn run(&self, stop: &AtomicBool, mut look: impl FnMut()) {
        let mut last = Instant::now();
        while !stop.load(Ordering::SeqCst) {
            self.work(MEMORY_LOOK);
            if last.elapsed() >= MEMORY_LOOK {
                last = Instant::now();
                look();
            }
        }
        self.close();
    }

    /// Sleeps at most `limit` or until something is unused, and unregisters it.
    fn work(&self, limit: Duration) {
        let mut queue = self.queue();
        if queue.unused.is_empty() && queue.is_open {
            queue = self.changed.wait_timeout(queue, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.unused.is_empty() {
            return;
        }
        drop(queue);
        // While a stream waits for a transfer this must wait too, and the pages keep their place in the budget.
        if !traffic::is_clear_within(limit) {
            return;
        }
        let unused = {
            let mut queue = self.queue();
            let unused = std::mem::take(&mut queue.unused);
            queue.busy = unused.iter().map(|registered| Arc::as_ptr(&registered.region) as usize).collect();
            unused
        };
        for registered in unused {
            self.unregister(registered);
        }
        self.queue().busy.clear();
        self.changed.notify_all();
    }

    /// Waits until all that is unused by now is unregistered, at most `limit`. Whether it is.
    pub(super) fn wait_for_all(&self, limit: Duration) -> bool {
        self.wait_where(limit, |_| true)
    }

    /// As [`Reclaimer::wait_for_all`], for the pages of one region: while they are registered they cannot be registered again.
    pub(super) fn wait_for_region(&self, limit: Duration, region: &Weak<Region>) -> bool {
        let region = region.as_ptr();
        self.wait_where(limit, |other| std::ptr::eq(other, region))
    }

    fn wait_where(&self, limit: Duration, counts: impl Fn(*const Region) -> bool) -> bool {
        let is_busy = |queue: &mut ReclaimQueue| {
            let unused = queue.unused.iter().map(|registered| Arc::as_ptr(&registered.region));
            queue.is_open
                && (unused.into_iter().any(&counts)
                    || queue.busy.iter().any(|busy| counts(*busy as *const Region)))
        };
        let waited = self.changed.wait_timeout_while(self.queue(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Unregisters the rest; later pins are unregistered by their last owner.
    pub(super) fn close(&self) {
        self.queue().is_open = false;
        self.changed.notify_all();
        let rest = std::mem::take(&mut self.queue().unused);
        if let Some(first) = rest.first() {
            let reclaimer = first.reclaimer.clone();
            traffic::when_clear(move || {
                for unused in rest {
                    reclaimer.unregister(unused);
                }
            });
        }
    }
}

/// The kernel's counters of memory shortage: of the machine, and of this process's cgroups.
pub(super) struct MemoryPressure {
    pressures: Vec<PathBuf>,
    events: Vec<PathBuf>,
    stalls: HashMap<PathBuf, u64>,
    counts: HashMap<PathBuf, u64>,
    read: Instant,
}

impl MemoryPressure {
    pub(super) fn of_process() -> Self {
        Self::new(Path::new("/"))
    }

    fn new(root: &Path) -> Self {
        let groups = cgroups(root);
        let mut made = Self {
            pressures: groups
                .iter()
                .map(|group| group.join("memory.pressure"))
                .chain([root.join("proc/pressure/memory")])
                .filter(|path| path.exists())
                .collect(),
            events: groups
                .iter()
                .map(|group| group.join("memory.events"))
                .filter(|path| path.exists())
                .collect(),
            stalls: HashMap::new(),
            counts: HashMap::new(),
            read: Instant::now(),
        };
        made.is_high();
        made
    }

    /// Whether memory ran short since the last look.
    pub(super) fn is_high(&mut self) -> bool {
        let passed = std::mem::replace(&mut self.read, Instant::now()).elapsed().as_micros() as f64;
        let mut pressed = false;
        for path in &self.pressures {
            let Some(total) = read_kernel_text(path).ok().as_deref().and_then(stalled) else { continue };
            let before = self.stalls.insert(path.clone(), total).unwrap_or(total);
            pressed |= total.saturating_sub(before) as f64 > passed * MEMORY_STALLED;
        }
        for path in &self.events {
            let Some(count) = read_kernel_text(path).ok().as_deref().map(refusals) else { continue };
            let before = self.counts.insert(path.clone(), count).unwrap_or(count);
            pressed |= count > before;
        }
        pressed
    }
}

/// Microseconds in which some thread waited for memory.
fn stalled(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some"))?;
    line.split("total=").nth(1)?.trim().parse().ok()
}

/// How often memory was refused: `oom` and `oom_kill` of memory.events. (`high` and `max` also count page cache that
/// comes and goes at the limit, which is no shortage.)
fn refusals(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| ["oom", "oom_kill"].contains(name))
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn stalls_and_refusals_are_pressure() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/a\n");
        write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull total=3\n");
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 5\nmax 7\noom 0\noom_kill 0\n");
        let mut pressure = MemoryPressure::new(root.path());
        assert!(!pressure.is_high());
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 50\nmax 70\noom 0\noom_kill 0\n");
        assert!(!pressure.is_high(), "reclaiming page cache at the limit is no shortage");
        write("sys/fs/cgroup/a/memory.events", "low 0\nhigh 5\nmax 8\noom 1\noom_kill 0\n");
        assert!(pressure.is_high());
        assert!(!pressure.is_high());
        write("proc/pressure/memory", "some avg10=9.00 total=99000000\nfull total=3\n");
        assert!(pressure.is_high());
    }
}
