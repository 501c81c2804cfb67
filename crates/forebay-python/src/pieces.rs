//! The pieces of one call: arrays with their places in a file, as batches of the engine.

use std::sync::Arc;

use forebay_engine::{Axis, Batch, Direction, File as Engine, Memory, Piece, Session, StridedPiece};
use forebay_error::{Error, ErrorKind};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use crate::error::{OrRaise, invalid, raise};
use crate::file::offset_of;
use crate::future::EntryOwners;
use crate::stream::Mark;
use crate::view::{Form, View, no_memory};

/// A range of memory and where it goes in the file: address, bytes, offset.
pub(crate) type RawPiece = (u64, usize, u64);

/// Most runs of the strided pieces of one call: a batch keeps some 100 bytes for each while it is in flight.
const MAX_RUNS: usize = 1 << 24;

/// A piece as the program gave it.
pub(crate) struct GivenPiece<'py> {
    array: Bound<'py, PyAny>,
    offset: u64,
    /// Bytes in the file from one element to the next along each dimension; `None`: one behind the other.
    strides: Option<Vec<i64>>,
}

impl<'py> GivenPiece<'py> {
    /// A whole array, contiguous on both sides.
    pub(crate) fn plain(array: &Bound<'py, PyAny>, offset: u64) -> Self {
        Self { array: array.clone(), offset, strides: None }
    }

    /// `(array, offset)` or `(array, offset, strides)`.
    fn of(piece: &Bound<'py, PyAny>) -> PyResult<Self> {
        let no_piece = |_: PyErr| {
            invalid(
                "a piece is not (array, offset)",
                "give a list of (array, offset) or (array, offset, strides of the file in bytes)",
            )
        };
        let (array, offset, strides) =
            if let Ok((array, offset, strides)) = piece.extract::<(_, _, Bound<'py, PyAny>)>() {
                let strides: Vec<i64> = strides.extract().map_err(no_piece)?;
                (array, offset, Some(strides))
            } else {
                let (array, offset): (_, Bound<'py, PyAny>) = piece.extract().map_err(no_piece)?;
                (array, offset, None)
            };
        let is_type = |error: &PyErr| error.is_instance_of::<PyTypeError>(offset.py());
        let offset =
            offset_of(&offset).map_err(|error| if is_type(&error) { no_piece(error) } else { error })?;
        Ok(Self { array, offset, strides })
    }

    /// Those of a list of them.
    pub(crate) fn all(pieces: &Bound<'py, PyAny>) -> PyResult<Vec<Self>> {
        PyIterator::from_object(pieces)
            .map_err(|_| invalid("a piece is not (array, offset)", "give a list of (array, offset) pairs"))?
            .map(|piece| Self::of(&piece?))
            .collect()
    }

    fn view(&self, direction: Direction) -> PyResult<View> {
        match (direction, &self.strides) {
            (Direction::Write, Some(_)) => Err(invalid(
                "strided pieces are read, not written",
                "write whole rows: (array, offset) pairs",
            )),
            (Direction::Write, None) => View::of(&self.array),
            (Direction::Read, None) => View::to_fill(&self.array),
            (Direction::Read, Some(_)) => View::strided(&self.array),
        }
    }
}

/// The pieces of one call, ready to start.
pub(crate) struct Pieces {
    /// One for each device and context.
    pub(crate) batches: Vec<Batch>,
    /// Of each batch: its entries' pieces.
    pub(crate) owners: Vec<EntryOwners>,
    /// Stand for the work that has to be done before.
    pub(crate) marks: Vec<Mark>,
    /// Owns the memory.
    pub(crate) keep: Py<PyAny>,
}

impl Pieces {
    pub(crate) fn new(
        py: Python<'_>,
        (session, file): (&Session, &Engine),
        direction: Direction,
        given: &[GivenPiece<'_>],
    ) -> PyResult<Self> {
        let (batches, keep) = (Batches::new(file, direction), PyList::empty(py));
        let mut gathered =
            Gathered { session, batches, keep, marks: Vec::new(), marked: Vec::new(), runs: 0 };
        for (number, piece) in given.iter().enumerate() {
            gathered.add(number, piece).map_err(|error| of_piece(py, error, number))?;
        }
        let (batches, owners) = gathered.batches.all.into_iter().unzip();
        Ok(Self { batches, owners, marks: gathered.marks, keep: gathered.keep.into_any().unbind() })
    }
}

/// Pieces as they are looked at, one after the other.
struct Gathered<'a, 'py> {
    session: &'a Session,
    batches: Batches<'a>,
    keep: Bound<'py, PyList>,
    marks: Vec<Mark>,
    /// The streams that these stand for.
    marked: Vec<(usize, u64)>,
    /// Of strided pieces.
    runs: usize,
}

impl Gathered<'_, '_> {
    fn add(&mut self, number: usize, piece: &GivenPiece<'_>) -> PyResult<()> {
        let view = piece.view(self.batches.direction)?;
        if view.nbytes == 0 {
            return Ok(());
        }
        let memory = view.memory(self.session)?;
        if view.stream().is_none_or(|stream| !self.marked.contains(&stream)) {
            self.marked.extend(view.stream());
            self.marks.extend(view.mark(self.session, &memory, None)?);
        }
        let (address, len) = (view.address, view.nbytes);
        self.keep.append(view.keep)?;
        let (Some(strides), Some(form)) = (&piece.strides, &view.form) else {
            self.batches.add(memory, number, [Piece { offset: piece.offset, address, len }]);
            return Ok(());
        };
        let strided = strided_piece((piece.offset, address), view.item, form, strides)?;
        self.runs = strided.runs().saturating_add(self.runs);
        check_runs(self.runs)?;
        self.batches.add(memory, number, strided.pieces());
        Ok(())
    }
}

/// An error with the number of the piece that it is about.
fn of_piece(py: Python<'_>, error: PyErr, number: usize) -> PyErr {
    // One that cannot be added does not hide the error.
    let _ = error.value(py).call_method1("add_note", (format!("in piece {number}"),));
    error
}

fn check_runs(runs: usize) -> PyResult<()> {
    if runs <= MAX_RUNS {
        return Ok(());
    }
    let error = Error::new(ErrorKind::InvalidInput, "the strided pieces of one call have too many runs")
        .with("runs", runs)
        .with("most", MAX_RUNS);
    Err(raise(&error.hint("read the elements in the order of the file, and permute them in memory")))
}

fn strided_piece(
    start: (u64, u64),
    item: Option<usize>,
    form: &Form,
    strides: &[i64],
) -> PyResult<StridedPiece> {
    if strides.len() != form.shape.len() {
        return Err(invalid(
            format!("{} strides for an array of {} dimensions", strides.len(), form.shape.len()),
            "give one for each dimension: the bytes in the file from one element to the next",
        ));
    }
    let dimensions = form.shape.iter().zip(&form.strides).zip(strides);
    let axes: Vec<Axis> = dimensions
        .map(|((count, memory), file)| Axis { count: *count as usize, memory: *memory, file: *file })
        .collect();
    StridedPiece::new(start, item.unwrap_or(1), &axes).or_raise()
}

/// Batches in the making.
struct Batches<'a> {
    file: &'a Engine,
    direction: Direction,
    all: Vec<(Batch, EntryOwners)>,
}

impl<'a> Batches<'a> {
    fn new(file: &'a Engine, direction: Direction) -> Self {
        Self { file, direction, all: Vec::new() }
    }

