//! `--files`: every file below a directory, opened, read whole and closed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use forebay_engine::{Buffer, File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, fill_pattern, pattern_word};

use super::transfers::{self, PassFacts};
use crate::files::cache;
use crate::files::empty::empty_bytes;
use crate::files::made::MadeFiles;
use crate::files::open::explain;
use crate::files::room::room;
use crate::movers::TransferWay;
use crate::observer::Observer;
use crate::report::{FileReport, Pass, ResidencyReport};
use crate::workers::measure::WorkerMeter;
use crate::workers::{self, PassObserver};
use crate::workload::Workload;
use crate::workload::job::{Job, JobTarget};

/// Directories that made files are spread over.
const SPREAD: u64 = 256;
/// Longer files are read in parts.
const LONGEST_READ: u64 = 1 << 30;
/// Number of files sampled for residency.
const SAMPLE: usize = 256;

/// The files below a directory.
pub(crate) struct Listing {
    directory: PathBuf,
    /// Paths and lengths, in the order of reading.
    files: Vec<(PathBuf, u64)>,
}

impl Listing {
    /// Finds the files; makes them first if there are none and `make` says how many.
    pub(crate) fn prepare(
        work: &Workload,
        job: &Job,
        make: Option<u64>,
        (made, observer): (&mut MadeFiles, &dyn Observer),
    ) -> Result<Self> {
        let JobTarget::Directory(directory) = &job.target else {
            return Err(Error::new(ErrorKind::InvalidInput, "--files without a directory")
                .hint("name a directory: --files DIRECTORY"));
        };
        if let Some(count) = make {
            make_directory(directory, made)?;
            if found(directory)?.is_empty() {
                make_files(directory, (count, job.io.max), job.workers, (made, observer))?;
            }
        }
        let mut files = found(directory)?;
        if files.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "no files below the directory")
                .with("path", directory.display())
                .hint("name another, or have some made: --make-files 1000 -i 64K"));
        }
        // The order of a directory is not the same everywhere; the shuffle starts from one that is.
        files.sort_unstable();
        shuffle(&mut files, work.seed);
        Ok(Self { directory: directory.clone(), files })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, len)| len).sum()
    }

    fn longest(&self) -> u64 {
        self.files.iter().map(|(_, len)| *len).max().unwrap_or(0)
    }

    fn sample(&self) -> impl Iterator<Item = &(PathBuf, u64)> {
        self.files.iter().step_by(self.files.len().div_ceil(SAMPLE))
    }

    fn residency(&self) -> Option<ResidencyReport> {
        let mut sum = ResidencyReport { cached: 0, total: 0, method: "a sample of the files" };
        for (path, len) in self.sample() {
            let found = File::open(path).ok()?.residency(0, *len).ok()?;
            sum.cached += found.cached;
            sum.total += found.total;
        }
        Some(sum)
    }

    /// Bytes of the sample that no drive holds.
    fn empty(&self) -> Option<u64> {
        self.sample().map(|(path, len)| if *len == 0 { Some(0) } else { empty_bytes(path, 0..*len) }).sum()
    }

    /// Brings the page cache into the requested state.
    pub(crate) fn settle_cache(&self, work: &Workload) -> Result<()> {
        for (path, len) in &self.files {
            if work.warm {
                cache::warm(Some(path), 0, *len).map_err(explain)?;
            }
            if work.drop_cache {
                File::open(path).map_err(explain)?.drop_cache()?;
            }
        }
        match self.residency() {
            Some(left) if work.drop_cache && left.cached > 0 => {
                Err(Error::new(ErrorKind::Busy, "the page cache still holds files after they were dropped")
                    .with("path", self.directory.display())
                    .hint("files of a tmpfs are memory and are never cold: use a directory on a disk"))
            }
            _ => Ok(()),
        }
    }
}

fn at(error: &std::io::Error, doing: &str, path: &Path) -> Error {
    explain(Error::from_io(error, doing).with("path", path.display()))
}

/// All regular files below a directory. Links are not followed.
fn found(directory: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let failed = |error: &std::io::Error| at(error, "cannot use the directory", &directory);
        for entry in fs::read_dir(&directory).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let kind = entry.file_type().map_err(|error| failed(&error))?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                let len = entry.metadata().map_err(|error| failed(&error))?.len();
                files.push((entry.path(), len));
            }
        }
    }
    Ok(files)
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    for last in (1..items.len()).rev() {
        let other = pattern_word(seed, (last as u64) << 3) % (last as u64 + 1);
        items.swap(last, other as usize);
    }
}

