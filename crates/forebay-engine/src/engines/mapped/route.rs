//! Which parts of a batch the device copies from pinned pages, and which go through the lanes.
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_error::Result;

use super::eligibility::Reason;
use super::pin_cache::PinCache;
use super::readers::Reader;
use super::reclaimer::Pin;
use super::region::WINDOW;
use super::registrar::{PinPolicy, PinRequest, PinTerms};
use super::window::{PinnedFile, WindowAnswer, inside, window_end, windows_of};
use crate::io::plan::{CELL, Part, are_many_small};
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::source::FileSource;
use crate::source::piece::{Direction, Piece, access_for};
use crate::source::version::FileVersion;

/// Something to copy in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteSpan {
    /// File range `start..end` of an entry, within one window.
    Range { entry: u32, start: u64, end: u64 },
    /// Whole entries. Those that wait have windows, from the first to the last, that may be registered still; all windows
    /// of the others are pinned.
    Entries { first: u32, last: u32, waits: Option<(u32, u32)> },
}

impl RouteSpan {
    pub(super) fn part(self) -> Part {
        match self {
            Self::Range { entry, start, end } => Part::Range { entry, start, end },
            Self::Entries { first, last, .. } => Part::Entries { first, last },
        }
    }
}

/// In batches of at least this many pieces a kernel also gathers pieces longer than a cell.
const MIN_GATHERED_PIECES: usize = 16;
/// Longest piece that a kernel gathers. Copying a longer one takes longer than the call that starts the copy.
const MAX_GATHERED_PIECE: usize = 1 << 20;

/// A batch, divided.
#[derive(Debug)]
pub(super) struct BatchRoute {
    pub(super) pinned: Arc<PinnedFile>,
    pub(super) version: FileVersion,
    pub(super) spans: VecDeque<RouteSpan>,
    /// Pins of windows that are ready.
    pub(super) pins: Vec<Arc<Pin>>,
    /// Their bytes during whose copy no other thread needs the driver.
    pub(super) cover: u64,
    /// For the lanes.
    pub(super) rest: Vec<Part>,
    /// Why there is a rest.
    pub(super) reason: Option<Reason>,
    /// Entries that the end of the file cuts, and where.
    pub(super) cuts: Vec<(u32, u64)>,
}

/// The state of a window that the batch touches.
#[derive(Clone, Copy, Debug)]
enum WindowStatus {
    Untouched,
    Ready,
    Pending,
    Declined,
}

/// Divides a batch. Windows that are worth registering are asked for on the way.
pub(super) fn route(
    cache: &PinCache,
    batch: &Batch,
    must_pin: bool,
    (others_copy, are_several): (bool, bool),
    can_gather: &dyn Fn() -> bool,
    registrar: &dyn Fn(PinRequest),
) -> std::result::Result<BatchRoute, Reason> {
    let Some(source) = batch.file.opened() else {
        return Err(Reason::new("the source is not a file"));
    };
    let file = &source.descriptors;
    let access = access_for(batch.direction);
    if let Some(Err(reason)) = super::eligibility::known(cache.device.as_ref(), file.nature.mount, access) {
        return Err(reason);
    }
    let (version, pinned) = enter_whole(cache, source, batch).map_err(|error| Reason::from(&error))?;
    if file.is_strange(&version) {
        return Err(Reason::new("its descriptor was closed by the program"));
    }
    let mut route = BatchRoute {
        pinned,
        version,
        spans: VecDeque::new(),
        pins: Vec::new(),
        cover: 0,
        rest: Vec::new(),
        reason: None,
        cuts: Vec::new(),
    };
    let mut windows: Vec<_> = (0..route.pinned.windows()).map(|_| WindowStatus::Untouched).collect();
    let demand = demand(batch, route.version.len);
    let reader = Reader { direction: batch.direction, bytes: asked_for(&demand), others_copy };
    if !are_several {
        let is_there = |(index, _): &&(usize, u64)| route.pinned.has_pin(*index);
        route.cover = asked_for(demand.iter().filter(is_there));
        lock(&route.pinned.credit).cover(route.cover);
    }
    for (index, bytes) in demand {
        let terms = if must_pin {
            PinTerms::of(PinPolicy::Always, 0.0)
        } else {
            cache.terms(&route.pinned, reader, (index, bytes))
        };
        windows[index] = match cache.ask(source, file, &route.pinned, index, terms, registrar) {
            WindowAnswer::Ready(pin) => {
                route.pins.push(pin);
                WindowStatus::Ready
            }
            WindowAnswer::Pending(_) => WindowStatus::Pending,
            WindowAnswer::No(reason) => {
                route.reason.get_or_insert(reason);
                WindowStatus::Declined
            }
        };
    }
    route.divide(batch, &windows, must_pin, can_gather);
    Ok(route)
}

