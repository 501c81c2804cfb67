//! Lists for kernels that copy many pieces: pieces, offsets, and reports of a map's gathers.

use std::ops::Range;
use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, Device, Event, Gather, GatherReport, HostRange, Stream, Wait};

use super::window::{PinnedFile, inside};
use crate::request::transfer::Batch;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::traffic;
use crate::source::piece::Direction;
use crate::tuning::machine::MANY;
use crate::tuning::mapped::{GATHER_FIRST, GATHER_GROWTH};
use crate::tuning::plan::CELL;

/// Pinned memory of one kernel's list.
pub(super) struct CopyList {
    pages: PinnedPages,
    room: usize,
}

/// The entries written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListContents {
    pub(super) count: usize,
    /// The longest piece.
    pub(super) longest: usize,
    pub(super) bytes: u64,
}

impl CopyList {
    /// With room for `room` pieces.
    pub(super) fn new(device: &Arc<dyn Device>, room: usize) -> Result<Self> {
        Ok(Self { pages: PinnedPages::new(device, room * size_of::<CopyPiece>())?, room })
    }

    /// The list's address for the device.
    pub(super) fn reach(&self) -> u64 {
        self.pages.reach()
    }

    /// Writes down some entries of a batch, as far as the file of `len` bytes has them. Pins of all their windows are held,
    /// and there is room.
    pub(super) fn write(
        &self,
        batch: &Batch,
        entries: Range<u32>,
        pinned: &PinnedFile,
        len: u64,
    ) -> ListContents {
        let mut written = ListContents::default();
        let last = entries.end;
        let stop = self.add(&mut written, batch, entries, pinned, (len, u64::MAX));
        assert!(stop == last, "the list is full");
        written
    }

    /// As [`CopyList::write`], behind the entries written already, as long as there is room and there are fewer than
    /// `most` bytes. The first entry that is left.
    pub(super) fn add(
        &self,
        written: &mut ListContents,
        batch: &Batch,
        entries: Range<u32>,
        pinned: &PinnedFile,
        (len, most): (u64, u64),
    ) -> u32 {
        // Without any window there are no bytes, and no kernel reads through the address.
        let first_page = pinned.address(0).unwrap_or_default();
        for entry in entries.clone() {
            let piece = &batch.pieces[entry as usize];
            let (start, end) = inside(piece, len);
            let cuts = (end - start).div_ceil(CELL as u64) as usize;
            if written.count + cuts > self.room || written.bytes >= most {
                return entry;
            }
            let (page, memory) = (first_page + start, piece.address);
            for from in (0..end - start).step_by(CELL) {
                let (src, dst) = match batch.direction {
                    Direction::Read => (page + from, memory + from),
                    Direction::Write => (memory + from, page + from),
                };
                let len = (CELL as u64).min(end - start - from);
                written.longest = written.longest.max(len as usize);
                self.set(written.count, CopyPiece { src, dst, len });
                written.count += 1;
            }
            written.bytes += end - start;
        }
        entries.end
    }

    /// The entries written: no kernel uses the list.
    pub(super) fn pieces(&self, written: &ListContents) -> impl ExactSizeIterator<Item = CopyPiece> + Clone {
        assert!(written.count <= self.room, "more than the list has");
        #[allow(clippy::cast_ptr_alignment, reason = "as below")]
        // SAFETY: as many pieces were written; the list is rewritten only for another batch.
        let pieces = unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), written.count) };
        pieces.iter().copied()
    }

    fn set(&self, index: usize, piece: CopyPiece) {
        assert!(index < self.room, "the list is full");
        #[allow(clippy::cast_ptr_alignment, reason = "the pages are aligned to far more than a piece")]
        // SAFETY: the index is below the room; no kernel reads the list before it is queued.
        unsafe {
            self.pages.as_ptr().cast::<CopyPiece>().add(index).write(piece);
        }
    }
}