/// Makes a directory and those above it that are missing.
fn make_directory(directory: &Path, made: &mut MadeFiles) -> Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(directory).map_err(|error| at(&error, "cannot create the directory", directory))?;
    missing.iter().rev().for_each(|path| made.add_directory(path));
    Ok(())
}

/// A made file.
fn made_name(directory: &Path, index: u64) -> PathBuf {
    directory.join(format!("{:02x}/{index:08}", index % SPREAD))
}

fn make_files(
    directory: &Path,
    (count, size): (u64, u64),
    workers: usize,
    (made, observer): (&mut MadeFiles, &dyn Observer),
) -> Result<()> {
    check_room(directory, count, size)?;
    for part in 0..SPREAD.min(count) {
        make_directory(&directory.join(format!("{part:02x}")), made)?;
    }
    (0..count).for_each(|index| made.add(&made_name(directory, index)));
    let threads = workers.clamp(1, forebay_config::allowed_cpus()) as u64;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let spawn =
            |thread| scope.spawn(move || make_some(directory, (thread, threads), (count, size), observer));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    // A later run would take a part of the files for all of them.
    results.into_iter().collect::<Result<()>>().inspect_err(|_| made.discard())
}

/// Checks the free space first, so that the drive is not filled.
fn check_room(directory: &Path, count: u64, size: u64) -> Result<()> {
    let Some(room) = room(directory) else { return Ok(()) };
    let needed = count.saturating_mul(size);
    let files = room.files.unwrap_or(u64::MAX);
    if needed <= room.bytes && count <= files {
        return Ok(());
    }
    let mut error = Error::new(ErrorKind::NoSpace, "there is no room for the files to make")
        .with("path", directory.display())
        .with("needed", needed)
        .with("free", room.bytes);
    if count > files {
        error = error.with("files", count).with("free_files", files);
    }
    Err(error.hint("use a smaller --make-files or -i, or free some space (df -h, df -i)"))
}

fn panicked() -> Error {
    Error::new(ErrorKind::Internal, "a thread that makes files panicked")
}

fn make_some(
    directory: &Path,
    (thread, threads): (u64, u64),
    (count, size): (u64, u64),
    observer: &dyn Observer,
) -> Result<()> {
    let mut bytes = vec![0; size as usize];
    for index in (thread..count).step_by(threads as usize) {
        if observer.is_stopped() {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted while files were made"));
        }
        fill_pattern(&mut bytes, index, 0);
        let path = made_name(directory, index);
        fs::write(&path, &bytes).map_err(|error| at(&error, "cannot create file", &path))?;
    }
    Ok(())
}

/// A worker that reads files.
struct FileReader<'a> {
    session: &'a Session,
    device: &'a Arc<dyn Device>,
    listing: &'a Listing,
    next: &'a AtomicUsize,
    numa: Option<u32>,
    worker: usize,
}

impl workers::PassWorker for FileReader<'_> {
    type Kept = Buffer;

    fn place(&self) -> (usize, usize) {
        (0, self.worker)
    }

    fn set_up(&self) -> Result<Buffer> {
        if let Some(node) = self.numa {
            crate::workers::numa::pin_thread(node)?;
        }
        Buffer::new(self.device.clone(), self.listing.longest().clamp(1, LONGEST_READ) as usize)
    }

    fn work(&self, buffer: &mut Buffer, meter: &mut WorkerMeter) -> Result<Vec<u64>> {
        let mut count = 0;
        while !meter.stopped()
            && let Some((path, len)) = self.listing.files.get(self.next.fetch_add(1, Ordering::Relaxed))
        {
            let started = Instant::now();
            self.read(path, *len, buffer, meter)?;
            meter.done(started, 1, *len);
            count += 1;
        }
        Ok(vec![count])
    }
}

