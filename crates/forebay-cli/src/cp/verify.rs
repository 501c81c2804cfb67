//! Whether two files are equal.

use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};

/// Compares a file with its copy, of `len` bytes, by reads of the calling thread. `then` is the hint for a copy
/// that differs.
pub(super) fn compare(source: &File, copy: &File, len: u64, then: &str) -> Result<()> {
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < len {
        let take = (len - at).min(1 << 20) as usize;
        read(source, &mut x[..take], at)?;
        read(copy, &mut y[..take], at)?;
        if x[..take] != y[..take] {
            let place = x[..take].iter().zip(&y[..take]).take_while(|(x, y)| x == y).count();
            return Err(Error::new(ErrorKind::Corrupt, "the copy differs from the source")
                .with("path", source.name())
                .with("offset", at + place as u64)
                .hint(format!("if nothing wrote to the files meanwhile, please report it; {then}")));
        }
        at += take as u64;
    }
    Ok(())
}

fn read(file: &File, into: &mut [u8], at: u64) -> Result<()> {
    file.read_host(into, at).map_err(|error| match error.kind() {
        ErrorKind::ShortRead => error.hint("something changes the files during the copy"),
        _ => error,
    })
}