/// Resources of a map's gathers.
pub(super) struct GatherStream {
    device: Arc<dyn Device>,
    pub(super) stream: Box<dyn Stream>,
    /// Device memory of [`MANY`] reports.
    reports: u64,
    /// Pinned: the reports as they came back, then one that is blank.
    mirror: PinnedPages,
    pub(super) free: Vec<usize>,
}

impl GatherStream {
    pub(super) fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let size = size_of::<GatherReport>();
        device.kernels(Context::PRIMARY)?;
        let stream = device.stream(Context::PRIMARY)?;
        let mirror = PinnedPages::new(device, (MANY + 1) * size)?;
        let reports = device.allocate(MANY * size)?;
        let gather_stream =
            Self { device: device.clone(), stream, reports, mirror, free: (0..MANY).collect() };
        // SAFETY: the mirror has a place behind the last report.
        unsafe { gather_stream.mirrored(MANY).write(GatherReport::START) };
        Ok(gather_stream)
    }

    pub(super) fn report_on_device(&self, index: usize) -> u64 {
        self.reports + (index * size_of::<GatherReport>()) as u64
    }

    #[allow(clippy::cast_ptr_alignment, reason = "the pages are aligned to far more than a report")]
    pub(super) fn mirrored(&self, index: usize) -> *mut GatherReport {
        self.mirror.as_ptr().cast::<GatherReport>().wrapping_add(index)
    }

    /// # Safety
    /// As [`Stream::gather`]; the report belongs to this gather alone.
    pub(super) unsafe fn queue(
        &self,
        stream: &dyn Stream,
        report: usize,
        gather: &Gather,
    ) -> Result<Box<dyn Event>> {
        let size = size_of::<GatherReport>();
        // SAFETY: the mirror and the reports live as long as the gather_stream, which outlives the gathering.
        unsafe {
            stream.copy_in(gather.report, HostRange::new(self.mirrored(MANY).cast(), size))?;
            if gather.count > 0 && gather.piece > 0 {
                stream.gather(gather)?;
            }
            stream.copy_out(HostRange::new(self.mirrored(report).cast(), size), gather.report)?;
        }
        let event = stream.event()?;
        stream.record(event.as_ref())?;
        Ok(event)
    }
}

impl Drop for GatherStream {
    fn drop(&mut self) {
        let _ = self.stream.synchronize(Wait::Block);
        let (device, reports) = (self.device.clone(), self.reports);
        // SAFETY: allocated in `new`; gatherings, which hold the gather_stream's owner, are over.
        traffic::when_clear(move || unsafe { device.free(reports) });
    }
}

/// Most offsets that one kernel takes: those of the third.
const LARGEST_PART: usize = GATHER_FIRST * GATHER_GROWTH * GATHER_GROWTH;

/// Cuts a list into growing parts: the first arrives early, the later ones cost few launches.
pub(super) fn parts(list: &[u64]) -> impl Iterator<Item = &[u64]> {
    let (mut rest, mut size) = (list, GATHER_FIRST);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (part, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        size = (size * GATHER_GROWTH).min(LARGEST_PART);
        Some(part)
    })
}

/// A usual size of memory that holds `bytes` of offsets.
pub(super) fn buffer_size(bytes: usize) -> usize {
    let mut size = GATHER_FIRST;
    while size * 8 < bytes {
        size *= GATHER_GROWTH;
    }
    size * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_list_in_order_and_begin_small() {
        for count in [
            0,
            1,
            GATHER_FIRST - 1,
            GATHER_FIRST,
            GATHER_FIRST + 1,
            GATHER_FIRST * (1 + GATHER_GROWTH),
            1 << 20,
            5_000_000,
        ] {
            let list: Vec<u64> = (0..count as u64).collect();
            assert!(parts(&list).flatten().eq(&list));
            assert!(parts(&list).all(|part| (1..=LARGEST_PART).contains(&part.len())));
            assert!(parts(&list).next().is_none_or(|part| part.len() <= GATHER_FIRST));
        }
        assert_eq!(parts(&vec![0; 1 << 20]).count(), 4, "few launches");
    }
}
