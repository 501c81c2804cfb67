//! One window of a file's pages, registered with one device.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Access;

use super::budget::Reservation;
use super::eligibility;
use super::reclaimer::{Reclaimer, Registration};
use super::region::{Region, WINDOW};
use crate::source::Descriptors;

/// The context that marks an error of registering itself.
pub(super) const DRIVER: &str = "device";

/// Registered pages. Unregistering costs milliseconds: the last owner leaves that to the [`Reclaimer`].
#[derive(Debug)]
pub(crate) struct Pin(Option<Registration>);

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
    /// Registers a range of the region. `check` tells whether the file is in the state that it should be in.
    pub(super) fn register(
        reclaimer: &Arc<Reclaimer>,
        region: &Arc<Region>,
        reservation: Reservation,
        range: &PinRange<'_>,
        check: impl Fn() -> Result<()>,
    ) -> Result<Self> {
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
        unsafe { device.register(address as *mut u8, len as usize, access) }.map_err(|error| {
            // Pages that are gone are the file's doing, not the driver's.
            check().err().unwrap_or_else(|| error.with(DRIVER, &device.info().name))
        })?;
        let (region, reclaimer) = (region.clone(), reclaimer.clone());
        let pin = Self(Some(Registration { address, len, region, reclaimer, reservation }));
        if len == WINDOW {
            eligibility::learn_pace(device, file.nature.mount, access, len, begun.elapsed());
        }
        // What was registered are the pages of this state of the file: it has had it before and after.
        check()?;
        if witness.is_some_and(|witness| !witness.is_whole(0, len)) {
            return Err(Error::new(ErrorKind::Busy, "the file lost pages while they were registered"));
        }
        Ok(pin)
    }

    /// Whether its pages are still the file's.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|registered| {
            let offset = registered.address - registered.region.address(0);
            registered.region.is_whole(offset, registered.len)
        })
    }

    /// Bytes that it keeps in memory.
    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |registered| registered.len)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(registered) = self.0.take() {
            let reclaimer = registered.reclaimer.clone();
            reclaimer.take(registered);
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
