//! Files: reading into arrays and writing from them.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_engine::{
    Batch, Direction, File as Engine, Memory, Piece, Session, StateToken, Ticket, Transfer,
};
use forebay_error::Error;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::error::{OrRaise, invalid};
use crate::future::{Files, Flight, Future};
use crate::pieces::{GivenPiece, Pieces, RawPiece, raw_batches};
use crate::receipt::Receipt;
use crate::session::session;
use crate::stream::Mark;
use crate::view::{View, no_memory};

/// Up to here a transfer runs in one call that Ctrl-C does not end.
const AT_ONCE: usize = 64 << 20;

/// An open file. Made by `forebay.open`; safe to use from several threads.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct File {
    open: Mutex<Option<Engine>>,
    path: String,
    mode: &'static str,
}

impl File {
    pub(crate) fn new(file: Engine, path: String, mode: &'static str) -> Self {
        Self { open: Mutex::new(Some(file)), path, mode }
    }

    /// The engine's file; an exception if it was closed.
    pub(crate) fn engine(&self) -> PyResult<Engine> {
        let file = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        file.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    /// As [`File::engine`], for transfers in this direction.
    fn engine_for(&self, direction: Direction) -> PyResult<Engine> {
        let file = self.engine()?;
        if matches!(direction, Direction::Write) && self.mode == "r" {
            return Err(invalid(
                format!("the file is open for reading only: {:?}", self.path),
                "open it for writing, too: forebay.open(path, \"r+\")",
            ));
        }
        Ok(file)
    }

    fn view(array: &Bound<'_, PyAny>, direction: Direction) -> PyResult<View> {
        match direction {
            Direction::Read => View::to_fill(array),
            Direction::Write => View::of(array),
        }
    }

    /// One array, on this thread.
    fn run(
        &self,
        array: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<u64>,
        direction: Direction,
    ) -> PyResult<Receipt> {
        let (py, session, file) = (array.py(), session()?, self.engine_for(direction)?);
        let view = Self::view(array, direction)?;
        if view.nbytes == 0 {
            return Ok(Receipt::of(Vec::new(), std::time::Duration::ZERO));
        }
        let memory = view.memory(&session)?;
        if let Some(mark) = view.mark(&session, &memory, stream)? {
            mark.wait(py)?;
        }
        let transfer = Transfer { file, offset, memory, len: view.nbytes, direction, allow_short: false };
        transfer_here(py, &session, transfer, view.keep)
    }

    fn run_later(
        &self,
        array: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<u64>,
        direction: Direction,
    ) -> PyResult<Future> {
        let Some(stream) = stream else {
            return self.many_later(array.py(), &[GivenPiece::plain(array, offset)], direction, false);
        };
        let (session, file) = (session()?, self.engine_for(direction)?);
        let view = Self::view(array, direction)?;
        let memory = view.memory(&session)?;
        let flight = Flight::new(&file, view.keep)?;
        let transfer = Transfer { file, offset, memory, len: view.nbytes, direction, allow_short: false };
        // SAFETY: the flight keeps the memory; the caller vouches for the stream.
        let ticket = array.py().detach(|| unsafe { session.submit_on(stream, vec![transfer]) });
        flight.begin(ticket.map(|ticket| vec![ticket]));
        Ok(Future(flight))
    }

    fn many(&self, pieces: &Bound<'_, PyAny>, direction: Direction) -> PyResult<Future> {
        self.many_later(pieces.py(), &GivenPiece::all(pieces)?, direction, true)
    }

    /// `given`, as pieces of one call; errors name the piece where `has_numbers`.
    fn many_later(
        &self,
        py: Python<'_>,
        given: &[GivenPiece<'_>],
        direction: Direction,
        has_numbers: bool,
    ) -> PyResult<Future> {
        if given.is_empty() {
            return Ok(Future(nothing()?));
        }
        let (session, file) = (session()?, self.engine_for(direction)?);
        let Pieces { batches, owners, marks, keep } = Pieces::new(py, (&session, &file), direction, given)?;
        let files = Files::One(file.name(), if has_numbers { owners } else { Vec::new() });
        let flight = Flight::behind(Vec::new(), files, keep)?;
        start(flight.clone(), session, batches, marks);
        Ok(Future(flight))
    }
}

/// An offset given by the program.
pub(crate) fn offset_of(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(given.py()) {
            // What the object's own conversion says stays.
            if !error.is_instance_of::<PyTypeError>(given.py()) {
                return error;
            }
            return PyTypeError::new_err(format!("an offset is a whole number of bytes, not {given:?}"));
        }
        let text = format!("an offset that no file has: {given}");
        invalid(text, "offsets count bytes from the file's beginning: 0 or more")
    })
}