/// Enters the batch's file, without pins of pages that it has lost.
fn enter_whole(
    cache: &PinCache,
    source: &Arc<FileSource>,
    batch: &Batch,
) -> Result<(FileVersion, Arc<PinnedFile>)> {
    let enter = || cache.enter(source, source.fd(), access_for(batch.direction));
    let (version, pinned) = enter()?;
    if cache.has_kept(&pinned, batch, version.len) { Ok((version, pinned)) } else { enter() }
}

/// Whether these are many small pieces that leave next to nothing of the file out: the tensors of a model, say. 5 000 of 95 KB each
/// came at 7.7 and 8.6 GB/s first and at 15 and 14 then, without registering beside torch's 250 allocations; with it at 6.6 and 5.9, at 14
/// and 13.
pub(super) fn is_all_small(batch: &Batch) -> bool {
    let pieces = &batch.pieces;
    let bytes: u64 = pieces.iter().map(|piece| piece.len as u64).sum();
    let start = pieces.iter().map(|piece| piece.offset).min().unwrap_or(0);
    let end = pieces.iter().map(|piece| piece.offset + piece.len as u64).max().unwrap_or(0);
    are_many_small(pieces) && end - start <= bytes + bytes / 8
}

/// Whether a piece is one of many small ones, which one kernel gathers.
fn is_small(batch: &Batch, piece: &Piece) -> bool {
    match batch.pieces.len() {
        0 | 1 => false,
        few if few < MIN_GATHERED_PIECES => piece.len <= CELL,
        _ => piece.len <= MAX_GATHERED_PIECE,
    }
}

/// The part of a piece that a file of `len` bytes has. Writes beyond its end are left to the lanes.
fn part_of(batch: &Batch, piece: &Piece, len: u64) -> Option<(u64, u64)> {
    let is_longer = piece.offset + piece.len as u64 > len;
    (batch.direction == Direction::Read || !is_longer).then(|| inside(piece, len))
}

/// The windows that a batch touches, and the bytes that it asks of each, in the order of the file.
pub(super) fn demand(batch: &Batch, len: u64) -> Vec<(usize, u64)> {
    let ranges = || batch.pieces.iter().filter_map(|piece| part_of(batch, piece, len));
    let first = ranges().map(|(start, _)| start / WINDOW).min().unwrap_or(0);
    let last = ranges().map(|(_, end)| end.div_ceil(WINDOW)).max().unwrap_or(0);
    let mut demand = vec![0; last.saturating_sub(first) as usize];
    for (mut start, end) in ranges() {
        while start < end {
            let stop = window_end(start).min(end);
            demand[(start / WINDOW - first) as usize] += stop - start;
            start = stop;
        }
    }
    (first as usize..).zip(demand).filter(|(_, bytes)| *bytes > 0).collect()
}

/// The bytes of all windows.
pub(super) fn asked_for<'a>(demand: impl IntoIterator<Item = &'a (usize, u64)>) -> u64 {
    demand.into_iter().map(|(_, bytes)| bytes).sum()
}

impl BatchRoute {
    fn divide(
        &mut self,
        batch: &Batch,
        windows: &[WindowStatus],
        must_pin: bool,
        can_gather: &dyn Fn() -> bool,
    ) {
        for (index, piece) in batch.pieces.iter().enumerate() {
            let entry = index as u32;
            let Some((start, end)) = part_of(batch, piece, self.version.len) else {
                self.reason.get_or_insert_with(|| Reason::new("the write makes the file longer"));
                self.leave(entry, piece.offset, piece.offset + piece.len as u64);
                continue;
            };
            if end - start < piece.len as u64 {
                self.cuts.push((entry, end - start));
            }
            let whole = end - start == piece.len as u64;
            if is_small(batch, piece)
                && whole
                && self.divide_small(entry, piece, (start, end), windows, must_pin, can_gather)
            {
                continue;
            }
            self.divide_range(entry, (start, end), windows);
        }
        self.sort(windows);
    }

