//! Explains the driver's result codes.

use std::ffi::c_int;

use forebay_error::{Error, ErrorKind};

use super::driver;

/// The code of a [`CudaFailure`] whose function the library lacks. The driver's own codes are not negative.
pub(crate) const MISSING: c_int = -1;

/// A call that failed: small and `Copy`, so that hot paths pay nothing for the words that an [`Error`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CudaFailure {
    pub(crate) call: &'static str,
    pub(crate) code: c_int,
}

impl CudaFailure {
    /// What the failure means to the caller.
    fn kind(self) -> ErrorKind {
        match self.code {
            2 => ErrorKind::DeviceOutOfMemory,
            // Not initialised, a stub library, driver older or newer than its kernel module, forward compatibility
            // package on a GPU that does not take it.
            3 | 34 | 803 | 804 => ErrorKind::DriverMissing,
            100 | 101 => ErrorKind::NotFound,
            1 | 200 | 400 | 500 | 713 => ErrorKind::InvalidInput,
            // The device is in exclusive use; a stream is being captured.
            46 | 802 | 900..=908 => ErrorKind::Busy,
            712 => ErrorKind::AlreadyExists,
            800 => ErrorKind::PermissionDenied,
            // No binary, invalid or too new PTX, no JIT compiler, plainly not supported, function absent.
            MISSING | 209 | 218 | 221..=223 | 801 => ErrorKind::Unsupported,
            // A context that is gone; ECC, NVLink, broken channels; faults of a kernel, after which the context answers nothing
            // else.
            4 | 201 | 214 | 219 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=721 | 819 | 999 => {
                ErrorKind::DeviceLost
            }
            909 => ErrorKind::Timeout,
            _ => ErrorKind::Io,
        }
    }

    /// What the user can type or change.
    fn hint(self) -> Option<&'static str> {
        Some(match self.code {
            MISSING => "this driver is older than the function: update the NVIDIA driver (see nvidia-smi)",
            2 => "free device memory or use smaller buffers: nvidia-smi shows who holds it",
            3 if self.call == "cuInit" => {
                "after a fork the driver answers nothing if the parent used it: start children by exec (Python: spawn or forkserver)"
            }
            34 => "the toolkit's stub library was loaded: take .../stubs out of LD_LIBRARY_PATH",
            46 => "another process holds the GPU exclusively: nvidia-smi -q -d COMPUTE",
            100 => "check CUDA_VISIBLE_DEVICES and nvidia-smi; a container needs --gpus all",
            802 => "the NVSwitch fabric is not up: systemctl status nvidia-fabricmanager",
            803 => "driver library and kernel module differ: reboot, or reload the nvidia modules",
            804 => "take the cuda-compat library out of LD_LIBRARY_PATH, or update the driver",
            805..=807 => "check that the MPS daemon runs: echo get_server_list | nvidia-cuda-mps-control",
            201 | 709 => "its context is gone: end all transfers before cuCtxDestroy or cudaDeviceReset",
            214 => "the GPU reports an uncorrectable memory error: nvidia-smi -q -d ECC",
            304 | 999 if self.call == "cuInit" => {
                "check ls -l /dev/nvidia* and load the module: sudo modprobe nvidia-uvm; then dmesg | grep -i nvrm"
            }
            900..=908 => "a CUDA stream is being captured: end the capture before this call",
            _ if self.kind() == ErrorKind::DeviceLost => {
                "see dmesg | grep -i xid; the process must be restarted"
            }
            _ => return None,
        })
    }
}

impl From<CudaFailure> for Error {
    #[cold]
    fn from(failure: CudaFailure) -> Self {
        let call = failure.call.trim_end_matches("_v2");
        let error = if failure.code == MISSING {
            Self::new(ErrorKind::Unsupported, format!("the GPU driver lacks {}", failure.call))
        } else {
            let (name, text) =
                driver::loaded().map_or((None, None), |driver| driver.symbols.describe(failure.code));
            let name = name.unwrap_or_else(|| format!("CUDA error {}", failure.code));
            let text = text.map(|text| format!(", {text}")).unwrap_or_default();
            Self::new(failure.kind(), format!("{call} failed: {name}{text}"))
        };
        match failure.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_kinds() {
        for (code, kind) in [
            (1, ErrorKind::InvalidInput),
            (2, ErrorKind::DeviceOutOfMemory),
            (100, ErrorKind::NotFound),
            (201, ErrorKind::DeviceLost),
            (700, ErrorKind::DeviceLost),
            (719, ErrorKind::DeviceLost),
            (801, ErrorKind::Unsupported),
            (803, ErrorKind::DriverMissing),
            (900, ErrorKind::Busy),
            (MISSING, ErrorKind::Unsupported),
        ] {
            assert_eq!(CudaFailure { call: "cuTest", code }.kind(), kind, "{code}");
        }
    }
}
