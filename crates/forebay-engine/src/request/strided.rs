//! Pieces whose elements lie apart, by strides, in the file, in memory or in both.

use forebay_error::{Error, ErrorKind, Result};

use crate::source::piece::Piece;

/// A dimension of a [`StridedPiece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Elements along it.
    pub count: usize,
    /// Bytes from one to the next in memory.
    pub memory: i64,
    /// Bytes from one to the next in the file.
    pub file: i64,
}

/// Elements of a file and of memory that lie apart, by strides on both sides: a slice of a matrix, say. It is cut into
/// runs, each of which is contiguous on both sides: see [`StridedPiece::pieces`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedPiece {
    offset: u64,
    address: u64,
    /// Bytes of a run.
    run: usize,
    /// Where runs begin: outermost first, in the order of the file, none of one element.
    axes: Vec<Axis>,
}

impl StridedPiece {
    /// Elements of `item` bytes, the first at `offset` of the file and at `address`. The axes may come in any order.
    ///
    /// [`ErrorKind::InvalidInput`]: an axis of several elements has no stride in the file; elements share bytes of memory;
    /// some lie where no file or memory has bytes.
    pub fn new((offset, address): (u64, u64), item: usize, axes: &[Axis]) -> Result<Self> {
        if item == 0 || axes.iter().any(|axis| axis.count == 0) {
            return Ok(Self { offset, address, run: 0, axes: Vec::new() });
        }
        let mut axes: Vec<Axis> = axes.iter().copied().filter(|axis| axis.count > 1).collect();
        if axes.iter().any(|axis| axis.file == 0) {
            return Err(Error::new(ErrorKind::InvalidInput, "a stride of 0 in the file repeats its bytes")
                .hint("read them once, and expand the array in memory"));
        }
        check_disjoint(item, &axes)?;
        let first = lowest(offset, item, axes.iter().map(|axis| (axis.count, axis.file)), i64::MAX as u64)
            .ok_or_else(|| outside("the strides lead to offsets that no file has").with("offset", offset))?;
        lowest(address, item, axes.iter().map(|axis| (axis.count, axis.memory)), u64::MAX)
            .ok_or_else(|| outside("the array's strides lead out of the address space"))?;
        let mut start = address;
        for axis in axes.iter_mut().filter(|axis| axis.file < 0) {
            start = start.wrapping_add_signed(axis.memory.wrapping_mul(axis.count as i64 - 1));
            (axis.memory, axis.file) = (-axis.memory, -axis.file);
        }
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.file));
        let run = take_run(item, &mut axes);
        Ok(Self { offset: first, address: start, run, axes: joined(axes) })
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        if self.run == 0 { 0 } else { self.axes.iter().fold(1, |runs, axis| runs.saturating_mul(axis.count)) }
    }

    /// Its runs as pieces of a [`Batch`](crate::Batch), in the order of the file where they do not overlap there.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        (0..self.runs()).map(|run| {
            let (mut left, mut offset, mut address) = (run, self.offset, self.address);
            for axis in self.axes.iter().rev() {
                let at = (left % axis.count) as i64;
                left /= axis.count;
                offset = offset.wrapping_add_signed(axis.file * at);
                address = address.wrapping_add_signed(axis.memory * at);
            }
            Piece { offset, address, len: self.run }
        })
    }
}

/// The first byte of elements whose first one begins at `start`; `None` if some lie below 0 or end behind `most`.
fn lowest(start: u64, item: usize, axes: impl Iterator<Item = (usize, i64)>, most: u64) -> Option<u64> {
    let (mut low, mut high) = (i128::from(start), i128::from(start) + item as i128);
    for (count, stride) in axes {
        let span = (count as i128 - 1).checked_mul(i128::from(stride))?;
        low = low.checked_add(span.min(0))?;
        high = high.checked_add(span.max(0))?;
    }
    if high <= i128::from(most) { u64::try_from(low).ok() } else { None }
}

/// Fails if elements may share bytes of memory. Layouts whose axes interleave count as such.
fn check_disjoint(item: usize, axes: &[Axis]) -> Result<()> {
    let mut axes: Vec<_> = axes.iter().map(|axis| (axis.memory.unsigned_abs(), axis.count as u64)).collect();
    axes.sort_unstable();
    let mut extent = item as u64;
    for (stride, count) in axes {
        if stride < extent {
            return Err(Error::new(ErrorKind::InvalidInput, "elements of the array share memory").hint(
                "give an array whose elements have bytes of their own, which an expanded one has not",
            ));
        }
        extent = stride.saturating_mul(count - 1).saturating_add(extent);
    }
    Ok(())
}

/// Takes the innermost axes whose elements lie side by side on both sides. Their bytes.
fn take_run(item: usize, axes: &mut Vec<Axis>) -> usize {
    let mut run = item;
    while let Some(axis) = axes.pop_if(|axis| axis.file == run as i64 && axis.memory == run as i64) {
        run *= axis.count;
    }
    run
}

/// Makes one of neighbours that continue each other on both sides.
fn joined(axes: Vec<Axis>) -> Vec<Axis> {
    let mut joined: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes {
        let whole = |stride: i64| stride.checked_mul(axis.count as i64);
        match joined.last_mut() {
            Some(outer)
                if (whole(axis.file), whole(axis.memory)) == (Some(outer.file), Some(outer.memory)) =>
            {
                *outer = Axis { count: outer.count * axis.count, ..axis };
            }
            _ => joined.push(axis),
        }
    }
    joined
}

