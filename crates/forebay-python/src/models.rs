//! Model files: where the bytes of tensors lie in them, plans for new ones, and saves that appear in one step.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use forebay_error::Error;
use forebay_models::Dtype;
use forebay_models::safetensors::{self, TensorSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::error::OrRaise;
use crate::file::File;

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

/// Reads and checks a safetensors header: names, dtypes, shapes, and that the tensors cover the file.
#[pyfunction]
pub(crate) fn read_safetensors(py: Python<'_>, file: &File) -> PyResult<SafetensorsHeader> {
    let engine = file.engine()?;
    let header = py
        .detach(|| safetensors::read(&engine).map_err(|error| error.with("path", engine.name())))
        .or_raise()?;
    let tensors = PyList::empty(py);
    for tensor in header.tensors {
        let shape = PyTuple::new(py, tensor.shape.iter())?;
        tensors.append((tensor.name, tensor.dtype.name(), shape, tensor.offset, tensor.nbytes))?;
    }
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

type Places = Vec<(u64, u64)>;

/// Lays out a safetensors file: the bytes before the data, (offset, nbytes) of each tensor in the given order, and the
/// size of the file. The data section begins at a multiple of `align`.
#[pyfunction]
#[pyo3(signature = (tensors, metadata=None, align=4096))]
pub(crate) fn plan_safetensors<'py>(
    py: Python<'py>,
    tensors: Vec<(String, String, Vec<u64>)>,
    metadata: Option<&Bound<'py, PyDict>>,
    align: u64,
) -> PyResult<(Bound<'py, PyBytes>, Places, u64)> {
    let specs: Result<Vec<TensorSpec>, Error> = tensors
        .into_iter()
        .map(|(name, dtype, shape)| match Dtype::parse(&dtype) {
            Ok(dtype) => Ok(TensorSpec { name, dtype, shape }),
            Err(error) => Err(error.with("tensor", name)),
        })
        .collect();
    let texts: Option<Vec<(String, String)>> = metadata
        .map(|dict| {
            dict.iter().map(|(key, value)| Ok((key.extract()?, value.extract()?))).collect::<PyResult<_>>()
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

/// A new file that replaces `path`, or appears there, in one step when `commit` is called. Leaving a `with` block
/// without `commit`, by an exception or not, leaves everything as it was.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Pending {
    pending: Mutex<Option<forebay_models::Pending>>,
    /// The file to write to; closed by `commit` and `abort`.
    #[pyo3(get)]
    file: Py<File>,
    /// The file that is replaced: `path` with symbolic links followed.
    #[pyo3(get)]
    target: PathBuf,
    /// Whether the file has no name before the commit.
    #[pyo3(get)]
    nameless: bool,
}

impl Pending {
    fn take(&self) -> Option<forebay_models::Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Pending {
    #[new]
    #[pyo3(signature = (path, *, mode=None))]
    fn new(py: Python<'_>, path: PathBuf, mode: Option<u32>) -> PyResult<Self> {
        let mut pending = py.detach(|| forebay_models::Pending::create(&path)).or_raise()?;
        if let Some(mode) = mode {
            pending.set_mode(mode);
        }
        let target = pending.target().to_owned();
        let file = File::new(pending.file().clone(), target.display().to_string(), "w");
        Ok(Self {
            file: Py::new(py, file)?,
            nameless: pending.is_nameless(),
            pending: Mutex::new(Some(pending)),
            target,
        })
    }

    /// Gives the file its name. With `durable`, data and name are on the disk on return.
    #[pyo3(signature = (durable=true))]
    fn commit(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        let Some(pending) = self.take() else {
            return Err(PyValueError::new_err("the save has ended already"));
        };
        let committed = py.detach(|| pending.commit(durable)).or_raise();
        self.file.call_method0(py, "close")?;
        committed
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

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.abort(py)
    }
}
