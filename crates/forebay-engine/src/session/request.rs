//! Makes transfers of users' arguments, and refuses wrong ones before anything starts.

use std::ops::Range;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, Devices, Wait};

use super::ReadPiece;
use crate::request::buffer::Buffer;
use crate::request::copy_order::{CopyOrder, PriorWork};
use crate::request::file::File;
use crate::request::transfer::{Batch, BorrowedTransfer, Transfer};
use crate::runtime::traffic;
use crate::source::piece::{Direction, Piece};

pub(super) fn nothing() -> Error {
    Error::new(ErrorKind::InvalidInput, "nothing to transfer").hint("give at least one piece")
}

#[cold]
pub(super) fn unknown_device(index: usize, devices: &Devices) -> Error {
    let error =
        Error::new(ErrorKind::InvalidInput, "the memory is on a device that this session does not know")
            .with("device", index);
    match &devices.missing {
        Some(reason) => error.hint(format!("no GPU because: {reason}")),
        None => error,
    }
}

/// Puts neighbours that share file, memory and direction into one batch.
pub(super) fn batches(transfers: Vec<Transfer>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for transfer in transfers {
        let piece = transfer.piece();
        match batches.last_mut() {
            Some(batch)
                if batch.file.same_source(&transfer.file)
                    && Arc::ptr_eq(&batch.memory.device, &transfer.memory.device)
                    && batch.memory.context == transfer.memory.context
                    && batch.direction == transfer.direction
                    && batch.allow_short == transfer.allow_short =>
            {
                batch.pieces.push(piece);
            }
            _ => batches.push(Batch::of(&transfer)),
        }
    }
    batches
}

/// Batches, each with the number of its first entry in the submission.
pub(super) fn with_first_entries(batches: Vec<Batch>) -> impl Iterator<Item = (u32, Batch)> {
    batches.into_iter().scan(0, |next, batch| {
        let base = *next;
        *next += batch.pieces.len() as u32;
        Some((base, batch))
    })
}

/// The work that the device copies of a submission come after. Where its batches are of several contexts, all but one of
/// these are waited for here.
pub(super) fn prior_work(
    device: &Arc<dyn Device>,
    batches: &[Batch],
    order: CopyOrder,
) -> Result<Option<PriorWork>> {
    let mut contexts: Vec<_> = batches.iter().map(|batch| batch.memory.context).collect();
    contexts.dedup();
    let mut last: Option<PriorWork> = None;
    for context in contexts {
        if let Some(next) = order.prior_work(device.as_ref(), context)?
            && let Some(before) = last.replace(next)
        {
            before.wait(Wait::Block)?;
        }
    }
    // Operations that are queued on streams may need the lanes, whose rooms waiting copies would hold.
    match last {
        Some(work) if traffic::is_queued() => work.wait(Wait::Block).map(|()| None),
        last => Ok(last),
    }
}

/// A transfer of a part of a buffer.
pub(super) fn buffer_transfer<'a>(
    file: &'a File,
    offset: u64,
    buffer: &'a Buffer,
    range: Range<usize>,
    direction: Direction,
) -> Result<BorrowedTransfer<'a>> {
    check_range(buffer, &range)?;
    let memory = (buffer.device(), Context::PRIMARY, buffer.address() + range.start as u64);
    Ok(BorrowedTransfer::new((file, offset), memory, (range.len(), direction, false)))
}

pub(super) fn owned_batch(
    file: &File,
    pieces: &[ReadPiece],
    buffer: &Buffer,
    direction: Direction,
) -> Result<Batch> {
    let piece = |piece: &ReadPiece| {
        check_range(buffer, &piece.range)?;
        let address = buffer.address() + piece.range.start as u64;
        Ok(Piece { offset: piece.offset, address, len: piece.range.len() })
    };
    let pieces = pieces.iter().map(piece).collect::<Result<_>>()?;
    Ok(Batch { file: file.clone(), memory: buffer.memory(), direction, pieces, allow_short: false })
}

fn check_range(buffer: &Buffer, range: &Range<usize>) -> Result<()> {
    if range.start > range.end || range.end > buffer.len() {
        return Err(Error::new(ErrorKind::InvalidInput, "the range lies outside of the buffer")
            .with("range", format!("{}..{}", range.start, range.end))
            .with("buffer", buffer.len()));
    }
    Ok(())
}

pub(super) fn check_offset(offset: u64, len: usize) -> Result<()> {
    if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::new(ErrorKind::InvalidInput, "the offset is beyond what a file can have")
            .with("offset", offset)
            .with("bytes", len));
    }
    Ok(())
}

pub(super) fn check_disjoint(pieces: &[ReadPiece]) -> Result<()> {
    let mut ranges: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.range.start, piece.range.end))
        .filter(|(start, end)| start < end)
        .collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(Error::new(ErrorKind::InvalidInput, "two pieces of a batch read into the same bytes")
            .hint("give each piece its own range of the buffer"));
    }
    Ok(())
}
