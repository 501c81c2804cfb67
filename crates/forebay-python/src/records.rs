//! Records of data sets: where each one lies in which file, and one batched read for many of them.

use std::fmt::Display;
use std::sync::Arc;

use forebay_engine::{Batch, Direction, FileVersion, Memory, Piece, Receipt, Session, SmallFile};
use forebay_error::{Error, ErrorKind, Result};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::data_files::{Files, OpenFile, Opening, Slot, Version};
use crate::error::{OrRaise, invalid, raise};
use crate::file;
use crate::flights::Flights;
use crate::future::{self, Flight, Future};
use crate::map::OffsetList;
use crate::session::session;
use crate::wait;

/// Files up to this size are opened for each read on the host: the calls cost more than the bytes. As long as a cell.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 10;

/// Pieces, each with the number of its file.
type Pieces = Vec<(usize, Piece)>;

/// Records of one file that follow each other in the data set.
struct Section {
    file: usize,
    places: Places,
}

/// Where they lie in the file.
enum Places {
    /// At equal distances.
    Even { rows: u64, offset: u64, stride: u64, bytes: u64 },
    /// Anywhere, of one length.
    Equal { offsets: Vec<u64>, bytes: u64 },
    /// Anywhere, of any length.
    Any { offsets: Vec<u64>, lengths: Vec<u64> },
}

impl Places {
    fn rows(&self) -> u64 {
        match self {
            Self::Even { rows, .. } => *rows,
            Self::Equal { offsets, .. } | Self::Any { offsets, .. } => offsets.len() as u64,
        }
    }

    /// Offset and bytes of a record that is there.
    fn of(&self, row: u64) -> (u64, u64) {
        match self {
            Self::Even { offset, stride, bytes, .. } => (offset + row * stride, *bytes),
            Self::Equal { offsets, bytes } => (offsets[row as usize], *bytes),
            Self::Any { offsets, lengths } => (offsets[row as usize], lengths[row as usize]),
        }
    }

    /// The first record that ends beyond `size`.
    fn outside(&self, size: u64) -> Option<u64> {
        let beyond = |offset: u64, bytes: u64| offset.checked_add(bytes).is_none_or(|end| end > size);
        match self {
            Self::Even { rows: 0, .. } => None,
            Self::Even { rows, offset, stride, bytes } => {
                let last = (rows - 1).checked_mul(*stride).and_then(|skip| skip.checked_add(*offset));
                last.is_none_or(|last| beyond(last, *bytes)).then(|| rows - 1)
            }
            Self::Equal { offsets, bytes } => {
                offsets.iter().position(|offset| beyond(*offset, *bytes)).map(|row| row as u64)
            }
            Self::Any { offsets, lengths } => {
                let mut all = offsets.iter().zip(lengths);
                all.position(|(offset, bytes)| beyond(*offset, *bytes)).map(|row| row as u64)
            }
        }
    }

    /// `(rows, offset, stride, bytes)`, `(offsets, bytes)` or `(offsets, lengths)`.
    fn extract(given: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let py = given.py();
        if given.len() == 4 {
            let (rows, offset, stride, bytes) = given.extract()?;
            return Ok(Self::Even { rows, offset, stride, bytes });
        }
        let (offsets, lengths): (Bound<'_, PyAny>, Bound<'_, PyAny>) = given.extract()?;
        let offsets = OffsetList::of(py, &offsets)?.to_host(py)?;
        if let Ok(bytes) = lengths.extract() {
            return Ok(Self::Equal { offsets, bytes });
        }
        let lengths = OffsetList::of(py, &lengths)?.to_host(py)?;
        if lengths.len() != offsets.len() {
            return Err(invalid(
                format!("{} offsets and {} lengths", offsets.len(), lengths.len()),
                "give one length for each offset",
            ));
        }
        Ok(Self::Any { offsets, lengths })
    }
}

/// Where the records of a data set lie. All of them lie within their files: this is checked when it is made.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Table {
    files: Arc<Vec<Slot>>,
    parts: Vec<Section>,
    /// The number of the first record of each part.
    firsts: Vec<u64>,
    len: u64,
}

impl Table {
    /// The part that a record belongs to, and its number there.
    fn find(&self, row: u64) -> (usize, u64) {
        // Empty parts share their first number with the next one: the last of them has the record.
        let part =
            if self.parts.len() == 1 { 0 } else { self.firsts.partition_point(|first| *first <= row) - 1 };
        (part, row - self.firsts[part])
    }

