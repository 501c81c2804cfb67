//! Model files: where the bytes of tensors lie in them, plans for new ones, and saves that appear in one step.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use forebay_engine::File as Engine;
use forebay_error::{Error, ErrorKind};
use forebay_models::safetensors::{self, TensorSpec};
use forebay_models::{Dtype, Extent, LoadLimits, LoadPlan, npy, shards, slice, zip};
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::error::OrRaise;
use crate::file::File;
use crate::open::{cache_policy, with_cache};
use crate::text::{FilePath, Text};

/// What a safetensors file holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct SafetensorsHeader {
    /// Name, dtype, shape, offset in the file and bytes of each tensor, in the order of the file.
    #[pyo3(get)]
    tensors: Py<PyList>,
    /// The file's own texts, or None.
    #[pyo3(get)]
    metadata: Option<Py<PyDict>>,
    /// Offset of the data section.
    #[pyo3(get)]
    data_start: u64,
    /// Bytes of the file.
    #[pyo3(get)]
    size: u64,
}

/// An error of a file's header, with its path.
fn of_file(error: Error, file: &Engine) -> Error {
    let is_bare = error.kind() == ErrorKind::InvalidInput && error.hints().is_empty();
    let error = error.with("path", file.name());
    if is_bare {
        error.hint("copy or write it again if it is cut or damaged; `file PATH` shows its format")
    } else {
        error
    }
}

/// Reads and checks a safetensors header: names, dtypes, shapes, and that the tensors cover the file.
#[pyfunction]
pub(crate) fn read_safetensors(py: Python<'_>, file: &File) -> PyResult<SafetensorsHeader> {
    let engine = file.engine()?;
    let header =
        py.detach(|| safetensors::read(&engine).map_err(|error| of_file(error, &engine))).or_raise()?;
    let mut rows = Vec::with_capacity(header.tensors.len());
    let mut last: Option<(Box<[u64]>, Bound<'_, PyTuple>)> = None;
    for tensor in header.tensors {
        // Neighbours are often alike.
        let shape = match &last {
            Some((dims, shape)) if *dims == tensor.shape => shape.clone(),
            _ => PyTuple::new(py, tensor.shape.iter())?,
        };
        let dtype = PyString::intern(py, tensor.dtype.name());
        rows.push((tensor.name, dtype, shape.clone(), tensor.offset, tensor.nbytes).into_pyobject(py)?);
        last = Some((tensor.shape, shape));
    }
    let tensors = PyList::new(py, rows)?;
    let metadata = header.metadata.map(|texts| {
        let dict = PyDict::new(py);
        texts.into_iter().try_for_each(|(key, value)| dict.set_item(key, value)).map(|()| dict.unbind())
    });
    Ok(SafetensorsHeader {
        tensors: tensors.unbind(),
        metadata: metadata.transpose()?,
        data_start: header.data_start,
        size: header.size,
    })
}

/// Bytes of a load, whether its tensors are small, and of each run the first tensor of each group and the one behind its last.
type Planned = (u64, bool, Vec<Vec<(usize, usize)>>);

/// Which tensors are read together, of runs: rows of a header for one device each. `limits`: others than the usual ones, by name.
#[pyfunction]
pub(crate) fn plan_load(
    runs: Vec<Bound<'_, PyList>>,
    casts: bool,
    limits: BTreeMap<String, u64>,
) -> PyResult<Planned> {
    let mut used = LoadLimits::default();
    for (name, limit) in limits {
        match name.as_str() {
            "window" => used.window = limit,
            "group" => used.group = limit,
            "tensors" => used.tensors = limit as usize,
            "small_tensor" => used.small_tensor = limit,
            "small_group" => used.small_group = limit,
            _ => return Err(PyValueError::new_err(name)),
        }
    }
    let extent = |row: Bound<'_, PyAny>| -> PyResult<Extent> {
        let row = row.cast_into::<PyTuple>()?;
        Ok((row.get_item(3)?.extract()?, row.get_item(4)?.extract()?))
    };
    let extents = |run: &Bound<'_, PyList>| run.iter().map(extent).collect();
    let runs = runs.iter().map(extents).collect::<PyResult<Vec<Vec<Extent>>>>()?;
    let LoadPlan { bytes, are_small, groups } = used.plan(&runs, casts);
    let pairs =
        |groups: Vec<Range<usize>>| groups.into_iter().map(|group| (group.start, group.end)).collect();
    Ok((bytes, are_small, groups.into_iter().map(pairs).collect()))
}

