//! gdsio's job files (`.gdsio`): `[global]`, then a section per job; `#` starts a comment.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use forebay_config::files::read_named;
use forebay_config::parse_size;
use forebay_error::{Error, ErrorKind, Result};

use crate::workload::job::{IoSize, Job, JobTarget};
use crate::workload::{Workload, WriteFill};

/// Keys that a `[global]` section may have; those marked true may stand in a job too.
const KEYS: &[(&str, bool)] = &[
    ("name", false),
    ("xfer_type", false),
    ("rw", false),
    ("bs", true),
    ("io_size", true),
    ("size", true),
    ("runtime", false),
    ("do_verify", false),
    ("skip_bufregister", false),
    ("enable_nvlinks", false),
    ("random_seed", false),
    ("refill_buffer", false),
    ("fill_random", false),
    ("unaligned_random", false),
    ("start_offset", true),
    ("per_job_stats", false),
    ("numa_node", true),
    ("gpu_dev_id", true),
    ("num_threads", true),
    ("directory", true),
    ("filename", true),
    ("mem_type", true),
    ("batch_size", false),
];

/// A parsed job file: the workload, and settings outside of it.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// The workload.
    pub workload: Workload,
    /// Whether per-job lines were asked for.
    pub per_job: bool,
}

/// Reads a job file from disk.
pub fn load(path: &Path) -> Result<JobFile> {
    let hint = "a job file has a [global] section, then one section per job with directory= or filename=";
    let measure = "a file to measure is named with -f, a directory with -D";
    let bytes = read_named(path, "cannot read the job file")
        .map_err(|error| if error.hints().is_empty() { error.hint(hint).hint(measure) } else { error })?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::new(ErrorKind::InvalidInput, "the job file is not text")
            .with("path", path.display())
            .hint(hint)
            .hint(measure)
    })?;
    parse(&text).map_err(|error| error.with("path", path.display()))
}

/// Reads the text of a job file.
///
/// ```
/// let text = "[global]\nxfer_type=0\nrw=read\nbs=1MB\n[job0]\nfilename=/tmp/x\nnum_threads=4\n";
/// let file = forebay_bench::jobfile::parse(text).unwrap();
/// assert_eq!(file.workload.jobs[0].workers, 4);
/// ```
pub fn parse(text: &str) -> Result<JobFile> {
    let mut file = JobFile { workload: Workload::new(Vec::new()), per_job: false };
    let mut global = Section::default();
    let mut sections: Vec<Section> = Vec::new();
    let mut current: Option<usize> = None;
    let mut seen_global = false;
    for (index, raw) in text.lines().enumerate() {
        let line = raw.split('#').next().unwrap_or("").trim();
        let number = index + 1;
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim();
            if name == "global" {
                seen_global = true;
                current = None;
            } else {
                sections.push(Section { name: name.to_owned(), line: number, keys: Vec::new() });
                current = Some(sections.len() - 1);
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(at(
                Error::new(ErrorKind::InvalidInput, format!("not a key=value line: {line:?}")),
                number,
            )
            .hint("write lines as bs=1M, and sections as [global] or [job0]"));
        };
        let (key, value) = (key.trim(), value.trim());
        let Some((_, in_job)) = KEYS.iter().find(|(known, _)| *known == key) else {
            let known: Vec<_> = KEYS.iter().map(|(known, _)| *known).collect();
            return Err(at(Error::new(ErrorKind::InvalidInput, format!("unknown key: {key:?}")), number)
                .hint(format!("known keys: {}", known.join(", "))));
        };
        match current {
            Some(section) if *in_job => sections[section].keys.push((key.into(), value.into(), number)),
            Some(_) => {
                return Err(at(
                    Error::new(ErrorKind::InvalidInput, format!("{key} belongs into [global]")),
                    number,
                )
                .hint("move the line above the first job"));
            }
            None if seen_global => global.keys.push((key.into(), value.into(), number)),
            None => {
                return Err(at(Error::new(ErrorKind::InvalidInput, "a key before any section"), number)
                    .hint("begin the file with [global]"));
            }
        }
    }
    if sections.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the job file has no job")
            .hint("add a section such as [job0] with directory= or filename="));
    }
    for (key, value, line) in &global.keys {
        apply_global(&mut file, key, value).map_err(|error| at(error, *line))?;
    }
    let mut common = JobLines::new();
    common.set_all(&global.keys)?;
    for section in &sections {
        let mut own = common.clone();
        own.set_all(&section.keys)?;
        file.workload.jobs.push(own.finish(section)?);
    }
    Ok(file)
}

