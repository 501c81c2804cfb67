//! gdsio's flags, and ours, as a workload.

mod idle;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::jobfile::{self, rdma_refused};
use forebay_bench::{
    BenchTask, Foreign, IoAccess, IoSize, Job, JobTarget, MemoryType, OffsetsIn, RateLimit, Workload,
    WriteFill, Xfer,
};
use forebay_config::cufile::Settings;
use forebay_config::{CachePolicy, Config, IoBackend, MAX_LANES, Objective, parse_size};
use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result, quoted};
use forebay_gpu::DeviceName;
use forebay_source::Location;

use crate::names::in_words;
use crate::ssh::Host;

/// Measures transfers. stdout has gdsio's lines; the report goes to stderr and to --json FILE.
///
/// -f, -D, -d, -n, -m, -w, -s, -o and -i may be given several times: the Nth of each makes the Nth job; a flag given
/// once holds for all jobs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// A job file (.gdsio); flags given beside it win
    #[arg(value_name = "JOBFILE", conflicts_with_all = ["file", "directory", "files"], value_parser = crate::names::source())]
    pub(crate) job_file: Option<PathBuf>,
    /// File (or block device) that all threads share
    #[arg(short = 'f', value_name = "FILE", conflicts_with = "directory", value_parser = crate::names::source())]
    file: Vec<PathBuf>,
    /// Directory: one file per thread, gdsio.N
    #[arg(short = 'D', value_name = "DIRECTORY", value_parser = crate::names::source())]
    directory: Vec<PathBuf>,
    /// GPU index (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS [default: 0]
    #[arg(short = 'd', value_name = "DEVICE", value_delimiter = ',', value_parser = parse::<DeviceName>)]
    device: Vec<DeviceName>,
    /// NUMA node to run on
    #[arg(short = 'n', value_name = "NODE", allow_negative_numbers = true)]
    numa: Vec<i64>,
    /// Memory: 0 device, 1 device by the virtual-memory API, 2 pinned host, 3 malloc, 4 mmap (-x 0, 5, 6, 7)
    #[arg(short = 'm', value_name = "TYPE", value_parser = parse::<MemoryType>)]
    memory: Vec<MemoryType>,
    /// Threads; entries, for batches [default: 1]
    #[arg(short = 'w', value_name = "THREADS")]
    workers: Vec<usize>,
    /// Size: of the file with -f, of each file with -D [default: what is there]
    #[arg(short = 's', value_name = "SIZE", value_parser = size)]
    size: Vec<u64>,
    /// Start offset in the file
    #[arg(short = 'o', value_name = "OFFSET", value_parser = size)]
    start: Vec<u64>,
    /// Bytes per I/O, or min:max:step [default: 1M]
    #[arg(short = 'i', value_name = "SIZE", value_parser = parse::<IoSize>)]
    io: Vec<IoSize>,
    /// NVLink routing (changes nothing, and a note says so)
    #[arg(short = 'p')]
    nvlink: bool,
    /// Skip buffer registration (accepted; forebay needs none)
    #[arg(short = 'b')]
    no_register: bool,
    /// Verify: writes carry a pattern of file name, offset and -k; reads check every byte
    #[arg(short = 'V')]
    verify: bool,
    /// Transfer type: 0 elected best, 1 host, 2 classic, 3 pipelined, 4 page cache, 5 stream, 6 batch, 7 batch on a stream [default: 0]
    #[arg(short = 'x', value_name = "TYPE", value_parser = parse::<Xfer>)]
    xfer: Option<Xfer>,
    /// Entries per batch [default: -w]
    #[arg(short = 'B', value_name = "ENTRIES")]
    batch: Option<usize>,
    /// 0 read, 1 write, 2 randread, 3 randwrite [default: 0]
    #[arg(short = 'I', value_name = "IO", value_parser = parse::<IoAccess>)]
    access: Option<IoAccess>,
    /// Run for this many seconds instead of once over the data
    #[arg(short = 'T', value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Seed of random offsets and of the pattern, decimal or 0x…
    #[arg(short = 'k', value_name = "SEED", value_parser = seed)]
    seed: Option<u64>,
    /// Random offsets at any byte
    #[arg(short = 'U')]
    unaligned: bool,
    /// Write random bytes
    #[arg(short = 'R')]
    random: bool,
    /// New random bytes before each write
    #[arg(short = 'F')]
    refill: bool,
    /// Alignment of random offsets [default: the I/O size]
    #[arg(short = 'a', value_name = "BYTES", value_parser = size)]
    align: Option<u64>,
    /// Percent of reads in batches that mix reads and writes
    #[arg(short = 'M', value_name = "PERCENT")]
    mix: Option<u8>,
    /// A file of a server, without a mount: nfs://SERVER/EXPORT/PATH, s3://BUCKET/KEY (rdma:// is refused: nothing is behind it yet)
    #[arg(short = 'P', value_name = "URL")]
    url: Option<PathBuf>,
    /// Print a line per job too
    #[arg(short = 'J')]
    pub(crate) per_job: bool,
    /// 0: by O_DIRECT; 1: without, through the page cache [default: types 0, 5, 6, 7 read cached bytes there; 0 as gdsio]
    #[arg(short = 'O', value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    no_direct: Option<u8>,

    /// Write the report as JSON (docs/reference/bench-json.md); - is standard output, and gdsio's lines go to stderr then
    #[arg(long, value_name = "FILE", value_parser = crate::names::target(), help_heading = "forebay's own")]
    pub(crate) json: Option<PathBuf>,
    /// Begin I/Os no faster than this, all threads together: 500M (bytes a second), 20000iops
    #[arg(long, value_name = "RATE", value_parser = parse::<RateLimit>, help_heading = "forebay's own")]
    rate: Option<RateLimit>,
    /// Run for this long before -T begins, uncounted
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "forebay's own")]
    ramp: Option<Duration>,
    /// Run until each of the last five seconds is within PERCENT of their mean rate [default: 5], for -T at most
    /// [default: 60]
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "5", help_heading = "forebay's own")]
    until_steady: Option<f64>,
    /// Remove the files that this run has made
    #[arg(long, help_heading = "forebay's own")]
    unlink: bool,
    /// Transfer types to run in turn, for ratios: 0,2
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = parse::<Xfer>, conflicts_with = "xfer", help_heading = "forebay's own")]
    compare: Vec<Xfer>,
    /// Passes; figures are medians [default: 1; 5 with --compare]
    #[arg(long, value_name = "N", help_heading = "forebay's own")]
    repeat: Option<usize>,
    /// Use this engine, without election; noop moves nothing
    #[arg(long, value_name = "NAME", help_heading = "forebay's own")]
    engine: Option<String>,
    /// Engines that payload may use; anything else is an error
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "forebay's own")]
    strict: Vec<String>,
    /// The same work as raw calls, without engine code
    #[arg(long, help_heading = "forebay's own")]
    bare: bool,
    /// Drop the files from the page cache before each pass; an error if they stay
    #[arg(long, help_heading = "forebay's own")]
    drop_cache: bool,
    /// Read the files into the page cache before each pass
    #[arg(long, help_heading = "forebay's own")]
    warm: bool,
    /// Unpin all pages before each pass: each is a first read
    #[arg(long, help_heading = "forebay's own")]
    trim: bool,
    /// Gather random pieces of -i bytes, -B per call [default: 1048576], from the mapped file by one kernel; offsets
    /// in GPU or host memory [default: gpu]; for -T seconds [default: 3], with -V once
    #[arg(long, value_name = "gpu|host", num_args = 0..=1, require_equals = true, default_missing_value = "gpu", value_parser = parse::<OffsetsIn>, help_heading = "forebay's own")]
    gather: Option<OffsetsIn>,
    /// Measure what opening, mapping, reading and closing the file costs: medians of --repeat [default: 20]
    #[arg(long, conflicts_with = "gather", help_heading = "forebay's own")]
    open_cost: bool,
    /// Open, read whole and close every file below DIRECTORY once, in random order
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["file", "directory", "gather", "open_cost"], value_parser = crate::names::source(), help_heading = "forebay's own")]
    files: Option<PathBuf>,
    /// Make N files of -i bytes first if --files finds none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "forebay's own")]
    make_files: Option<u64>,
    /// Page cache policy: auto, keep, bypass
    #[arg(long, value_name = "POLICY", value_parser = parse::<CachePolicy>, help_heading = "forebay's own")]
    cache: Option<CachePolicy>,
    /// Lanes per device
    #[arg(long, value_name = "N", value_parser = lanes, help_heading = "forebay's own")]
    lanes: Option<usize>,
    /// How to wait for copies: throughput (short sleeps), cpu (sleep in the driver), latency (spin)
    #[arg(long, value_name = "WHAT", value_parser = parse::<Objective>, help_heading = "forebay's own")]
    objective: Option<Objective>,
    /// How lanes talk to the kernel: auto, ring, threads
    #[arg(long = "io", value_name = "BACKEND", value_parser = parse::<IoBackend>, help_heading = "forebay's own")]
    io_backend: Option<IoBackend>,
    /// Batches (types 6 and 7) or I/Os (types 3 and 5) that a thread keeps in flight [default: 1]
    #[arg(long, value_name = "N", help_heading = "forebay's own")]
    batches: Option<usize>,
    /// Measure the rate of raw calls, too
    #[arg(long, help_heading = "forebay's own")]
    ceiling: bool,
    /// Allow to overwrite this block device
    #[arg(long, value_name = "DEVICE", help_heading = "forebay's own")]
    yes_destroy: Vec<PathBuf>,
    /// Write to files that hold other data, too
    #[arg(long, help_heading = "forebay's own")]
    overwrite: bool,
    /// Run on these machines at a time, by ssh (docs/reference/bench-hosts.md)
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', value_parser = Host::of_name, conflicts_with = "open_cost", help_heading = "forebay's own")]
    pub(crate) hosts: Vec<Host>,
    /// Called as gdsio, which writes to any file.
    #[arg(skip)]
    is_gdsio: bool,
}