type Places = Vec<(u64, u64)>;

/// Lays out a safetensors file: the bytes before the data, (offset, nbytes) of each tensor in the given order, and the
/// size of the file. The data section begins at a multiple of `align`.
#[pyfunction]
#[pyo3(signature = (tensors, metadata=None, align=4096))]
pub(crate) fn plan_safetensors<'py>(
    py: Python<'py>,
    tensors: Vec<(Text, String, Vec<u64>)>,
    metadata: Option<&Bound<'py, PyDict>>,
    align: u64,
) -> PyResult<(Bound<'py, PyBytes>, Places, u64)> {
    let specs: Result<Vec<TensorSpec>, Error> = tensors
        .into_iter()
        .map(|(Text(name), dtype, shape)| match Dtype::parse(&dtype) {
            Ok(dtype) => Ok(TensorSpec { name, dtype, shape }),
            Err(error) => Err(error.with("tensor", name)),
        })
        .collect();
    let texts: Option<Vec<(String, String)>> = metadata
        .map(|dict| {
            dict.iter()
                .map(|(key, value)| Ok((key.extract::<Text>()?.0, value.extract::<Text>()?.0)))
                .collect::<PyResult<_>>()
        })
        .transpose()?;
    let layout = safetensors::plan(&specs.or_raise()?, texts.as_deref(), align).or_raise()?;
    Ok((PyBytes::new(py, &layout.header), layout.places, layout.size))
}

/// Bits of one element of the dtype of this name.
#[pyfunction]
pub(crate) fn dtype_size(name: &str) -> PyResult<u64> {
    Dtype::parse(name).map(Dtype::bits).or_raise()
}

type DtypeRow = (&'static str, u64, &'static str, &'static str, &'static str, bool);

/// The table of element types: name, bits, numpy's name, torch's name, how .npy files say it (empty where there is
/// none), and whether DLPack has it.
#[pyfunction]
pub(crate) fn dtypes() -> Vec<DtypeRow> {
    let row = |dtype: &Dtype| {
        let has_code = dtype.dlpack().is_some();
        (dtype.name(), dtype.bits(), dtype.numpy(), dtype.torch(), dtype.descr(), has_code)
    };
    Dtype::TABLE.iter().map(row).collect()
}

/// A new file that replaces `path`, or appears there, in one step when `commit` is called. Leaving a `with` block
/// without `commit`, by an exception or not, leaves everything as it was.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Pending {
    save: Mutex<Option<forebay_models::Pending>>,
    /// The file to write to; closed by `commit` and `abort`.
    #[pyo3(get)]
    file: Py<File>,
    /// The file that is replaced: `path` with symbolic links followed.
    #[pyo3(get)]
    target: OsString,
    /// Whether the file has no name before the commit.
    #[pyo3(get)]
    nameless: bool,
}

impl Pending {
    fn take(&self) -> Option<forebay_models::Pending> {
        self.save.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Pending {
    /// A save that nobody ended: what a server has of it is removed there while other threads run Python.
    fn drop(&mut self) {
        if let Some(save) = self.take() {
            // Without an interpreter the save is dropped with the closure.
            Python::try_attach(move |py| py.detach(move || drop(save)));
        }
    }
}

#[pymethods]
impl Pending {
    /// `cache`: as [`open`](crate::open::open) takes it.
    #[new]
    #[pyo3(signature = (path, *, cache=None))]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>, cache: Option<&str>) -> PyResult<Self> {
        let FilePath(path) = FilePath::of(path.as_borrowed(), true)?;
        let policy = cache_policy(cache)?;
        let options = || with_cache(Engine::options(), policy);
        let pending = py.detach(|| forebay_models::Pending::create_with(&path, &options)).or_raise()?;
        let target = pending.target().to_owned();
        let file = File::new(pending.file().clone(), target.display().to_string(), "w");
        Ok(Self {
            file: Py::new(py, file)?,
            nameless: pending.is_nameless(),
            save: Mutex::new(Some(pending)),
            target: target.into_os_string(),
        })
    }

    /// Gives the file its name. With `durable`, data and name are on the disk on return. Warns of what the replaced file
    /// had and this one cannot have: its owner, its group, its access list.
    #[pyo3(signature = (durable=true))]
    fn commit(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        let Some(pending) = self.take() else {
            return Err(PyValueError::new_err("the save has ended already"));
        };
        // A gateway on this node publishes the file itself where nobody has it open, and else a copy.
        self.file.call_method0(py, "close")?;
        let committed = py.detach(|| pending.commit(durable)).or_raise();
        let path = PathBuf::from(&self.target);
        for note in committed? {
            let text = CString::new(format!("{}: {note}", path.display()))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)?;
        }
        Ok(())
    }