#[derive(Default)]
struct Section {
    name: String,
    line: usize,
    keys: Vec<(String, String, usize)>,
}

fn at(error: Error, line: usize) -> Error {
    error.with("line", line)
}

fn apply_global(file: &mut JobFile, key: &str, value: &str) -> Result<()> {
    let work = &mut file.workload;
    match key {
        "xfer_type" => work.xfer = value.parse()?,
        "rw" => work.access = value.parse()?,
        "runtime" => {
            let seconds: u64 = number(value.trim_end_matches('s'))?;
            work.runtime = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        "do_verify" => work.verify = flag(value)?,
        "random_seed" => work.seed = seed(value)?,
        "fill_random" if flag(value)? => work.fill = WriteFill::Random,
        "refill_buffer" if flag(value)? => work.fill = WriteFill::RandomEach,
        "unaligned_random" => work.unaligned = flag(value)?,
        "per_job_stats" => file.per_job = flag(value)?,
        "batch_size" => work.batch = Some(number(value)?),
        "enable_nvlinks" => work.nvlinks = flag(value)?,
        "skip_bufregister" => {
            flag(value)?;
        }
        _ => {}
    }
    Ok(())
}

/// Why `-P` is refused.
pub fn rdma_refused() -> Error {
    Error::new(ErrorKind::Unsupported, "RDMA targets are not available yet")
        .hint("name a file of a server, -P nfs://SERVER/EXPORT/PATH, or a mounted file with -f")
}

/// A job as its lines make it.
#[derive(Clone)]
struct JobLines {
    job: Job,
    directory: Option<PathBuf>,
    filename: Option<PathBuf>,
}

impl JobLines {
    fn new() -> Self {
        Self { job: Job::new(JobTarget::Directory(".".into())), directory: None, filename: None }
    }

    fn set_all(&mut self, keys: &[(String, String, usize)]) -> Result<()> {
        keys.iter().try_for_each(|(key, value, line)| self.set(key, value).map_err(|error| at(error, *line)))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let job = &mut self.job;
        match key {
            "bs" | "io_size" => job.io = IoSize::from_str(value)?,
            "size" => job.size = Some(parse_size(value)?),
            "start_offset" => job.start = parse_size(value)?,
            "numa_node" => job.numa = (value != "-1").then(|| number(value)).transpose()?,
            "gpu_dev_id" => job.device = number::<usize>(value)?.into(),
            "num_threads" => job.workers = number(value)?,
            "mem_type" => job.memory = value.parse()?,
            "directory" => self.directory = Some(value.into()),
            "filename" => self.filename = Some(value.into()),
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self, section: &Section) -> Result<Job> {
        self.job.name.clone_from(&section.name);
        self.job.target = match (self.filename, self.directory) {
            (Some(file), None) => JobTarget::File(file),
            (None, Some(directory)) => JobTarget::Directory(directory),
            (given, _) => {
                let what = if given.is_some() {
                    "both a directory and a filename"
                } else {
                    "neither a directory nor a filename"
                };
                return Err(at(
                    Error::new(ErrorKind::InvalidInput, format!("[{}] has {what}", section.name)),
                    section.line,
                )
                .hint("give one of directory= and filename="));
            }
        };
        Ok(self.job)
    }
}

fn number<T: FromStr>(value: &str) -> Result<T> {
    value.parse().map_err(|_| {
        Error::new(ErrorKind::InvalidInput, format!("not a number: {value:?}")).hint("write a whole number")
    })
}

/// A seed, decimal or as `0x…`.
///
/// ```
/// assert_eq!(forebay_bench::jobfile::seed("0xdeadbeef").unwrap(), 0xdead_beef);
/// ```
pub fn seed(text: &str) -> Result<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    // u64's parser accepts a sign; a seed has none.
    let parsed = hex.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    parsed.ok().filter(|_| !text.contains('+')).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("not a seed: {text:?}"))
            .hint("write a whole number below 2^64, as 7 or 0x7")
    })
}

