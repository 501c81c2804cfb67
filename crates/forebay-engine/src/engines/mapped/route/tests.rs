//! Every byte of a batch takes exactly one way, whatever the state of its windows.

use std::collections::HashMap;

use forebay_gpu::Access;
use proptest::prelude::*;

use super::super::window::{parts, touched};
use super::*;
use crate::request::file::File;
use crate::request::transfer::Memory;

const WINDOWS: u64 = 4;

/// Pieces around the borders of windows and of what is small.
fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let border = prop_oneof![0..=WINDOWS * WINDOW, (0..=WINDOWS).prop_map(|window| window * WINDOW)];
    let len = prop_oneof![
        0..200_000usize,
        Just(CELL),
        Just(CELL + 1),
        Just(MAX_GATHERED_PIECE),
        Just(MAX_GATHERED_PIECE + 1),
        Just(3 * WINDOW as usize)
    ];
    let piece = (border, 0..300_000u64, len).prop_map(|(border, before, len)| Piece {
        offset: border.saturating_sub(before),
        address: 0,
        len,
    });
    prop::collection::vec(piece, 1..40)
}

fn known() -> impl Strategy<Value = Vec<WindowStatus>> {
    let one =
        prop_oneof![Just(WindowStatus::Ready), Just(WindowStatus::Pending), Just(WindowStatus::Declined)];
    prop::collection::vec(one, WINDOWS as usize)
}

/// A route with nothing in it, for a file of this length.
fn empty(file: &File, len: u64) -> BatchRoute {
    let mut version = FileVersion::of(file.raw_fd().unwrap()).unwrap();
    version.len = len;
    let pinned = Arc::new(PinnedFile::new(version, Access::ReadOnly, file.opened().unwrap()));
    let (spans, pins, rest, reason, cuts) = Default::default();
    BatchRoute { pinned, version, spans, pins, cover: 0, rest, reason, cuts }
}

/// Ranges of each entry's file offsets.
fn ranges(batch: &Batch, parts: impl Iterator<Item = Part>) -> HashMap<u32, Vec<(u64, u64)>> {
    let mut all: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for part in parts {
        match part {
            Part::Range { entry, start, end } => all.entry(entry).or_default().push((start, end)),
            Part::Entries { first, last } => {
                for entry in first..last {
                    let Piece { offset, len, .. } = batch.pieces[entry as usize];
                    all.entry(entry).or_default().push((offset, offset + len as u64));
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_byte_goes_one_way(
        pieces in pieces(),
        windows in known(),
        must_pin in any::<bool>(),
        can_gather in any::<bool>(),
        missing in 0..WINDOW,
    ) {
        let file = File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
        let len = WINDOWS * WINDOW - missing;
        let mut route = empty(&file, len);
        let memory = Memory::new(forebay_gpu::host::device(), 0);
        let batch = Batch { file, memory, direction: Direction::Read, pieces, allow_short: true };
        route.divide(&batch, &windows, must_pin, &|| can_gather);
        let both = route.spans.iter().map(|span| span.part()).chain(route.rest.iter().copied());
        let mut all = ranges(&batch, both);
        for (entry, piece) in batch.pieces.iter().enumerate() {
            let (start, end) = inside(piece, len);
            let mut ranges = all.remove(&(entry as u32)).unwrap_or_default();
            ranges.sort_unstable();
            let reached = ranges.iter().try_fold(start, |at, (from, to)| (*from == at).then_some(*to));
            prop_assert!(reached == Some(end) || start == end, "{piece:?}: {ranges:?}");
        }
        let hulls = touched(&batch, len);
        let mut bytes = 0;
        for (window, (start, end)) in parts(&batch, len) {
            let (first, last) = hulls[&window];
            prop_assert!(first <= start && start < end && end <= last && windows_of(first, last) == (window..window + 1));
            bytes += end - start;
        }
        let wanted: u64 = batch.pieces.iter().map(|piece| inside(piece, len)).map(|(start, end)| end - start).sum();
        prop_assert_eq!(bytes, wanted, "looked at");
        let window = |offset: u64| windows[(offset / WINDOW) as usize];
        let mut furthest = 0;
        for span in &route.spans {
            let waits_for = match *span {
                RouteSpan::Range { start, end, .. } => {
                    prop_assert!(start / WINDOW == (end - 1) / WINDOW && !matches!(window(start), WindowStatus::Declined));
                    if matches!(window(start), WindowStatus::Pending) { start / WINDOW + 1 } else { 0 }
                }
                RouteSpan::Entries { first, last, waits } => {
                    prop_assert!(can_gather);
                    for piece in &batch.pieces[first as usize..last as usize] {
                        prop_assert!(is_small(&batch, piece) && batch.pieces.len() > 1);
                        for at in windows_of(piece.offset, piece.offset + piece.len as u64) {
                            let is_waited_for = waits.is_some_and(|(first, last)| {
                                (first..=last).contains(&(at as u32))
                            });
                            let is_taken = match windows[at] {
                                WindowStatus::Ready => true,
                                WindowStatus::Pending => is_waited_for,
                                _ => false,
                            };
                            prop_assert!(is_taken, "window {}", at);
                        }
                    }
                    waits.map_or(0, |(_, last)| u64::from(last) + 1)
                }
            };
            prop_assert!(waits_for >= furthest, "in the order of registration: {:?}", route.spans);
            furthest = waits_for;
        }
    }
}
