//! Why a drive does not reach a device's memory (engine `p2p`), in words, with hints.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind};

use crate::request::receipt::{EngineKind, Refusal};
use crate::source::piece::Direction;

/// Whether an error says that this drive cannot use this memory: with other memory the call may succeed.
pub(crate) fn is_of_the_way(errno: i32) -> bool {
    matches!(errno, libc::EREMOTEIO | libc::EFAULT | libc::EOPNOTSUPP | libc::EINVAL | libc::EIO)
}

/// Whether the error holds for every range of the file, not only for this one.
pub(crate) fn is_for_good(errno: i32) -> bool {
    matches!(errno, libc::EREMOTEIO | libc::EFAULT | libc::EOPNOTSUPP)
}

pub(crate) fn refusal(reason: impl Into<String>, hint: Option<&str>) -> Arc<Refusal> {
    Arc::new(Refusal { engine: EngineKind::P2p, reason: reason.into(), hint: hint.map(str::to_owned) })
}

/// The meaning of the kernel's refusal.
pub(crate) fn of_errno(errno: i32, direction: Direction) -> Arc<Refusal> {
    let verb = verb(direction);
    let (reason, hint) = match errno {
        libc::EREMOTEIO => (
            "the kernel knows no way between the drive and this memory (EREMOTEIO)".to_owned(),
            "both must be below one PCIe switch, or below host bridges that the kernel trusts; loop, md, dm, NVMe \
             multipath and network file systems pass no such memory on: forebay check",
        ),
        libc::EFAULT => (
            "the kernel does not take this memory for O_DIRECT (EFAULT)".to_owned(),
            "use kernel 6.2 or later with CONFIG_PCI_P2PDMA=y",
        ),
        libc::EOPNOTSUPP => (
            format!("the file system or the drive does not {verb} this memory by O_DIRECT (EOPNOTSUPP)"),
            "keep the file on ext4 or xfs on an NVMe drive of this machine",
        ),
        libc::EINVAL => (
            format!("the file does not {verb} this memory at this alignment (EINVAL)"),
            "align offsets, lengths and addresses to 4096 bytes",
        ),
        libc::EIO => (
            format!("the drive reports an error when it is to {verb} this memory (EIO)"),
            "dmesg has details; a drive may not reach its own memory buffer",
        ),
        _ => {
            let os = std::io::Error::from_raw_os_error(errno);
            return refusal(format!("the drive cannot {verb} this memory: {os}"), None);
        }
    };
    refusal(reason, Some(hint))
}

fn verb(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "write to",
        Direction::Write => "read from",
    }
}

/// Bytes are wrong though all calls succeeded.
pub(crate) fn wrong_bytes(first: usize, direction: Direction) -> Arc<Refusal> {
    let what = match direction {
        Direction::Read => "a trial read succeeded, but its bytes did not arrive",
        Direction::Write => "a trial write succeeded, but other bytes were written",
    };
    let hint = "something between drive and memory leads DMA astray; try iommu=pt on the kernel's command line, and \
                look for DMAR or AMD-Vi faults in dmesg";
    refusal(format!("{what} (first wrong byte at {first})"), Some(hint))
}

/// A trial that ended early.
pub(crate) fn short(asked: usize, moved: usize) -> Arc<Refusal> {
    refusal(format!("a trial of {asked} bytes ended after {moved}"), None)
}

/// The refusal as an error, for a caller that allows `p2p` alone.
pub(crate) fn error(refusal: &Refusal) -> Error {
    let error = Error::new(ErrorKind::Unsupported, format!("engine p2p cannot do this: {}", refusal.reason));
    match &refusal.hint {
        Some(hint) => error.hint(hint.clone()),
        None => error,
    }
}
