//! Sockets that do not block, in a program that may close all descriptors that it does not know.

use std::io::{Error, IoSlice, Result};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use forebay_remote::process::ProcessId;
use forebay_source::HostRange;
use forebay_sys::HeldFile;
use forebay_sys::descriptor_table::HIGH_DESCRIPTOR;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};

/// Bytes that a socket waits for where many follow (SO_RCVLOWAT). 16 ranges of 8 MiB on loopback, 2 CPUs: 0.21 CPU s/GB; 0.25 without.
const BATCH: u64 = 512 << 10;
/// The receive buffer from which it does: with a smaller one the server would wait for room meanwhile.
const ROOM: usize = 3 << 20;

/// A socket of this process: a forked child that has its descriptor only closes it.
#[derive(Debug)]
pub(super) struct Socket {
    file: HeldFile,
    process: ProcessId,
    /// Whether it waits for [`BATCH`] bytes.
    waits_for_batch: bool,
}

impl Socket {
    /// A socket whose connection to an address has begun.
    pub(super) fn begin(address: SocketAddr) -> forebay_error::Result<Self> {
        let socket = high(forebay_remote::endpoint::socket(address)?);
        // Without it the connection works.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        keep_alive(&socket);
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(forebay_remote::endpoint::refused(address, errno)),
        }
        Ok(Self { file: HeldFile::new(socket.into()), process: ProcessId::current(), waits_for_batch: false })
    }

    /// The file, where its descriptor still is of it.
    pub(super) fn file(&self) -> Result<&std::fs::File> {
        self.file.get().ok_or_else(|| Error::from_raw_os_error(libc::EBADF))
    }

    /// What its connecting came to, where it is over.
    pub(super) fn connected(&self) -> std::result::Result<(), Errno> {
        sockopt::socket_error(self.file.get().ok_or(Errno::BADF)?)?
    }

    /// Receives bytes that are there.
    ///
    /// # Safety
    /// The memory is valid, and no other code reads or writes it meanwhile.
    pub(super) unsafe fn receive(&self, into: HostRange) -> Result<usize> {
        // SAFETY: passed on.
        unsafe { self.receive_with(into, libc::MSG_DONTWAIT) }
    }

    /// # Safety
    /// As that of [`Socket::receive`].
    unsafe fn receive_with(&self, into: HostRange, flags: i32) -> Result<usize> {
        let socket = self.file()?.as_raw_fd();
        // SAFETY: passed on.
        match unsafe { libc::recv(socket, into.start.cast(), into.len, flags) } {
            got @ 0.. => Ok(got as usize),
            _ => Err(Error::last_os_error()),
        }
    }

    /// This number of bytes follows: many of them are waited for at a time.
    pub(super) fn expect(&mut self, bytes: u64) {
        let Some(file) = self.file.get() else { return };
        let is_long = bytes >= 2 * BATCH;
        let has_room = || sockopt::socket_recv_buffer_size(file).is_ok_and(|size| size >= ROOM);
        if is_long == self.waits_for_batch || is_long && !has_room() {
            return;
        }
        let (least, size) = (if is_long { BATCH as i32 } else { 1 }, size_of::<i32>() as u32);
        let (socket, option) = (file.as_raw_fd(), libc::SO_RCVLOWAT);
        // SAFETY: the value lives through the call.
        let done =
            unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const least).cast(), size) };
        if done == 0 {
            self.waits_for_batch = is_long;
        }
    }

    /// Whether fewer bytes than it waits for may be there.
    pub(super) fn waits_for_batch(&self) -> bool {
        self.waits_for_batch
    }

    /// Sends what there is room for.
    pub(super) fn send(&self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(self.file()?, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Whether nothing came on a connection that waits for no reply, not even its end.
    pub(super) fn is_quiet(&self) -> bool {
        let mut byte = [0];
        // SAFETY: the byte is borrowed for the call.
        let came =
            unsafe { self.receive_with(HostRange::of_mut(&mut byte), libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        came.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.process.is_current()
            && let Some(file) = self.file.get()
        {
            // It ends also where a forked child has its descriptor. One that was not connected has no end.
            let _ = rustix::net::shutdown(file, rustix::net::Shutdown::Both);
        }
    }
}

/// Has TCP notice a machine that is gone while it is waited for: after 60 s.
fn keep_alive(socket: &OwnedFd) {
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(30));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
}

/// The same descriptor under a high number, if the limit of open files allows.
pub(super) fn high(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, HIGH_DESCRIPTOR).unwrap_or(fd)
}