    /// Row numbers that are there, from packed 64-bit numbers, an array or a list; negative ones count from the end.
    fn rows_of(&self, given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        let py = given.py();
        if let Ok(packed) = given.cast::<PyBytes>() {
            let words = packed.as_bytes().as_chunks().0.iter();
            return self.resolve(py, words.map(|word| i64::from_ne_bytes(*word)));
        }
        if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
            let numbers = given.try_iter()?.map(|item| {
                let item = item?;
                item.extract::<i64>().map_err(|error| {
                    if error.is_instance_of::<PyOverflowError>(py) {
                        self.no_record(py, &item)
                    } else {
                        error
                    }
                })
            });
            let numbers = numbers.collect::<PyResult<Vec<_>>>()?;
            return self.resolve(py, numbers.into_iter());
        }
        let words = OffsetList::of(py, given)?.to_host(py)?;
        self.resolve(py, words.into_iter().map(|row| row as i64))
    }

    fn resolve(&self, py: Python<'_>, rows: impl ExactSizeIterator<Item = i64>) -> PyResult<Vec<u64>> {
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            // A length is at most that of a signed number, so the sum is none that wraps into bounds.
            let place = if row < 0 { (row as u64).wrapping_add(self.len) } else { row as u64 };
            if place >= self.len {
                return Err(self.no_record(py, row));
            }
            found.push(place);
        }
        Ok(found)
    }

    fn no_record(&self, py: Python<'_>, row: impl Display) -> PyErr {
        let text = format!("record {row} is out of bounds: the data set has {}", self.len);
        let made = py
            .import("forebay.slices")
            .and_then(|module| module.getattr("IndexOutOfBoundsError"))
            .and_then(|class| class.call1((text,)));
        made.map_or_else(|error| error, PyErr::from_value)
    }

    /// What to read where: pieces for memory at `address`, sorted by file.
    fn pieces(&self, rows: &[u64], address: u64, room: u64) -> Result<Pieces> {
        let mut pieces = Vec::with_capacity(rows.len());
        let mut used = 0u64;
        for row in rows {
            let (part, row) = self.find(*row);
            let part = &self.parts[part];
            let (offset, bytes) = part.places.of(row);
            let end = used.checked_add(bytes).filter(|end| *end <= room);
            let end = end.ok_or_else(|| {
                Error::new(ErrorKind::Internal, "the records need more memory than was made")
            })?;
            if bytes > 0 {
                pieces.push((part.file, Piece { offset, address: address + used, len: bytes as usize }));
            }
            used = end;
        }
        if self.files.len() > 1 {
            pieces.sort_unstable_by_key(|(file, _)| *file);
        }
        Ok(joined(pieces))
    }

    /// Starts reading records. Where their files are more than may be open, all but the last of them are read before this
    /// returns.
    fn start(&self, rows: &[u64], address: u64, room: u64, keep: Py<PyAny>) -> PyResult<Future> {
        let session = session()?;
        let pieces = self.pieces(rows, address, room).or_raise()?;
        if pieces.is_empty() {
            return Ok(Future(file::nothing()?));
        }
        // The driver is asked once for the batch.
        let memory = session.locate(address).or_raise()?;
        let (pieces, receipt) = self.read_small(&session, &memory, pieces).or_raise()?;
        let (mut rest, mut before) = (&pieces[..], Vec::from_iter(receipt));
        if rest.is_empty() {
            let flight = Part::default().start(&session, before, keep)?;
            flight.hold();
            return Ok(Future(flight));
        }
        loop {
            let part = self.part(rest, &memory).or_raise()?;
            if let Some(count) = part.full {
                let files = &Flights::here().files;
                let is_room = |limit| files.wait_below(count, limit);
                Python::attach(|py| wait::patiently(py, Some(wait::LOOK), is_room))?;
                continue;
            }
            rest = &rest[part.pieces..];
            if rest.is_empty() {
                let flight = part.start(&session, before, keep)?;
                // The caller asks for the result soon: its thread releases the memory.
                flight.hold();
                return Ok(Future(flight));
            }
            before = Python::attach(|py| part.start(&session, before, keep.clone_ref(py))?.finish_part(py))?;
        }
    }

    /// Reads what is of small files in the page cache, which are not kept open. The pieces that are left.
    fn read_small(
        &self,
        session: &Session,
        memory: &Memory,
        pieces: Pieces,
    ) -> Result<(Pieces, Option<Receipt>)> {
        let is_small = |file: usize| self.files[file].size <= MAX_SMALL_FILE_BYTES;
        if !pieces.iter().any(|(file, _)| is_small(*file)) {
            return Ok((pieces, None));
        }
        let runs: Vec<_> =
            pieces.chunk_by(|one, next| one.0 == next.0).filter(|run| is_small(run[0].0)).collect();
        let only: Vec<Vec<Piece>> =
            runs.iter().map(|run| run.iter().map(|(_, piece)| *piece).collect()).collect();
        let numbers: Vec<usize> = runs.iter().map(|run| run[0].0).collect();
        let small: Vec<_> = (numbers.iter().zip(&only))
            .map(|(file, pieces)| SmallFile { path: &self.files[*file].path, pieces })
            .collect();
        let is_expected = |number: usize, found: &FileVersion| {
            self.files[numbers[number]].is_version(&Version::from(found))
        };
        // SAFETY: the caller keeps the memory, which nobody else has seen yet.
        let (done, receipt) = unsafe { session.read_small_files(memory, &small, is_expected) }?;
        // A flag for each run, not for each file: one that has several runs may be read in one of them only.
        let mut done = done.into_iter();
        let left = pieces.chunk_by(|one, next| one.0 == next.0).filter(|run| {
            let is_read = is_small(run[0].0) && done.next().unwrap_or(false);
            !is_read
        });
        let left = left.flatten().copied().collect();
        Ok((left, receipt))
    }

    /// The first pieces, sorted by file, of as many files as there are descriptors for.
    fn part(&self, pieces: &[(usize, Piece)], memory: &Memory) -> Result<Part> {
        let mut part = Part::default();
        for run in pieces.chunk_by(|one, next| one.0 == next.0) {
            let file = match Slot::open(&self.files, run[0].0)? {
                Opening::Open(file) => file,
                Opening::Later(count) => {
                    part.full = part.files.is_empty().then_some(count);
                    break;
                }
            };
            part.batches.push(Batch {
                file: file.engine.clone(),
                memory: memory.clone(),
                direction: Direction::Read,
                pieces: run.iter().map(|(_, piece)| *piece).collect(),
                allow_short: false,
            });
            part.pieces += run.len();
            part.files.push((run.len(), file));
        }
        Ok(part)
    }
}