    /// A small piece is gathered or, as a rule, left to the lanes as a whole. False if copies shall take it.
    fn divide_small(
        &mut self,
        entry: u32,
        piece: &Piece,
        (start, end): (u64, u64),
        windows: &[WindowStatus],
        must_pin: bool,
        can_gather: &dyn Fn() -> bool,
    ) -> bool {
        let touched = windows_of(start, end);
        let all = |which: fn(&WindowStatus) -> bool| touched.clone().all(|at| which(&windows[at]));
        if all(|known| matches!(known, WindowStatus::Ready | WindowStatus::Pending)) {
            if can_gather() {
                let is_ready = all(|known| matches!(known, WindowStatus::Ready));
                let waits = (!is_ready).then(|| (touched.start as u32, touched.end as u32 - 1));
                self.take_entry(entry, waits);
                return true;
            }
            if piece.len <= CELL && !must_pin {
                self.reason.get_or_insert_with(|| Reason::new("no kernel runs there to gather small pieces"));
            }
        }
        // A copy for each small piece is slower than the lanes' packs.
        let is_none_registered =
            all(|known| matches!(known, WindowStatus::Untouched | WindowStatus::Declined));
        let is_left = !must_pin && (piece.len <= CELL || is_none_registered);
        if is_left {
            self.leave_entry(entry);
        }
        is_left
    }

    /// Entries that wait for windows are in the order of registration.
    fn sort(&mut self, windows: &[WindowStatus]) {
        let place = |span: &RouteSpan| match *span {
            RouteSpan::Range { start, .. } => {
                let window = (start / WINDOW) as usize;
                if matches!(windows[window], WindowStatus::Pending) { window + 1 } else { 0 }
            }
            RouteSpan::Entries { waits, .. } => waits.map_or(0, |(_, last)| last as usize + 1),
        };
        if windows.iter().any(|known| matches!(known, WindowStatus::Pending)) {
            self.spans.make_contiguous().sort_by_key(place);
        }
    }

    fn divide_range(&mut self, entry: u32, (mut start, end): (u64, u64), windows: &[WindowStatus]) {
        while start < end {
            let stop = window_end(start).min(end);
            match windows[(start / WINDOW) as usize] {
                WindowStatus::Ready | WindowStatus::Pending => {
                    self.spans.push_back(RouteSpan::Range { entry, start, end: stop });
                }
                WindowStatus::Declined | WindowStatus::Untouched => self.leave(entry, start, stop),
            }
            start = stop;
        }
    }

    fn take_entry(&mut self, entry: u32, waits: Option<(u32, u32)>) {
        match self.spans.back_mut() {
            Some(RouteSpan::Entries { last, waits: theirs, .. }) if *last == entry && *theirs == waits => {
                *last += 1;
            }
            _ => self.spans.push_back(RouteSpan::Entries { first: entry, last: entry + 1, waits }),
        }
    }

    fn leave_entry(&mut self, entry: u32) {
        match self.rest.last_mut() {
            Some(Part::Entries { last, .. }) if *last == entry => *last += 1,
            _ => self.rest.push(Part::Entries { first: entry, last: entry + 1 }),
        }
    }

    fn leave(&mut self, entry: u32, start: u64, end: u64) {
        match self.rest.last_mut() {
            Some(Part::Range { entry: before, end: reached, .. })
                if *before == entry && *reached == start =>
            {
                *reached = end;
            }
            _ => self.rest.push(Part::Range { entry, start, end }),
        }
    }
}

/// Bytes of some parts of a batch.
pub(super) fn bytes_of(batch: &Batch, parts: &[Part]) -> u64 {
    parts
        .iter()
        .map(|part| match *part {
            Part::Range { start, end, .. } => end - start,
            Part::Entries { first, last } => {
                batch.pieces[first as usize..last as usize].iter().map(|piece| piece.len as u64).sum()
            }
        })
        .sum()
}
