//! Arrays of any library as ranges of memory.

use std::sync::Arc;

use forebay_engine::{Memory, Session};
use forebay_gpu::Device;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::array::Array;
use crate::dlpack;
use crate::error::{OrRaise, invalid};
use crate::stream::Mark;

/// The interface of arrays in GPU memory.
const CUDA: &str = "__cuda_array_interface__";

/// The legacy default stream, behind which all blocking streams queue.
const DEFAULT_STREAM: u64 = 0;

/// Which arrays are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Those that are contiguous, in C order.
    Contiguous,
    /// Those of any strides.
    Strided,
}

/// Where an array has its elements.
pub(crate) struct Form {
    /// Elements along each dimension.
    pub(crate) shape: Vec<i64>,
    /// Bytes from one to the next in memory.
    pub(crate) strides: Vec<i64>,
}

impl Form {
    /// In C order without gaps.
    fn contiguous(shape: &[i64], item: usize) -> Self {
        let wider = |next: &mut i64, size: &i64| {
            let stride = *next;
            *next = stride.saturating_mul(*size);
            Some(stride)
        };
        let mut strides: Vec<i64> = shape.iter().rev().scan(item as i64, wider).collect();
        strides.reverse();
        Self { shape: shape.to_vec(), strides }
    }
}

/// One array's memory: contiguous, in C order, unless it was asked for by [`View::strided`].
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) nbytes: usize,
    pub(crate) is_read_only: bool,
    /// Bytes of an element, where the array tells.
    pub(crate) item: Option<usize>,
    /// What an element is, by numpy's letters in this machine's byte order (`i`, `u`, `f`, …), where the array tells.
    pub(crate) kind: Option<char>,
    /// The GPU that the array says it is on.
    gpu: Option<usize>,
    /// The stream whose queued work may still use the memory: a GPU's index and the stream's handle.
    stream: Option<(usize, u64)>,
    /// Keeps the memory alive.
    pub(crate) keep: Py<PyAny>,
    /// Of [`View::strided`]: where its elements are. The address is the first one's.
    pub(crate) form: Option<Form>,
}