fn outside(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message).hint("check the piece's offset, and its strides in bytes")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Each byte of memory with its byte of the file, element by element.
    fn by_elements(start: (u64, u64), item: usize, axes: &[Axis]) -> HashMap<u64, u64> {
        let mut starts = vec![(start.0 as i64, start.1 as i64)];
        for axis in axes {
            let along = |(file, memory): (i64, i64)| {
                (0..axis.count as i64).map(move |at| (file + axis.file * at, memory + axis.memory * at))
            };
            starts = starts.into_iter().flat_map(along).collect();
        }
        let bytes =
            |(file, memory)| (0..item as i64).map(move |at| ((memory + at) as u64, (file + at) as u64));
        starts.into_iter().flat_map(bytes).collect()
    }

    fn by_runs(piece: &StridedPiece) -> HashMap<u64, u64> {
        let bytes =
            |piece: Piece| (0..piece.len as u64).map(move |at| (piece.address + at, piece.offset + at));
        piece.pieces().flat_map(bytes).collect()
    }

    /// Axes that nest in memory, in any order, forwards or backwards, with gaps or without; any strides in the file.
    fn layouts() -> impl Strategy<Value = (usize, Vec<Axis>)> {
        let item = prop_oneof![Just(1usize), Just(2), Just(4), Just(12)];
        let axis = (1usize..5, prop_oneof![Just(0u64), 1u64..9], any::<bool>(), -40i64..40, any::<bool>());
        (item, prop::collection::vec(axis, 0..5)).prop_flat_map(|(item, made)| {
            let (mut memory, mut file) = (item as i64, item as i64);
            let axes: Vec<Axis> = made
                .into_iter()
                .map(|(count, gap, backwards, any, nests)| {
                    let (own, place) = (memory + gap as i64, if nests { file + gap as i64 } else { any });
                    memory = own * count as i64;
                    file = place.abs().max(1) * count as i64;
                    let place = if place == 0 { 7 } else { place };
                    Axis { count, memory: if backwards { -own } else { own }, file: place }
                })
                .collect();
            (Just(item), Just(axes).prop_shuffle())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn runs_have_every_element_s_bytes((item, axes) in layouts()) {
            let start = (1 << 30, 1 << 31);
            let piece = StridedPiece::new(start, item, &axes).unwrap();
            prop_assert_eq!(by_runs(&piece), by_elements(start, item, &axes));
            // Runs do not meet: they would be one.
            let bytes: usize = piece.pieces().map(|piece| piece.len).sum();
            prop_assert_eq!(bytes, item * axes.iter().map(|axis| axis.count).product::<usize>());
        }
    }

    fn axis(count: usize, memory: i64, file: i64) -> Axis {
        Axis { count, memory, file }
    }

    fn refused(start: (u64, u64), item: usize, axes: &[Axis]) -> String {
        StridedPiece::new(start, item, axes).unwrap_err().to_string()
    }

    #[test]
    fn columns_of_a_matrix_are_a_run_a_row() {
        // Columns 1024..2048 of 3 rows of 4096 values of 2 bytes.
        let piece = StridedPiece::new((2048, 1 << 20), 2, &[axis(3, 2048, 8192), axis(1024, 2, 2)]).unwrap();
        assert_eq!(piece.runs(), 3);
        let row = |at: u64| Piece { offset: 2048 + at * 8192, address: (1 << 20) + at * 2048, len: 2048 };
        assert!(piece.pieces().eq((0..3).map(row)));
    }

    #[test]
    fn what_is_contiguous_is_one_run() {
        let axes = [axis(1, 7, 0), axis(4, 96, 96), axis(3, 32, 32), axis(8, 4, 4)];
        let piece = StridedPiece::new((0, 4096), 4, &axes).unwrap();
        assert!(piece.pieces().eq([Piece { offset: 0, address: 4096, len: 384 }]));
        assert_eq!(StridedPiece::new((0, 0), 4, &[axis(0, 4, 0)]).unwrap().runs(), 0);
        assert_eq!(StridedPiece::new((5, 8), 4, &[]).unwrap().runs(), 1);
    }

    #[test]
    fn outer_axes_that_continue_each_other_are_one() {
        let piece =
            StridedPiece::new((0, 0), 2, &[axis(5, 60, 120), axis(3, 20, 40), axis(4, 2, 2)]).unwrap();
        assert_eq!(piece.axes, [axis(15, 20, 40)]);
    }

    #[test]
    fn impossible_strides_are_refused() {
        assert!(refused((0, 0), 4, &[axis(2, 4, 0)]).contains("a stride of 0 in the file"));
        for memory in [0, 3, -3] {
            assert!(refused((64, 64), 4, &[axis(2, memory, 4)]).contains("share memory"));
        }
        let below = [axis(3, 4, -8)];
        assert!(refused((15, 64), 4, &below).contains("offsets that no file has"));
        assert!(StridedPiece::new((16, 64), 4, &below).is_ok());
        let end = i64::MAX as u64 - 12;
        assert!(refused((end + 1, 64), 4, &[axis(3, 4, 4)]).contains("offsets that no file has"));
        assert!(StridedPiece::new((end, 64), 4, &[axis(3, 4, 4)]).is_ok());
        assert!(refused((0, 0), 8, &[axis(usize::MAX, i64::MAX, i64::MAX)]).contains("no file has"));
        assert!(refused((0, 7), 4, &[axis(3, -4, 4)]).contains("address space"));
        assert!(refused((0, u64::MAX - 4), 4, &[axis(2, 4, 4)]).contains("address space"));
    }
}
