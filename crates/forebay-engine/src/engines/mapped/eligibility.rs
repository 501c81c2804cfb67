//! Whether a device may read a file's pages in place: rules first, then one page that is really registered and read.
//!
//! What the rules exclude is never tried, since the kernel would loop for ever or misbehave; what they allow is tried
//! once for each (device, file system), on a thread that may hang. A verdict holds as long as the process.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Context, Device, HostRange, Wait};

use super::region::Region;
use crate::request::receipt::{EngineKind, Refusal};
use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::runtime::sys;
use crate::runtime::traffic;
use crate::source::{Descriptors, LOCAL_FILE_SYSTEMS, TMPFS};
use crate::tuning::machine::BRIEF_WAIT;
use crate::tuning::mapped::TRIAL_LIMIT;
use forebay_sys::{page_size, threads};

/// Why a device does not read a file's pages in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Reason {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The reason's text in receipts.
    pub(crate) fn refusal(self) -> Refusal {
        Refusal { engine: EngineKind::Mapped, reason: self.text, hint: self.hint }
    }

    /// As an error of a caller that asked for `mapped` and nothing else.
    pub(crate) fn error(&self) -> Error {
        let error =
            Error::new(ErrorKind::Unsupported, format!("engine mapped cannot do this: {}", self.text));
        match &self.hint {
            Some(hint) => error.hint(hint.clone()),
            None => error,
        }
    }
}

impl From<&Refusal> for Reason {
    fn from(refusal: &Refusal) -> Self {
        Self { text: refusal.reason.clone(), hint: refusal.hint.clone() }
    }
}

impl From<&Error> for Reason {
    fn from(error: &Error) -> Self {
        Self { text: error.to_string(), hint: error.hints().first().cloned() }
    }
}

type Eligibility = std::result::Result<(), Reason>;
/// (UUID of the device, device number of the file system, whether it may write).
pub(super) type MountKey = ([u8; 16], u64, bool);
/// The process's verdicts.
#[derive(Debug, Default)]
struct KnownMounts {
    verdicts: Mutex<HashMap<MountKey, Eligibility>>,
    has_movable_zone: OnceLock<bool>,
    /// Of each device, by UUID.
    places: Mutex<Vec<([u8; 16], u64)>>,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for KnownMounts {
    const NAME: &'static str = "what mapped found out";
}

fn verdicts() -> &'static Mutex<HashMap<MountKey, Eligibility>> {
    &KnownMounts::of_process().verdicts
}

pub(super) fn key(device: &dyn Device, mount: u64, access: Access) -> MountKey {
    (device.info().uuid, mount, access == Access::ReadWrite)
}

/// The verdict so far, if there is one.
pub(crate) fn known(device: &dyn Device, mount: u64, access: Access) -> Option<Eligibility> {
    lock(verdicts()).get(&key(device, mount, access)).cloned()
}

/// Refuses a device and file system for the rest of the process.
pub(crate) fn refuse(device: &dyn Device, mount: u64, access: Access, reason: Reason) {
    let mut all = lock(verdicts());
    all.insert(key(device, mount, access), Err(reason));
}

/// Why the pages of a file that has just been written are not pinned.
pub(crate) fn young(settle: Duration) -> Reason {
    Reason::new("the file was changed a moment ago").hint(format!(
        "its pages can be pinned once it has not changed for {} ms (FOREBAY_PIN_SETTLE)",
        settle.as_millis()
    ))
}

/// The rules' verdict on a file, without a trial.
pub(crate) fn rules(device: &dyn Device, file: &Descriptors, access: Access) -> Eligibility {
    device.can_register(access).map_err(|error| Reason::from(&error))?;
    kind(file, access)?;
    if sys::is_dax(file.buffered.as_raw_fd()) {
        return Err(Reason::new(
            "the file is persistent memory (DAX), which the kernel does not pin for long",
        ));
    }
    if has_movable_zone() {
        return Err(Reason::new(
            "the machine has memory in ZONE_MOVABLE: the kernel would have to move pages first, and may never end",
        )
        .hint("boot without movable memory: no kernelcore=, movablecore= or memhp_default_state=online_movable"));
    }
    Ok(())
}