impl FileReader<'_> {
    /// Opens, reads and closes one file.
    fn read(&self, path: &Path, len: u64, buffer: &mut Buffer, meter: &mut WorkerMeter) -> Result<()> {
        let file = File::open(path).map_err(explain)?;
        let mut at = 0;
        while at < len {
            let take = (len - at).min(buffer.len() as u64) as usize;
            let receipt = self.session.read_into(&file, at, buffer, 0..take)?;
            meter.receipt(&receipt);
            at += take as u64;
        }
        Ok(())
    }
}

/// One pass over all files.
pub(crate) fn pass(
    work: &Workload,
    session: &Session,
    device: &Arc<dyn Device>,
    listing: &Listing,
    observer: &dyn Observer,
) -> Result<Pass> {
    let job = &work.jobs[0];
    let before = listing.residency();
    let next = AtomicUsize::new(0);
    let reader = |worker| FileReader { session, device, listing, next: &next, numa: job.numa, worker };
    let readers: Vec<_> = (0..job.workers).map(reader).collect();
    let pins = || {
        let report = (!device.info().is_host).then(|| session.pins(device));
        report.transpose().map(|report| report.map(|report| report.process_bytes))
    };
    let pinned_before = pins()?;
    let watch = PassObserver { total: Some(listing.bytes()), time: None, observer: Some(observer) };
    let worked = workers::run(&readers, watch)?;
    let pinned_after = pins()?;
    let facts = PassFacts {
        way: TransferWay { xfer: work.xfer, bare: false, write: false, verify: false },
        access: work.access,
        jobs: vec![(listing.bytes(), job.workers, job)],
        depth: None,
        state: transfers::state(std::slice::from_ref(&before)),
    };
    let (mut pass, _) = transfers::measured(&facts, worked)?;
    pass.task = "files";
    pass.io_size = crate::workload::job::IoSize::fixed(listing.longest()).into();
    (pass.pinned_before, pass.pinned_after) = (pinned_before, pinned_after);
    pass.files = vec![FileReport {
        path: listing.directory.display().to_string(),
        file_system: listing.files.first().map_or("", |(path, _)| file_system(path)).to_owned(),
        before,
        after: listing.residency(),
        empty: listing.empty(),
    }];
    Ok(pass)
}

fn file_system(path: &Path) -> &'static str {
    File::open(path).map_or("", |file| file.file_system())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn made_files_are_found_and_shuffled_by_the_seed() {
        let directory = tempfile::tempdir().unwrap();
        let mut job = Job::new(JobTarget::Directory(directory.path().into()));
        job.io = "5000".parse().unwrap();
        job.workers = 3;
        let mut work = Workload::new(vec![job.clone()]);
        let made = &mut MadeFiles::new(false);
        let one = Listing::prepare(&work, &job, Some(300), (made, &Silent)).unwrap();
        assert_eq!((one.files.len(), one.bytes(), one.longest()), (300, 1_500_000, 5000));
        let again = Listing::prepare(&work, &job, Some(7), (made, &Silent)).unwrap();
        assert_eq!(one.files, again.files);
        work.seed = 9;
        let other = Listing::prepare(&work, &job, None, (made, &Silent)).unwrap();
        assert_ne!(one.files, other.files);
        assert!(one.residency().unwrap().total > 0);
    }

    #[test]
    fn an_empty_directory_is_an_error_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let job = Job::new(JobTarget::Directory(directory.path().into()));
        let work = Workload::new(vec![job.clone()]);
        let Err(error) = Listing::prepare(&work, &job, None, (&mut MadeFiles::new(true), &Silent)) else {
            panic!()
        };
        assert!(error.kind() == ErrorKind::NotFound && !error.hints().is_empty());
    }

    /// Ends the run when it is asked for the tenth time.
    #[derive(Default)]
    struct Impatient(AtomicUsize);

    impl Observer for Impatient {
        fn is_stopped(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) >= 10
        }
    }

    #[test]
    fn an_interrupt_leaves_no_part_of_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let mut job = Job::new(JobTarget::Directory(directory.path().join("new")));
        job.io = "4096".parse().unwrap();
        let work = Workload::new(vec![job.clone()]);
        // They would stay if they were whole.
        let mut made = MadeFiles::new(false);
        let Err(error) = Listing::prepare(&work, &job, Some(30), (&mut made, &Impatient::default())) else {
            panic!()
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(std::fs::read_dir(directory.path().join("new/09")).unwrap().count(), 1, "ten were made");
        drop(made);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