    /// Adds pieces in this memory, which are of piece `number` of the call.
    fn add(&mut self, memory: Memory, number: usize, pieces: impl IntoIterator<Item = Piece>) {
        let same = |(batch, _): &(Batch, EntryOwners)| {
            Arc::ptr_eq(&batch.memory.device, &memory.device) && batch.memory.context == memory.context
        };
        let at = self.all.iter().rposition(same).unwrap_or_else(|| {
            let (file, direction) = (self.file.clone(), self.direction);
            let batch = Batch { file, memory, direction, pieces: Vec::new(), allow_short: false };
            self.all.push((batch, EntryOwners::default()));
            self.all.len() - 1
        });
        let (batch, owners) = &mut self.all[at];
        owners.add(batch.pieces.len(), number);
        batch.pieces.extend(pieces);
    }
}

/// Raw pieces as batches, one for each device and context.
pub(crate) fn raw_batches(
    session: &Session,
    file: &Engine,
    direction: Direction,
    pieces: Vec<RawPiece>,
) -> PyResult<Vec<Batch>> {
    let mut batches = Batches::new(file, direction);
    for (number, (address, len, offset)) in pieces.into_iter().enumerate().filter(|(_, piece)| piece.1 > 0) {
        if address == 0 {
            return Err(no_memory());
        }
        batches.add(session.locate(address).or_raise()?, number, [Piece { offset, address, len }]);
    }
    Ok(batches.all.into_iter().map(|(batch, _)| batch).collect())
}
