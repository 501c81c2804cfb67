//! Network namespaces of tests' own.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Does it in a network namespace of its own, where nothing else takes ports; `false`: this process may make none.
pub(crate) fn alone(what: impl FnOnce() + Send) -> bool {
    let body = || {
        // SAFETY: takes no pointers; of this thread alone, and of those that it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: this process may make no network namespace");
            return false;
        }
        loopback_up();
        what();
        true
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

fn loopback_up() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: all-zero bytes are a valid request, which is read alone.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        assert_eq!(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request), 0);
    }
}
