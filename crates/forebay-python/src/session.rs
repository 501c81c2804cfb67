//! The process's session, and what Python asks of it directly.

use std::ffi::CString;
use std::sync::{Arc, Once};

use forebay_config::env;
use forebay_engine::Session;
use forebay_error::{Error, ErrorKind};
use forebay_gpu::Device;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::error::{OrRaise, invalid};

/// The process's session: the same that a loaded libcufile of ours uses.
pub(crate) fn session() -> PyResult<Session> {
    static WARNED: Once = Once::new();
    forebay_libcufile::register();
    if !WARNED.is_completed() {
        let mut unknown = Vec::new();
        WARNED.call_once(|| unknown = env::unknown());
        Python::attach(|py| unknown.iter().try_for_each(|one| warn(py, &one.to_string())))?;
    }
    Session::open().or_raise()
}

/// A warning at the line of the program that called forebay.
fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let text = CString::new(text.replace('\0', "?"))?;
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)
}

/// What a `device` argument names: `"cpu"`, `"cuda"`, `"cuda:1"`, a number, or an object that prints as one of these
/// (`torch.device`). `None`: the first GPU, or the host where there is none.
pub(crate) fn device(name: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<dyn Device>> {
    let session = session()?;
    let Some(name) = name else { return session.device(0).or_raise() };
    if let Ok(index) = name.extract::<usize>() {
        return gpu(&session, index);
    }
    let text = name.str()?.to_string();
    match text.to_ascii_lowercase().as_str() {
        "cpu" | "host" => Ok(session.devices().host.clone()),
        "cuda" | "gpu" => gpu(&session, 0),
        other => match other.strip_prefix("cuda:").or(other.strip_prefix("gpu:")).map(str::parse) {
            Some(Ok(index)) => gpu(&session, index),
            _ => Err(invalid(
                format!("unknown device: {text:?}"),
                "use \"cpu\", \"cuda\", \"cuda:1\" or a GPU's number",
            )),
        },
    }
}

/// GPU `index`; unlike the command line's device 0, never the host.
pub(crate) fn gpu(session: &Session, index: usize) -> PyResult<Arc<dyn Device>> {
    session.devices().gpus.get(index).cloned().ok_or_else(|| no_gpu(session, index))
}

/// Why there is no GPU `index`.
pub(crate) fn no_gpu(session: &Session, index: usize) -> PyErr {
    let devices = session.devices();
    let (error, hint) = match (&devices.missing, devices.gpus.len()) {
        (Some(missing), _) => {
            let text = format!("no GPU can be used: {}", missing.message());
            let error = Error::new(missing.kind(), text);
            (missing.hints().iter().fold(error, Error::hint), "for host memory: device=\"cpu\"".to_owned())
        }
        (None, 0) => (Error::new(ErrorKind::InvalidInput, "there is no GPU"), "device=\"cpu\"".to_owned()),
        (None, count) => {
            let error = Error::new(ErrorKind::InvalidInput, "there is no GPU of this number");
            let last = count - 1;
            let hint =
                if last == 0 { "\"cuda:0\"".to_owned() } else { format!("\"cuda:0\" to \"cuda:{last}\"") };
            (error.with("gpu", index).with("gpus", count), format!("use device={hint}"))
        }
    };
    crate::error::raise(&error.hint(hint))
}

/// How a device is called in Python: `"cpu"` or `"cuda:0"`.
pub(crate) fn name_of(device: &Arc<dyn Device>) -> String {
    let info = device.info();
    if info.is_host { "cpu".to_owned() } else { format!("cuda:{}", info.index) }
}

/// How many GPUs this process sees.
#[pyfunction]
pub(crate) fn device_count() -> PyResult<usize> {
    Ok(session()?.devices().gpus.len())
}

/// The product name of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn device_name(device: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    Ok(self::device(device)?.info().name.clone())
}

/// What is worth knowing about this process, as (text, hint or None): that several builds of forebay are loaded, or that
/// something works less well than it could. Empty as a rule.
#[pyfunction]
pub(crate) fn notes() -> PyResult<Vec<(String, Option<String>)>> {
    Ok(session()?.notes().into_iter().map(|note| (note.text, note.hint)).collect())
}

/// Lets go of all pinned file pages that nothing uses at the moment; the bytes.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> PyResult<u64> {
    let session = session()?;
    Ok(py.detach(|| session.trim()))
}
