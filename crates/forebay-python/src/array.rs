//! Memory of forebay's own, for programs without a framework: on a GPU or in host memory.

use forebay_engine::Buffer;
use forebay_error::{Error, ErrorKind};
use forebay_gpu::HostRange;
use forebay_models::Dtype;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::dlpack::{self, DataType, Offer};
use crate::error::{OrRaise, invalid, raise};
use crate::session;
use crate::text::DtypeName;
use crate::view::View;

/// A type of elements that fill their bytes.
#[derive(Clone, Copy)]
pub(crate) struct Kind(Dtype);

impl Kind {
    /// The type of this name, safetensors' or numpy's.
    pub(crate) fn of(name: &str) -> PyResult<Self> {
        let mut kinds = Dtype::TABLE.iter().map(|dtype| Self(*dtype)).filter(|kind| !kind.numpy().is_empty());
        let is_it = |kind: &Self| [kind.0.name(), kind.numpy()].contains(&name) || kind.is_short(name);
        if let Some(found) = kinds.clone().find(is_it) {
            return Ok(found);
        }
        if Dtype::from_name(name).is_some() {
            return Err(raise(
                &Error::new(ErrorKind::Unsupported, "elements of this dtype share bytes: no array has them")
                    .with("dtype", name)
                    .hint("an array of their bytes: forebay.empty(nbytes, \"uint8\")"),
            ));
        }
        let names: Vec<_> = kinds.by_ref().map(Self::numpy).collect();
        Err(invalid(format!("unknown dtype: {name:?}"), format!("use one of: {}", names.join(", "))))
    }

    /// numpy's short name, with a byte order or without: "<f4", "f4". Types that numpy has not got have none.
    fn is_short(self, name: &str) -> bool {
        !self.typestr().contains('V') && [self.typestr(), &self.typestr()[1..]].contains(&name)
    }

    /// The type that a caller gave, bytes if none.
    pub(crate) fn of_given(name: Option<&DtypeName>) -> PyResult<Self> {
        Self::of(name.map_or("U8", |DtypeName(name)| name))
    }

    pub(crate) const fn size(self) -> usize {
        self.0.bits() as usize / 8
    }

    pub(crate) const fn name(self) -> &'static str {
        self.0.name()
    }

    pub(crate) const fn numpy(self) -> &'static str {
        self.0.numpy()
    }

    /// Types that array interfaces lack (bfloat16, 8-bit floats) appear there as plain bytes of that size.
    pub(crate) const fn typestr(self) -> &'static str {
        self.0.descr()
    }

    pub(crate) fn dlpack(self) -> PyResult<DataType> {
        let code = self.0.dlpack().ok_or_else(|| {
            PyBufferError::new_err(format!("DLPack has no type for {} in a byte or more each", self.numpy()))
        })?;
        Ok(DataType { code, bits: self.0.bits() as u8, lanes: 1 })
    }
}

/// A shape as people write it: a number or a sequence of them.
pub(crate) fn shape_of(shape: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    match shape.extract::<usize>() {
        Ok(one) => Ok(vec![one]),
        Err(_) => shape.extract().map_err(|_| {
            let text = shape.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
            invalid(format!("not a shape: {text}"), "a number of elements, or a tuple of them, none below 0")
        }),
    }
}

/// The bytes of a shape.
pub(crate) fn bytes_of(shape: &[usize], kind: Kind) -> PyResult<usize> {
    shape.iter().try_fold(kind.size(), |bytes, size| bytes.checked_mul(*size)).ok_or_else(|| {
        raise(&Error::new(ErrorKind::InvalidInput, "the array would be larger than any memory"))
    })
}

/// An array of forebay's own: contiguous memory of a GPU or the host, with a shape and a dtype. Other libraries see it
/// without a copy through `__cuda_array_interface__` (GPU), `__array_interface__` (host) and DLPack.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Array {
    buffer: Buffer,
    shape: Vec<usize>,
    kind: Kind,
}

impl Array {
    pub(crate) fn new(shape: Vec<usize>, kind: Kind, buffer: Buffer) -> Self {
        Self { buffer, shape, kind }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn item(&self) -> usize {
        self.kind.size()
    }

    /// Elements along each axis.
    pub(crate) fn sizes(&self) -> Vec<i64> {
        self.shape.iter().map(|size| *size as i64).collect()
    }

    fn is_host(&self) -> bool {
        self.buffer.device().info().is_host
    }

    pub(crate) fn typestr(&self) -> &'static str {
        self.kind.typestr()
    }

    pub(crate) fn gpu(&self) -> Option<usize> {
        (!self.is_host()).then(|| self.buffer.device().info().index)
    }

    /// Waits for the work queued on the default stream of its GPU.
    fn settle(slf: &Bound<'_, Self>) -> PyResult<()> {
        if slf.get().buffer.is_empty() {
            return Ok(());
        }
        let (session, view) = (session::session()?, View::of_ours(slf));
        match view.mark(&session, &view.memory(&session)?, None)? {
            Some(mark) => mark.wait(slf.py()),
            None => Ok(()),
        }
    }

    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let about = PyDict::new(py);
        about.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        about.set_item("typestr", self.kind.typestr())?;
        about.set_item("data", (self.buffer.address(), false))?;
        about.set_item("strides", py.None())?;
        about.set_item("version", 3)?;
        Ok(about)
    }
}

