//! Finds the memory of a program's pointer.

use std::ffi::c_int;
use std::sync::Arc;

use forebay_engine::{Memory, Session};
use forebay_gpu::{Context, Device, DeviceRange, MemoryKind};

use crate::abi::code;
use crate::handles::RegisteredRange;

/// Memory of a transfer. Nothing here counts its owners: every call makes one.
pub(crate) struct PointerTarget {
    pub(crate) device: &'static Arc<dyn Device>,
    pub(crate) context: Context,
    pub(crate) address: u64,
    pub(crate) kind: MemoryKind,
    /// The GPU it belongs to.
    pub(crate) gpu: Option<usize>,
    /// A range known to be of one kind.
    known: DeviceRange,
}

impl PointerTarget {
    /// The memory, for one that keeps it.
    pub(crate) fn memory(&self) -> Memory {
        Memory { device: self.device.clone(), context: self.context, address: self.address }
    }

    /// The same memory at another address, if that is known to be of the same kind.
    pub(crate) fn moved_to(&self, range: DeviceRange) -> Option<Memory> {
        self.known.holds(range).then(|| Memory { address: range.start, ..self.memory() })
    }
}

/// Why a pointer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadPointer {
    /// For calls that answer with a code.
    pub(crate) code: c_int,
    /// For calls that answer with an errno.
    pub(crate) errno: c_int,
}

/// The memory ends before the range does.
const PAST_END: BadPointer = BadPointer { code: code::CUDA_POINTER_RANGE_ERROR, errno: libc::EIO };
/// The driver does not know the address.
const UNKNOWN_POINTER: BadPointer =
    BadPointer { code: code::CUDA_POINTER_INVALID, errno: code::CUDA_POINTER_INVALID };

/// What a part of registered GPU memory is: as it was when it was registered, since a program that frees it has to deregister
/// it first. `None` for other memory.
pub(crate) fn registered(
    session: &'static Session,
    range: &RegisteredRange,
    (base, address): (u64, u64),
) -> Option<PointerTarget> {
    let RegisteredRange { len, gpu, kind, context } = *range;
    // Another context may have been destroyed since.
    if context != Context::PRIMARY {
        return None;
    }
    let device = session.devices().gpus.get(gpu.filter(|_| kind == MemoryKind::Device)?)?;
    Some(PointerTarget { device, context, address, kind, gpu, known: DeviceRange::new(base, len) })
}

/// Finds out what a range is. The driver is asked each time: it takes less time than a look-up of our
/// own, and memory may have been freed and allocated anew.
pub(crate) fn find(session: &'static Session, range: DeviceRange) -> Result<PointerTarget, BadPointer> {
    let DeviceRange { start: address, len } = range;
    let devices = session.devices();
    let end = address.checked_add(len as u64).ok_or(PAST_END)?;
    // Any GPU of the driver knows the pointers of all.
    let Some(first) = devices.gpus.first() else { return Ok(on_host(session, address, MemoryKind::Host)) };
    let info = first.classify(address).map_err(|_| UNKNOWN_POINTER)?;
    match (info.kind, info.device) {
        (MemoryKind::Device | MemoryKind::Managed, Some(owner)) => {
            reaches(first, info.range, end, owner)?;
            let device = devices.gpus.get(owner).ok_or(UNKNOWN_POINTER)?;
            let known = info.range.unwrap_or(range);
            let (context, kind) = (info.context, info.kind);
            Ok(PointerTarget { device, context, address, kind, gpu: Some(owner), known })
        }
        (kind, _) => Ok(on_host(session, address, kind)),
    }
}

fn on_host(session: &'static Session, address: u64, kind: MemoryKind) -> PointerTarget {
    let (device, context) = (&session.devices().host, Context::PRIMARY);
    PointerTarget { device, context, address, kind, gpu: None, known: DeviceRange::new(address, 0) }
}

/// Whether memory of `owner` reaches to `end` without a gap: virtual memory may be mapped in several parts. Drivers may tell of all of a
/// reservation in place of a part: unmapped parts are refused when they are copied to.
fn reaches(
    device: &Arc<dyn Device>,
    mut range: Option<DeviceRange>,
    end: u64,
    owner: usize,
) -> Result<(), BadPointer> {
    while let Some(known) = range {
        let stop = known.end();
        if end <= stop {
            return Ok(());
        }
        let next = device.classify(stop).map_err(|_| PAST_END)?;
        let goes_on = matches!(next.kind, MemoryKind::Device | MemoryKind::Managed)
            && next.device == Some(owner)
            && next.range.is_none_or(|range| range.start == stop && range.len > 0);
        if !goes_on {
            return Err(PAST_END);
        }
        range = next.range;
    }
    Ok(())
}
