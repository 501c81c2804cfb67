//! `forebay cp`: a file through device memory.

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use forebay_bench::text::bytes;
use forebay_engine::{Buffer, Election, File, Moved, Receipt, Session, Ticket};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, DeviceName};
use forebay_models::Pending;

use crate::console::{Console, Failure, Live};
use crate::interrupt::Guard;

/// Bytes per buffer, and buffers.
const CHUNK: u64 = 16 << 20;
const RING: usize = 4;

/// Copies a file through device memory. The copy appears under its name only when it is whole and on the disk.
#[derive(Args, Clone, Debug)]
pub(crate) struct Copy {
    /// File to copy
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Name of the copy, or a directory for it
    #[arg(value_name = "DST")]
    destination: PathBuf,
    /// GPU index (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS
    #[arg(short = 'd', long, value_name = "DEVICE", default_value_t)]
    device: DeviceName,
    /// Read both files again and compare them before the copy gets its name
    #[arg(long)]
    verify: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Copy, console: &Console<'_>) -> Result<i32, Failure> {
    let found = fs::metadata(&args.source).map_err(|error| {
        explain(Error::from_io(&error, "cannot open file").with("path", args.source.display()))
    })?;
    if found.is_dir() {
        return Err(Error::new(ErrorKind::IsDirectory, "the source is a directory")
            .with("path", args.source.display())
            .hint("cp copies one file; name a file in it")
            .into());
    }
    if !found.is_file() {
        return Err(Error::new(ErrorKind::Unsupported, "the source is no regular file")
            .with("path", args.source.display())
            .hint("cp copies regular files; use dd for devices and pipes")
            .into());
    }
    let destination = destination(args)?;
    if let Ok(there) = fs::metadata(&destination) {
        if there.is_dir() {
            return Err(Error::new(ErrorKind::IsDirectory, "the destination is a directory")
                .with("path", destination.display())
                .hint("name a file")
                .into());
        }
        if (there.dev(), there.ino()) == (found.dev(), found.ino()) {
            return Err(Error::new(ErrorKind::InvalidInput, "source and destination are the same file")
                .with("path", destination.display())
                .hint("name another destination")
                .into());
        }
    }
    let session = Session::open()?;
    let device = session.device_named(&args.device)?;
    let guard = Guard::new();
    let source = File::open(&args.source).map_err(explain)?;
    let pending = Pending::create_like(&destination, found.permissions().mode()).map_err(explain)?;
    let target = pending.file().clone();
    let started = Instant::now();
    let mut work = Work {
        session: &session,
        device: &device,
        source: &source,
        target: &target,
        len: found.len(),
        read: Tally::default(),
        write: Tally::default(),
        live: Live::new("cp"),
        started,
    };
    let result = work.copy();
    work.live.clear();
    result.map_err(|failure| Failure { error: explain(failure.error), code: failure.code })?;
    pending.sync().map_err(explain)?;
    let seconds = started.elapsed().as_secs_f64();
    if args.verify {
        // What is compared should come from the disk where it can.
        let _ = target.drop_cache();
        compare(&args.source, &pending.temporary(), found.len())?;
    }
    if Guard::caught() {
        return Err(Failure::interrupted("nothing was copied"));
    }
    let notes = pending.commit(true).map_err(explain)?;
    drop(guard);
    let what = if device.info().is_host { "host memory".to_owned() } else { device.info().name.clone() };
    console.say(format!(
        "{} in {seconds:.2} s ({:.2} GB/s) through {what}{}\n  read   {}\n  write  {}\n",
        bytes(found.len()),
        found.len() as f64 / 1e9 / seconds.max(1e-9),
        if args.verify { ", verified" } else { "" },
        work.read.text(),
        work.write.text(),
    ));
    for note in notes {
        console.say(format!("note: {note}\n"));
    }
    if device.info().is_host
        && let Some(why) = &session.devices().missing
    {
        console.say(format!("note: no GPU in use ({why})\n"));
    }
    Ok(0)
}

fn destination(args: &Copy) -> Result<PathBuf> {
    if !args.destination.is_dir() {
        return Ok(args.destination.clone());
    }
    match args.source.file_name() {
        Some(name) => Ok(args.destination.join(name)),
        None => Err(Error::new(ErrorKind::InvalidInput, "the source has no name").hint("name the copy")),
    }
}

/// What receipts add up to.
#[derive(Default)]
struct Tally {
    moved: Moved,
    election: Option<Arc<Election>>,
}

impl Tally {
    fn add(&mut self, receipt: &Receipt) {
        self.moved = self.moved.plus(receipt.moved);
        self.election = Some(receipt.election.clone());
    }