/// Pieces that are read at a time.
#[derive(Default)]
struct Part {
    batches: Vec<Batch>,
    files: Vec<(usize, Arc<OpenFile>)>,
    pieces: usize,
    /// How many files are open, if that leaves no room for the first one: all of them are read now.
    full: Option<u64>,
}

impl Part {
    /// Starts reading it, behind what the receipts are of.
    fn start(self, session: &Session, before: Vec<Receipt>, keep: Py<PyAny>) -> PyResult<Arc<Flight>> {
        let flight = Flight::behind(before, future::Files::Set(self.files), keep)?;
        if self.batches.is_empty() {
            flight.begin(Ok(Vec::new()));
            return Ok(flight);
        }
        // SAFETY: the flight keeps the memory, which nobody else has seen yet.
        flight.begin(unsafe { session.submit_batches(self.batches) }.map(|ticket| vec![ticket]));
        Ok(flight)
    }
}

/// Pieces that nearly all follow each other in the file and in memory, as in sequential order, become a few long ones. Others stay
/// of one length, which is what a batch of records is quickest with.
fn joined(pieces: Pieces) -> Pieces {
    let follows = |(file, one): &(usize, Piece), (other, next): &(usize, Piece)| {
        let len = one.len as u64;
        file == other && one.offset + len == next.offset && one.address + len == next.address
    };
    let breaks = pieces.windows(2).filter(|two| !follows(&two[0], &two[1])).count();
    if pieces.len() < 2 || breaks > pieces.len() / 8 {
        return pieces;
    }
    let mut found = Pieces::with_capacity(breaks + 1);
    for piece in pieces {
        match found.last_mut() {
            Some(last) if follows(last, &piece) => last.1.len += piece.1.len,
            _ => found.push(piece),
        }
    }
    found
}