/// A flight that has landed.
pub(crate) fn nothing() -> PyResult<Arc<Flight>> {
    let flight = Python::attach(|py| Flight::behind(Vec::new(), Files::Set(Vec::new()), py.None()))?;
    flight.begin(Ok(Vec::new()));
    Ok(flight)
}

/// Starts batches once what the marks stand for is done; the flight owns their memory.
fn start(flight: Arc<Flight>, session: Session, batches: Vec<Batch>, marks: Vec<Mark>) {
    if marks.is_empty() {
        return flight.begin(submit(&session, batches));
    }
    let later = flight.clone();
    let begin = move || {
        let reached = marks.iter().try_for_each(|mark| {
            while !mark.wait_timeout(crate::wait::LOOK) {}
            mark.check()
        });
        later.begin(reached.and_then(|()| submit(&session, batches)));
    };
    // Kernels may run for long: nobody waits for them here.
    if let Err(error) = forebay_engine::threads::spawn("forebay-stream", begin) {
        flight.begin(Err(Error::from_io(&error, "cannot start a thread")));
    }
}

fn submit(session: &Session, batches: Vec<Batch>) -> Result<Vec<Ticket>, Error> {
    // SAFETY: the flight that the tickets go to keeps the memory; that nobody else uses it is the caller's promise.
    // Where a later batch is refused, dropping the tickets of the earlier ones must wait for them.
    let mut tickets = Vec::with_capacity(batches.len());
    for batch in batches {
        // SAFETY: as above.
        match unsafe { session.submit_batch(batch) } {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                for ticket in tickets {
                    drop(ticket.wait());
                }
                return Err(error);
            }
        }
    }
    Ok(tickets)
}

/// Runs one transfer in memory that `keep` owns. A small one on this thread, which for it is several times faster.
fn transfer_here(
    py: Python<'_>,
    session: &Session,
    transfer: Transfer,
    keep: Py<PyAny>,
) -> PyResult<Receipt> {
    if transfer.len > AT_ONCE {
        let flight = Flight::new(&transfer.file, keep)?;
        // SAFETY: the flight keeps the memory; that nobody else uses it is the caller's promise, as of any array.
        flight.begin(unsafe { session.submit(vec![transfer]) }.map(|ticket| vec![ticket]));
        return flight.finish(py);
    }
    // SAFETY: as above; `keep` is dropped after this.
    let one = py.detach(|| unsafe { session.run(&transfer) }).or_raise()?;
    drop(keep);
    let elapsed = one.elapsed;
    Ok(Receipt::of(vec![one], elapsed))
}

/// What to read where, from rows of a header and an address for each. Tensors without bytes are left out.
fn tensor_pieces(rows: &Bound<'_, PyList>, addresses: &Bound<'_, PyList>) -> PyResult<Vec<Piece>> {
    if rows.len() != addresses.len() {
        return Err(PyValueError::new_err("rows and addresses differ in number"));
    }
    let mut pieces = Vec::with_capacity(rows.len());
    for (row, address) in rows.iter().zip(addresses.iter()) {
        let row = row.cast::<PyTuple>()?;
        let (offset, len) = (row.get_item(3)?.extract()?, row.get_item(4)?.extract()?);
        let address = address.extract()?;
        match (len, address) {
            (0, _) => {}
            (_, 0) => return Err(no_memory()),
            _ => pieces.push(Piece { offset, address, len }),
        }
    }
    Ok(pieces)
}

#[pymethods]
impl File {
    /// The path it was opened by.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// "r", "r+", "w" or "x".
    #[getter]
    fn mode(&self) -> &str {
        self.mode
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Bytes of the file now.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.engine()?;
        py.detach(|| file.len()).or_raise()
    }