    /// Gives the save up: nothing of it remains. Does nothing after `commit` or another `abort`.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let Some(pending) = self.take() else { return Ok(()) };
        py.detach(|| drop(pending));
        self.file.call_method0(py, "close").map(drop)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let _ = exception;
        self.abort(py)
    }
}

type ShardIndex = (Vec<String>, Vec<(String, usize)>, Option<u64>);

/// The index of a sharded model, from its JSON: the files, (tensor name, position of its file) of each tensor, and the
/// total size that it tells, or None.
#[pyfunction]
pub(crate) fn read_shard_index(json: &[u8]) -> PyResult<ShardIndex> {
    let index = shards::parse(json).or_raise()?;
    Ok((index.files, index.tensors, index.total_size))
}

type NpyHeader<'py> = (String, bool, Bound<'py, PyTuple>, u64);

/// Reads and checks the .npy header at `offset`: numpy's name of the dtype, whether the order is Fortran's, the shape,
/// and the offset of the data in the file. Header and data must lie within `length` bytes, if that is given.
#[pyfunction]
#[pyo3(signature = (file, offset=0, length=None))]
pub(crate) fn read_npy_header<'py>(
    py: Python<'py>,
    file: &File,
    offset: u64,
    length: Option<u64>,
) -> PyResult<NpyHeader<'py>> {
    let engine = file.engine()?;
    let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
    let header =
        py.detach(|| npy::read(&engine, offset, end).map_err(|error| of_file(error, &engine))).or_raise()?;
    Ok((header.descr, header.fortran_order, PyTuple::new(py, header.shape)?, header.offset))
}

/// The bytes before the data of a .npy file, as many as a multiple of `align`.
#[pyfunction]
#[pyo3(signature = (descr, fortran_order, shape, align=64))]
pub(crate) fn npy_header<'py>(
    py: Python<'py>,
    descr: &str,
    fortran_order: bool,
    shape: Vec<u64>,
    align: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &npy::header(descr, fortran_order, &shape, align).or_raise()?))
}

/// Bytes of one element of the dtype that numpy names so.
#[pyfunction]
pub(crate) fn npy_itemsize(descr: &str) -> PyResult<u64> {
    npy::itemsize(descr).or_raise()
}

type ZipEntry = (String, u16, u64, u64, u64, u32);

/// Reads and checks the directory of a zip archive: (name, method, offset of the data, packed size, size, CRC-32) of
/// each entry. Method 0 is stored, 8 is deflated.
#[pyfunction]
pub(crate) fn read_zip(py: Python<'_>, file: &File) -> PyResult<Vec<ZipEntry>> {
    let engine = file.engine()?;
    let entries = py.detach(|| zip::read(&engine).map_err(|error| of_file(error, &engine))).or_raise()?;
    let row = |entry: zip::Entry| {
        (entry.name, entry.method.number(), entry.offset, entry.packed, entry.size, entry.crc32)
    };
    Ok(entries.into_iter().map(row).collect())
}

/// The layout of a new zip archive of stored entries.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ZipPlan(zip::Plan);

#[pymethods]
impl ZipPlan {
    /// (offset of the header, offset of the data, size) of each entry, in the order given.
    #[getter]
    fn places(&self) -> Vec<(u64, u64, u64)> {
        self.0.places().iter().map(|place| (place.header, place.data, place.size)).collect()
    }