fn flag(value: &str) -> Result<bool> {
    match value {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(Error::new(ErrorKind::InvalidInput, format!("not 0 or 1: {value:?}")).hint("write 0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::job::{IoAccess, Xfer};

    const SAMPLE: &str = "# a sample
[global]
name=gds_write
xfer_type=0          # 0..7
rw=write             # read|write|randread|randwrite
bs=1MB
size=20G
runtime=60
do_verify=0
enable_nvlinks=0
random_seed=7
[job0]
numa_node=0
gpu_dev_id=0
num_threads=8
directory=/mnt/gds/gpu0
[job1]
numa_node=1
gpu_dev_id=1
num_threads=4
bs=64K:1M:64K
start_offset=1M
filename=/path/file
";

    /// Lines above the jobs hold for all of them, and are read once.
    #[test]
    fn time_grows_with_the_length_of_the_file() {
        let jobs = (0..4000).map(|job| format!("[job{job}]\nfilename=/x{job}\n"));
        let text = ["[global]\n".to_owned(), "bs=4K\n".repeat(20_000), jobs.collect()].concat();
        let began = std::time::Instant::now();
        let file = parse(&text).unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!((file.workload.jobs.len(), file.workload.jobs[3999].io), (4000, IoSize::fixed(4096)));
    }

    #[test]
    fn the_sample() {
        let file = parse(SAMPLE).unwrap();
        let work = &file.workload;
        assert_eq!((work.xfer, work.access, work.seed), (Xfer::Gpud, IoAccess::Write, 7));
        assert_eq!(work.runtime, Some(Duration::from_mins(1)));
        let [a, b] = &work.jobs[..] else { panic!() };
        assert_eq!((a.workers, &a.device, a.numa, a.size), (8, &0.into(), Some(0), Some(20 << 30)));
        assert_eq!(a.target, JobTarget::Directory("/mnt/gds/gpu0".into()));
        assert_eq!(a.io, IoSize::fixed(1 << 20));
        assert_eq!((b.io.count(), b.start, &b.device), (16, 1 << 20, &1.into()));
        assert_eq!(b.target, JobTarget::File("/path/file".into()));
    }

    #[test]
    fn what_gdsio_s_own_files_have() {
        let text = "[global]\nenable_nvlinks=1\nrandom_seed=0xDEADBEEF\n[j]\nfilename=x\n";
        let work = parse(text).unwrap().workload;
        assert_eq!((work.nvlinks, work.seed), (true, 0xdead_beef));
        assert!(!parse(SAMPLE).unwrap().workload.nvlinks);
        for wrong in ["0x", "0xg", "-1", "+1", "0x+1", "18446744073709551616", "1.5"] {
            let error = parse(&format!("[global]\nrandom_seed={wrong}\n[j]\nfilename=x")).unwrap_err();
            assert!(error.to_string().contains("line=2") && !error.hints().is_empty(), "{error}");
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line) in [
            ("[global]\nbs=1M\nwhat=5\n[job0]\nfilename=x\n", "line=3"),
            ("bs=1M\n", "line=1"),
            ("[global]\nrw=sideways\n[j]\nfilename=x", "line=2"),
            ("[global]\n[j]\nnum_threads=many\nfilename=x", "line=3"),
            ("[global]\n[j]\nnum_threads=1", "line=2"),
            ("[global]\n[j]\nfilename=x\ndirectory=y", "line=2"),
            ("[global]\n[j]\nrw=read", "line=3"),
            ("[global]\nhello\n[j]\nfilename=x", "line=2"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(line), "{text:?}: {error}");
            assert!(!error.hints().is_empty(), "{text:?}");
        }
        assert!(parse("[global]\nbs=1M").is_err());
    }
}