/// Parses with our own errors: their hints belong to the message.
pub(crate) fn parse<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| in_words(&error))
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| in_words(&error))
}

/// gdsio takes whole seconds; ours may have decimals.
fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse::<f64>().ok().and_then(|value| Duration::try_from_secs_f64(value).ok());
    value.ok_or_else(|| format!("not a time in seconds: {text:?}\nhint: use -T 10, for example"))
}

fn seed(text: &str) -> Result<u64, String> {
    jobfile::seed(text).map_err(|error| in_words(&error))
}

fn lanes(text: &str) -> Result<usize, String> {
    let value = text.parse().ok().filter(|lanes| (1..=MAX_LANES).contains(lanes));
    value.ok_or_else(|| format!("not a number of lanes: {text:?}\nhint: use --lanes 1..{MAX_LANES}"))
}

impl Load {
    /// The same, under the name of NVIDIA's tool.
    pub(crate) fn named_gdsio(self) -> Self {
        Self { is_gdsio: true, ..self }
    }

    /// Only for `gdsio`, whose users expect it to read cufile.json.
    pub(crate) fn unread_cufile_json(&self) -> Option<String> {
        let path = self.is_gdsio.then(|| Settings::from_env().path).flatten()?;
        Some(format!(
            "gdsio reads no cufile.json: {} changed nothing; flags and FOREBAY_* variables do (forebay bench --help)",
            path.display()
        ))
    }

