//! The part of cuFile's C interface that the engine calls: numbers, structures and functions, as facts of the interface.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// What a call answers: a code of libcufile's, and one of the driver's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: c_int,
    pub(super) cuda: c_int,
}

/// A file that the library knows.
pub(super) type FileHandle = *mut c_void;

/// `CUfileDescr_t`: the file to register. A kind, a union of descriptor and pointer, a table of functions.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Description([u64; 3]);

impl Description {
    /// An ordinary file, by its descriptor.
    pub(super) const fn of(fd: c_int) -> Self {
        const BY_DESCRIPTOR: u64 = 1;
        Self([BY_DESCRIPTOR, fd as u32 as u64, 0])
    }
}

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Properties {
    pub(super) nvidia_fs_major: c_uint,
    pub(super) nvidia_fs_minor: c_uint,
    pub(super) poll_threshold_kb: usize,
    pub(super) max_direct_io_kb: usize,
    pub(super) supported: c_uint,
    pub(super) control: c_uint,
    pub(super) features: c_uint,
    pub(super) device_cache_kb: c_uint,
    pub(super) per_buffer_cache_kb: c_uint,
    pub(super) pinned_kb: c_uint,
    pub(super) batch: c_uint,
    pub(super) batch_timeout_ms: c_uint,
}

/// Numbers of options for `cuFileGetParameterBool`.
pub(super) const USE_PCI_P2PDMA: c_int = 7;
/// All statistics.
pub(super) const STATISTICS_LEVEL: c_int = 3;
/// More than any version's `CUfileStatsLevel3_t` has.
pub(super) const STATISTICS_ROOM: usize = 8192;

/// Where the statistics of each GPU begin; structures grew in 1.19, without another name for the call.
pub(super) const fn gpus_in_statistics(version: i32) -> usize {
    if version >= 1190 { 1144 } else { 1032 }
}
pub(super) const GPUS_IN_STATISTICS: usize = 16;
pub(super) const GPU_STATISTICS: usize = 248;
/// Reads that took each way, in a GPU's statistics.
pub(super) const P2P_READS: usize = 56;
pub(super) const NVIDIA_FS_READS: usize = 64;
pub(super) const POSIX_READS: usize = 72;

/// Declares the functions: those that must be there, and those that may.
macro_rules! calls {
    (
        must: { $($must:ident = $must_name:literal : fn($($must_arg:ty),*) -> $must_result:ty;)* }
        may: { $($may:ident = $may_name:literal : fn($($may_arg:ty),*) -> $may_result:ty;)* }
    ) => {
        /// The library's functions.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Calls {
            $(pub(super) $must: unsafe extern "C" fn($($must_arg),*) -> $must_result,)*
            $(pub(super) $may: Option<unsafe extern "C" fn($($may_arg),*) -> $may_result>,)*
        }

        impl Calls {
            /// Looks them up.
            ///
            /// # Safety
            /// `find` gives the addresses of functions of these names in a libcufile that stays loaded.
            pub(super) unsafe fn load(path: &Path, find: impl Fn(&CStr) -> *mut c_void) -> Result<Self> {
                $(
                    let $must = find($must_name);
                    if $must.is_null() {
                        return Err(missing(path, $must_name));
                    }
                )*
                // SAFETY: the interface gives each name this type; none of these is null.
                unsafe {
                    Ok(Self {
                        $($must: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($must_arg),*) -> $must_result>($must),)*
                        $($may: {
                            let found = find($may_name);
                            (!found.is_null()).then(|| {
                                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($may_arg),*) -> $may_result>(found)
                            })
                        },)*
                    })
                }
            }
        }
    };
}

calls! {
    must: {
        open = c"cuFileDriverOpen": fn() -> Status;
        register = c"cuFileHandleRegister": fn(*mut FileHandle, *mut Description) -> Status;
        deregister = c"cuFileHandleDeregister": fn(FileHandle) -> ();
        read = c"cuFileRead": fn(FileHandle, *mut c_void, usize, i64, i64) -> isize;
        write = c"cuFileWrite": fn(FileHandle, *const c_void, usize, i64, i64) -> isize;
    }
    may: {
        version = c"cuFileGetVersion": fn(*mut c_int) -> Status;
        properties = c"cuFileDriverGetProperties": fn(*mut Properties) -> Status;
        get_bool = c"cuFileGetParameterBool": fn(c_int, *mut bool) -> Status;
        set_statistics = c"cuFileSetStatsLevel": fn(c_int) -> Status;
        start_statistics = c"cuFileStatsStart": fn() -> Status;
        statistics = c"cuFileGetStatsL3": fn(*mut c_void) -> Status;
    }
}

fn missing(path: &Path, name: &CStr) -> Error {
    Error::new(ErrorKind::Unsupported, "this libcufile lacks a function that is needed")
        .with("library", path.display())
        .with("function", name.to_string_lossy())
        .hint("install a libcufile of CUDA 11.4 or later, or name one: FOREBAY_VENDOR_LIBCUFILE=/…/libcufile.so.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_interface_s_layout() {
        assert_eq!((size_of::<Status>(), size_of::<Description>(), size_of::<Properties>()), (8, 24, 56));
        assert_eq!(std::mem::offset_of!(Properties, supported), 24);
        assert_eq!(std::mem::offset_of!(Properties, batch_timeout_ms), 52);
        let bytes: [u8; 24] = {
            // SAFETY: 24 plain bytes.
            unsafe { std::mem::transmute::<Description, [u8; 24]>(Description::of(7)) }
        };
        assert_eq!((bytes[0], bytes[8], bytes[16]), (1, 7, 0));
    }

    #[test]
    fn statistics_of_all_gpus_lie_within_the_room() {
        for version in [1150, 1180, 1190, 1200] {
            assert!(gpus_in_statistics(version) + GPUS_IN_STATISTICS * GPU_STATISTICS <= STATISTICS_ROOM);
        }
    }
}
