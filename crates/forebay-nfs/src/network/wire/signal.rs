//! The signal that ends the wait of a wire's thread. It lives as long as the thread.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::replies::WakeReason;

/// An eventfd. Without one, which the limit of descriptors may refuse, the wait ends by itself every 10 ms.
#[derive(Clone, Default)]
pub(super) struct WakeSignal(Option<Arc<OwnedFd>>);

impl WakeSignal {
    pub(super) fn new() -> Self {
        // SAFETY: no pointers are passed; the descriptor is new and ours alone.
        let made = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        Self(made.map(Arc::new))
    }

    fn fd(&self) -> RawFd {
        self.0.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes. A full counter wakes, too.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), 8) };
    }

    /// Waits for a descriptor, or the signal, for at most `limit`.
    pub(super) fn wait(&self, fd: RawFd, wants_to_send: bool, limit: Duration) -> WakeReason {
        let events = libc::POLLIN | if wants_to_send { libc::POLLOUT } else { 0 };
        let signal = self.fd();
        let mut polled = [
            libc::pollfd { fd, events, revents: 0 },
            libc::pollfd { fd: signal, events: libc::POLLIN, revents: 0 },
        ];
        let limit = if signal < 0 { limit.min(Duration::from_millis(10)) } else { limit };
        // A millisecond more: the time is over when the wait ends.
        let milliseconds = limit.as_millis() as i32 + 1;
        // SAFETY: two entries.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), 2, milliseconds) };
        if polled[1].revents != 0 {
            let mut count = [0u8; 8];
            // SAFETY: eight bytes.
            unsafe { libc::read(signal, count.as_mut_ptr().cast(), 8) };
        }
        match polled[0].revents & !libc::POLLOUT {
            0 if count > 0 => WakeReason::Signalled,
            0 => WakeReason::TimedOut,
            _ => WakeReason::Readable,
        }
    }
}