impl View {
    /// The memory of an array: numpy, torch, cupy, jax, numba, anything with `__cuda_array_interface__`,
    /// `__array_interface__`, DLPack or the buffer protocol.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::with_memory(array, Layout::Contiguous)
    }

    /// As [`View::to_fill`], of an array of any strides.
    pub(crate) fn strided(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::writable(array, Layout::Strided)
    }

    fn with_memory(array: &Bound<'_, PyAny>, layout: Layout) -> PyResult<Self> {
        let view = Self::found(array, layout)?;
        if view.address == 0 && view.nbytes > 0 {
            return Err(no_memory());
        }
        Ok(view)
    }

    fn found(array: &Bound<'_, PyAny>, layout: Layout) -> PyResult<Self> {
        if let Ok(own) = array.cast::<Array>() {
            return Ok(Self::of_ours(own));
        }
        if is_torch(array)? {
            return Self::of_torch(array, layout);
        }
        if is_jax(array)? {
            if array.call_method0("is_deleted")?.is_truthy()? {
                return Err(invalid(
                    "the array was deleted: jax gave its memory to another one",
                    "use what the function returned that it was donated to",
                ));
            }
            // Its arrays name no stream: the kernel that makes one may still run.
            array.call_method0("block_until_ready")?;
        }
        if let Some(view) = Self::of_interface(array, CUDA, layout)? {
            return Ok(view);
        }
        if let Some(view) = Self::of_interface(array, "__array_interface__", layout)? {
            return Ok(view);
        }
        if let Ok(buffer) = PyUntypedBuffer::get(array) {
            return Self::of_buffer(array, &buffer, layout);
        }
        if let Some(imported) = dlpack::import(array)? {
            return Self::of_dlpack(array, imported, layout);
        }
        Err(PyTypeError::new_err(format!(
            "no array that forebay knows: {} has neither DLPack, __cuda_array_interface__, __array_interface__ nor a buffer",
            array.get_type().name()?
        )))
    }

    /// As [`View::of`], for a read: the memory has to be writable.
    pub(crate) fn to_fill(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::writable(array, Layout::Contiguous)
    }

    fn writable(array: &Bound<'_, PyAny>, layout: Layout) -> PyResult<Self> {
        if is_jax(array)? {
            return Err(invalid(
                "jax arrays cannot be filled: they never change",
                "load into a new one (forebay.load_file(…, framework=\"jax\")), or read into numpy and jax.device_put it",
            ));
        }
        let view = Self::with_memory(array, layout)?;
        if view.is_read_only {
            return Err(invalid("the array is read-only", "give a writable one: array.copy()"));
        }
        Ok(view)
    }

    pub(crate) fn of_ours(array: &Bound<'_, Array>) -> Self {
        let own = array.get();
        Self {
            address: own.buffer().address(),
            nbytes: own.buffer().len(),
            is_read_only: false,
            item: Some(own.item()),
            kind: kind_of(own.typestr()),
            gpu: own.gpu(),
            // Kernels of others may be queued on it, by default there.
            stream: own.gpu().map(|gpu| (gpu, DEFAULT_STREAM)),
            keep: array.clone().into_any().unbind(),
            form: Some(Form::contiguous(&own.sizes(), own.item())),
        }
    }

    fn of_torch(tensor: &Bound<'_, PyAny>, layout: Layout) -> PyResult<Self> {
        // Of some kinds torch answers nothing but errors of its own. What a tensor lacks is said in Python.
        if Self::is_plain_torch(tensor, layout).unwrap_or(false) {
            return Self::of_plain_torch(tensor, layout);
        }
        let module = tensor.py().import("forebay.frameworks.torch")?;
        let refusal = module.call_method1("refusal", (tensor, layout == Layout::Contiguous))?;
        if refusal.is_none() { Self::of_plain_torch(tensor, layout) } else { Err(PyErr::from_value(refusal)) }
    }

    /// Whether its elements lie in memory as its shape and strides say, all of which is there.
    fn is_plain_torch(tensor: &Bound<'_, PyAny>, layout: Layout) -> PyResult<bool> {
        let is = |method: &str| tensor.call_method0(method)?.is_truthy();
        if is("is_conj")?
            || is("is_neg")?
            || (layout == Layout::Contiguous && !is("is_contiguous")?)
            || tensor.getattr("is_nested")?.is_truthy()?
        {
            return Ok(false);
        }
        let number = |method: &str| tensor.call_method0(method)?.extract::<u64>();
        let (item, count, before) = (number("element_size")?, number("numel")?, number("storage_offset")?);
        let storage: u64 = tensor.call_method0("untyped_storage")?.call_method0("nbytes")?.extract()?;
        let reach = match layout {
            Layout::Contiguous => count,
            Layout::Strided => reach_of(&torch_form(tensor, 1)?),
        };
        let end = before.checked_add(reach).and_then(|end| end.checked_mul(item));
        Ok(count == 0 || end.is_some_and(|end| end <= storage) && number("data_ptr")? != 0)
    }

    fn of_plain_torch(tensor: &Bound<'_, PyAny>, layout: Layout) -> PyResult<Self> {
        let py = tensor.py();
        let item: usize = tensor.call_method0("element_size")?.extract()?;
        let count: usize = tensor.call_method0("numel")?.extract()?;
        let device = tensor.getattr("device")?;
        let place: String = device.getattr("type")?.extract()?;
        let stream = match place.as_str() {
            "cpu" => None,
            "cuda" => {
                let index: usize = device.getattr("index")?.extract()?;
                let current = py.import("torch.cuda")?.call_method1("current_stream", (&device,))?;
                Some((index, current.getattr("cuda_stream")?.extract()?))
            }
            other => {
                return Err(invalid(
                    format!("a tensor on a device of type {other:?}"),
                    "use \"cpu\" or \"cuda\" tensors",
                ));
            }
        };
        let form = (layout == Layout::Strided).then(|| torch_form(tensor, item as i64)).transpose()?;
        Ok(Self {
            address: tensor.call_method0("data_ptr")?.extract()?,
            nbytes: item * count,
            is_read_only: false,
            item: Some(item),
            kind: None,
            gpu: stream.map(|(gpu, _)| gpu),
            stream,
            keep: tensor.clone().unbind(),
            form,
        })
    }

    /// `__cuda_array_interface__` (versions 2 and 3) and numpy's `__array_interface__` have the same form.
    fn of_interface(array: &Bound<'_, PyAny>, name: &str, layout: Layout) -> PyResult<Option<Self>> {
        let py = array.py();
        let about = match array.getattr(PyString::intern(py, name)) {
            Ok(about) => about.cast_into::<PyDict>()?,
            Err(error) if error.is_instance_of::<PyAttributeError>(py) => return Ok(None),
            Err(error) => return Err(error),
        };
        let field = |key: &str| about.get_item(key);
        let Some(shape) = field("shape")? else { return Ok(None) };
        let (Some(typestr), Some(data)) = (field("typestr")?, field("data")?) else { return Ok(None) };
        // Old numpy-like objects may offer a buffer here instead of an address.
        let Ok((address, is_read_only)) = data.extract::<(Option<u64>, bool)>() else { return Ok(None) };
        let shape: Vec<i64> = shape.extract()?;
        let typestr = typestr.extract::<String>()?;
        let item = item_of(&typestr)?;
        if has_objects(array, field("descr")?)? {
            return Err(no_bytes("object"));
        }
        let strides = field("strides")?.filter(|strides| !strides.is_none());
        let strides: Option<Vec<i64>> = strides.map(|strides| strides.extract()).transpose()?;
        let hint = "numpy.ascontiguousarray(array), cupy.ascontiguousarray(array)";
        let form = form_of(&shape, strides, item, layout).ok_or_else(|| not_contiguous(hint))?;
        let address = address.unwrap_or(0);
        let gpu = if name == CUDA { Some(device_of(address)?) } else { None };
        // One that names no stream may still have kernels queued on the default one.
        let stream =
            field("stream")?.filter(|stream| !stream.is_none()).map(|stream| stream.extract::<u64>());
        let stream = stream.transpose()?.unwrap_or(DEFAULT_STREAM);
        let nbytes = bytes_of(&shape, item)?;
        check_bytes(array, nbytes)?;
        Ok(Some(Self {
            address,
            nbytes,
            is_read_only,
            item: Some(item),
            kind: kind_of(&typestr),
            gpu,
            stream: gpu.map(|gpu| (gpu, stream)),
            keep: array.clone().unbind(),
            form: Some(form),
        }))
    }

    fn of_buffer(array: &Bound<'_, PyAny>, buffer: &PyUntypedBuffer, layout: Layout) -> PyResult<Self> {
        // Arrays of pointers to rows have suboffsets.
        if !buffer.is_c_contiguous() && (layout == Layout::Contiguous || buffer.suboffsets().is_some()) {
            return Err(not_contiguous("bytearray(view)"));
        }
        let form = Form {
            shape: buffer.shape().iter().map(|size| *size as i64).collect(),
            strides: buffer.strides().iter().map(|stride| *stride as i64).collect(),
        };
        let format = buffer.format().to_string_lossy();
        // Names of fields stand between colons.
        if format.split(':').step_by(2).any(|codes| codes.contains('O')) {
            return Err(no_bytes(&format));
        }
        // A memoryview holds the export, so that a bytearray cannot be resized meanwhile.
        let keep = array.py().import("builtins")?.call_method1("memoryview", (array,))?;
        Ok(Self {
            address: buffer.buf_ptr() as u64,
            nbytes: buffer.len_bytes(),
            is_read_only: buffer.readonly(),
            item: Some(buffer.item_size()),
            kind: kind_of_format(&format),
            gpu: None,
            stream: None,
            keep: keep.unbind(),
            form: Some(form),
        })
    }

    fn of_dlpack(array: &Bound<'_, PyAny>, imported: dlpack::Imported, layout: Layout) -> PyResult<Self> {
        let item = (usize::from(imported.dtype.bits) * usize::from(imported.dtype.lanes)).div_ceil(8);
        let in_bytes = |stride: &i64| stride.saturating_mul(item as i64);
        let strides = imported.strides.as_ref().map(|strides| strides.iter().map(in_bytes).collect());
        let form = form_of(&imported.shape, strides, item, layout)
            .ok_or_else(|| not_contiguous("make a contiguous copy"))?;
        let keep = (imported.capsule, array.clone()).into_pyobject(array.py())?;
        Ok(Self {
            address: imported.address,
            nbytes: bytes_of(&imported.shape, item)?,
            is_read_only: imported.is_read_only,
            item: Some(item),
            kind: ['i', 'u', 'f'].get(usize::from(imported.dtype.code)).copied(),
            gpu: imported.gpu,
            // The producer made this one wait.
            stream: imported.gpu.map(|gpu| (gpu, DEFAULT_STREAM)),
            keep: keep.into_any().unbind(),
            form: Some(form),
        })
    }

    /// Where the memory is, as the driver says. An error if it is a GPU's that this process cannot use: in a forked
    /// child, nobody may touch its addresses.
    pub(crate) fn memory(&self, session: &Session) -> PyResult<Memory> {
        match self.gpu {
            Some(gpu) if session.devices().gpus.is_empty() => Err(crate::session::no_gpu(session, gpu)),
            _ => session.locate(self.address).or_raise(),
        }
    }

    /// The stream whose queued work may still use the memory: a GPU's index and the stream's handle.
    pub(crate) fn stream(&self) -> Option<(usize, u64)> {
        self.stream
    }

    /// The wait before the memory, which is there, may be used: work on `given`, or on the stream that the array named.
    pub(crate) fn mark(
        &self,
        session: &Session,
        memory: &Memory,
        given: Option<u64>,
    ) -> PyResult<Option<Mark>> {
        let device: Arc<dyn Device> = match (&self.stream, memory.device.info().is_host) {
            (Some((index, _)), _) => session.device(*index).or_raise()?,
            (None, false) => memory.device.clone(),
            (None, true) => return Ok(None),
        };
        match given.or(self.stream.map(|(_, handle)| handle)) {
            // The interface's names for the default streams are the driver's.
            Some(handle) => Mark::set(&device, handle),
            None => Ok(None),
        }
    }
}

