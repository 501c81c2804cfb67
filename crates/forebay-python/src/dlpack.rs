//! DLPack: how arrays of any library say where their memory is. The structures are those of `dlpack.h` 1.1
//! (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    index: i32,
}

/// Code, bits, lanes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

// ---- coming in ----------------------------------------------------------------------------------------------------

/// The description of a foreign tensor.
pub(crate) struct Imported {
    pub(crate) address: u64,
    pub(crate) shape: Vec<i64>,
    /// In elements; `None`: C order without gaps.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) dtype: DataType,
    pub(crate) is_read_only: bool,
    /// The GPU's index; `None` for host memory.
    pub(crate) gpu: Option<usize>,
    /// Keeps the memory: when it is dropped unconsumed, it gives the tensor back.
    pub(crate) capsule: Py<PyAny>,
}

/// Asks an array for its tensor, or says `None` if it knows no DLPack. Its producer makes the legacy default stream
/// wait for what it has queued on the memory.
pub(crate) fn import(array: &Bound<'_, PyAny>) -> PyResult<Option<Imported>> {
    let Ok(method) = array.getattr("__dlpack__") else { return Ok(None) };
    let (kind, index): (i32, i32) = array.call_method0("__dlpack_device__")?.extract()?;
    let gpu = match kind {
        CPU => None,
        // Memory that both sides reach: the engine asks the driver what it is.
        CUDA | CUDA_HOST | CUDA_MANAGED => Some(index.max(0) as usize),
        other => {
            return Err(PyBufferError::new_err(format!(
                "memory of an unknown kind of device (DLPack {other})"
            )));
        }
    };
    let capsule = call(&method, (kind == CUDA).then_some(1))?;
    let tensor = tensor_of(&capsule)?;
    let Some((tensor, is_read_only)) = tensor else {
        return Err(PyTypeError::new_err("__dlpack__ gave no DLPack capsule"));
    };
    let ndim = tensor.ndim.max(0) as usize;
    // SAFETY: `shape` and `strides` (unless null) have `ndim` entries as long as the capsule lives.
    let list = |at: *mut i64| unsafe { std::slice::from_raw_parts(at, ndim) }.to_vec();
    Ok(Some(Imported {
        address: tensor.data as u64 + tensor.byte_offset,
        shape: if ndim == 0 { Vec::new() } else { list(tensor.shape) },
        strides: (ndim > 0 && !tensor.strides.is_null()).then(|| list(tensor.strides)),
        dtype: tensor.dtype,
        is_read_only,
        gpu,
        capsule: capsule.unbind(),
    }))
}

/// With the newest protocol that we know; older producers do not take `max_version`.
fn call<'py>(method: &Bound<'py, PyAny>, stream: Option<i32>) -> PyResult<Bound<'py, PyAny>> {
    let py = method.py();
    let words = PyDict::new(py);
    if let Some(stream) = stream {
        words.set_item("stream", stream)?;
    }
    words.set_item("max_version", (1, 1))?;
    match method.call((), Some(&words)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            words.del_item("max_version")?;
            method.call((), Some(&words))
        }
        other => other,
    }
}

/// The tensor in a capsule, and whether it is read-only.
fn tensor_of<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<Option<(&'a Tensor, bool)>> {
    let raw = capsule.as_ptr();
    // SAFETY: `raw` is an object; a capsule of that name holds the structure that DLPack says, and keeps it while it
    // lives.
    unsafe {
        if ffi::PyCapsule_IsValid(raw, VERSIONED.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(raw, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
            let Some(managed) = managed.as_ref() else { return Ok(None) };
            if managed.major != 1 {
                return Err(PyBufferError::new_err(format!("DLPack {} is not known here", managed.major)));
            }
            return Ok(Some((&managed.tensor, managed.flags & READ_ONLY != 0)));
        }
        if ffi::PyCapsule_IsValid(raw, PLAIN.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(raw, PLAIN.as_ptr()).cast::<Managed>();
            return Ok(managed.as_ref().map(|managed| (&managed.tensor, false)));
        }
    }
    Ok(None)
}

// ---- going out ----------------------------------------------------------------------------------------------------

/// The exported tensor.
pub(crate) struct Offer {
    pub(crate) address: u64,
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: DataType,
    pub(crate) gpu: Option<usize>,
    pub(crate) is_read_only: bool,
    /// Owns the memory.
    pub(crate) owner: Py<PyAny>,
}

struct ExportContext {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Py<PyAny>,
}

/// What `__dlpack_device__` answers.
pub(crate) fn device_pair(gpu: Option<usize>) -> (i32, i32) {
    gpu.map_or((CPU, 0), |index| (CUDA, index as i32))
}

/// A capsule for `offer`: a versioned one where the consumer knows those.
pub(crate) fn export(
    py: Python<'_>,
    offer: Offer,
    max_version: Option<Bound<'_, PyTuple>>,
) -> PyResult<Py<PyAny>> {
    let is_versioned = match max_version {
        Some(version) => version.get_item(0)?.extract::<u32>()? >= 1,
        None => false,
    };
    if offer.is_read_only && !is_versioned {
        return Err(PyBufferError::new_err(
            "the memory is read-only, which this consumer's DLPack cannot say",
        ));
    }
    let mut lent = Box::new(ExportContext {
        strides: strides_of(&offer.shape),
        shape: offer.shape,
        _owner: offer.owner,
    });
    let (kind, index) = device_pair(offer.gpu);
    let tensor = Tensor {
        data: offer.address as *mut c_void,
        device: Device { kind, index },
        ndim: lent.shape.len() as i32,
        dtype: offer.dtype,
        shape: lent.shape.as_mut_ptr(),
        strides: lent.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(lent).cast::<c_void>();
    let (pointer, name, destroy): (*mut c_void, _, ffi::PyCapsule_Destructor) = if is_versioned {
        let flags = if offer.is_read_only { READ_ONLY } else { 0 };
        let deleter = Some(give_back_versioned as unsafe extern "C" fn(*mut ManagedVersioned));
        let managed = ManagedVersioned { major: 1, minor: 1, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED, destroy_versioned)
    } else {
        let deleter = Some(give_back as unsafe extern "C" fn(*mut Managed));
        (Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast(), PLAIN, destroy_plain)
    };
    // SAFETY: the pointer is ours and stays until the deleter; on failure the exception is set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy))) }
        .map(Bound::unbind)
}

fn strides_of(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// # Safety
/// `managed` came from [`export`] and is given back once.
unsafe extern "C" fn give_back(managed: *mut Managed) {
    // SAFETY: made by `Box::into_raw` in `export`, as was its context.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).context.cast::<ExportContext>())) };
}

/// # Safety
/// As [`give_back`].
unsafe extern "C" fn give_back_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `give_back`.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).context.cast::<ExportContext>())) };
}

/// A capsule that nobody consumed still has its name.
///
/// # Safety
/// `capsule` is a capsule from [`export`] that is being destroyed.
unsafe extern "C" fn destroy_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: see above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) != 0 {
            give_back(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As [`destroy_plain`].
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: see above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            give_back_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
