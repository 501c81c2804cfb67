//! Which bytes of an array a slice of it is.
//!
//! ```
//! use forebay_models::slice::plan;
//!
//! // Rows 2 and 3, columns 1 to 4, of a 5 × 10 array of four-byte elements.
//! let (runs, shape) = plan(&[5, 10], 32, &[(2, 4, 1), (1, 5, 1)])?;
//! assert_eq!(shape, [2, 4]);
//! assert_eq!(runs.iter().collect::<Vec<_>>(), [(84, 16), (124, 16)]);
//! assert_eq!(runs.uniform(), Some((84, 2, 40, 16)));
//! # Ok::<(), forebay_error::Error>(())
//! ```

use forebay_error::{Error, ErrorKind, Result};

use crate::dtype::shape_text;

/// Start, stop and step of one dimension: `start <= stop <= size`, `step >= 1`.
pub type Range = (u64, u64, u64);

/// Byte ranges of equal length: a nest of loops, however many ranges it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    first: u64,
    nbytes: u64,
    /// Count and distance in bytes, the outermost first. Distances and counts are such that no two neighbouring loops
    /// could be one.
    loops: Vec<(u64, u64)>,
    len: u64,
}

impl Runs {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of each.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.nbytes * self.len
    }

    /// Offset and bytes of one, counted in the order of the result's elements.
    pub fn get(&self, index: u64) -> Option<(u64, u64)> {
        if index >= self.len {
            return None;
        }
        let (mut rest, mut offset) = (index, self.first);
        for (count, stride) in self.loops.iter().rev() {
            offset += rest % count * stride;
            rest /= count;
        }
        Some((offset, self.nbytes))
    }

    /// Offset and bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.len).filter_map(|index| self.get(index))
    }

    /// First offset, count, distance and bytes of each, if the distances are all the same.
    pub fn uniform(&self) -> Option<(u64, u64, u64, u64)> {
        match self.loops.as_slice() {
            [] => Some((self.first, self.len, self.nbytes, self.nbytes)),
            [(count, stride)] => Some((self.first, *count, *stride, self.nbytes)),
            _ => None,
        }
    }
}

/// Plans a slice of a row-major array: the byte ranges it consists of, in the order of the result's elements, and the
/// result's shape. `itembits` is the size of an element; dimensions beyond those of `index` are taken whole. Ranges that
/// touch within a dimension, or along whole dimensions, are one.
pub fn plan(shape: &[u64], itembits: u64, index: &[Range]) -> Result<(Runs, Vec<u64>)> {
    let bits = shape.iter().try_fold(itembits, |product, size| product.checked_mul(*size));
    if bits.is_none() || itembits == 0 {
        return Err(invalid(format!("the size of {} overflows", shape_text(shape))).with("bits", itembits));
    }
    let ranges = complete(shape, index)?;
    let counts: Vec<u64> = ranges.iter().map(|(start, stop, step)| (stop - start).div_ceil(*step)).collect();
    if counts.contains(&0) {
        return Ok((Runs { first: 0, nbytes: 0, loops: Vec::new(), len: 0 }, counts));
    }
    // From the last dimension on: `run` bits lie together, and so far nothing was left out.
    let (mut first, mut run, mut size) = (0, itembits, itembits);
    let mut loops: Vec<(u64, u64)> = Vec::new();
    for ((dim, (start, _, step)), count) in shape.iter().zip(&ranges).zip(&counts).rev() {
        first += start * size;
        if *count > 1 {
            let stride = step * size;
            // The loop inside has become innermost-first's last one.
            match loops.last_mut() {
                None if stride == run => run *= count,
                Some((inner, distance)) if stride == *inner * *distance => *inner *= count,
                _ => loops.push((*count, stride)),
            }
        }
        size *= dim;
    }
    loops.reverse();
    let parts = loops.iter().map(|(_, stride)| stride).chain([&first, &run]);
    if parts.into_iter().any(|bits| bits % 8 != 0) {
        return Err(Error::new(ErrorKind::Unsupported, "the slice does not begin and end at whole bytes")
            .with("shape", shape_text(shape))
            .with("bits", itembits)
            .hint("slice the other dimensions, or load the whole tensor"));
    }
    for (_, stride) in &mut loops {
        *stride /= 8;
    }
    let len = loops.iter().map(|(count, _)| count).product();
    Ok((Runs { first: first / 8, nbytes: run / 8, loops, len }, counts))
}

/// A checked range for every dimension.
fn complete(shape: &[u64], index: &[Range]) -> Result<Vec<Range>> {
    if index.len() > shape.len() {
        return Err(invalid("more ranges than dimensions")
            .with("ranges", index.len())
            .with("shape", shape_text(shape)));
    }
    for (dimension, ((start, stop, step), size)) in index.iter().zip(shape).enumerate() {
        let problem = match (start, stop, step) {
            (_, _, 0) => "the step is zero",
            _ if start > stop => "the range ends before it begins",
            _ if stop > size => "the range ends beyond the dimension",
            _ => continue,
        };
        return Err(invalid(problem)
            .with("dimension", dimension)
            .with("range", format!("{start}:{stop}:{step}"))
            .with("size", size));
    }
    let whole = shape.iter().skip(index.len()).map(|size| (0, *size, 1));
    Ok(index.iter().copied().chain(whole).collect())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