fn device_of(address: u64) -> PyResult<usize> {
    let memory = crate::session::session()?.locate(address).or_raise()?;
    Ok(if memory.device.info().is_host { 0 } else { memory.device.info().index })
}

/// `"<f4"` → 4, `"<U5"` → 20.
fn item_of(typestr: &str) -> PyResult<usize> {
    let unit = match typestr.chars().nth(1) {
        // Characters of text have four bytes.
        Some('U') => 4,
        Some('b' | 'i' | 'u' | 'f' | 'c' | 'm' | 'M' | 'S' | 'V') => 1,
        _ => return Err(no_bytes(typestr)),
    };
    let digits = typestr.get(2..).and_then(|digits| digits.split('[').next());
    let count = digits.and_then(|digits| digits.parse::<usize>().ok());
    count.and_then(|count| count.checked_mul(unit)).ok_or_else(|| no_bytes(typestr))
}

/// `"<f4"` → `f`; `None` for the other byte order.
fn kind_of(typestr: &str) -> Option<char> {
    let mut letters = typestr.chars();
    let other = if cfg!(target_endian = "little") { '>' } else { '<' };
    letters.next().filter(|order| *order != other).and_then(|_| letters.next())
}

/// The kind of a buffer's format.
fn kind_of_format(format: &str) -> Option<char> {
    match format.trim_start_matches(['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }]) {
        "b" | "h" | "i" | "l" | "q" | "n" => Some('i'),
        "B" | "H" | "I" | "L" | "Q" | "N" => Some('u'),
        "e" | "f" | "d" => Some('f'),
        _ => None,
    }
}

fn no_bytes(what: &str) -> PyErr {
    invalid(format!("an array of elements that have no bytes of their own ({what})"), "use a numeric dtype")
}

/// Whether elements hold references to Python's objects, be it in one of their fields: `typestr` says only how large
/// those with fields are.
fn has_objects(array: &Bound<'_, PyAny>, descr: Option<Bound<'_, PyAny>>) -> PyResult<bool> {
    let py = array.py();
    let dtype = array.getattr_opt(pyo3::intern!(py, "dtype"))?;
    let told = dtype.map(|dtype| dtype.getattr_opt(pyo3::intern!(py, "hasobject"))).transpose()?.flatten();
    match (told, descr) {
        (Some(told), _) => told.is_truthy(),
        (None, Some(descr)) => Ok(names_objects(&descr)),
        (None, None) => Ok(false),
    }
}

/// Whether a `descr` (`[(name, typestr or descr, …), …]`) has a field of objects.
fn names_objects(descr: &Bound<'_, PyAny>) -> bool {
    if let Ok(typestr) = descr.extract::<String>() {
        return typestr.chars().nth(1) == Some('O');
    }
    let Ok(fields) = descr.cast::<PyList>() else { return false };
    fields.iter().any(|field| field.get_item(1).is_ok_and(|form| names_objects(&form)))
}

/// What the array itself says about its size has to be what its interface says.
fn check_bytes(array: &Bound<'_, PyAny>, nbytes: usize) -> PyResult<()> {
    let told = array.getattr_opt(pyo3::intern!(array.py(), "nbytes"))?;
    match told.and_then(|told| told.extract::<usize>().ok()) {
        Some(told) if told != nbytes => Err(invalid(
            format!("the array has {told} bytes, and its interface describes {nbytes}"),
            "view it as bytes: array.view(\"uint8\")",
        )),
        _ => Ok(()),
    }
}

fn bytes_of(shape: &[i64], item: usize) -> PyResult<usize> {
    shape
        .iter()
        .try_fold(item, |bytes, size| usize::try_from(*size).ok().and_then(|size| bytes.checked_mul(size)))
        .ok_or_else(|| invalid("the array's shape is impossible", "check array.shape"))
}

/// Whether strides (in units of `item`'s unit) are those of C order. Axes of one element may have any.
fn is_contiguous(shape: &[i64], strides: &[i64], item: i64) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = item;
    for (size, stride) in shape.iter().zip(strides).rev() {
        if *size != 1 {
            if *stride != expected {
                return false;
            }
            expected *= size;
        }
    }
    true
}