    /// The workload, and whether lines per job are wanted.
    pub(crate) fn workload(&self) -> Result<(Workload, bool)> {
        self.check_flags()?;
        let mut per_job = self.per_job;
        let mut work = match &self.job_file {
            Some(path) => {
                let file = jobfile::load(path)?;
                per_job |= file.per_job;
                file.workload
            }
            None => Workload::new(self.jobs()?),
        };
        if self.job_file.is_some() {
            self.change_jobs(&mut work.jobs)?;
        }
        for path in work.jobs.iter().flat_map(Job::paths).filter(|path| File::is_url(path)) {
            Location::of(path)?;
        }
        let url = work.jobs.iter().find(|job| File::is_url(job.target.path()));
        if let (Some(job), true) = (url, self.cache.is_some() || self.no_direct.is_some()) {
            let what =
                "-O and --cache do nothing for a file of a server: it is not in this machine's page cache";
            return Err(Error::new(ErrorKind::InvalidInput, what)
                .with("url", job.target.path().display())
                .hint("leave out -O and --cache, or name a file on a mount"));
        }
        self.change(&mut work);
        work.config = self.config()?;
        work.check()?;
        self.check_engine_flags(&work)?;
        self.check_gdsio_flags(&work)?;
        Ok((work, per_job))
    }

