//! Explains NVIDIA's error codes, with hints.

use forebay_error::{Error, ErrorKind};

use crate::abi::Status;

/// Codes start here; below are errnos.
const FIRST: i32 = 5000;
const HANDLE_NOT_REGISTERED: i32 = 5027;
const INTERNAL: i32 = 5030;

const OPEN_COMPAT: &str = "allow its compat mode: CUFILE_ALLOW_COMPAT_MODE=true";
const LOAD_MODULE: &str = "load its kernel module: sudo modprobe nvidia-fs";
const SEE_LOG: &str =
    "its log has the reason: CUFILE_LOGGING_LEVEL=TRACE CUFILE_LOGFILE_PATH=/tmp/cufile.log";

/// The code that stands for success.
pub(super) fn is_ok(status: Status) -> bool {
    // The driver's part means nothing in a success.
    status.code == 0
}

/// The error of a call that answered with a status.
pub(super) fn status(status: Status, doing: &str) -> Error {
    let error = code(status.code, doing);
    if status.cuda != 0 { error.with("cuda", status.cuda) } else { error }
}

/// The error of a read or write that answered with a negative number.
pub(super) fn bytes(answer: isize, errno: i32, doing: &str) -> Error {
    // Some answer with -1 and leave the code in errno, some with the negative code itself.
    let found = if answer == -1 { errno } else { answer.unsigned_abs() as i32 };
    if found > FIRST { code(found, doing) } else { Error::from_errno(found, doing) }
}

/// What a code says, what kind of failure it is, and what helps.
fn meaning(code: i32) -> (ErrorKind, &'static str, &'static [&'static str]) {
    use ErrorKind::{
        Busy, DeviceLost, DeviceOutOfMemory, InvalidInput, Io, OutOfMemory, PermissionDenied, TooManyFiles,
        Unsupported,
    };
    match code {
        5001 => (
            Unsupported,
            "nvidia-fs is not loaded, and compat mode is not allowed",
            &[OPEN_COMPAT, LOAD_MODULE],
        ),
        5002 | 5003 => {
            (InvalidInput, "an option has a value that it does not take", &["check /etc/cufile.json"])
        }
        5004 | 5005 => (
            Unsupported,
            "nvidia-fs is of another version than the library",
            &["install nvidia-fs and libcufile of the same CUDA release", OPEN_COMPAT],
        ),
        5006 => (Busy, "the library is being closed", &[]),
        5007 => (Unsupported, "it does not support this platform", &[OPEN_COMPAT]),
        5008 => (Unsupported, "it does not support this file", &[OPEN_COMPAT, SEE_LOG]),
        5009 => (Unsupported, "it does not support this GPU", &[OPEN_COMPAT]),
        5010 | 5033 | 5048 => (Io, "nvidia-fs refused a call", &["sudo dmesg | tail", SEE_LOG]),
        5011 | 5015 | 5047 => {
            (DeviceLost, "the CUDA driver failed in a call of it", &["nvidia-smi", SEE_LOG])
        }
        5012..=5014 | 5017 => (InvalidInput, "it does not take this memory", &[]),
        5016 | 5036 => (
            DeviceOutOfMemory,
            "no more GPU memory can be pinned for it",
            &["raise properties.max_device_pinned_mem_size_kb in cufile.json"],
        ),
        5018 => (Unsupported, "it takes regular files and block devices only", &[]),
        5019 => {
            (Unsupported, "it does not take a file that was opened with these flags (O_APPEND is one)", &[])
        }
        5020 => (Unsupported, "it wants the file opened with O_DIRECT", &[]),
        5025 => (PermissionDenied, "it may not use nvidia-fs or the file", &["ls -l /dev/nvidia-fs*"]),
        HANDLE_NOT_REGISTERED => (Unsupported, "it could not register the file", &[SEE_LOG]),
        5028 => (Busy, "the file's descriptor is registered already", &[]),
        5029 => (DeviceLost, "it finds no GPU", &["nvidia-smi"]),
        INTERNAL => (Io, "it failed inside", &[SEE_LOG]),
        5031 => (TooManyFiles, "it could not get a descriptor", &["ulimit -n 65536"]),
        5034 => {
            (Unsupported, "its configuration excludes this file", &["look at denylist in /etc/cufile.json"])
        }
        5043 => (OutOfMemory, "it is out of memory", &[]),
        _ => (Io, "it failed", &[SEE_LOG]),
    }
}

fn code(code: i32, doing: &str) -> Error {
    let (kind, text, hints) = meaning(code);
    let error = Error::new(kind, format!("{doing}: {text}")).with("cufile", code);
    hints.iter().fold(error, |error, hint| error.hint(*hint))
}

/// Why registering failed. Up to 1.16 the usual cause is that udev's database has no entry for the file's block device:
/// it is asked even where nothing but ordinary reads and writes would follow.
pub(super) fn registration(status_: Status, device: (u32, u32), file_system: &str) -> Error {
    let error = status(status_, "NVIDIA's libcufile cannot register the file");
    if !matches!(status_.code, HANDLE_NOT_REGISTERED | INTERNAL) {
        return error;
    }
    let (major, minor) = device;
    let entry = format!("/run/udev/data/b{major}:{minor}");
    let text = std::fs::read_to_string(&entry).unwrap_or_default();
    if text.lines().any(|line| line.starts_with("E:ID_FS_USAGE=")) {
        return error;
    }
    let why = format!(
        "NVIDIA's libcufile cannot register the file: udev's database has no entry for its device {major}:{minor}"
    );
    let error =
        Error::new(ErrorKind::Unsupported, why).with("cufile", status_.code).with("looked for", &entry);
    if major == 0 {
        // Such a device has no entry on any machine.
        return error.hint("use libcufile 1.17 or later: pip install -U nvidia-cufile");
    }
    error
        .hint("in a container: start it with -v /run/udev:/run/udev:ro")
        .hint(format!(
            "or write the entry, as root: mkdir -p /run/udev/data && printf \
             'E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE={file_system}\\n' > {entry}"
        ))
        .hint("or use libcufile 1.17 or later: pip install -U nvidia-cufile")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_answer_with_an_error_are_understood() {
        assert_eq!(bytes(-1, libc::EIO, "cannot read").kind(), ErrorKind::Io);
        assert_eq!(bytes(-1, libc::ENOSPC, "cannot write").kind(), ErrorKind::NoSpace);
        for error in [bytes(-1, 5019, "cannot read"), bytes(-5019, 0, "cannot read")] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("cufile=5019"), "{error}");
        }
        assert_eq!(bytes(-28, 0, "cannot write").kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn a_device_that_udev_does_not_know_is_the_reason() {
        let refused = Status { code: HANDLE_NOT_REGISTERED, cuda: 0 };
        let error = registration(refused, (0, 61), "overlay");
        assert!(error.message().contains("udev") && error.hints()[0].contains("1.17"), "{error:?}");
        let error = registration(refused, (254, 4095), "ext4");
        assert!(error.hints().iter().any(|hint| hint.contains("/run/udev/data/b254:4095")), "{error:?}");
        let error = registration(Status { code: 5019, cuda: 0 }, (254, 4095), "ext4");
        assert!(error.message().contains("O_APPEND"), "{error:?}");
    }
}
