//! Registering one window. The puller's thread does that between the copies that it starts: the driver serves one thread
//! at a time anyway, and two of them took turns so badly that the device was left waiting.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Access;

use super::eligibility::{self, Reason};
use super::pin::Pin;
use super::pin_cache::{Request, Shelf};
use super::region::Region;
use super::window::{Pinned, WINDOW};
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill};

/// The context that marks an error of registering itself.
const DRIVER: &str = "device";

/// Registers the window and writes down what came of it. The caller has the [`Turn`](super::pin::Turn).
pub(super) fn serve(shelf: &Shelf, request: Request) {
    let Request { source, pinned, window, reservation, .. } = request;
    let Fill::Descriptor(file) = source.fill() else { return pinned.set_failed(window, None) };
    if pinned.is_stale() {
        return pinned.set_failed(window, None);
    }
    if let Err(reason) = shelf.verdict(file, pinned.access) {
        // Where nothing was learnt it is tried again.
        return if shelf.is_final(file, pinned.access) {
            pinned.set_failed(window, Some(reason));
        } else {
            pinned.put_off(window, reason);
        };
    }
    // Nobody has been writing since before: then the version tells all.
    let is_watched = pinned.is_watched();
    let made = (|| {
        check_version(file, &pinned.version())?;
        let region = pinned.region(file)?;
        let (start, len) = pinned.extent(window);
        let witness = is_watched.then(|| witness(file, (start, len))).transpose()?;
        let begun = Instant::now();
        if !file.is_memory {
            // The driver does that as well, and faster where pages are small.
            region.populate(start, len as usize)?;
        }
        let pin =
            Pin::new(&shelf.reaper, &region, (start, len), pinned.access, reservation).map_err(|error| {
                // Pages that are gone are the file's doing, not the driver's.
                let is_changed = check_version(file, &pinned.version());
                is_changed.err().unwrap_or_else(|| error.with(DRIVER, &shelf.device.info().name))
            })?;
        if len == WINDOW {
            eligibility::learn_pace(
                shelf.device.as_ref(),
                file.nature.mount,
                pinned.access,
                len,
                begun.elapsed(),
            );
        }
        // What was registered are the pages of this state of the file: it has had it before and after.
        check_version(file, &pinned.version())?;
        if witness.is_some_and(|witness| !witness.is_whole(0, len)) {
            return Err(Error::new(ErrorKind::Busy, "the file lost pages while they were registered"));
        }
        Ok(pin)
    })();
    match made {
        Ok(pin) => {
            pinned.set_pinned(window, pin);
            // Who found meanwhile that nobody writes any more has looked at what was pinned before.
            if is_watched && !pinned.is_watched() && !pinned.has_kept_all() {
                shelf.discard(&pinned);
            }
        }
        Err(error) => failed(shelf, file, &pinned, window, &error),
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

/// Fails if the file is in another state than `wanted`.
fn check_version(file: &Descriptors, wanted: &FileVersion) -> Result<()> {
    if FileVersion::of(file.buffered.as_raw_fd())? == *wanted {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, "the file changed while its pages were registered"))
}

fn failed(shelf: &Shelf, file: &Descriptors, pinned: &Arc<Pinned>, window: usize, error: &Error) {
    match error.kind() {
        ErrorKind::Busy => {
            pinned.set_failed(window, None);
            shelf.discard(pinned);
        }
        ErrorKind::Unsupported if error.context().iter().any(|(key, _)| *key == DRIVER) => {
            let reason = Reason::from(error);
            eligibility::refuse(shelf.device.as_ref(), file.nature.mount, pinned.access, reason.clone());
            pinned.set_failed(window, Some(reason));
        }
        ErrorKind::OutOfMemory => {
            pinned.set_failed(window, None);
            shelf.relieve();
        }
        _ => pinned.set_failed(window, Some(Reason::from(error))),
    }
}
