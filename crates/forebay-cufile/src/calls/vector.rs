//! Reads and writes of several pieces of memory.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use forebay_engine::{Direction, Receipt, Session, Transfer};
use forebay_error::{Error, ErrorKind};
use forebay_gpu::MemoryKind;
use forebay_trace::{Api, CallFlags, EngineCode};

use super::guarded_bytes;
use super::transfer::{AskedTransfer, direction_of, target, usable};
use crate::abi::{CUfileHandle, CUfileIOVec, code};
use crate::handles::RegisteredFile;
use crate::library::library;
use crate::log::logged_errno;
use crate::meter::{Transferred, meter};

/// The most parts of a vector, as the kernel has it.
const MOST_PARTS: usize = 1024;

/// The parts of a vector as transfers.
struct VectorParts {
    file: Arc<RegisteredFile>,
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
) -> Result<VectorParts, c_int> {
    let library = library();
    let registered = library.files.get_for_io(handle)?;
    let session = library.session().map_err(|refused| refused.0)?;
    let file = usable(&registered, direction)?;
    let (mut offset, mut first) = (file_offset, None);
    let mut transfers = Vec::with_capacity(parts.len());
    for part in parts.iter().filter(|part| part.len > 0) {
        let asked = AskedTransfer {
            direction,
            base: part.base,
            size: part.len,
            file_offset: offset,
            buffer_offset: 0,
        };
        let target = target(session, &asked)?;
        first.get_or_insert((target.kind, target.gpu, target.address));
        let (file, memory, len) = (file.clone(), target.memory(), part.len);
        transfers.push(Transfer { file, offset: offset as u64, memory, len, direction, allow_short: true });
        offset = offset.checked_add_unsigned(part.len as u64).ok_or(code::INVALID_VALUE)?;
    }
    Ok(VectorParts { file: registered, transfers, first, size: (offset - file_offset) as usize })
}

fn vector(api: Api, handle: CUfileHandle, parts: &[CUfileIOVec], file_offset: i64) -> Result<usize, c_int> {
    let library = library();
    let begun = meter().begin_call();
    let VectorParts { file, transfers, first, size } = prepare(direction_of(api), handle, parts, file_offset)
        .inspect_err(|errno| meter().refused(api, begun, 0, *errno))?;
    let Some((kind, gpu, address)) = first else { return Ok(0) };
    let result =
        library.session().map_err(|refused| refused.0).and_then(|session| run_all(session, transfers));
    meter().moved(&Transferred {
        api,
        begun,
        file: &file,
        kind,
        gpu,
        offset: file_offset,
        size,
        address,
        group: 0,
        flags: CallFlags::default(),
        result,
        engine: EngineCode::Mixed,
    });
    result.map(|bytes| bytes as usize)
}

/// Cuts writes for several devices to what there is room for. Those for one device are cut as they run; of several, one may take
/// the room of another whose bytes come before.
fn cut_to_room(transfers: &mut Vec<Transfer>) -> Result<(), Error> {
    let is_mixed =
        transfers.windows(2).any(|pair| !Arc::ptr_eq(&pair[0].memory.device, &pair[1].memory.device));
    let Some(Transfer { file, offset, direction: Direction::Write, .. }) = transfers.first() else {
        return Ok(());
    };
    if is_mixed {
        let mut room = file.room_for(*offset, transfers.iter().map(|transfer| transfer.len as u64).sum())?;
        for transfer in transfers.iter_mut() {
            transfer.len = transfer.len.min(room as usize);
            room -= transfer.len as u64;
        }
        transfers.retain(|transfer| transfer.len > 0);
    }
    Ok(())
}

/// Runs the parts together, those of each device at once. The bytes up to the first part that is short.
fn run_all(session: &Session, mut transfers: Vec<Transfer>) -> Result<u64, c_int> {
    let wanted: Vec<_> = transfers.iter().map(|transfer| transfer.len as u64).collect();
    cut_to_room(&mut transfers).map_err(|error| logged_errno(&error))?;
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
    let (mut tickets, mut failed) = (Vec::new(), None);
    for (indexes, group) in groups {
        // SAFETY: as in `run`; every ticket is waited for below.
        match unsafe { session.submit(group) } {
            Ok(ticket) => tickets.push((indexes, ticket)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let mut ends: Vec<_> = wanted.iter().map(|_| Ok(0)).collect();
    let mut receipts = Vec::new();
    for (indexes, ticket) in tickets {
        let outcome = ticket.wait();
        receipts.push(outcome.receipt);
        for (index, entry) in indexes.into_iter().zip(outcome.entries) {
            ends[index] = entry;
        }
    }
    let result = failed.map_or_else(|| good_prefix(&wanted, ends), Err);
    let mut left = *result.as_ref().unwrap_or(&0);
    for receipt in receipts {
        let moved = receipt.moved.up_to(left);
        left -= moved.total();
        meter().receipt(&Receipt { moved, ..receipt });
    }
    result.map_err(|error| logged_errno(&error))
}

/// The bytes of the parts up to the first that is short, or finds no room. Any other error is the vector's.
fn good_prefix(wanted: &[u64], ends: Vec<Result<u64, Error>>) -> Result<u64, Error> {
    let (mut sum, mut is_over, mut full) = (0, false, None);
    for (wanted, end) in wanted.iter().zip(ends) {
        match end {
            Ok(bytes) if !is_over => {
                sum += bytes;
                is_over = bytes < *wanted;
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                is_over = true;
                full = full.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    match full {
        Some(error) if sum == 0 => Err(error),
        _ => Ok(sum),
    }
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

/// The two functions differ in their names and in what they record.
macro_rules! vector_call {
    ($(#[$about:meta])* $name:ident $api:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// `iov` has `count` parts, each as the call with one piece demands; those that are read into do not overlap.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            handle: CUfileHandle,
            iov: *const CUfileIOVec,
            count: usize,
            file_offset: i64,
            _flags: c_uint,
        ) -> isize {
            // SAFETY: passed on.
            guarded_bytes(|| vector(Api::$api, handle, unsafe { parts(iov, count) }?, file_offset))
        }
    };
}

vector_call! {
    /// Reads into several pieces of memory, which follow each other in the file.
    cuFileReadv Readv
}
vector_call! {
    /// Writes several pieces of memory, one after the other in the file.
    cuFileWritev Writev
}
