//! The `forebay` command.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was started without a standard output (`>&-`).
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Called before Rust's own start, which opens /dev/null in place of a standard stream that is closed.
#[used]
// SAFETY: the C library calls each entry of this table once, with arguments that may be left out.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: it only asks.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        IS_CLOSED.store(flags < 0, Ordering::Relaxed);
    }
    look
};

/// A standard output that is closed: takes nothing.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut out: Box<dyn Write + Send> =
        if IS_CLOSED.load(Ordering::Relaxed) { Box::new(Closed) } else { Box::new(io::stdout()) };
    let code = forebay_cli::main_with(std::env::args_os().collect(), &mut *out, &mut io::stderr());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
