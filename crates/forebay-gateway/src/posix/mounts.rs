//! Mounts that no path leads to. Files opened through a read-only one are so for each user, root and owner included.
//!
//! A descriptor is more than its bytes: by `/proc/self/fd` its holder opens the file again, for writing where the file's mode and the
//! user of *any* process that gets the descriptor allow that. A mount is the one thing that all these openings share.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    namespace: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;

/// A mount of one directory or file, without those below it where the kernel allows that. Later mounts do not appear in it.
pub(super) struct OwnMount {
    tree: OwnedFd,
    /// With those below it.
    is_whole: bool,
}

impl OwnMount {
    /// Needs CAP_SYS_ADMIN.
    pub(super) fn new(of: impl AsFd) -> Result<Self, Errno> {
        let clone = |is_whole| Self::clone_tree(of.as_fd(), is_whole);
        match clone(false) {
            // In a user namespace of its own a process may not look behind mounts below the directory.
            Err(Errno::INVAL) => clone(true),
            made => made,
        }
    }

    fn clone_tree(of: BorrowedFd<'_>, is_whole: bool) -> Result<Self, Errno> {
        let flags =
            recursive(is_whole) | libc::OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_EMPTY_PATH as u32;
        // SAFETY: the descriptor is open; the path is an empty text.
        let tree = unsafe { libc::syscall(libc::SYS_open_tree, of.as_raw_fd(), c"".as_ptr(), flags) };
        if tree < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just made it.
        Ok(Self { tree: unsafe { OwnedFd::from_raw_fd(tree as i32) }, is_whole })
    }

    /// From now on nothing is written through it. EBUSY: a file that was opened through it is open for writing, by a descriptor, in a
    /// mapping, or on its way through a socket. Needs Linux 5.12.
    pub(super) fn make_read_only(&self) -> Result<(), Errno> {
        let attributes =
            MountAttr { set: MOUNT_ATTR_RDONLY, propagation: libc::MS_PRIVATE, ..MountAttr::default() };
        // SAFETY: the descriptor is open; the structure lives through the call and has the length that is said.
        let set = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.tree.as_raw_fd(),
                c"".as_ptr(),
                recursive(self.is_whole) | libc::AT_EMPTY_PATH as u32,
                &raw const attributes,
                size_of::<MountAttr>(),
            )
        };
        if set == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// Opens what it is a mount of.
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_again(&self.tree, flags)
    }
}

fn recursive(is_whole: bool) -> u32 {
    if is_whole { libc::AT_RECURSIVE as u32 } else { 0 }
}

/// Opens a file a second time, through the mount that it was opened through.
pub(super) fn open_again(file: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
}

fn last_error() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// A directory's tree, read-only. `None`: the process lacks CAP_SYS_ADMIN and may make no user namespace, or the kernel is older than
/// 5.12.
pub(super) fn read_only_tree(dir: &OwnedFd) -> Option<OwnedFd> {
    read_only_mount(dir).or_else(|_| by_user_namespace(dir)).ok()
}

fn read_only_mount(of: impl AsFd) -> Result<OwnedFd, Errno> {
    let mount = OwnMount::new(of)?;
    mount.make_read_only()?;
    Ok(mount.tree)
}

/// A process without rights has that of mounts in a user namespace of its own. A process with threads enters none: a child does, and
/// sends the mount, which outlives it.
fn by_user_namespace(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: without CLONE_VM the child has memory of its own. It makes system calls alone, takes no lock and allocates nothing.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        0 => {
            let is_sent = send_tree(dir, &theirs).is_ok();
            // SAFETY: ends the child, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!is_sent)) }
        }
        child if child > 0 => {
            drop(theirs);
            let tree = receive_tree(&ours);
            // SAFETY: the child is ours, and it is waited for once.
            unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
            tree
        }
        _ => Err(last_error()),
    }
}

/// In the child. The directory is left and entered again: the mounts of the new namespace are others.
fn send_tree(dir: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    rustix::process::fchdir(dir)?;
    // SAFETY: takes flags; the child has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(last_error());
    }
    // SAFETY: the descriptor stands for the current directory, and is never closed.
    let tree = read_only_mount(unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) })?;
    let files = [tree.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(to, &[IoSlice::new(b"t")], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive_tree(from: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten().next().ok_or(Errno::PERM)
}
