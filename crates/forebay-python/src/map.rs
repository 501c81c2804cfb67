//! Warm files that GPU kernels read in place.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_engine::{
    Batch, Buffer, Direction, File as Engine, Map as InPlace, Memory, Offsets, Piece, RawGather, StateToken,
};
use forebay_error::{Error, ErrorKind};
use forebay_gpu::{Device, HostRange};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::array::{Array, Kind, bytes_of, shape_of};
use crate::dlpack::{self, Offer};
use crate::error::{OrRaise, invalid, raise};
use crate::file::offset_of;
use crate::future::Flight;
use crate::receipt::Receipt;
use crate::session::{self, session};
use crate::text::{DtypeName, FilePath};
use crate::view::View;

/// A warm file for a GPU's kernels. Made by `forebay.map`.
///
/// Where the GPU can read the page cache in place, `gather` and views do; elsewhere `in_place` is False, `reason` says
/// why, and `gather` reads the pieces through pinned memory.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Map {
    way: Mutex<Option<Way>>,
    file: Engine,
    before: Option<StateToken>,
    device: Arc<dyn Device>,
    path: String,
    refused: Option<Error>,
}

enum Way {
    InPlace(Arc<InPlace>),
    Staged,
}

/// Opens a file as memory that kernels of `device` (by default the first GPU) read in place.
///
/// Its pages are brought into memory and pinned until the map is closed.
#[pyfunction]
#[pyo3(signature = (path, device=None))]
pub(crate) fn map(py: Python<'_>, path: FilePath, device: Option<&Bound<'_, PyAny>>) -> PyResult<Map> {
    let FilePath(path) = path;
    let (session, device) = (session()?, session::device(device)?);
    let text = path.to_string_lossy().into_owned();
    let file = py.detach(|| Engine::open(&path)).or_raise()?;
    let before = py.detach(|| file.state()).or_raise()?;
    let (way, refused) = match py.detach(|| session.map(&file, &device)) {
        Ok(map) => (Way::InPlace(Arc::new(map)), None),
        Err(error) if error.kind() == ErrorKind::Unsupported => (Way::Staged, Some(error)),
        Err(error) => return Err(raise(&error)),
    };
    Ok(Map { way: Mutex::new(Some(way)), file, before, device, path: text, refused })
}

/// The exception; a map of Python's is made anew where the engine's is refreshed.
fn changed(error: &Error) -> PyErr {
    if error.kind() != ErrorKind::Busy {
        return raise(error);
    }
    let told = Error::new(error.kind(), error.message());
    let told = error.context().iter().fold(told, |told, (key, value)| told.with(key, value));
    raise(&told.hint("close the map and make it anew: forebay.map(path)"))
}

impl Map {
    /// The map in place, `None` where pieces are staged.
    fn in_place_map(&self) -> PyResult<Option<Arc<InPlace>>> {
        match &*self.way.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Err(PyValueError::new_err("operation on closed map")),
            Some(Way::Staged) => Ok(None),
            Some(Way::InPlace(map)) => Ok(Some(map.clone())),
        }
    }

    fn needed(&self) -> PyResult<Arc<InPlace>> {
        self.in_place_map()?.ok_or_else(|| {
            let reason =
                self.refused.as_ref().map_or_else(|| "it is refused".to_owned(), ToString::to_string);
            let error =
                Error::new(ErrorKind::Unsupported, format!("this file has no view on the GPU: {reason}"));
            let hints = self.refused.iter().flat_map(Error::hints);
            raise(&hints.fold(error, Error::hint).hint("map.gather(…) works all the same"))
        })
    }

    /// [`ErrorKind::Busy`] if the file is in another state by now: parts that are not read in place rely on that alone.
    fn check_state(&self, py: Python<'_>) -> PyResult<()> {
        let Some(before) = &self.before else { return Ok(()) };
        if py.detach(|| self.file.state()).or_raise()?.is_some_and(|now| now.has_bytes_of(before)) {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Busy, "the file was changed since it was mapped");
        Err(changed(&error.with("path", &self.path)))
    }

    /// Reads the pieces through pinned memory.
    fn stage(&self, py: Python<'_>, offsets: &[u64], length: usize, out: &View) -> PyResult<()> {
        let read = self.read(py, offsets, length, out);
        // Also after an error: most likely the change is its reason.
        self.check_state(py)?;
        read.map(drop)
    }

    fn read(&self, py: Python<'_>, offsets: &[u64], length: usize, out: &View) -> PyResult<Receipt> {
        let session = session()?;
        let memory = out.memory(&session)?;
        let size = py.detach(|| self.file.len()).or_raise()?;
        let outside = offsets
            .iter()
            .filter(|offset| offset.checked_add(length as u64).is_none_or(|end| end > size))
            .count();
        if outside > 0 {
            return Err(invalid(
                format!("{outside} of {} pieces do not lie within the file's {size} bytes", offsets.len()),
                "check offsets and length: offsets are in bytes",
            ));
        }
        let pieces = offsets.iter().enumerate().map(|(index, offset)| Piece {
            offset: *offset,
            address: out.address + (index * length) as u64,
            len: length,
        });
        let batch = Batch {
            file: self.file.clone(),
            memory,
            direction: Direction::Read,
            pieces: pieces.collect(),
            allow_short: false,
        };
        let flight = Flight::new(&self.file, out.keep.clone_ref(py))?;
        // SAFETY: the flight keeps the memory; pieces do not overlap in it.
        flight.begin(py.detach(|| unsafe { session.submit_batch(batch) }).map(|ticket| vec![ticket]));
        flight.finish(py)
    }
}

