//! The link that carries the calls of a wire: a stream, or a connection over RDMA.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::rdma_link::RdmaLink;
use super::table::CallTable;

/// What carries the calls.
pub(super) enum WireLink {
    Tcp(TcpStream),
    Rdma(RdmaLink),
}

impl WireLink {
    /// Whether something is left to send that no reply will set in motion.
    pub(super) fn needs_thread(&self, table: &CallTable) -> bool {
        match self {
            Self::Tcp(_) => table.first_to_send().is_some(),
            Self::Rdma(link) => link.is_stuck(),
        }
    }

    /// Sends what can be sent at once.
    #[inline]
    pub(super) fn send_queued(&mut self, table: &mut CallTable) {
        match self {
            Self::Tcp(stream) => send_queued(stream, table),
            Self::Rdma(link) => link.send_queued(table),
        }
    }

    /// Bytes of calls that have reached the server's side, where that can be known.
    pub(super) fn bytes_taken(&self, table: &CallTable) -> u64 {
        match self {
            Self::Tcp(stream) => bytes_taken(stream, table),
            Self::Rdma(_) => 0,
        }
    }
}

/// Sends what the socket takes at once. An error shows when the thread receives.
fn send_queued(stream: &TcpStream, table: &mut CallTable) {
    let fd = stream.as_raw_fd();
    while let Some(ranges) = table.next_to_send() {
        let mut list =
            ranges.map(|(start, len)| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len });
        // SAFETY: all-zero bytes are a valid msghdr; the ranges are of the call's header and of memory that its request lends it.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = list.as_mut_ptr();
            message.msg_iovlen = list.len();
            libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        match usize::try_from(sent) {
            Ok(bytes) => table.has_sent(bytes),
            Err(_) => break,
        }
    }
}

/// Bytes of calls that have reached the server's side: what the socket took, and does not keep any more.
fn bytes_taken(stream: &TcpStream, table: &CallTable) -> u64 {
    let mut kept: libc::c_int = 0;
    // SAFETY: an integer of ours.
    let told = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut kept) };
    if told == 0 { table.sent().saturating_sub(u64::from(kept.unsigned_abs())) } else { 0 }
}