    /// Refuses flags that have no meaning here, before a file is touched.
    fn check_flags(&self) -> Result<()> {
        if let Some(url) = self.url.as_ref().filter(|url| !File::is_url(url)) {
            let begin = url.as_os_str().as_encoded_bytes().get(..5);
            if begin.is_some_and(|begin| begin.eq_ignore_ascii_case(b"rdma:")) {
                return Err(rdma_refused());
            }
            Location::of(url)?;
            let hint = forebay_source::near_miss(url).map_or_else(
                || "name it as -P nfs://SERVER/EXPORT/PATH or -P s3://BUCKET/KEY; a file of this machine as -f FILE".to_owned(),
                |meant| format!("-P {}", quoted(&meant)),
            );
            return Err(Error::new(ErrorKind::InvalidInput, "not the URL of a file of a server")
                .with("url", url.display())
                .hint(hint));
        }
        if self.url.is_some() && !(self.file.is_empty() && self.directory.is_empty()) {
            return Err(Error::new(ErrorKind::InvalidInput, "-P beside -f or -D")
                .hint("measure one place at a time: -P URL, -f FILE or -D DIRECTORY"));
        }
        if self.make_files.is_some() && self.files.is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "--make-files without --files")
                .hint("name their directory: --files DIRECTORY"));
        }
        Ok(())
    }

    /// Puts the flags into a workload. A flag that was given wins over the job file.
    fn change(&self, work: &mut Workload) {
        if let Some(xfer) = self.xfer {
            work.xfer = xfer;
        }
        if let Some(access) = self.access {
            work.access = access;
        }
        if let Some(seconds) = self.seconds {
            work.runtime = Some(seconds);
        }
        if let Some(seed) = self.seed {
            work.seed = seed;
        }
        work.ramp = self.ramp.unwrap_or_default();
        work.steady_percent = self.until_steady;
        work.rate = self.rate;
        work.unlink = self.unlink;
        work.nvlinks |= self.nvlink;
        work.batch = self.batch.or(work.batch);
        work.verify |= self.verify;
        work.unaligned |= self.unaligned;
        work.align = self.align;
        work.mix = self.mix;
        if self.random {
            work.fill = WriteFill::Random;
        }
        if self.refill {
            work.fill = WriteFill::RandomEach;
        }
        work.bare = self.bare;
        work.drop_cache = self.drop_cache;
        work.warm = self.warm;
        work.ceiling = self.ceiling;
        work.batches = self.batches.unwrap_or(work.batches);
        work.trim = self.trim;
        work.task = self.task();
        work.repeat = self.repeat.unwrap_or(match work.task {
            BenchTask::OpenCost => forebay_bench::OPEN_COST_ROUNDS,
            _ if self.compare.is_empty() => 1,
            _ => 5,
        });
        work.compare.clone_from(&self.compare);
        work.destroy.clone_from(&self.yes_destroy);
        work.foreign = match (self.overwrite, self.is_gdsio) {
            (true, _) => Foreign::Overwrite,
            (false, true) => Foreign::Warn,
            (false, false) => Foreign::Refuse,
        };
    }

    fn task(&self) -> BenchTask {
        match (self.gather, &self.files) {
            (Some(offsets), _) => BenchTask::Gather(offsets),
            (None, Some(_)) => BenchTask::Files { make: self.make_files },
            (None, None) if self.open_cost => BenchTask::OpenCost,
            (None, None) => BenchTask::Transfers,
        }
    }

    fn config(&self) -> Result<Config> {
        let mut config = Config::from_env()?;
        config.cache = self.cache.or_else(|| self.direct()).unwrap_or(config.cache);
        config.lanes = self.lanes.unwrap_or(config.lanes);
        config.objective = self.objective.unwrap_or(config.objective);
        config.io = self.io_backend.unwrap_or(config.io);
        if !self.strict.is_empty() {
            config.strict.clone_from(&self.strict);
        }
        config.engine = self.engine.clone().or(config.engine);
        config.checked()
    }

    /// An error whose hints say what to type here: `--strict` goes before the variable.
    pub(crate) fn retold(&self, error: Error) -> Error {
        let is_ours = error.kind() == ErrorKind::Strict && !self.strict.is_empty();
        match error.hints().iter().find_map(|hint| hint.strip_prefix("allow it: FOREBAY_STRICT=")) {
            Some(engine) if is_ours => {
                let hint = format!("allow it: --strict {},{engine}", self.strict.join(","));
                let retold = Error::new(error.kind(), error.message());
                let said = error.hints().iter().filter(|hint| !hint.starts_with("allow it: "));
                said.fold(retold, Error::hint).hint(hint)
            }
            _ => error,
        }
    }

    /// The meaning of `-O`. gdsio opens files by O_DIRECT by default.
    fn direct(&self) -> Option<CachePolicy> {
        let is_plain = self.task() == BenchTask::Transfers && self.engine.is_none() && !self.warm;
        let is_asked = forebay_config::env::text("FOREBAY_CACHE").is_some();
        match self.no_direct {
            Some(1) => Some(CachePolicy::Keep),
            Some(_) => Some(CachePolicy::Bypass),
            None => (self.is_gdsio && is_plain && !is_asked).then_some(CachePolicy::Bypass),
        }
    }

    fn jobs(&self) -> Result<Vec<Job>> {
        let files = self.file.iter().chain(&self.url).cloned().map(JobTarget::File);
        let directories = self.directory.iter().chain(&self.files).cloned().map(JobTarget::Directory);
        let mut jobs: Vec<Job> = files.chain(directories).map(Job::new).collect();
        for (index, job) in jobs.iter_mut().enumerate() {
            job.name = format!("job{index}");
        }
        if let ([job], [_, _, ..]) = (jobs.as_slice(), self.device.as_slice()) {
            return Err(self.one_target(&job.target));
        }
        self.change_jobs(&mut jobs)?;
        Ok(jobs)
    }

    /// The error for several devices on one target, with the command line to type.
    fn one_target(&self, target: &JobTarget) -> Error {
        let (flag, path) = match target {
            JobTarget::File(path) => ("-f", path),
            JobTarget::Directory(path) => ("-D", path),
        };
        // Two jobs of one directory would write the same files.
        let is_split = flag == "-D" && self.access.is_some_and(IoAccess::writes);
        let named = |device: &DeviceName| {
            let path = if is_split { path.join(device.to_string()) } else { path.clone() };
            format!("{flag} {} -d {device}", quoted(&path.display().to_string()))
        };
        let each: Vec<_> = self.device.iter().map(named).collect();
        let what = if is_split { "a directory" } else { "the target once" };
        Error::new(ErrorKind::InvalidInput, format!("{} devices for one target", each.len()))
            .hint(format!("name {what} for each: {}", each.join(" ")))
    }

    fn change_jobs(&self, jobs: &mut [Job]) -> Result<()> {
        spread(jobs, &self.device, "-d", |job, value| job.device = value.clone())?;
        spread(jobs, &self.numa, "-n", |job, value| job.numa = u32::try_from(*value).ok())?;
        spread(jobs, &self.memory, "-m", |job, value| job.memory = *value)?;
        spread(jobs, &self.workers, "-w", |job, value| job.workers = *value)?;
        spread(jobs, &self.size, "-s", |job, value| job.size = Some(*value))?;
        spread(jobs, &self.start, "-o", |job, value| job.start = *value)?;
        spread(jobs, &self.io, "-i", |job, value| job.io = *value)
    }
}