/// The length of a gather's pieces.
fn length_of(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    given.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(given.py()) {
            return error;
        }
        invalid(format!("a length that no piece has: {given}"), "the bytes of each piece: 0 or more")
    })
}

/// The offsets of a gather, or other 64-bit integers.
pub(crate) enum OffsetList {
    Host(Vec<u64>),
    Device(View),
}

impl OffsetList {
    pub(crate) fn of(py: Python<'_>, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        if offsets.is_instance_of::<PyList>() || offsets.is_instance_of::<PyTuple>() {
            let items = offsets.try_iter()?.map(|item| offset_of(&item?));
            return items.collect::<PyResult<_>>().map(Self::Host);
        }
        let session = session()?;
        let view = View::of(offsets)?;
        if view.item != Some(8) || !is_integers(offsets, &view)? {
            return Err(invalid(
                "the offsets are not 64-bit integers",
                "offsets.astype(\"int64\"), offsets.to(torch.int64)",
            ));
        }
        let memory = view.memory(&session)?;
        if let Some(mark) = view.mark(&session, &memory, None)? {
            mark.wait(py)?;
        }
        if !memory.device.info().is_host {
            return Ok(Self::Device(view));
        }
        let count = view.nbytes / 8;
        let mut list = vec![0u64; count];
        // SAFETY: the view has `count` words; `list` has room for them. Bytewise, since views need no alignment.
        unsafe {
            std::ptr::copy_nonoverlapping(view.address as *const u8, list.as_mut_ptr().cast(), count * 8);
        };
        Ok(Self::Host(list))
    }

    fn count(&self) -> usize {
        match self {
            Self::Host(list) => list.len(),
            Self::Device(view) => view.nbytes / 8,
        }
    }

    pub(crate) fn to_host(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        match self {
            Self::Host(list) => Ok(list.clone()),
            Self::Device(view) => {
                let memory = view.memory(&session()?)?;
                py.detach(|| copy_out(&memory, view.nbytes / 8)).or_raise()
            }
        }
    }
}

/// Whether the elements are integers, in this machine's byte order.
fn is_integers(offsets: &Bound<'_, PyAny>, view: &View) -> PyResult<bool> {
    if let Some(kind) = view.kind {
        return Ok(matches!(kind, 'i' | 'u'));
    }
    // Tensors of torch tell by name: torch.int64, torch.uint64.
    let Some(dtype) = offsets.getattr_opt("dtype")? else { return Ok(false) };
    Ok(dtype.str()?.to_string().contains("int64"))
}

fn copy_out(memory: &Memory, count: usize) -> Result<Vec<u64>, Error> {
    let mut list = vec![0u64; count];
    let stream = memory.device.stream(memory.context)?;
    // SAFETY: both ranges have `count` words and live until the copy is done.
    unsafe { stream.copy_out(HostRange::new(list.as_mut_ptr().cast(), count * 8), memory.address) }?;
    stream.synchronize(forebay_gpu::Wait::Block)?;
    Ok(list)
}

