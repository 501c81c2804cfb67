//! Which bytes of a batch a drive can move by itself: those that O_DIRECT can address, in the file and in memory. Pure
//! arithmetic.

use crate::io::plan::Part;
use crate::source::piece::Piece;

/// The alignment that O_DIRECT requires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignment {
    /// Of offsets and lengths, a power of two.
    pub(crate) offset: u64,
    /// Of memory.
    pub(crate) memory: u64,
}

/// The division of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All of it by the drive.
    All,
    /// Some by the drive, the rest through slots.
    Some(Parts),
}

/// The parts of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) placed: Vec<Part>,
    pub(crate) rest: Vec<Part>,
    /// Bytes of `rest`.
    pub(crate) left: u64,
    /// An entry of which the drive can move nothing.
    pub(crate) hopeless: Option<u32>,
}

impl Alignment {
    fn suits(self, piece: &Piece) -> bool {
        (piece.offset | piece.len as u64) & (self.offset - 1) == 0
            && piece.address.is_multiple_of(self.memory)
    }

    /// The file range of a piece that the drive can move: without head and tail, if its memory suits.
    pub(crate) fn middle(self, piece: &Piece) -> Option<(u64, u64)> {
        let end = piece.offset + piece.len as u64;
        let (low, high) = (piece.offset.next_multiple_of(self.offset), end & !(self.offset - 1));
        (low < high && (piece.address + (low - piece.offset)).is_multiple_of(self.memory))
            .then_some((low, high))
    }
}

/// Cuts a batch.
pub(crate) fn cut(pieces: &[Piece], alignment: Alignment) -> Cut {
    if pieces.iter().all(|piece| alignment.suits(piece)) {
        return Cut::All;
    }
    let mut parts = Parts::default();
    for (entry, piece) in (0..).zip(pieces) {
        let (start, end) = (piece.offset, piece.offset + piece.len as u64);
        if alignment.suits(piece) {
            whole(&mut parts.placed, entry);
        } else if let Some((low, high)) = alignment.middle(piece) {
            parts.placed.push(Part::Range { entry, start: low, end: high });
            for (start, end) in [(start, low), (high, end)].into_iter().filter(|(start, end)| start < end) {
                parts.rest.push(Part::Range { entry, start, end });
                parts.left += end - start;
            }
        } else {
            whole(&mut parts.rest, entry);
            parts.left += piece.len as u64;
            parts.hopeless.get_or_insert(entry);
        }
    }
    Cut::Some(parts)
}

/// Adds an entry, together with its neighbour if that is there whole too.
fn whole(parts: &mut Vec<Part>, entry: u32) {
    match parts.last_mut() {
        Some(Part::Entries { last, .. }) if *last == entry => *last = entry + 1,
        _ => parts.push(Part::Entries { first: entry, last: entry + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALIGNMENT: Alignment = Alignment { offset: 4096, memory: 4 };

    fn ranges(parts: &[Part], pieces: &[Piece]) -> Vec<(u32, u64, u64)> {
        let of = |entry: u32| {
            let piece = pieces[entry as usize];
            (entry, piece.offset, piece.offset + piece.len as u64)
        };
        let each = |part: &Part| match *part {
            Part::Range { entry, start, end } => vec![(entry, start, end)],
            Part::Entries { first, last } => (first..last).map(of).collect(),
        };
        parts.iter().flat_map(each).collect()
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let step = prop_oneof![Just(4096u64), Just(512), Just(1)];
        let piece = (0u64..1000, 0usize..40, 0u64..1000, step).prop_map(|(offset, len, address, step)| {
            Piece { offset: offset * step, address: address * step, len: len * step as usize }
        });
        prop::collection::vec(piece, 1..20)
    }

    proptest! {
        #[test]
        fn every_byte_goes_one_way(pieces in pieces()) {
            let Cut::Some(parts) = cut(&pieces, ALIGNMENT) else {
                prop_assert!(pieces.iter().all(|piece| ALIGNMENT.suits(piece)));
                return Ok(());
            };
            let placed = ranges(&parts.placed, &pieces);
            for (entry, start, end) in &placed {
                let piece = pieces[*entry as usize];
                let address = piece.address + (start - piece.offset);
                prop_assert!(start % 4096 == 0 && end % 4096 == 0 && address % 4 == 0);
            }
            let rest = ranges(&parts.rest, &pieces);
            prop_assert_eq!(parts.left, rest.iter().map(|(_, start, end)| end - start).sum::<u64>());
            let mut all = [placed, rest].concat();
            all.sort_unstable();
            for (entry, piece) in (0..).zip(&pieces) {
                let mut next = piece.offset;
                for (_, start, end) in all.iter().filter(|(of, ..)| *of == entry) {
                    prop_assert_eq!(*start, next);
                    next = *end;
                }
                prop_assert_eq!(next, piece.offset + piece.len as u64);
            }
        }
    }

    #[test]
    fn a_file_that_ends_anywhere_leaves_its_tail() {
        let piece = Piece { offset: 0, address: 1 << 20, len: 3_000_001 };
        let Cut::Some(parts) = cut(&[piece], ALIGNMENT) else { panic!("not aligned") };
        assert_eq!(parts.placed, [Part::Range { entry: 0, start: 0, end: 2_998_272 }]);
        assert_eq!((parts.left, parts.hopeless), (1729, None));
    }

    #[test]
    fn memory_that_o_direct_cannot_address_is_no_place() {
        let piece = Piece { offset: 0, address: 2, len: 8192 };
        let Cut::Some(parts) = cut(&[piece], ALIGNMENT) else { panic!("not aligned") };
        assert_eq!((parts.left, parts.hopeless), (8192, Some(0)));
    }
}