/// Gives each job its value: one value holds for all, otherwise there is one for each.
fn spread<T>(jobs: &mut [Job], values: &[T], flag: &str, set: impl Fn(&mut Job, &T)) -> Result<()> {
    match values {
        // That there is no job is an error of its own.
        _ if jobs.is_empty() => {}
        [] => {}
        [one] => jobs.iter_mut().for_each(|job| set(job, one)),
        many if many.len() == jobs.len() => {
            jobs.iter_mut().zip(many).for_each(|(job, value)| set(job, value));
        }
        many => {
            let plural = if jobs.len() == 1 { "" } else { "s" };
            let message = format!("{} values of {flag} for {} job{plural}", many.len(), jobs.len());
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .hint(format!("give {flag} once, or once for each -f or -D")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        load: Load,
    }

    pub(super) fn load(line: &str) -> Load {
        forebay_nfs::register();
        forebay_objects::register();
        Line::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap().load
    }

    pub(super) fn work(line: &str) -> Result<Workload> {
        load(line).workload().map(|(work, _)| work)
    }

    #[test]
    fn gdsio_lines_from_the_field() {
        let one = work("-D /mnt/a -d 0 -w 8 -s 500M -i 1M -x 0 -I 1 -T 120 -V -k 7").unwrap();
        assert_eq!(
            (one.jobs[0].workers, one.jobs[0].size, one.access),
            (8, Some(500 << 20), IoAccess::Write)
        );
        assert!(one.verify && one.seed == 7 && one.runtime == Some(Duration::from_mins(2)));
        let two = work("-D /mnt/a -d 0 -n 3 -w 16 -D /mnt/b -d 1 -n 4 -w 16 -s 1G -i 1M -x 0 -I 0").unwrap();
        assert_eq!(two.jobs.len(), 2);
        assert_eq!(
            (&two.jobs[1].device, two.jobs[1].numa, two.jobs[1].size),
            (&1.into(), Some(4), Some(1 << 30))
        );
        let batch = work("-f /x -x 6 -w 10 -B 4 -M 70 -I 2 -i 4K:64K:4K").unwrap();
        assert_eq!((batch.batch, batch.mix, batch.jobs[0].io.count()), (Some(4), Some(70), 16));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for line in [
            "-f a -f b -d 0 -d 1 -d 2",
            "-f a -d 0,1",
            "-f a -w 1 -w 2",
            "-f a -P rdma://x",
            "-f a -P nfs://a/b",
            "-D a -P nfs://a/b",
            "-f a -x 2 --trim",
            "-f a -x 2 --objective cpu",
            "-f a --bare --trim",
            "-f a -x 4 --cache bypass",
            "-f a -x 4 -O 0",
            "-f a -x 0 -B 8",
            "-f a -R",
            "-f a -I 2 -F",
            "--files d -B 8",
            "--open-cost -f a -w 4",
            "--open-cost -f a -x 2",
            "-f a -x 2 -m 3",
            "-f a -s 0",
            "-f a --engine warp",
            "-f a -x 2 --engine staged",
            "-f a --compare 2,4 --lanes 3",
            "-f a --bare --io threads",
            "-f a --bare --engine staged",
            "-f a -I 1 --warm",
        ] {
            let error = work(line).unwrap_err();
            assert!(!error.hints().is_empty(), "{line}: {error}");
        }
    }

    /// The hint's command line parses, and has a job for each device.
    #[test]
    fn devices_of_one_file_are_typed_for_each() {
        for (line, typed) in
            [("-f a -d 0,1", "-f a -d 0 -f a -d 1"), ("-D a -d 0 -d 1", "-D a -d 0 -D a -d 1")]
        {
            let error = work(line).unwrap_err();
            assert_eq!(error.hints(), [format!("name the target once for each: {typed}")]);
            assert_eq!(work(typed).unwrap().jobs.len(), 2);
        }
        // Files of a directory are written by one job.
        let error = work("-D a -d 0,1 -I 1 -s 1M").unwrap_err();
        assert_eq!(error.hints(), ["name a directory for each: -D a/0 -d 0 -D a/1 -d 1"]);
        assert!(work("-D a -d 0 -D a -d 1 -I 1 -s 1M").is_err());
        assert!(work("-D a -d 0 -D b -d 1 -I 1 -s 1M").is_ok());
        let devices =
            |line: &str| work(line).unwrap().jobs.iter().map(|job| job.device.clone()).collect::<Vec<_>>();
        assert_eq!(devices("-f a -f b -d 0,1"), devices("-f a -d 0 -f b -d 1"));
    }

    #[test]
    fn tasks_and_their_defaults() {
        let gather = work("-f a --gather -i 4K -T 1").unwrap();
        assert_eq!(gather.task, BenchTask::Gather(OffsetsIn::Gpu));
        assert_eq!(work("-f a --gather=host -i 512").unwrap().task, BenchTask::Gather(OffsetsIn::Host));
        assert_eq!(work("-f a --open-cost").unwrap().repeat, 20);
        let files = work("--files d --make-files 9 -i 64K -w 3 --trim").unwrap();
        assert_eq!((files.task, files.trim), (BenchTask::Files { make: Some(9) }, true));
        assert_eq!((files.jobs.len(), files.jobs[0].workers), (1, 3));
    }

    #[test]
    fn compare_repeats() {
        let work = work("-f a --compare 0,2").unwrap();
        assert_eq!((work.compare.len(), work.repeat), (2, 5));
    }
}