/// Gathers in place and waits.
fn gather_in_place(
    map: &InPlace,
    given: &OffsetList,
    length: usize,
    out: u64,
) -> Result<forebay_engine::Receipt, Error> {
    match given {
        // SAFETY: the output is kept by the caller until this returns, and was checked to have room.
        OffsetList::Host(list) => unsafe { map.gather_at(Offsets::Host(list), length, out, None) },
        OffsetList::Device(view) => {
            let request = RawGather { offsets: view.address, count: given.count(), length, out };
            // SAFETY: as above; the view keeps the offsets.
            unsafe { map.gather_raw(None, request) }?.wait()
        }
    }
}

#[pymethods]
impl Map {
    /// Copies the pieces of `length` bytes at `offsets` (bytes; 64-bit integers in a list or tuple, or an array in host or
    /// GPU memory) into `out`, one after the other, and returns `out`. Without `out`: a new `forebay.Array` of shape
    /// (pieces, length) and dtype "U8" on the map's device.
    ///
    /// Raises InvalidInputError if pieces do not lie within the file, BusyError if the file was changed meanwhile.
    #[pyo3(signature = (offsets, length, out=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        offsets: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = length_of)] length: usize,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let map = self.in_place_map()?;
        let given = OffsetList::of(py, offsets)?;
        let (count, kind) = (given.count(), Kind::of("U8")?);
        let out = if let Some(out) = out {
            out
        } else {
            let bytes = bytes_of(&[count, length], kind)?;
            let buffer = py.detach(|| Buffer::new(self.device.clone(), bytes)).or_raise()?;
            Bound::new(py, Array::new(vec![count, length], kind, buffer))?.into_any()
        };
        let view = View::to_fill(&out)?;
        if count.checked_mul(length).is_none_or(|bytes| bytes > view.nbytes) {
            return Err(invalid(
                format!("out has {} bytes: too few for {count} pieces of {length}", view.nbytes),
                "give a larger array, or leave out= away",
            ));
        }
        if count == 0 || length == 0 {
            return Ok(out);
        }
        let session = session()?;
        let memory = view.memory(&session)?;
        if let Some(mark) = view.mark(&session, &memory, None)? {
            mark.wait(py)?;
        }
        let is_here = Arc::ptr_eq(&memory.device, &self.device);
        match map.filter(|_| is_here) {
            Some(map) => {
                py.detach(|| gather_in_place(&map, &given, length, view.address))
                    .map_err(|error| changed(&error))?;
            }
            None => self.stage(py, &given.to_host(py)?, length, &view)?,
        }
        Ok(out)
    }

    /// The file's bytes from `offset` on as an array that kernels read in place: for CuPy, Numba and Triton. Without
    /// `shape`: as many elements as the file has from there.
    ///
    /// Nobody may write to it, not even CuPy, which does not know read-only arrays: a kernel that does ends the CUDA
    /// context. Bytes that kernels read are the file's if `check()` is fine afterwards.
    #[pyo3(signature = (dtype=None, shape=None, offset=0), text_signature = "($self, dtype='uint8', shape=None, offset=0)")]
    fn view(
        &self,
        dtype: Option<DtypeName>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
    ) -> PyResult<MapView> {
        let map = self.needed()?;
        let kind = Kind::of_given(dtype.as_ref())?;
        let left = map.len().saturating_sub(offset) as usize;
        let shape = match shape {
            Some(shape) => shape_of(shape)?,
            None => vec![left / kind.size()],
        };
        let bytes = bytes_of(&shape, kind)?;
        if bytes > left {
            return Err(invalid(
                format!("the view needs {bytes} bytes, the file has {left} from there on"),
                "ask for less",
            ));
        }
        if !offset.is_multiple_of(kind.size() as u64) {
            return Err(invalid(
                format!("offset {offset} is not a multiple of the element's {} bytes", kind.size()),
                "view it as \"uint8\"",
            ));
        }
        let address = map.address() + offset;
        Ok(MapView { map, address, shape, kind, gpu: self.device.info().index })
    }

    /// A torch tensor of the view. ANY WRITE TO IT KILLS THE CUDA CONTEXT, and with it the process: torch has no
    /// read-only tensors, and the pages are mapped for reading only. `x + 1` is fine; `x += 1`, `out=x`, an optimizer's
    /// step are fatal. Clone it, or use `gather`, unless you know every kernel that will see it.
    #[pyo3(signature = (dtype=None, shape=None, offset=0), text_signature = "($self, dtype='uint8', shape=None, offset=0)")]
    fn unsafe_torch_tensor_whose_writes_are_fatal<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<DtypeName>,
        shape: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = offset_of)] offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = Bound::new(py, self.view(dtype, shape, offset)?)?;
        let about = view.get();
        let offer = Offer {
            address: about.address,
            shape: about.shape.iter().map(|size| *size as i64).collect(),
            dtype: about.kind.dlpack()?,
            gpu: Some(about.gpu),
            is_read_only: false,
            owner: view.clone().into_any().unbind(),
        };
        let capsule = dlpack::export(py, offer, None)?;
        py.import("torch.utils.dlpack")?.call_method1("from_dlpack", (capsule,))
    }

    /// Raises BusyError if the file was changed since it was mapped: what kernels read may then be old, new or mixed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.in_place_map()? {
            Some(map) => py.detach(|| map.check()).map_err(|error| changed(&error)),
            None if self.before.is_none() => Err(raise(
                &Error::new(ErrorKind::Unsupported, "the source has no version of its bytes")
                    .with("path", &self.path),
            )),
            None => self.check_state(py),
        }
    }

    /// Whether the GPU reads the file's pages in place.
    #[getter]
    fn in_place(&self) -> PyResult<bool> {
        Ok(self.in_place_map()?.is_some())
    }

    /// Why it does not, or None.
    #[getter]
    fn reason(&self) -> Option<String> {
        self.refused.as_ref().map(ToString::to_string)
    }

    /// The device address of the file's first byte, for kernels of your own; None where it is not read in place.
    #[getter]
    fn address(&self) -> PyResult<Option<u64>> {
        Ok(self.in_place_map()?.map(|map| map.address()))
    }

    /// Bytes of the file.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        match self.in_place_map()? {
            Some(map) => Ok(map.len()),
            None => py.detach(|| self.file.len()).or_raise(),
        }
    }

    /// Bytes that the map keeps in memory.
    #[getter]
    fn pinned_bytes(&self) -> PyResult<u64> {
        Ok(self.in_place_map()?.map_or(0, |map| map.pinned_bytes()))
    }

    /// "cuda:0" or "cpu".
    #[getter]
    fn device(&self) -> String {
        session::name_of(&self.device)
    }

    /// The path it was opened by.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.way.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Lets go of the pages, once no view is left.
    fn close(&self, py: Python<'_>) {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(way));
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.size(py)? as usize)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let how = match self.in_place_map() {
            Err(_) => "closed",
            Ok(Some(_)) => "read in place",
            Ok(None) => "staged",
        };
        format!("<forebay.Map: {:?} on {}, {how}>", self.path, self.device())
    }
}

