//! Bytes that follow a request: a hint to its source.

use crate::io::segment::Segment;
use crate::source::piece::Piece;
use crate::tuning::machine::MANY;
use crate::tuning::plan::AHEAD;

/// Bytes of the batch that directly follow a segment's in the source: the rest of its piece, and the pieces behind that one as long as
/// each begins where the last ends.
pub(crate) fn ahead(pieces: &[Piece], segment: &Segment) -> u64 {
    let end_of = |piece: &Piece| piece.offset + piece.len as u64;
    let end = segment.start + segment.len as u64;
    let last = (segment.entry + segment.entries).saturating_sub(1) as usize;
    let Some((own, behind)) = pieces.get(last..).and_then(<[Piece]>::split_first) else { return 0 };
    let mut until = end_of(own).max(end);
    for piece in behind.iter().take(MANY) {
        if piece.offset != until || until - end >= AHEAD {
            break;
        }
        until = end_of(piece);
    }
    (until - end).min(AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[(u64, usize)], entry: u32, entries: u32, start: u64, len: usize) -> u64 {
        let pieces: Vec<_> = pieces.iter().map(|&(offset, len)| Piece { offset, address: 0, len }).collect();
        ahead(&pieces, &Segment { entry, entries, ..Segment::whole(start, len, 0) })
    }

    #[test]
    fn the_rest_of_a_piece_and_its_neighbours_are_ahead() {
        let pieces = [(100, 50), (150, 10), (160, 0), (160, 40), (201, 9)];
        assert_eq!(of(&pieces, 0, 1, 100, 20), 80);
        assert_eq!(of(&pieces, 0, 2, 100, 60), 40);
        assert_eq!(of(&pieces, 3, 1, 160, 40), 0, "a gap follows");
        assert_eq!(of(&pieces, 4, 1, 201, 9), 0);
    }

    #[test]
    fn what_is_ahead_is_bounded() {
        assert_eq!(of(&[(0, 1 << 40)], 0, 1, 0, 2 << 20), AHEAD);
        assert_eq!(of(&[(0, 1 << 40)], 0, 1, (1 << 40) - 5, 2), 3);
        let small: Vec<_> = (0..1 << 16).map(|at| (at, 1)).collect();
        assert_eq!(of(&small, 7, 1, 7, 1), MANY as u64);
    }
}