    /// Closes the file. Transfers in flight go on and close it when they are done.
    fn close(&self, py: Python<'_>) {
        let file = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(file));
    }

    /// Makes written bytes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.engine()?;
        py.detach(|| file.sync()).or_raise()
    }

    /// Cuts or extends the file to `size` bytes; a new part is a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.engine()?;
        py.detach(|| file.set_len(size)).or_raise()
    }

    /// Makes the file, all of which is about to be written, `size` bytes long, with its pages if it lies in memory.
    fn _make_room(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.engine()?;
        py.detach(|| file.make_room(size)).or_raise()
    }

    /// `size` bytes from `offset` on as `bytes`, fewer where the file ends; without `size` all of them. A file has no
    /// position: reading again reads the same. Arrays on a GPU: `read_into`.
    #[pyo3(signature = (size=-1, offset=0), text_signature = "($self, size=-1, offset=0)")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        size: i64,
        #[pyo3(from_py_with = offset_of)] offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (session, file) = (session()?, self.engine()?);
        let left = py.detach(|| file.len()).or_raise()?.saturating_sub(offset);
        let len = u64::try_from(size).map_or(left, |size| size.min(left)) as usize;
        PyBytes::new_with(py, len, |bytes| {
            let memory = Memory::new(session.devices().host.clone(), bytes.as_mut_ptr() as u64);
            let transfer =
                Transfer { file, offset, memory, len, direction: Direction::Read, allow_short: false };
            // SAFETY: the bytes are nobody else's until this returns.
            py.detach(|| unsafe { session.run(&transfer) }).or_raise().map(drop)
        })
    }

    /// Fills the whole array from `offset` (bytes) of the file. A file that ends before raises ShortReadError.
    ///
    /// Waits for the work queued on the framework's current stream, or on `stream` (a CUDA stream's handle as a
    /// number), before the first byte; on return the bytes are there for every stream.
    #[pyo3(signature = (array, offset=0, *, stream=None))]
    fn read_into(
        &self,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
        stream: Option<u64>,
    ) -> PyResult<Receipt> {
        self.run(array, offset, stream, Direction::Read)
    }

    /// Writes the whole array to `offset` (bytes) of the file. Ordered as `read_into`.
    #[pyo3(signature = (array, offset=0, *, stream=None))]
    fn write_from(
        &self,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
        stream: Option<u64>,
    ) -> PyResult<Receipt> {
        self.run(array, offset, stream, Direction::Write)
    }

    /// Starts `read_into`. With `stream`, the read takes its place in that stream: it begins after the work queued
    /// there, and work queued there later sees its bytes.
    #[pyo3(signature = (array, offset=0, *, stream=None))]
    fn read_into_async(
        &self,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
        stream: Option<u64>,
    ) -> PyResult<Future> {
        self.run_later(array, offset, stream, Direction::Read)
    }

    /// Starts `write_from`; `stream` as in `read_into_async`.
    #[pyo3(signature = (array, offset=0, *, stream=None))]
    fn write_from_async(
        &self,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
        stream: Option<u64>,
    ) -> PyResult<Future> {
        self.run_later(array, offset, stream, Direction::Write)
    }

    /// Fills many arrays, given as (array, offset) pairs, at once. They may lie on several devices.
    ///
    /// A piece (array, offset, strides) is read from bytes that lie apart in the file: `strides` has the bytes from one
    /// element to the next along each dimension of the array, which may have any strides in memory. Element (i, j) comes
    /// from `offset + i * strides[0] + j * strides[1]`.
    fn read_many(&self, pieces: &Bound<'_, PyAny>) -> PyResult<Receipt> {
        self.many(pieces, Direction::Read)?.0.finish(pieces.py())
    }

    /// Writes many arrays, given as (array, offset) pairs, at once.
    fn write_many(&self, pieces: &Bound<'_, PyAny>) -> PyResult<Receipt> {
        self.many(pieces, Direction::Write)?.0.finish(pieces.py())
    }

    /// Starts `read_many`.
    fn read_many_async(&self, pieces: &Bound<'_, PyAny>) -> PyResult<Future> {
        self.many(pieces, Direction::Read)
    }

    /// Starts `write_many`.
    fn write_many_async(&self, pieces: &Bound<'_, PyAny>) -> PyResult<Future> {
        self.many(pieces, Direction::Write)
    }

    /// Starts raw transfers, (address, bytes, offset) each, in memory that `keep` owns. Waits for no stream.
    fn _submit(
        &self,
        py: Python<'_>,
        write: bool,
        pieces: Vec<RawPiece>,
        keep: Py<PyAny>,
    ) -> PyResult<Future> {
        let direction = if write { Direction::Write } else { Direction::Read };
        let (session, file) = (session()?, self.engine_for(direction)?);
        let batches = py.detach(|| raw_batches(&session, &file, direction, pieces))?;
        let flight = Flight::new(&file, keep)?;
        py.detach(|| start(flight.clone(), session, batches, Vec::new()));
        Ok(Future(flight))
    }

    /// Tells that the bytes from `start` to `end` will be read to a GPU soon: lanes get ready while memory is made for them.
    /// What is wrong shows when they are read.
    fn _expect_read(&self, gpu: usize, start: u64, end: u64) -> PyResult<()> {
        let (session, file) = (session()?, self.engine()?);
        if let Some(device) = session.devices().gpus.get(gpu) {
            let _ = session.expect_read(&file, device, (start, end.saturating_sub(start)));
        }
        Ok(())
    }

    /// Has the bytes from `start` to `end`, which will be read to the GPU again, registered while nothing is copied. They are
    /// read in place then. Why not, if so. The file has to stay open.
    fn _pin_later(&self, py: Python<'_>, gpu: usize, start: u64, end: u64) -> PyResult<Option<String>> {
        let (session, file) = (session()?, self.engine()?);
        let Some(device) = session.devices().gpus.get(gpu).cloned() else { return Ok(None) };
        let range = (start, end.saturating_sub(start));
        let refused = py.detach(|| session.pin_later(&file, &device, range)).err();
        Ok(refused.map(|error| error.message().to_owned()))
    }

    /// Starts reading tensors, given as rows of a header, to one address each. All lie on one device, in memory that
    /// `keep` owns; the future holds that until it is waited for or dropped. Waits for no stream.
    fn _read_tensors(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyList>,
        addresses: &Bound<'_, PyList>,
        keep: Py<PyAny>,
    ) -> PyResult<Future> {
        let (session, file) = (session()?, self.engine()?);
        let pieces = tensor_pieces(rows, addresses)?;
        let Some(first) = pieces.first() else { return Ok(Future(nothing()?)) };
        // The driver is asked once: it takes longer for an address than the rest of this does for a tensor.
        let memory = session.locate(first.address).or_raise()?;
        let batch =
            Batch { file: file.clone(), memory, direction: Direction::Read, pieces, allow_short: false };
        let flight = Flight::new(&file, keep)?;
        py.detach(|| start(flight.clone(), session, vec![batch], Vec::new()));
        flight.hold();
        Ok(Future(flight))
    }

    /// Fills memory that `keep` owns, on this thread where that is quicker than on others. Waits for no stream.
    fn _read_one(
        &self,
        py: Python<'_>,
        address: u64,
        len: usize,
        offset: u64,
        keep: Py<PyAny>,
    ) -> PyResult<()> {
        let (session, file) = (session()?, self.engine()?);
        if address == 0 && len > 0 {
            return Err(no_memory());
        }
        let memory = session.locate(address).or_raise()?;
        let transfer = Transfer { file, offset, memory, len, direction: Direction::Read, allow_short: false };
        transfer_here(py, &session, transfer, keep).map(drop)
    }

    /// Another handle on what is open, to be closed on its own.
    fn _again(&self) -> PyResult<Self> {
        Ok(Self::new(self.engine()?, self.path.clone(), self.mode))
    }

    /// Distinguishes the file from others, and its present state from earlier ones. `None` where its source has nothing
    /// that does.
    fn _state(&self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        let engine = self.engine()?;
        Ok(py.detach(|| engine.state()).or_raise()?.map(|state| state.to_bytes()))
    }

    /// Whether it still has the bytes of an earlier state; `is_here`: and is the same file of this machine.
    fn _is_in(&self, py: Python<'_>, state: &[u8], is_here: bool) -> PyResult<bool> {
        let engine = self.engine()?;
        let now = py.detach(|| engine.state()).or_raise()?;
        let both = now.zip(StateToken::from_bytes(state));
        Ok(both.is_some_and(
            |(now, then)| if is_here { now.is_object_of(&then) } else { now.has_bytes_of(&then) },
        ))
    }

    /// A file opened for reading is opened again where it is unpickled (in the workers of a data loader, say), if it is the
    /// same one there.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let py = slf.py();
        if slf.get().mode != "r" {
            return Err(PyTypeError::new_err("a file that is written cannot be sent to another process"));
        }
        let paths = py.import("forebay._paths")?;
        let known = paths.call_method1("Known", (slf,))?;
        Ok((paths.getattr("open_known")?, PyTuple::new(py, [known])?.into_any()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<forebay.File: {:?}, mode {:?}{state}>", self.path, self.mode)
    }
}