/// The rules that cost nothing to ask: what kind of file it is.
pub(crate) fn kind(file: &Descriptors, access: Access) -> Eligibility {
    if !file.nature.is_regular {
        return Err(Reason::new("the source is a block device, not a file"));
    }
    if !LOCAL_FILE_SYSTEMS.contains(&file.nature.magic) {
        let name = forebay_sys::file_systems::name(file.nature.magic);
        return Err(Reason::new(format!(
            "pages of a {name} file system are not pinned: this is not tested there"
        ))
        .hint("keep the file on a local ext4, xfs, btrfs or tmpfs file system"));
    }
    if access == Access::ReadWrite && file.nature.magic != TMPFS {
        return Err(Reason::new("only tmpfs files can be written in place"));
    }
    Ok(())
}

/// Whether the kernel keeps memory aside that it wants to be able to move.
fn has_movable_zone() -> bool {
    *KnownMounts::of_process()
        .has_movable_zone
        .get_or_init(|| std::fs::read_to_string("/proc/zoneinfo").is_ok_and(|text| movable_pages(&text) > 0))
}

fn movable_pages(zoneinfo: &str) -> u64 {
    let mut in_movable = false;
    let mut pages = 0;
    for line in zoneinfo.lines() {
        if line.starts_with("Node") {
            in_movable = line.split_whitespace().last() == Some("Movable");
        }
        let mut words = line.split_whitespace();
        if in_movable && words.next() == Some("present") {
            pages += words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    pages
}

/// The verdict on a device and the file's file system; the first question registers and reads one page.
pub(crate) fn verdict(device: &Arc<dyn Device>, file: &Descriptors, access: Access) -> Eligibility {
    let mount = file.nature.mount;
    if let Some(verdict) = known(device.as_ref(), mount, access) {
        return verdict;
    }
    rules(device.as_ref(), file, access)?;
    let verdict = try_page(device, file, access)?;
    let mut all = lock(verdicts());
    all.entry(key(device.as_ref(), mount, access)).or_insert(verdict).clone()
}

const WAITING: &str = "streams are waiting for transfers: a page of the file system is tried later";

/// Tries one page on a thread of its own. The outer error means that there is no verdict: the file has no page.
fn try_page(
    device: &Arc<dyn Device>,
    file: &Descriptors,
    access: Access,
) -> std::result::Result<Eligibility, Reason> {
    // The trial ends with unregistering its page. That call waits for streams, and holds up other calls meanwhile.
    if !traffic::is_clear_within(BRIEF_WAIT) {
        return Err(Reason::new(WAITING));
    }
    // The thread has no descriptor: the file's may be closed before a thread that hangs comes back, and closing one of
    // our own could take a lock from the program.
    let fd = file.buffered.as_raw_fd();
    let begun = first_page(fd)
        .and_then(|wanted| Ok((wanted, Region::map(file.for_pages(), (0, sys::page()), access)?)));
    let (wanted, region) = begun.map_err(|error| Reason::from(&error))?;
    let (tell, told) = channel();
    let (device, len) = (device.clone(), wanted.len());
    let started = threads::spawn("forebay-probe", move || {
        // The asking thread may have stopped waiting.
        let tell = |read| drop(tell.send(read));
        read_page(device.as_ref(), region, len, access, tell);
    });
    if let Err(error) = started {
        return Err(Reason::from(&Error::from_io(&error, "cannot start a thread to try a page")));
    }
    let read = told.recv_timeout(TRIAL_LIMIT).map(|read| read.and_then(|bytes| compare(fd, &wanted, &bytes)));
    match read {
        Ok(Ok(())) => Ok(Ok(())),
        // Such an error does not concern the device or the file system.
        Ok(Err(error))
            if matches!(
                error.kind(),
                ErrorKind::ShortRead | ErrorKind::OutOfMemory | ErrorKind::TooManyFiles
            ) =>
        {
            Err(Reason::from(&error))
        }
        Ok(Err(error)) => {
            Ok(Err(Reason::new(format!("registering one page of the file system failed: {error}"))))
        }
        // Registering may wait for streams that wait for the asker.
        Err(_) if traffic::is_queued() => Err(Reason::new(WAITING)),
        Err(_) => Ok(Err(Reason::new(format!(
            "registering one page of the file system did not end within {} s",
            TRIAL_LIMIT.as_secs()
        )))),
    }
}

/// Registers the file's first page, lets the device read it, and returns the bytes before the page is unregistered:
/// that waits for all streams, one of which may wait for the asking thread.
fn read_page(
    device: &dyn Device,
    region: Region,
    len: usize,
    access: Access,
    tell: impl FnOnce(Result<Vec<u8>>),
) {
    device.adopt_thread();
    let page = region.address(0) as *mut u8;
    let begun = region.populate(0, page_size()).and_then(|()| place(device)).and_then(|place| {
        // SAFETY: the region stays mapped until after `unregister`.
        unsafe { device.register(HostRange::new(page, page_size()), access) }.map(|()| place)
    });
    let place = match begun {
        Ok(place) => place,
        Err(error) => return tell(Err(error)),
    };
    tell(copy_page(device, page, place, len));
    // SAFETY: registered above; the copies were waited for.
    if unsafe { device.unregister(page) }.is_err() {
        // The device may still reach it.
        std::mem::forget(region);
    }
}

/// Compares what the device read with what the page holds.
fn compare(fd: RawFd, wanted: &[u8], got: &[u8]) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    if first_page(fd)? == wanted {
        return Err(Error::new(ErrorKind::Io, "the device read other bytes than the page holds"));
    }
    Err(Error::new(ErrorKind::ShortRead, "the file changed while its first page was tried"))
}

/// A page of device memory for trials. It is never freed: freeing waits for all that the device has to do, and that may
/// be waiting for the transfer that this trial is for.
fn place(device: &dyn Device) -> Result<u64> {
    let mut places = lock(&KnownMounts::of_process().places);
    let uuid = device.info().uuid;
    if let Some((_, place)) = places.iter().find(|(known, _)| *known == uuid) {
        return Ok(*place);
    }
    let place = device.allocate(page_size())?;
    places.push((uuid, place));
    Ok(place)
}

fn first_page(fd: RawFd) -> Result<Vec<u8>> {
    let mut bytes = vec![0; page_size()];
    // SAFETY: a writable page.
    let got = unsafe { sys::read_at(fd, HostRange::of_mut(&mut bytes[..]), 0, false) };
    if got <= 0 {
        return Err(Error::new(ErrorKind::ShortRead, "the file has no page to try"));
    }
    bytes.truncate(got as usize);
    Ok(bytes)
}

/// Lets the device read a registered page into its own place, and back.
fn copy_page(device: &dyn Device, page: *const u8, place: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let stream = device.stream(Context::PRIMARY)?;
    // SAFETY: the caller keeps the page registered; both copies are waited for. The target is pageable, for which the driver waits
    // by itself.
    unsafe {
        stream.copy_in(place, HostRange::new(page, len))?;
        stream.copy_out(HostRange::new(bytes.as_mut_ptr(), len), place)?;
    }
    stream.synchronize(Wait::Block)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn movable_memory_is_counted_over_all_nodes() {
        let text = "Node 0, zone   Normal\n  pages free 9\n        present  77\nNode 0, zone  Movable\n  pages free     \
                    0\n        present  0\nNode 1, zone  Movable\n        present  5\n        managed  4\n";
        assert_eq!(movable_pages(text), 5);
        assert_eq!(movable_pages(""), 0);
    }
}