/// A part of a mapped file as an array of the GPU's. Read-only: see `Map.view`.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct MapView {
    map: Arc<InPlace>,
    address: u64,
    shape: Vec<usize>,
    kind: Kind,
    gpu: usize,
}

#[pymethods]
impl MapView {
    /// Elements along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The type of the elements, by numpy's name ("uint8"): what Triton looks for.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.kind.numpy()
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.size()
    }

    /// The device address, under the name that Triton looks for.
    fn data_ptr(&self) -> u64 {
        self.address
    }

    /// Raises BusyError if the file was changed since it was mapped.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.map.check()).map_err(|error| changed(&error))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let about = PyDict::new(py);
        about.set_item("shape", self.shape(py)?)?;
        about.set_item("typestr", self.kind.typestr())?;
        about.set_item("data", (self.address, true))?;
        about.set_item("strides", py.None())?;
        about.set_item("version", 3)?;
        about.set_item("stream", py.None())?;
        Ok(about)
    }

    #[pyo3(signature = (**_words))]
    #[allow(clippy::unused_self, reason = "a method of Python's")]
    fn __dlpack__(&self, _words: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let error = PyBufferError::new_err(
            "the file's pages are read-only, and frameworks that take DLPack write to what they get: that would kill the \
             CUDA context",
        );
        let hint =
            "hint: map.gather(…), a copy by CuPy, or map.unsafe_torch_tensor_whose_writes_are_fatal(…)";
        Python::attach(|py| error.value(py).call_method1("add_note", (hint,)).map(drop))?;
        Err(error)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_pair(Some(self.gpu))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.shape.first().copied().ok_or_else(|| PyAttributeError::new_err("a scalar has no length"))
    }

    fn __repr__(&self) -> String {
        format!("<forebay.MapView: {:?} {} on cuda:{}, read-only>", self.shape, self.kind.numpy(), self.gpu)
    }
}
