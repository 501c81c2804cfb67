//! Whether two files are equal.

use std::fs;
use std::io::Read;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// Compares two files by plain reads.
pub(super) fn compare(a: &Path, b: &Path, len: u64) -> Result<()> {
    let open = |path: &Path| {
        fs::File::open(path)
            .map_err(|error| Error::from_io(&error, "cannot read back").with("path", path.display()))
    };
    let (mut one, mut two) = (open(a)?, open(b)?);
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < len {
        let take = (len - at).min(1 << 20) as usize;
        let read = |file: &mut fs::File, into: &mut [u8], path: &Path| {
            file.read_exact(into).map_err(|error| {
                Error::new(ErrorKind::ShortRead, format!("cannot read back: {error}"))
                    .with("path", path.display())
                    .hint("something changes the files during the copy")
            })
        };
        read(&mut one, &mut x[..take], a)?;
        read(&mut two, &mut y[..take], b)?;
        if x[..take] != y[..take] {
            let place = x[..take].iter().zip(&y[..take]).take_while(|(x, y)| x == y).count();
            return Err(Error::new(ErrorKind::Corrupt, "the copy differs from the source")
                .with("path", a.display())
                .with("offset", at + place as u64)
                .hint("if nothing wrote to the source meanwhile, please report it; the copy was removed"));
        }
        at += take as u64;
    }
    Ok(())
}
