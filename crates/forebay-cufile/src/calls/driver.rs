//! Opening and closing, properties, version.

use std::ffi::{c_int, c_long, c_uint};

use forebay_config::cufile::{BoolParameter, Settings, SizeParameter};
use forebay_error::Error;
use forebay_trace::Api;

use super::{give, guarded, guarded_plain};
use crate::abi::{
    CONTROL_ALLOW_COMPAT_MODE, CONTROL_USE_POLL_MODE, CUfileDrvProps, CUfileError, FEATURE_PARALLEL_IO,
    FEATURE_STREAMS, FEATURES, NvfsProps,
};
use crate::library::{CufileLibrary, library};
use crate::meter::meter;
use crate::status::RefusedCall;

/// Traces a call that opens or closes.
fn traced(api: Api, call: impl FnOnce(&CufileLibrary) -> Result<(), RefusedCall>) -> CUfileError {
    guarded(|| {
        let library = library();
        let begun = meter().begin_call();
        let result = call(library);
        meter().plain(api, begun, 0, 0, result);
        result
    })
}

fn close() -> CUfileError {
    traced(Api::DriverClose, CufileLibrary::close)
}

/// Whether the options leave operations in stream order switched on.
pub(crate) fn has_streams(settings: &Settings) -> bool {
    settings.flag(BoolParameter::ParallelIo) && settings.size(SizeParameter::MaxIoThreads) > 0
}

fn properties(settings: &Settings) -> CUfileDrvProps {
    let size = |parameter| settings.size(parameter).min(u64::from(u32::MAX)) as c_uint;
    let mut control = 0;
    if settings.flag(BoolParameter::UsePollMode) {
        control |= CONTROL_USE_POLL_MODE;
    }
    if settings.flag(BoolParameter::AllowCompatMode) {
        control |= CONTROL_ALLOW_COMPAT_MODE;
    }
    CUfileDrvProps {
        nvfs: NvfsProps {
            // There is no kernel module.
            major_version: 0,
            minor_version: 0,
            poll_thresh_size: settings.size(SizeParameter::PollThresholdSizeKb) as usize,
            max_direct_io_size: settings.size(SizeParameter::MaxDirectIoSizeKb) as usize,
            dstatusflags: 0,
            dcontrolflags: control,
        },
        fflags: if has_streams(settings) {
            FEATURES
        } else {
            FEATURES & !FEATURE_STREAMS & !FEATURE_PARALLEL_IO
        },
        max_device_cache_size: size(SizeParameter::MaxDeviceCacheSizeKb),
        per_buffer_cache_size: 0,
        max_device_pinned_mem_size: size(SizeParameter::MaxDevicePinnedMemSizeKb),
        max_batch_io_size: size(SizeParameter::IoBatchsize),
        max_batch_io_timeout_msecs: size(SizeParameter::BatchIoTimeoutMs),
    }
}

fn set(change: impl FnOnce(&mut Settings) -> Result<(), Error>) -> Result<(), RefusedCall> {
    library().set_now(change)
}

/// Opens the library for one more user.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverOpen() -> CUfileError {
    traced(Api::DriverOpen, CufileLibrary::open)
}

/// Closes the library for one user; the last one ends all that is registered.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverClose() -> CUfileError {
    close()
}

/// As [`cuFileDriverClose`], under the name that the header maps it to.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverClose_v2() -> CUfileError {
    close()
}

/// How many users have it open.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileUseCount() -> c_long {
    guarded_plain(|| library().users() as c_long)
}

/// Tells the options in force, as properties of a driver.
///
/// # Safety
/// `props` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileDriverGetProperties(props: *mut CUfileDrvProps) -> CUfileError {
    guarded(|| {
        // SAFETY: passed on.
        unsafe { give(props, library().with_settings(properties)) }
    })
}

/// Sets whether small transfers poll (kept, without effect), and up to which size in KiB.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverSetPollMode(poll: bool, threshold: usize) -> CUfileError {
    guarded(|| {
        set(|settings| {
            settings.set_size(SizeParameter::PollThresholdSizeKb.number(), threshold as u64)?;
            settings.set_bool(BoolParameter::UsePollMode.number(), poll)
        })
    })
}

fn set_size(parameter: SizeParameter, value: usize) -> CUfileError {
    guarded(|| set(|settings| settings.set_size(parameter.number(), value as u64)))
}

/// Sets the largest piece of a transfer in KiB (kept, without effect: pieces are cut by the engine).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverSetMaxDirectIOSize(size: usize) -> CUfileError {
    set_size(SizeParameter::MaxDirectIoSizeKb, size)
}

/// Sets the device memory for bounce buffers in KiB (kept, without effect: there are none).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverSetMaxCacheSize(size: usize) -> CUfileError {
    set_size(SizeParameter::MaxDeviceCacheSizeKb, size)
}

/// Sets the device memory that may be pinned, in KiB (kept, without effect: none is).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileDriverSetMaxPinnedMemSize(size: usize) -> CUfileError {
    set_size(SizeParameter::MaxDevicePinnedMemSizeKb, size)
}

/// Tells the version of the interface: 1150, or 1190 with `FOREBAY_CUFILE_VERSION=1.19`.
///
/// # Safety
/// `version` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetVersion(version: *mut c_int) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe { give(version, library().interface().number()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_those_of_a_machine_without_a_kernel_module() {
        let props = properties(&Settings::default());
        assert_eq!((props.nvfs.major_version, props.nvfs.minor_version, props.nvfs.dstatusflags), (0, 0, 0));
        assert_eq!((props.nvfs.dcontrolflags, props.fflags), (CONTROL_ALLOW_COMPAT_MODE, FEATURES));
        assert_eq!((props.max_batch_io_size, props.max_batch_io_timeout_msecs), (128, 5));
    }
}