#[pymethods]
impl Array {
    /// Elements along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The type of the elements, by safetensors' name: "F32", "BF16", …
    #[getter]
    fn dtype(&self) -> &'static str {
        self.kind.name()
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.buffer.len()
    }

    /// Elements.
    #[getter]
    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// "cpu" or "cuda:0".
    #[getter]
    fn device(&self) -> String {
        session::name_of(self.buffer.device())
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// The bytes, copied to the host once the work queued on the default stream is done.
    fn tobytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        Self::settle(slf)?;
        let (py, own) = (slf.py(), slf.get());
        let bytes = py.detach(|| own.buffer.to_vec()).or_raise()?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Fills the array with the bytes of a host array of the same length, once the work queued on the default stream is
    /// done.
    fn fill_from(slf: &Bound<'_, Self>, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, own) = (slf.py(), slf.get());
        let view = View::of(source)?;
        if view.nbytes != own.buffer.len() {
            return Err(invalid(
                format!("{} bytes do not fill {} bytes", view.nbytes, own.buffer.len()),
                "give as many bytes as the array has",
            ));
        }
        if !view.memory(&session::session()?)?.device.info().is_host {
            return Err(invalid("the source is not in host memory", "copy it to the host first"));
        }
        Self::settle(slf)?;
        // SAFETY: the view's object keeps the bytes. A program that changes them meanwhile has a race of its own.
        let bytes = unsafe { std::slice::from_raw_parts(view.address as *const u8, view.nbytes) };
        let (device, address) = (own.buffer.device().clone(), own.buffer.address());
        py.detach(|| {
            let stream = device.stream(forebay_gpu::Context::PRIMARY)?;
            // SAFETY: both ranges live and have this length until the copy is done.
            unsafe { stream.copy_in(address, HostRange::of(bytes)) }?;
            stream.synchronize(forebay_gpu::Wait::Block)
        })
        .or_raise()
    }

    /// The array as numpy's: in place for host memory, a copy otherwise. Types that numpy lacks come as plain bytes of
    /// their size (`V2` for bfloat16).
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, own) = (slf.py(), slf.get());
        let numpy = py.import("numpy")?;
        if own.is_host() {
            return numpy.call_method1("asarray", (slf,));
        }
        let words = PyDict::new(py);
        words.set_item("dtype", own.kind.typestr())?;
        let flat = numpy.call_method("frombuffer", (Self::tobytes(slf)?,), Some(&words))?;
        flat.call_method1("reshape", (own.shape(py)?,))?.call_method0("copy")
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.is_host() {
            return Err(PyAttributeError::new_err("the array is in host memory"));
        }
        let about = self.interface(py)?;
        // forebay never queues work on it: its transfers have ended when their call or future has.
        about.set_item("stream", py.None())?;
        Ok(about)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.is_host() {
            return Err(PyAttributeError::new_err("the array is in GPU memory: array.numpy() copies it"));
        }
        self.interface(py)
    }

    /// numpy asks for this where there is no `__array_interface__`: without it, it would make an array of one object.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if !slf.get().is_host() {
            let error = PyTypeError::new_err("the array is in GPU memory: numpy cannot see it there");
            error.value(py).call_method1("add_note", ("hint: array.numpy() copies it to the host",))?;
            return Err(error);
        }
        let words = PyDict::new(py);
        words.set_item("dtype", dtype)?;
        words.set_item("copy", copy)?;
        py.import("numpy")?.call_method("array", (slf,), Some(&words))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        slf: &Bound<'_, Self>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<Bound<'_, PyTuple>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        // forebay has queued no work on the memory, so there is nothing that a stream would have to wait for.
        let _ = stream;
        let own = slf.get();
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != dlpack::device_pair(own.gpu())) {
            return Err(PyBufferError::new_err("forebay lends arrays where they are, without a copy"));
        }
        let offer = Offer {
            address: own.buffer.address(),
            shape: own.sizes(),
            dtype: own.kind.dlpack()?,
            gpu: own.gpu(),
            is_read_only: false,
            owner: slf.clone().into_any().unbind(),
        };
        dlpack::export(slf.py(), offer, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_pair(self.gpu())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.shape.first().copied().ok_or_else(|| PyTypeError::new_err("a scalar has no length"))
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Array: {:?} {} on {}>", self.shape, self.kind.name(), self.device())
    }
}

/// A new array, not initialised: `shape` elements (a number or several) of `dtype` (safetensors' or numpy's name, or a
/// dtype of numpy, torch or jax) on `device` ("cuda:0", "cpu", a number; by default the first GPU, or the host where there is none).
#[pyfunction]
#[pyo3(signature = (shape, dtype=None, device=None), text_signature = "(shape, dtype='uint8', device=None)")]
pub(crate) fn empty(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    dtype: Option<DtypeName>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<Array> {
    let (shape, kind) = (shape_of(shape)?, Kind::of_given(dtype.as_ref())?);
    let (bytes, device) = (bytes_of(&shape, kind)?, session::device(device)?);
    let buffer = py.detach(|| Buffer::new(device, bytes)).or_raise()?;
    Ok(Array::new(shape, kind, buffer))
}
