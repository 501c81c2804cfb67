//! Facts about mounts of the kernel's NFS client, and this machine's way to their servers: a seam for tests, which have no mount.

use std::fmt;
use std::os::fd::BorrowedFd;

use forebay_error::{Error, ErrorKind, Result};

use super::mount::{self, KernelMount, KernelView, MountTarget};
use crate::RdmaOptions;

/// Facts about the mount that a file is on.
pub trait MountFacts: Send + Sync + fmt::Debug {
    /// The mount of an open file, of which the server is asked nothing.
    fn mount_of(&self, fd: BorrowedFd<'_>) -> Result<KernelMount> {
        mount::mount_of(fd)
    }

    /// Where an open file is on its server; or why it must not, or cannot, be reached there. `elsewhere`: mounts of another network
    /// namespace will do.
    fn of_file(&self, fd: BorrowedFd<'_>, elsewhere: bool) -> Result<MountTarget> {
        mount::of_file(fd, elsewhere)
    }

    /// What the kernel says of an open file, when it has asked the server anew.
    fn seen(&self, fd: BorrowedFd<'_>) -> Result<KernelView> {
        mount::seen(fd)
    }

    /// RDMA, as this machine has it.
    fn rdma(&self) -> Result<RdmaOptions> {
        let rdma = RdmaOptions::of_machine()?;
        if rdma.fabric.devices()?.is_empty() {
            return Err(
                Error::new(ErrorKind::Unsupported, "this machine has no RDMA device").hint("rdma link show")
            );
        }
        Ok(rdma)
    }
}

/// As the kernel says them.
#[derive(Debug)]
pub(super) struct KernelFacts;

impl MountFacts for KernelFacts {}
