//! Waits for sockets and for other threads.

use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::OwnedFd;
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_sys::HeldFile;
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::socket::{Socket, high};

/// Events that are taken at a time.
const MOST_EVENTS: usize = 64;
/// The token of the pair.
const WOKEN: u64 = u64::MAX;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// An epoll and a pair of sockets that wakes its thread. All epolls have the same inode, and sockets have inodes of their own: a program
/// that closed the pair closed the epoll as well.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: ManuallyDrop<OwnedFd>,
    woken: HeldFile,
}

/// Wakes a thread from its wait.
#[derive(Debug)]
pub(super) struct Waker(HeldFile);

impl Waker {
    pub(super) fn wake(&self) {
        if let Some(pair) = self.0.get() {
            // A full one wakes, too.
            let _ = send(pair, &[1], SendFlags::NOSIGNAL);
        }
    }
}

impl Poller {
    pub(super) fn new() -> Result<(Self, Waker)> {
        let failed = |errno: rustix::io::Errno| {
            Error::from_errno(errno.raw_os_error(), "cannot make an epoll for connections")
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (woken, wakes) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        let (woken, wakes) = (File::from(high(woken)), File::from(high(wakes)));
        let epoll = high(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        epoll::add(&epoll, &woken, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)
            .map_err(failed)?;
        let epoll = ManuallyDrop::new(epoll);
        Ok((Self { epoll, woken: HeldFile::new(woken) }, Waker(HeldFile::new(wakes))))
    }

    /// Whether the program left its descriptors open.
    pub(super) fn is_itself(&self) -> bool {
        self.woken.get().is_some()
    }

    /// Begins to wait for a socket.
    pub(super) fn add(&self, socket: &Socket, token: u64, interest: Interest) -> std::io::Result<()> {
        let token = epoll::EventData::new_u64(token);
        Ok(epoll::add(&*self.epoll, socket.file()?, token, interest.flags())?)
    }

    pub(super) fn change(&self, socket: &Socket, token: u64, interest: Interest) -> std::io::Result<()> {
        let token = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&*self.epoll, socket.file()?, token, interest.flags())?)
    }

    /// Waits no longer for a socket.
    pub(super) fn remove(&self, socket: &Socket) {
        if let Ok(file) = socket.file() {
            let _ = epoll::delete(&*self.epoll, file);
        }
    }

    /// Waits for events, at most so long; tokens of sockets that have some. False: the program closed the descriptors.
    pub(super) fn wait(&self, most: Duration, tokens: &mut Vec<u64>) -> bool {
        tokens.clear();
        if !self.is_itself() {
            return false;
        }
        let limit = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut events = [const { MaybeUninit::uninit() }; MOST_EVENTS];
        let found: &[epoll::Event] = match epoll::wait(&*self.epoll, &mut events[..], Some(&limit)) {
            Ok((found, _)) => found,
            Err(rustix::io::Errno::INTR) => &[],
            Err(_) => return false,
        };
        for event in found {
            match event.data.u64() {
                WOKEN => self.drain(),
                token => tokens.push(token),
            }
        }
        true
    }

    fn drain(&self) {
        if let Some(pair) = self.woken.get() {
            let _ = recv(pair, &mut [0; 64], RecvFlags::empty());
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.is_itself() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.epoll) };
        }
    }
}