    fn text(&self) -> String {
        let Some(election) = &self.election else { return "nothing".to_owned() };
        let receipt =
            Receipt { election: election.clone(), moved: self.moved, elapsed: std::time::Duration::ZERO };
        let ways = [
            (receipt.moved.placed, "by the drive itself"),
            (receipt.moved.mapped, "in place"),
            (receipt.moved.cached, "page cache"),
            (receipt.moved.direct, "O_DIRECT"),
            (receipt.moved.buffered, "cold through the page cache"),
            (receipt.moved.requested, "by request"),
        ];
        let engines: Vec<_> =
            receipt.engines().into_iter().map(|(engine, _)| election.title_of(engine)).collect();
        let ways: Vec<String> = ways
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, way)| format!("{} {way}", bytes(count)))
            .collect();
        format!("{}: {}", engines.join(" and "), ways.join(", "))
    }
}

struct Work<'a> {
    session: &'a Session,
    device: &'a Arc<dyn Device>,
    source: &'a File,
    target: &'a File,
    len: u64,
    read: Tally,
    write: Tally,
    live: Live,
    started: Instant,
}

impl Work<'_> {
    /// Reads ahead and writes behind over a ring of buffers.
    fn copy(&mut self) -> Result<(), Failure> {
        if self.len == 0 {
            return Ok(());
        }
        self.target.preallocate(self.len)?;
        let whole = self.len / CHUNK;
        let mut free: Vec<Buffer> = (0..whole.min(RING as u64))
            .map(|_| Buffer::new(self.device.clone(), CHUNK as usize))
            .collect::<Result<_>>()?;
        let mut next = 0;
        let mut tail = (!self.len.is_multiple_of(CHUNK)).then_some(self.len % CHUNK);
        let mut reading: VecDeque<(u64, Ticket<Buffer>)> = VecDeque::new();
        let mut writing: VecDeque<Ticket<Buffer>> = VecDeque::new();
        let mut done = 0;
        loop {
            if Guard::caught() {
                return Err(Failure::interrupted("nothing was copied"));
            }
            while next < whole
                && let Some(buffer) = free.pop()
            {
                reading
                    .push_back((next * CHUNK, self.session.submit_read(self.source, next * CHUNK, buffer)?));
                next += 1;
            }
            if next == whole
                && let Some(len) = tail.take()
            {
                let buffer = Buffer::new(self.device.clone(), len as usize)?;
                reading.push_back((
                    whole * CHUNK,
                    self.session.submit_read(self.source, whole * CHUNK, buffer)?,
                ));
            }
            let writes_next = reading.is_empty() || (writing.len() >= RING / 2 && free.is_empty());
            if writes_next && let Some(ticket) = writing.pop_front() {
                let (receipt, buffer) = ticket.wait().into_result()?;
                done += receipt.bytes();
                self.write.add(&receipt);
                self.live.show(done, Some(done as f64 / self.len as f64), self.started.elapsed());
                if buffer.len() as u64 == CHUNK {
                    free.push(buffer);
                }
                continue;
            }
            let Some((offset, ticket)) = reading.pop_front() else { break };
            let (receipt, buffer) = ticket.wait().into_result()?;
            self.read.add(&receipt);
            writing.push_back(self.session.submit_write(self.target, offset, buffer)?);
        }
        Ok(())
    }
}

/// Compares two files by plain reads.
fn compare(a: &Path, b: &Path, len: u64) -> Result<()> {
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
        if let Some(place) = x[..take].iter().zip(&y[..take]).position(|(x, y)| x != y) {
            return Err(Error::new(ErrorKind::Corrupt, "the copy differs from the source")
                .with("path", a.display())
                .with("offset", at + place as u64)
                .hint("if nothing wrote to the source meanwhile, please report it; the copy was removed"));
        }
        at += take as u64;
    }
    Ok(())
}

fn explain(error: Error) -> Error {
    if !error.hints().is_empty() {
        return error;
    }
    match error.kind() {
        ErrorKind::NotFound => {
            error.hint("check the path: the file, and the directory of the copy, must exist")
        }
        ErrorKind::PermissionDenied => {
            error.hint("check owner and mode of the file and its directory: ls -ld")
        }
        ErrorKind::ReadOnly => error.hint("the file system is mounted read-only: copy to another one"),
        ErrorKind::NoSpace => error.hint("free some space (df -h) or copy to another file system"),
        ErrorKind::ShortRead => error.hint("something truncated the source during the copy; copy it again"),
        _ => error,
    }
}
