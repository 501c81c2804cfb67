//! Whether two files are equal.

use std::fs;
use std::io::Read;
use std::path::Path;

use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};

/// Compares two files by plain reads.
pub(super) fn compare(a: &Path, b: &Path, len: u64) -> Result<()> {
    let mut one = open(a)?;
    compare_by(|into, _| read(&mut one, into, a), &a.display().to_string(), b, len)
}

/// Compares a file of a server, which is read anew into host memory, with a copy of it.
pub(super) fn compare_with(session: &Session, source: &File, copy: &Path, len: u64) -> Result<()> {
    let mut buffer = session.host_buffer(1 << 20)?;
    let read = |into: &mut [u8], at| {
        session.read_into(source, at, &mut buffer, 0..into.len())?;
        into.copy_from_slice(&buffer.as_slice().unwrap_or_default()[..into.len()]);
        Ok(())
    };
    compare_by(read, &source.name(), copy, len)
}

fn open(path: &Path) -> Result<fs::File> {
    fs::File::open(path)
        .map_err(|error| Error::from_io(&error, "cannot read back").with("path", path.display()))
}

fn read(file: &mut fs::File, into: &mut [u8], path: &Path) -> Result<()> {
    file.read_exact(into).map_err(|error| {
        Error::new(ErrorKind::ShortRead, format!("cannot read back: {error}"))
            .with("path", path.display())
            .hint("something changes the files during the copy")
    })
}

fn compare_by(
    mut source: impl FnMut(&mut [u8], u64) -> Result<()>,
    name: &str,
    copy: &Path,
    len: u64,
) -> Result<()> {
    let mut two = open(copy)?;
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < len {
        let take = (len - at).min(1 << 20) as usize;
        source(&mut x[..take], at)?;
        read(&mut two, &mut y[..take], copy)?;
        if x[..take] != y[..take] {
            let place = x[..take].iter().zip(&y[..take]).take_while(|(x, y)| x == y).count();
            return Err(Error::new(ErrorKind::Corrupt, "the copy differs from the source")
                .with("path", name)
                .with("offset", at + place as u64)
                .hint("if nothing wrote to the source meanwhile, please report it; the copy was removed"));
        }
        at += take as u64;
    }
    Ok(())
}
