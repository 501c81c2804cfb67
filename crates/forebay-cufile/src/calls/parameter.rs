//! Options by number: `cuFileGetParameter…` and `cuFileSetParameter…`.

use std::ffi::{CStr, c_char, c_int, c_uint};

use forebay_config::cufile::{Pool, Settings};
use forebay_config::env;

use super::{give, guarded};
use crate::abi::{CUfileError, code};
use crate::library::library;
use crate::status::RefusedCall;

const INVALID: RefusedCall = RefusedCall(code::INVALID_VALUE);

/// Tells a number.
///
/// # Safety
/// `value` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterSizeT(parameter: c_uint, value: *mut usize) -> CUfileError {
    guarded(|| {
        let found = library().with_settings(|settings| settings.get_size(parameter));
        // SAFETY: passed on.
        unsafe { give(value, found.ok_or(INVALID)? as usize) }
    })
}

/// Tells whether an option is on.
///
/// # Safety
/// As [`cuFileGetParameterSizeT`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterBool(parameter: c_uint, value: *mut bool) -> CUfileError {
    guarded(|| {
        let found = library().with_settings(|settings| settings.get_bool(parameter));
        // SAFETY: passed on.
        unsafe { give(value, found.ok_or(INVALID)?) }
    })
}

/// Tells a text. `len` counts the room for it, with its final zero.
///
/// # Safety
/// `text` is null, which is an error, or has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterString(
    parameter: c_uint,
    text: *mut c_char,
    len: c_int,
) -> CUfileError {
    guarded(|| {
        let found = library()
            .with_settings(|settings| settings.get_string(parameter))
            .or_else(|| log_path(parameter));
        let found = found.ok_or(INVALID)?;
        if text.is_null() || usize::try_from(len).is_ok_and(|len| len <= found.len()) || len <= 0 {
            return Err(INVALID);
        }
        // SAFETY: there is room for the text and its zero.
        unsafe {
            std::ptr::copy_nonoverlapping(found.as_ptr().cast(), text, found.len());
            *text.add(found.len()) = 0;
        }
        Ok(())
    })
}

/// The path of the log in the environment now, if that is the parameter.
fn log_path(parameter: c_uint) -> Option<String> {
    use forebay_config::cufile::StringParameter::EnvLogfilePath;
    (parameter == EnvLogfilePath.number()).then(|| env::text("CUFILE_LOGFILE_PATH")).flatten()
}

/// Sets a number for the next opening.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileSetParameterSizeT(parameter: c_uint, value: usize) -> CUfileError {
    guarded(|| library().stage(|settings| settings.set_size(parameter, value as u64)))
}

/// Switches an option for the next opening.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileSetParameterBool(parameter: c_uint, value: bool) -> CUfileError {
    guarded(|| library().stage(|settings| settings.set_bool(parameter, value)))
}

/// Sets a text for the next opening.
///
/// # Safety
/// `text` is null, which is an error, or a string with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileSetParameterString(
    parameter: c_uint,
    text: *const c_char,
) -> CUfileError {
    guarded(|| {
        if text.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, and a string as the caller promises.
        let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| INVALID)?;
        library().stage(|settings| settings.set_string(parameter, text))
    })
}

/// Tells the range of a number; a greatest of 0 means that there is no limit.
///
/// # Safety
/// Both places are null, which is an error, or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterMinMaxValue(
    parameter: c_uint,
    least: *mut usize,
    greatest: *mut usize,
) -> CUfileError {
    guarded(|| {
        let range = Settings::min_max(parameter).ok_or(INVALID)?;
        if least.is_null() || greatest.is_null() {
            return Err(INVALID);
        }
        // SAFETY: passed on.
        unsafe {
            give(least, range.0 as usize)?;
            give(greatest, range.1 as usize)
        }
    })
}

/// # Safety
/// Both arrays are null or have `len` places.
unsafe fn set_slabs(
    pool: Pool,
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> Result<(), RefusedCall> {
    let count = usize::try_from(len).map_err(|_| INVALID)?;
    if sizes.is_null() || counts.is_null() || count == 0 {
        return Err(INVALID);
    }
    let read = |array| {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(array, count) }
            .iter()
            .map(|value: &usize| *value as u64)
            .collect()
    };
    let (sizes, counts): (Vec<u64>, Vec<u64>) = (read(sizes), read(counts));
    library().stage(|settings| settings.set_slabs(pool, &sizes, &counts))
}

/// # Safety
/// As [`set_slabs`].
unsafe fn get_slabs(
    pool: Pool,
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> Result<(), RefusedCall> {
    let slabs = library().with_settings(|settings| settings.slabs(pool).clone());
    if sizes.is_null()
        || counts.is_null()
        || usize::try_from(len).ok().is_none_or(|len| len < slabs.sizes_kb.len())
    {
        return Err(INVALID);
    }
    for (index, (size, count)) in slabs.sizes_kb.iter().zip(&slabs.counts).enumerate() {
        // SAFETY: there is room for as many as there are, as the caller promises.
        unsafe {
            sizes.add(index).write(*size as usize);
            counts.add(index).write(*count as usize);
        }
    }
    Ok(())
}

/// Sets the host buffers of the POSIX path: sizes in KiB and how many of each (kept, without effect).
///
/// # Safety
/// Both arrays are null, which is an error, or have `len` values.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileSetParameterPosixPoolSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { set_slabs(Pool::Posix, sizes, counts, len) })
}

/// Tells the host buffers of the POSIX path.
///
/// # Safety
/// Both arrays are null, which is an error, or have `len` places.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterPosixPoolSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { get_slabs(Pool::Posix, sizes, counts, len) })
}

/// Sets the bounce buffers in GPU memory (kept, without effect: there are none).
///
/// # Safety
/// As [`cuFileSetParameterPosixPoolSlabArray`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileSetParameterGpuBounceBufferSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { set_slabs(Pool::GpuBounce, sizes, counts, len) })
}

/// Tells the bounce buffers in GPU memory.
///
/// # Safety
/// As [`cuFileGetParameterPosixPoolSlabArray`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetParameterGpuBounceBufferSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { get_slabs(Pool::GpuBounce, sizes, counts, len) })
}