    /// Offset of the directory.
    #[getter]
    fn directory_offset(&self) -> u64 {
        self.0.end_of_data()
    }

    /// Bytes of the archive.
    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    /// The bytes from the header of an entry up to its data.
    fn header<'py>(&self, py: Python<'py>, index: usize, crc32: u32) -> PyResult<Bound<'py, PyBytes>> {
        if index >= self.0.places().len() {
            return Err(PyIndexError::new_err("no such entry"));
        }
        Ok(PyBytes::new(py, &self.0.header(index, crc32)))
    }

    /// The bytes after the last entry, from the CRC-32 of each.
    fn directory<'py>(&self, py: Python<'py>, crcs: Vec<u32>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.directory(&crcs).or_raise()?))
    }
}

/// Lays out a zip archive of stored entries, (name, size) each, whose data begin at multiples of `align`. The data can
/// be written first: headers and directory are made when the CRCs are known, and take the same room whatever they are.
#[pyfunction]
#[pyo3(signature = (entries, align=64))]
pub(crate) fn plan_zip(entries: Vec<(Text, u64)>, align: u64) -> PyResult<ZipPlan> {
    let entries: Vec<_> = entries.into_iter().map(|(Text(name), size)| (name, size)).collect();
    zip::Plan::new(entries, align).map(ZipPlan).or_raise()
}

/// The CRC-32 of zip of `nbytes` bytes of host memory at `address`, continued from that of what came before.
#[pyfunction]
#[pyo3(signature = (address, nbytes, before=0))]
pub(crate) fn crc32(py: Python<'_>, address: usize, nbytes: usize, before: u32) -> u32 {
    if nbytes == 0 {
        return before;
    }
    py.detach(|| {
        // SAFETY: the caller, who is forebay's own Python half, holds an array of these bytes.
        zip::crc32(before, unsafe { std::slice::from_raw_parts(address as *const u8, nbytes) })
    })
}

/// The CRC-32 of two parts together, the second of which has `nbytes` bytes.
#[pyfunction]
pub(crate) fn crc32_combine(first: u32, second: u32, nbytes: u64) -> u32 {
    zip::crc32_combine(first, second, nbytes)
}

/// A sequence of (offset, nbytes), however long, in the memory of a few numbers.
#[pyclass(frozen, sequence, module = "forebay._forebay")]
pub(crate) struct Runs(slice::Runs);

#[pymethods]
impl Runs {
    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    fn __getitem__(&self, index: isize) -> PyResult<(u64, u64)> {
        let index = if index < 0 { index + self.0.len() as isize } else { index };
        let found = u64::try_from(index).ok().and_then(|index| self.0.get(index));
        found.ok_or_else(|| PyIndexError::new_err("no such run"))
    }

    /// Bytes of each run.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    /// Bytes of all runs.
    #[getter]
    fn total(&self) -> u64 {
        self.0.total()
    }

    /// (first offset, count, distance, bytes of each) if the distances are all the same, else None.
    #[getter]
    fn uniform(&self) -> Option<(u64, u64, u64, u64)> {
        self.0.uniform()
    }

    /// The offsets as unsigned 64-bit numbers of this machine, packed.
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let len = (self.0.len() as usize).checked_mul(8);
        let len = len.ok_or_else(|| PyMemoryError::new_err("too many runs for a list of them"))?;
        PyBytes::new_with(py, len, |room| {
            for (place, (offset, _)) in room.as_chunks_mut::<8>().0.iter_mut().zip(self.0.iter()) {
                place.copy_from_slice(&offset.to_ne_bytes());
            }
            Ok(())
        })
    }
}

/// The byte ranges of a slice, (start, stop, step) for each dimension, of a row-major array whose elements have
/// `itembits` bits; and the slice's shape.
#[pyfunction]
pub(crate) fn plan_slice(
    py: Python<'_>,
    shape: Vec<u64>,
    itembits: u64,
    index: Vec<(u64, u64, u64)>,
) -> PyResult<(Runs, Bound<'_, PyTuple>)> {
    let (runs, shape) = slice::plan(&shape, itembits, &index).or_raise()?;
    Ok((Runs(runs), PyTuple::new(py, shape)?))
}
