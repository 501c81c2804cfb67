//! Synchronous reads and writes.

use std::ffi::{c_int, c_void};
use std::time::Instant;

use forebay_engine::{BorrowedTransfer, Direction, File, Receipt, Session};
use forebay_error::Error;
use forebay_gpu::DeviceRange;
use forebay_trace::{Api, CallFlags, EngineCode, EngineKind};

use super::guarded_bytes;
use crate::abi::{CUfileHandle, code};
use crate::handles::RegisteredFile;
use crate::library::library;
use crate::log::logged_errno;
use crate::meter::{Transferred, engine_of, meter};
use crate::target::{self, PointerTarget};
use crate::usdt;

/// Which way a call moves bytes.
pub(super) fn direction_of(api: Api) -> Direction {
    if api.reads() { Direction::Read } else { Direction::Write }
}

/// A read or write as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct AskedTransfer {
    pub(crate) direction: Direction,
    pub(crate) base: *const c_void,
    pub(crate) size: usize,
    pub(crate) file_offset: i64,
    pub(crate) buffer_offset: i64,
}

impl AskedTransfer {
    /// The first address; the errno of what makes no sense.
    pub(crate) fn address(&self) -> Result<u64, c_int> {
        if self.file_offset < 0 {
            return Err(code::INVALID_VALUE);
        }
        if self.buffer_offset < 0 {
            return Err(code::INTERNAL_ERROR);
        }
        if self.base.is_null() || self.size > isize::MAX as usize {
            return Err(code::INVALID_VALUE);
        }
        address(self.base, self.buffer_offset).ok_or(libc::EIO)
    }
}

/// The address of `base` and `offset` bytes; `None` where the address space ends.
fn address(base: *const c_void, offset: i64) -> Option<u64> {
    (base as u64).checked_add_signed(offset)
}

/// The file to move bytes of, if it is open for that, and by the descriptor that was registered.
pub(crate) fn usable(registered: &RegisteredFile, direction: Direction) -> Result<&File, c_int> {
    let file = registered.file.as_ref().ok_or(code::DRIVER_CLOSING)?;
    if !registered.is_itself() {
        return Err(code::HANDLE_NOT_REGISTERED);
    }
    allows(registered, direction)?;
    Ok(file)
}

/// Whether a file is open for a direction.
pub(crate) fn allows(registered: &RegisteredFile, direction: Direction) -> Result<(), c_int> {
    match direction {
        Direction::Read if !registered.can_read => Err(code::INVALID_FILE_OPEN_FLAG),
        Direction::Write if !registered.can_write => Err(libc::EIO),
        _ => Ok(()),
    }
}

/// The memory of a transfer: at the pointer, within the registered range.
pub(crate) fn target(session: &'static Session, asked: &AskedTransfer) -> Result<PointerTarget, c_int> {
    let (base, address) = (asked.base as u64, asked.address()?);
    if let Some(range) = library().buffers.get(base) {
        if asked.buffer_offset as u64 + asked.size as u64 > range.len as u64 {
            return Err(code::INVALID_MAPPING_RANGE);
        }
        if let Some(known) = target::registered(session, &range, (base, address)) {
            return Ok(known);
        }
    }
    target::find(session, DeviceRange::new(address, asked.size)).map_err(|bad| bad.errno)
}

fn transfer(api: Api, handle: CUfileHandle, asked: AskedTransfer) -> Result<usize, c_int> {
    let library = library();
    let begun = meter().begin_call();
    let refuse = |errno| {
        meter().refused(api, begun, asked.size, errno);
        errno
    };
    let registered = library.files.get_often(handle).map_err(refuse)?;
    let session = library.session().map_err(|refused| refuse(refused.0))?;
    let file = usable(&registered, asked.direction).map_err(refuse)?;
    let target = target(session, &asked).map_err(refuse)?;
    let PointerTarget { kind, gpu, address, .. } = target;
    let result = run(session, file, &target, &asked, begun.at);
    if let Ok(Some(receipt)) = &result {
        meter().receipt(receipt);
    }
    let (engine, latency) = match &result {
        Ok(Some(receipt)) => (engine_of(receipt), receipt.elapsed),
        _ => (EngineCode::None, begun.at.elapsed()),
    };
    let result = result
        .map(|receipt| receipt.map_or(0, |receipt| receipt.bytes()))
        .map_err(|error| logged_errno(&error));
    let done = Transferred {
        api,
        begun,
        file: &registered,
        kind,
        gpu,
        offset: asked.file_offset,
        size: asked.size,
        address,
        group: 0,
        flags: CallFlags::default(),
        result,
        engine,
    };
    meter().moved_in(&done, latency);
    probe(api, registered.fd, &asked, engine, result, gpu);
    result.map(|bytes| bytes as usize)
}

/// Fires the static probe of a transfer: the one of NVIDIA's direct path where the device read the page cache by itself.
fn probe(
    api: Api,
    fd: c_int,
    asked: &AskedTransfer,
    engine: EngineCode,
    result: Result<u64, c_int>,
    gpu: Option<usize>,
) {
    let told = result.map_or_else(|errno| -i64::from(errno), |bytes| bytes as i64);
    let gpu = gpu.map_or(-1, |gpu| gpu as i32);
    let (offset, size, into) = (asked.file_offset, asked.size as u64, asked.buffer_offset);
    match (engine, api.reads()) {
        (EngineCode::One(EngineKind::Mapped), true) => {
            usdt::gds_read(fd, offset, size, into, told, gpu, false);
        }
        (EngineCode::One(EngineKind::Mapped), false) => {
            usdt::gds_write(fd, offset, size, into, told, gpu, false);
        }
        (_, true) => usdt::px_read(fd, offset, size, into, told, gpu),
        (_, false) => usdt::px_write(fd, offset, size, into, told, gpu),
    }
}

/// `None` where there is nothing to move.
fn run(
    session: &Session,
    file: &File,
    target: &PointerTarget,
    asked: &AskedTransfer,
    began: Instant,
) -> Result<Option<Receipt>, Error> {
    if asked.size == 0 {
        return Ok(None);
    }
    let PointerTarget { device, context, address, .. } = *target;
    let range = (asked.size, asked.direction, true);
    let transfer = BorrowedTransfer::new((file, asked.file_offset as u64), (device, context, address), range);
    // SAFETY: the interface demands that the memory is valid and unused until the call returns.
    unsafe { session.run_since(&transfer, began) }.map(Some)
}

/// Reads into device or host memory. Gives the bytes that were there from the offset on without a gap, 0 at the end of the
/// file, −1 with `errno`.
///
/// # Safety
/// `base + buffer_offset` has room for `size` bytes that nobody else uses until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileRead(
    handle: CUfileHandle,
    base: *mut c_void,
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
) -> isize {
    let asked = AskedTransfer { direction: Direction::Read, base, size, file_offset, buffer_offset };
    guarded_bytes(|| transfer(Api::Read, handle, asked))
}

/// Writes from device or host memory. Gives the bytes written, fewer than asked where there is no room for more, −1 with
/// `errno` where there is none at all.
///
/// # Safety
/// `base + buffer_offset` holds `size` bytes that nobody changes until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileWrite(
    handle: CUfileHandle,
    base: *const c_void,
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
) -> isize {
    let asked = AskedTransfer { direction: Direction::Write, base, size, file_offset, buffer_offset };
    guarded_bytes(|| transfer(Api::Write, handle, asked))
}