#[pymethods]
impl Table {
    /// `parts`: (file's number, where) each; where is (rows, offset, stride, bytes) for records at equal distances,
    /// (offsets, bytes) for records of one length, or (offsets, lengths).
    ///
    /// Raises InvalidInputError if a record does not lie within its file.
    #[new]
    fn new(files: &Files, parts: Vec<(usize, Bound<'_, PyTuple>)>) -> PyResult<Self> {
        let mut table = Self { files: files.0.clone(), parts: Vec::new(), firsts: Vec::new(), len: 0 };
        for (file, places) in parts {
            let places = Places::extract(&places)?;
            let Some(slot) = table.files.get(file) else {
                return Err(invalid(format!("there is no file {file}"), "files count from 0"));
            };
            if let Some(row) = places.outside(slot.size) {
                return Err(raise(
                    &Error::new(ErrorKind::InvalidInput, "a record lies beyond the end of its file")
                        .with("path", slot.path.display())
                        .with("record", row)
                        .with("bytes", slot.size)
                        .hint("the file is truncated, or it is not what its index describes"),
                ));
            }
            let rows = places.rows();
            table.parts.push(Section { file, places });
            table.firsts.push(table.len);
            table.len = table
                .len
                .checked_add(rows)
                .filter(|len| i64::try_from(*len).is_ok())
                .ok_or_else(|| invalid("more than 2^63 records", "use several data sets"))?;
        }
        Ok(table)
    }

    fn __len__(&self) -> usize {
        self.len as usize
    }

    /// Starts reading records, one behind the other, to `nbytes` bytes at `address`, which `keep` owns. `rows` are packed
    /// 64-bit numbers, an array or a list.
    fn read(&self, rows: &Bound<'_, PyAny>, address: u64, nbytes: u64, keep: Py<PyAny>) -> PyResult<Future> {
        let found = self.rows_of(rows)?;
        rows.py().detach(|| self.start(&found, address, nbytes, keep))
    }

    /// The ends of the records' bytes one behind the other, in units of `unit` bytes and beginning with 0: packed 64-bit
    /// numbers, one more than records. And their sum in bytes.
    #[pyo3(signature = (rows, unit=1))]
    fn ends<'py>(&self, rows: &Bound<'py, PyAny>, unit: u64) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let (py, found) = (rows.py(), self.rows_of(rows)?);
        let mut ends = Vec::with_capacity(found.len() + 1);
        let mut total = 0u64;
        ends.push(0u64);
        for row in found {
            let (part, row) = self.find(row);
            let (_, bytes) = self.parts[part].places.of(row);
            if unit == 0 || bytes % unit != 0 {
                let text = format!("a record of {bytes} bytes is no number of elements of {unit} bytes");
                return Err(invalid(text, "check the dtype"));
            }
            total = total
                .checked_add(bytes)
                .ok_or_else(|| invalid("more bytes than memory has", "read fewer records"))?;
            ends.push(total / unit);
        }
        let packed: Vec<u8> = ends.iter().flat_map(|end| end.to_ne_bytes()).collect();
        Ok((PyBytes::new(py, &packed), total))
    }

    /// The bytes that the records from `start` up to `stop` lie in, with what is between them: (file's number, offset,
    /// bytes) for each of its files.
    fn extents(&self, start: u64, stop: u64) -> Vec<(usize, u64, u64)> {
        let mut extents = Vec::new();
        if start >= stop || start >= self.len {
            return extents;
        }
        let from = self.find(start).0;
        for (part, first) in self.parts[from..].iter().zip(&self.firsts[from..]) {
            if *first >= stop {
                break;
            }
            let rows = start.saturating_sub(*first)..stop.saturating_sub(*first).min(part.places.rows());
            let ends = if let Places::Even { .. } = part.places {
                // Distances are equal: the ends are at the ends.
                rows.clone().take(1).chain(rows.clone().last()).collect::<Vec<_>>()
            } else {
                rows.collect()
            };
            let places = || ends.iter().map(|row| part.places.of(*row));
            let low = places().map(|(offset, _)| offset).min();
            let high = places().map(|(offset, bytes)| offset + bytes).max();
            if let (Some(low), Some(high)) = (low, high) {
                extents.push((part.file, low, high - low));
            }
        }
        extents
    }
}
