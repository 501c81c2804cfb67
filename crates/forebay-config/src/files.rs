//! Opening files that a variable or an option names. What lies there may be anything: opening never waits, and what is no
//! file of the right kind is not opened at all (that alone can start a device).

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use forebay_sys::descriptor_table::{HIGH_DESCRIPTOR, is_growing};

/// What keeps others from opening it, who would wait for a FIFO's other end: what is there is no plain file.
pub fn obstacle(path: &Path) -> Option<io::Error> {
    let kind = fs::metadata(path).ok()?.file_type();
    (!kind.is_file()).then(|| unfit(kind))
}

/// Opens a plain file for reading.
pub fn open_plain(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true), FileType::is_file)
}

/// The text of a plain file of at most `most` bytes.
pub fn read_plain(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open_plain(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} bytes")));
    }
    Ok(text)
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
        // SAFETY: no pointers are passed.
        let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) };
        if high >= 0 {
            // SAFETY: the descriptor is new and ours alone. The low number is closed here.
            file = unsafe { File::from_raw_fd(high) };
        }
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn open(path: &Path, options: &mut OpenOptions, fits: impl Fn(&FileType) -> bool) -> io::Result<File> {
    let checked = |kind: FileType| if fits(&kind) { Ok(()) } else { Err(unfit(kind)) };
    match fs::metadata(path) {
        Ok(found) => checked(found.file_type())?,
        // It may be made.
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
        fs::remove_dir_all(&folder).unwrap();
    }
}
