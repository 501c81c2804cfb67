//! Whether two files are equal.

use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::StoredSum;

/// Compares a file with its copy, of `len` bytes, by reads of the calling thread, and both with the checksums that
/// their stores keep. `then` is the hint for a copy that differs. Returns notes on these checksums.
pub(super) fn compare(source: &File, copy: &File, len: u64, then: &str) -> Result<Vec<String>> {
    let mut sums = StoredSums::of([source, copy]);
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
        sums.add(&x[..take]);
        at += take as u64;
    }
    sums.end().map_err(|error| error.hint(then.to_owned()))
}

/// The checksums that the stores of both files keep.
struct StoredSums {
    all: Vec<(String, Box<dyn StoredSum>)>,
    notes: Vec<String>,
}

impl StoredSums {
    fn of(files: [&File; 2]) -> Self {
        let (mut all, mut notes) = (Vec::new(), Vec::new());
        for file in files {
            match file.stored_sum() {
                Some(Ok(sum)) => all.push((file.name(), sum)),
                Some(Err(why)) => {
                    notes.push(format!("no checksum of {} was compared: {}", file.name(), why.message()));
                }
                None => {}
            }
        }
        Self { all, notes }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.all.iter_mut().for_each(|(_, sum)| sum.add(bytes));
    }

    fn end(mut self) -> Result<Vec<String>> {
        for (name, sum) in self.all {
            let note = format!("{name} has the checksum that its store keeps ({})", sum.algorithm());
            sum.end().map_err(|error| error.with("path", name))?;
            self.notes.push(note);
        }
        Ok(self.notes)
    }
}

fn read(file: &File, into: &mut [u8], at: u64) -> Result<()> {
    file.read_host(into, at).map_err(|error| match error.kind() {
        ErrorKind::ShortRead => error.hint("something changes the files during the copy"),
        _ => error,
    })
}
