//! Synchronous reads and writes.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use forebay_engine::{Direction, File, Memory, Receipt, Session, Transfer};
use forebay_error::Error;
use forebay_gpu::MemoryKind;
use forebay_trace::{Api, Engine, Flags};

use crate::abi::{CUfileHandle, CUfileIOVec, code};
use crate::file::Registered;
use crate::library::{address, guarded_bytes, library};
use crate::meter::{Transferred, engine_of};
use crate::target::{self, Target};
use crate::usdt;

/// A read or write as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) direction: Direction,
    pub(crate) base: *const c_void,
    pub(crate) size: usize,
    pub(crate) file_offset: i64,
    pub(crate) buffer_offset: i64,
}

impl Asked {
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

/// The file to move bytes of, if it is open for that, and by the descriptor that was registered.
pub(crate) fn usable(registered: &Registered, direction: Direction) -> Result<&File, c_int> {
    let file = registered.file.as_ref().ok_or(code::DRIVER_CLOSING)?;
    if !registered.is_itself() {
        return Err(code::HANDLE_NOT_REGISTERED);
    }
    allows(registered, direction)?;
    Ok(file)
}

/// Whether a file is open for a direction.
pub(crate) fn allows(registered: &Registered, direction: Direction) -> Result<(), c_int> {
    match direction {
        Direction::Read if !registered.can_read => Err(code::INVALID_FILE_OPEN_FLAG),
        Direction::Write if !registered.can_write => Err(libc::EIO),
        _ => Ok(()),
    }
}

/// The memory of a transfer: what the pointer points to, within what was registered there.
pub(crate) fn target(session: &Session, asked: &Asked) -> Result<Target, c_int> {
    let address = asked.address()?;
    if let Some(len) = library().buffers.len_at(asked.base as u64)
        && asked.buffer_offset as u64 + asked.size as u64 > len as u64
    {
        return Err(code::INVALID_MAPPING_RANGE);
    }
    target::find(session, address, asked.size).map_err(|bad| bad.errno)
}

/// The errno of a transfer that failed.
pub(crate) fn errno_of(error: &Error) -> c_int {
    library().log().error("io", error);
    error.errno()
}

fn transfer(api: Api, handle: CUfileHandle, asked: Asked) -> Result<usize, c_int> {
    let library = library();
    let begun = library.meter().begin_call();
    let refuse = |errno| {
        library.meter().refused(api, begun, asked.size, errno);
        errno
    };
    let registered = library.files.get_for_io(handle).map_err(refuse)?;
    let session = library.session().map_err(|refused| refuse(refused.0))?;
    let file = usable(&registered, asked.direction).map_err(refuse)?;
    let Target { memory, kind, gpu, .. } = target(session, &asked).map_err(refuse)?;
    let start = memory.address;
    let result = run(session, file, memory, &asked);
    if let Ok(Some(receipt)) = &result {
        library.meter().receipt(receipt);
    }
    let engine = match &result {
        Ok(Some(receipt)) => engine_of(receipt),
        _ => Engine::None,
    };
    let result =
        result.map(|receipt| receipt.map_or(0, |receipt| receipt.bytes())).map_err(|error| errno_of(&error));
    library.meter().moved(&Transferred {
        api,
        begun,
        file: &registered,
        kind,
        gpu,
        offset: asked.file_offset,
        size: asked.size,
        address: start,
        group: 0,
        flags: Flags::default(),
        result,
        engine,
    });
    probe(api, registered.fd, &asked, engine, result, gpu);
    result.map(|bytes| bytes as usize)
}

/// Fires the static probe of a transfer: the one of NVIDIA's direct path where the device read the page cache by itself.
fn probe(api: Api, fd: c_int, asked: &Asked, engine: Engine, result: Result<u64, c_int>, gpu: Option<usize>) {
    let told = result.map_or_else(|errno| -i64::from(errno), |bytes| bytes as i64);
    let gpu = gpu.map_or(-1, |gpu| gpu as i32);
    let (offset, size, into) = (asked.file_offset, asked.size as u64, asked.buffer_offset);
    match (engine, api.reads()) {
        (Engine::Mapped, true) => usdt::gds_read(fd, offset, size, into, told, gpu, false),
        (Engine::Mapped, false) => usdt::gds_write(fd, offset, size, into, told, gpu, false),
        (_, true) => usdt::px_read(fd, offset, size, into, told, gpu),
        (_, false) => usdt::px_write(fd, offset, size, into, told, gpu),
    }
}

/// `None` where there is nothing to move.
fn run(session: &Session, file: &File, memory: Memory, asked: &Asked) -> Result<Option<Receipt>, Error> {
    if asked.size == 0 {
        return Ok(None);
    }
    let transfer = Transfer {
        file: file.clone(),
        offset: asked.file_offset as u64,
        memory,
        len: asked.size,
        direction: asked.direction,
        allow_short: true,
    };
    // SAFETY: the interface demands that the memory is valid and unused until the call returns.
    unsafe { session.run(&transfer) }.map(Some)
}

/// Reads into device or host memory. Gives the bytes that were there, 0 at the end of the file, −1 with `errno`.
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
    let asked = Asked { direction: Direction::Read, base, size, file_offset, buffer_offset };
    guarded_bytes(|| transfer(Api::Read, handle, asked))
}

/// Writes from device or host memory. Gives the bytes written, −1 with `errno`.
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
    let asked = Asked { direction: Direction::Write, base, size, file_offset, buffer_offset };
    guarded_bytes(|| transfer(Api::Write, handle, asked))
}

