//! Opening files that a variable or an option names. What lies there may be anything: opening never waits, and what is no
//! file of the right kind is not opened at all (that alone can start a device).

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::descriptor_table::{HIGH_DESCRIPTOR, is_growing};

use crate::elsewhere;

/// The most bytes of a text that a tool reads whole: a job file, a log, a report.
pub const MAX_TEXT_BYTES: u64 = 256 << 20;
/// Longest wait for a file that a user names. What takes longer is on a server that is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// File systems whose files the kernel makes up as they are read: proc, sysfs, debugfs, tracefs, securityfs, cgroup2. Some of
/// these files have no end, or lose the bytes read.
const KERNEL_FILE_SYSTEMS: [i64; 6] =
    [0x9FA0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6367_7270];

/// What keeps others from opening it, who would wait for a FIFO's other end: what is there is no plain file.
pub fn obstacle(path: &Path) -> Option<io::Error> {
    let kind = fs::metadata(path).ok()?.file_type();
    (!kind.is_file()).then(|| unfit(kind))
}

/// Opens a plain file for reading.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().read(true), FileType::is_file)?;
    if is_of_kernel(&file) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is made up by the kernel, no plain file",
        ));
    }
    Ok(file)
}

/// The text of a plain file of at most `most` bytes.
pub fn read_plain(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_plain_bytes(path, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
}

/// As [`read_plain`], whatever its bytes.
pub fn read_plain_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} bytes"));
    let file = open_plain(path)?;
    if file.metadata()?.len() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

/// Opens a plain file that a user names. `doing` says what for: "cannot open trace".
pub fn open_named(path: &Path, doing: &str) -> Result<File> {
    named(path, doing, open_plain)
}

/// The bytes of a plain file that a user names, of at most [`MAX_TEXT_BYTES`].
pub fn read_named(path: &Path, doing: &str) -> Result<Vec<u8>> {
    named(path, doing, |path| read_plain_bytes(path, MAX_TEXT_BYTES))
}

fn named<T: Send + 'static>(
    path: &Path,
    doing: &str,
    ask: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    elsewhere::check_here(path, doing)?;
    let own = path.to_owned();
    let failed = |error: io::Error| {
        let error = match (error.raw_os_error(), error.kind()) {
            (None, io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                Error::new(ErrorKind::InvalidInput, format!("{doing}: {error}"))
            }
            (_, io::ErrorKind::PermissionDenied) => Error::from_io(&error, doing)
                .hint("check the file's mode and owner (ls -l), and the directories above it"),
            _ => Error::from_io(&error, doing),
        };
        error.with("path", path.display())
    };
    within(ANSWER_LIMIT, move || ask(&own)).map_or_else(
        || {
            let seconds = ANSWER_LIMIT.as_secs();
            let what = format!("{doing}: no answer from the file system in {seconds} s");
            Err(Error::new(ErrorKind::Timeout, what).with("path", path.display()))
        },
        |result| result.map_err(failed),
    )
}

/// Asks a file system on a thread of its own, since some never answer. `None`: it took longer than `limit`.
pub fn within<T: Send + 'static>(limit: Duration, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = tell.send(ask());
    });
    told.recv_timeout(limit).ok()
}

fn is_of_kernel(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| KERNEL_FILE_SYSTEMS.contains(&found.f_type))
}

/// Opens a plain file or a character device (a terminal, `/dev/null`) to add lines to; makes the file if there is none.
pub fn open_log(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().append(true).create(true), |kind| kind.is_file() || kind.is_char_device())
}

/// The text of a file of the kernel's (`/proc`, `/sys`), read by a thread of ours beside the program's.
///
/// The program may close all descriptors that it does not know and open others. A number below [`HIGH_DESCRIPTOR`] is theirs by
/// then, and closing it would close the program's file: so it is held under a higher one while it is read.
pub fn read_kernel_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut file = File::open(path)?;
    if !is_growing() {
        // The low number is closed here.
        file = rustix::io::fcntl_dupfd_cloexec(&file, HIGH_DESCRIPTOR).map_or(file, File::from);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn open(path: &Path, options: &mut OpenOptions, fits: impl Fn(&FileType) -> bool) -> io::Result<File> {
    let checked = |kind: FileType| if fits(&kind) { Ok(()) } else { Err(unfit(kind)) };
    match fs::metadata(path) {
        Ok(found) => checked(found.file_type())?,
        // A missing file is made later.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    // Another file may have the name by now.
    checked(file.metadata()?.file_type())?;
    Ok(file)
}

fn unfit(kind: FileType) -> io::Error {
    let what = if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, no plain file"))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn only_files_of_the_right_kind_are_opened() {
        let folder = std::env::temp_dir().join(format!("forebay-config-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let fifo = folder.join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let why = |result: io::Result<File>| result.map(drop).unwrap_err().to_string();
        assert_eq!(why(open_plain(&fifo)), "it is a FIFO, no plain file");
        assert_eq!(why(open_log(&fifo)), "it is a FIFO, no plain file");
        assert_eq!(why(open_plain(&folder)), "it is a directory, no plain file");
        assert_eq!(why(open_plain("/dev/null".as_ref())), "it is a device, no plain file");
        for made_up in ["/proc/kmsg", "/proc/self/environ", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            // Some are of root alone, or not there.
            let refused = open_plain(made_up.as_ref()).map(drop).unwrap_err();
            let is_said = refused.to_string() == "it is made up by the kernel, no plain file";
            assert!(is_said || refused.raw_os_error().is_some(), "{made_up}: {refused}");
        }
        assert!(open_log("/dev/null".as_ref()).is_ok());
        assert!(obstacle(&fifo).is_some());

        let file = folder.join("file");
        assert_eq!(open_plain(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(obstacle(&file).is_none());
        assert!(open_log(&file).is_ok(), "it is made");
        assert!(obstacle(&file).is_none());
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_plain(&file, 5).unwrap(), "12345");
        assert_eq!(read_kernel_text(&file).unwrap(), "12345");
        assert_eq!(read_plain(&file, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        let sparse = File::create(folder.join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let refused = read_named(&folder.join("sparse"), "cannot read log").unwrap_err();
        assert_eq!((refused.kind(), refused.context().len()), (ErrorKind::InvalidInput, 1));
        assert_eq!(refused.message(), "cannot read log: it has more than 268435456 bytes");
        let refused = open_named("nfs://host/trace".as_ref(), "cannot open trace").unwrap_err();
        assert_eq!(
            refused.message(),
            "cannot open trace: it is named by a path of this machine, not by a URL"
        );
        assert_eq!(open_named(&fifo, "cannot open trace").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            open_named(&folder.join("no"), "cannot open trace").unwrap_err().kind(),
            ErrorKind::NotFound
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_never_answers_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(9), || 7), Some(7));
        let slow = || std::thread::sleep(Duration::from_secs(3));
        assert_eq!(within(Duration::from_millis(20), slow), None);
    }
}