/// Where elements are; strides in bytes. `None` if the layout that is wanted is another.
fn form_of(shape: &[i64], strides: Option<Vec<i64>>, item: usize, layout: Layout) -> Option<Form> {
    let Some(strides) = strides else { return Some(Form::contiguous(shape, item)) };
    let fits = layout == Layout::Strided || is_contiguous(shape, &strides, item as i64);
    (fits && strides.len() == shape.len()).then(|| Form { shape: shape.to_vec(), strides })
}

/// Where a torch tensor's elements are, `item` bytes each.
fn torch_form(tensor: &Bound<'_, PyAny>, item: i64) -> PyResult<Form> {
    let numbers = |method: &str| tensor.call_method0(method)?.extract::<Vec<i64>>();
    let strides = numbers("stride")?.into_iter().map(|stride| stride.saturating_mul(item)).collect();
    Ok(Form { shape: numbers("size")?, strides })
}

/// Up to where elements reach from the first one on, where strides are not below 0.
fn reach_of(form: &Form) -> u64 {
    let spans = form.shape.iter().zip(&form.strides).map(|(size, stride)| (size - 1).saturating_mul(*stride));
    spans.fold(1, |reach: u64, span| reach.saturating_add_signed(span))
}

/// For an array whose bytes lie nowhere.
pub(crate) fn no_memory() -> PyErr {
    invalid(
        "an array without memory",
        "give one that has its data: torch's device \"meta\" and FakeTensorMode have none",
    )
}

fn not_contiguous(hint: &str) -> PyErr {
    invalid("the array is not contiguous (C order)", format!("make a contiguous one: {hint}"))
}

/// The class `name` of a module that the program has imported already.
fn imported<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    // A module that is half imported may lack the class.
    Ok(modules.get_item(module)?.and_then(|module| module.getattr(name).ok()))
}

fn is_torch(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    match imported(array.py(), "torch", "Tensor")? {
        Some(class) => array.is_instance(&class),
        None => Ok(false),
    }
}

fn is_jax(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    match imported(array.py(), "jax", "Array")? {
        Some(class) => array.is_instance(&class),
        None => Ok(false),
    }
}
