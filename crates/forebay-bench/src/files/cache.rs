//! The page cache before a pass: warm, empty, or settled enough for its pages to be pinned.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use forebay_engine::{File, Residency, Session, Way};
use forebay_error::{Error, ErrorKind, Result};

use super::empty::empty_bytes;
use super::open::ReadyJob;
use crate::report::text::bytes;
use crate::report::{BenchReport, Pass};
use crate::workload::Workload;

/// The coarsest clock of a file system.
const TICK: Duration = Duration::from_millis(12);
/// How often a file is dropped that does not go at once, and the time between.
const DROPS: u32 = 4;
const BETWEEN_DROPS: Duration = Duration::from_millis(20);

/// Waits until files that were written a moment ago may be pinned, but not for files that are written all the time.
pub(crate) fn wait_settled(session: &Session, files: &[&File]) -> Result<()> {
    let settle = session.config().pin_settle;
    let deadline = Instant::now() + settle * 3;
    for path in files.iter().filter_map(|file| file.path()) {
        loop {
            let found = std::fs::metadata(path)
                .map_err(|error| Error::from_io(&error, "cannot open file").with("path", path.display()))?;
            let changed = Duration::new(found.ctime().max(0) as u64, found.ctime_nsec() as u32);
            let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed).unwrap_or_default();
            // A file's clock ticks every few milliseconds.
            if age > settle + TICK || Instant::now() > deadline {
                break;
            }
            std::thread::sleep((settle + TICK).saturating_sub(age));
        }
    }
    Ok(())
}

/// Brings the page cache into the requested state.
pub(crate) fn settle_cache(work: &Workload, ready: &[ReadyJob<'_>]) -> Result<()> {
    for job in ready {
        let len = job.range.end - job.range.start;
        for open in &job.files {
            if work.warm {
                warm(open.file.path(), job.range.start, len)?;
            }
            // A file of a server has no pages in this machine's cache.
            if work.drop_cache && open.file.path().is_some() {
                drop_cache(&open.file, &job.range)?;
            }
        }
    }
    Ok(())
}

/// Drops a file from the page cache. Pages that are being read or written just now stay, so it tries more than once.
fn drop_cache(file: &File, range: &Range<u64>) -> Result<()> {
    for attempt in 1.. {
        file.drop_cache()?;
        let left = file.residency(range.start, range.end - range.start)?;
        match left.cached {
            0 => break,
            _ if left.total == 0 => break,
            _ if attempt == DROPS => return Err(still_cached(&left, file.path(), file.file_system())),
            _ => std::thread::sleep(BETWEEN_DROPS),
        }
    }
    Ok(())
}

fn still_cached(left: &Residency, path: Option<&Path>, file_system: &str) -> Error {
    let error = Error::new(ErrorKind::Busy, "the page cache still holds the file after it was dropped")
        .with("path", path.map_or(String::new(), |path| path.display().to_string()))
        .with("cached", left.cached)
        .with("total", left.total)
        .with("method", left.method);
    if file_system == "tmpfs" {
        return error.hint("tmpfs files are memory and are never cold: use a file on a disk");
    }
    error.hint("another process maps or pins the file's pages: find it with `fuser -v FILE`")
}

pub(crate) fn warm(path: Option<&Path>, start: u64, len: u64) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let read = || -> io::Result<()> {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        let mut buffer = vec![0_u8; 1 << 20];
        let mut left = len;
        while left > 0 {
            let take = left.min(buffer.len() as u64) as usize;
            let got = file.read(&mut buffer[..take])?;
            if got == 0 {
                break;
            }
            left -= got as u64;
        }
        Ok(())
    };
    read().map_err(|error| {
        Error::from_io(&error, "cannot read the file into the page cache").with("path", path.display())
    })
}

/// The path of a pass's bytes; a share of up to 1 % by another path is ignored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    /// How many of a hundred bytes.
    PageCache(u64),
    Drive,
}

fn through(pass: &Pass) -> Option<Through> {
    if pass.verify_pass || pass.files.iter().any(|file| file.file_system == "tmpfs") {
        return None;
    }
    let moved = pass.moved();
    let cached = moved[Way::Cached] + moved[Way::Mapped];
    let direct = moved[Way::Direct] + moved[Way::Drive] + moved[Way::Server];
    let percent = cached.saturating_mul(100) / pass.bytes.max(1);
    match direct > pass.bytes / 2 {
        _ if percent > 0 => Some(Through::PageCache(percent)),
        true => Some(Through::Drive),
        false => None,
    }
}

/// Where the passes of a type went.
fn of_type(passes: &[Pass], xfer_type: usize) -> Option<Through> {
    passes.iter().rev().filter(|pass| pass.xfer_type == xfer_type).find_map(through)
}