// ---- vectors --------------------------------------------------------------------------------------------------------

/// The most parts of a vector, as the kernel has it.
const MOST_PARTS: usize = 1024;

/// The parts of a vector as transfers.
struct Parts {
    file: Arc<Registered>,
    transfers: Vec<Transfer>,
    /// Kind, GPU and address of the first one.
    first: Option<(MemoryKind, Option<usize>, u64)>,
    size: usize,
}

fn prepare(
    direction: Direction,
    handle: CUfileHandle,
    parts: &[CUfileIOVec],
    file_offset: i64,
) -> Result<Parts, c_int> {
    let library = library();
    let registered = library.files.get_for_io(handle)?;
    let session = library.session().map_err(|refused| refused.0)?;
    let file = usable(&registered, direction)?;
    let (mut offset, mut first) = (file_offset, None);
    let mut transfers = Vec::with_capacity(parts.len());
    for part in parts.iter().filter(|part| part.len > 0) {
        let asked =
            Asked { direction, base: part.base, size: part.len, file_offset: offset, buffer_offset: 0 };
        let Target { memory, kind, gpu, .. } = target(session, &asked)?;
        first.get_or_insert((kind, gpu, memory.address));
        let (file, len) = (file.clone(), part.len);
        transfers.push(Transfer { file, offset: offset as u64, memory, len, direction, allow_short: true });
        offset = offset.checked_add_unsigned(part.len as u64).ok_or(code::INVALID_VALUE)?;
    }
    Ok(Parts { file: registered, transfers, first, size: (offset - file_offset) as usize })
}

fn vector(
    api: Api,
    direction: Direction,
    handle: CUfileHandle,
    parts: &[CUfileIOVec],
    file_offset: i64,
) -> Result<usize, c_int> {
    let library = library();
    let begun = library.meter().begin_call();
    let Parts { file, transfers, first, size } = prepare(direction, handle, parts, file_offset)
        .inspect_err(|errno| library.meter().refused(api, begun, 0, *errno))?;
    let Some((kind, gpu, address)) = first else { return Ok(0) };
    let result =
        library.session().map_err(|refused| refused.0).and_then(|session| run_all(session, transfers));
    library.meter().moved(&Transferred {
        api,
        begun,
        file: &file,
        kind,
        gpu,
        offset: file_offset,
        size,
        address,
        group: 0,
        flags: Flags::default(),
        result,
        engine: Engine::Mixed,
    });
    result.map(|bytes| bytes as usize)
}

/// Runs the parts together, those of each device at once. The bytes up to the first part that is short.
fn run_all(session: &Session, transfers: Vec<Transfer>) -> Result<u64, c_int> {
    let wanted: Vec<_> = transfers.iter().map(|transfer| transfer.len as u64).collect();
    let mut got = vec![0; wanted.len()];
    let mut groups: Vec<(Vec<usize>, Vec<Transfer>)> = Vec::new();
    for (index, transfer) in transfers.into_iter().enumerate() {
        let device = transfer.memory.device.clone();
        match groups.iter_mut().find(|(_, group)| Arc::ptr_eq(&group[0].memory.device, &device)) {
            Some((indexes, group)) => {
                indexes.push(index);
                group.push(transfer);
            }
            None => groups.push((vec![index], vec![transfer])),
        }
    }
    let mut tickets = Vec::new();
    let mut failed = None;
    for (indexes, group) in groups {
        // SAFETY: as in `run`; every ticket is waited for below.
        match unsafe { session.submit(group) } {
            Ok(ticket) => tickets.push((indexes, ticket)),
            Err(error) => failed = failed.or(Some(errno_of(&error))),
        }
    }
    for (indexes, ticket) in tickets {
        let outcome = ticket.wait();
        library().meter().receipt(&outcome.receipt);
        for (index, entry) in indexes.into_iter().zip(outcome.entries) {
            match entry {
                Ok(bytes) => got[index] = bytes,
                Err(error) => failed = failed.or(Some(errno_of(&error))),
            }
        }
    }
    if let Some(errno) = failed {
        return Err(errno);
    }
    let whole = wanted.iter().zip(&got).take_while(|(wanted, got)| wanted == got).count();
    Ok(got.iter().take(whole + 1).sum())
}

/// # Safety
/// `parts` has `count` parts, or is null.
unsafe fn parts<'a>(parts: *const CUfileIOVec, count: usize) -> Result<&'a [CUfileIOVec], c_int> {
    if count > MOST_PARTS || (parts.is_null() && count > 0) {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(parts, count) })
}

/// Reads into several pieces of memory, which follow each other in the file.
///
/// # Safety
/// `iov` has `count` parts, each as [`cuFileRead`] demands; they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileReadv(
    handle: CUfileHandle,
    iov: *const CUfileIOVec,
    count: usize,
    file_offset: i64,
    _flags: c_uint,
) -> isize {
    guarded_bytes(|| {
        // SAFETY: passed on.
        let parts = unsafe { parts(iov, count) }?;
        vector(Api::Readv, Direction::Read, handle, parts, file_offset)
    })
}

/// Writes several pieces of memory, one after the other in the file.
///
/// # Safety
/// `iov` has `count` parts, each as [`cuFileWrite`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileWritev(
    handle: CUfileHandle,
    iov: *const CUfileIOVec,
    count: usize,
    file_offset: i64,
    _flags: c_uint,
) -> isize {
    guarded_bytes(|| {
        // SAFETY: passed on.
        let parts = unsafe { parts(iov, count) }?;
        vector(Api::Writev, Direction::Write, handle, parts, file_offset)
    })
}