/// Whether one of two types went through the page cache and the other to the drive.
pub(crate) fn differs(passes: &[Pass], one: usize, other: usize) -> bool {
    matches!(
        (of_type(passes, one), of_type(passes, other)),
        (Some(Through::Drive), Some(Through::PageCache(_)))
            | (Some(Through::PageCache(_)), Some(Through::Drive))
    )
}

/// Notes on the page cache: the share of the engine's types that went through it, where gdsio and raw calls use
/// O_DIRECT.
pub(crate) fn note(work: &Workload, report: &BenchReport) -> Option<String> {
    let (did, does, fix) = if work.access.writes() {
        ("wrote through", "writes", "--cache bypass has all written to the drive")
    } else {
        ("read from", "reads", "--drop-cache or --cache bypass has all read from the drive")
    };
    let ratio =
        report.summary.iter().find(|one| one.ratio.as_ref().is_some_and(|ratio| ratio.cache_beside_drive));
    if let Some(one) = ratio {
        let last = report.summary.last().map_or(0, |last| last.xfer_type);
        let (cache, drive) = match of_type(&report.passes, one.xfer_type) {
            Some(Through::PageCache(_)) => (one.xfer_type, last),
            _ => (last, one.xfer_type),
        };
        return Some(format!("type {cache} {did} the page cache, type {drive} by O_DIRECT: {fix}"));
    }
    if work.warm || work.keeps_cache() || !work.compare.is_empty() {
        return None;
    }
    let of_engine = |pass: &&Pass| pass.task == "transfers" && !matches!(pass.xfer_type, 1..=4);
    let parts = report.passes.iter().filter(of_engine).filter_map(through);
    let percent = parts.map(|part| if let Through::PageCache(percent) = part { percent } else { 0 }).max();
    let what = match percent.filter(|percent| *percent > 0)? {
        _ if work.access.writes() => "the file was written through the page cache".to_owned(),
        percent if percent > 50 => "the file was warm and read from the page cache".to_owned(),
        percent => format!("{percent} % of the file was warm and read from the page cache"),
    };
    Some(format!("{what}, where gdsio {does} by O_DIRECT: {fix}"))
}

/// Notes on files whose blocks hold no data.
pub(crate) fn empty_note(report: &BenchReport) -> Option<String> {
    let files = report.passes.iter().flat_map(|pass| &pass.files);
    let of_pass = files.map(|file| (&file.path, file.empty, file.before.as_ref().map(|one| one.total)));
    let opened = report
        .open_cost
        .iter()
        .map(|cost| (&cost.path, empty_bytes(Path::new(&cost.path), 0..cost.bytes), Some(cost.bytes)));
    let (path, empty, total) = of_pass.chain(opened).max_by_key(|(_, empty, _)| *empty)?;
    let empty = empty.filter(|empty| *empty > 0)?;
    let of = total.map_or(String::new(), |total| format!(" of {}", bytes(total)));
    Some(format!(
        "{path}: {}{of} are holes, or were allocated and never written: reads of them reach no drive, and their rate is none \
         of a drive. Write the file first, or copy it: cp --sparse=never --reflink=never",
        bytes(empty)
    ))
}

/// Other programs may use this much of all CPUs during a run, in percent; above it, the report has a note.
const BUSY_PERCENT: f64 = 10.0;

/// A note on the CPU use of other programs.
pub(crate) fn busy_note(report: &BenchReport) -> Option<String> {
    let others = report.passes.iter().filter_map(|pass| pass.cpu.others_percent).fold(0.0, f64::max);
    (others > BUSY_PERCENT).then(|| {
        format!("busy machine: other programs used up to {others:.0} % of all CPUs during the run: figures are lower for it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something maps its pages for a moment.
    #[test]
    fn a_file_that_does_not_go_at_once_is_dropped_again() {
        const LEN: usize = 64 << 10;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; LEN]).unwrap();
        let plain = std::fs::File::open(&path).unwrap();
        plain.sync_all().unwrap();
        let file = File::open(&path).unwrap();
        if file.file_system() == "tmpfs" {
            println!("skipped: tmpfs files are never cold");
            return;
        }
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of a file that keeps its length.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                libc::PROT_READ,
                flags,
                std::os::fd::AsRawFd::as_raw_fd(&plain),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        file.drop_cache().unwrap();
        assert!(file.residency(0, LEN as u64).unwrap().cached > 0, "mapped pages stay");
        let address = map as usize;
        let other = std::thread::spawn(move || {
            std::thread::sleep(BETWEEN_DROPS / 2);
            // SAFETY: the mapping above, which nothing else uses.
            unsafe { libc::munmap(address as *mut libc::c_void, LEN) };
        });
        drop_cache(&file, &(0..LEN as u64)).unwrap();
        assert_eq!(file.residency(0, LEN as u64).unwrap().cached, 0);
        other.join().unwrap();
    }
}
