//! What makes no sense is refused before anything is touched.

use std::collections::HashSet;

use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};

use super::job::{Job, JobTarget, MemoryType, Xfer};
use super::{BenchTask, Foreign, MOST_GATHERED, MOST_PIECES, MOST_WORKERS, Workload, bad};

impl Workload {
    /// Refuses combinations that make no sense, before any file is touched.
    pub fn check(&self) -> Result<()> {
        if self.jobs.is_empty() {
            return bad(
                "nothing to do: no file and no directory",
                "name one with -f FILE, -D DIRECTORY or --files DIRECTORY",
            );
        }
        let types = self.types();
        self.jobs.iter().try_for_each(|job| check_job(job, &types))?;
        let workers: usize = self.jobs.iter().map(|job| job.workers).sum();
        if workers > MOST_WORKERS {
            return bad(
                format!("{workers} threads in {} jobs", self.jobs.len()),
                &format!("at most {MOST_WORKERS} run at once: use a smaller -w, or fewer jobs"),
            );
        }
        self.check_servers()?;
        self.check_directories()?;
        self.check_numbers()?;
        self.check_offsets()?;
        self.check_mix(&types)?;
        self.check_idle(&types)?;
        self.check_time()?;
        self.check_bare(&types)?;
        match self.task {
            BenchTask::Transfers => {}
            BenchTask::Gather(_) => self.check_gather(&types)?,
            BenchTask::Files { .. } => self.check_files(&types)?,
            BenchTask::OpenCost => self.check_open_cost()?,
        }
        self.config.clone().checked()?;
        for name in self.config.strict.iter().chain(&self.config.engine) {
            if name != "all" {
                name.parse::<forebay_engine::EngineKind>()?;
            }
        }
        Ok(())
    }

    /// Jobs of one directory use the same files: those of one would be written by the other, too. gdsio lets them.
    fn check_directories(&self) -> Result<()> {
        if !self.writes() || self.foreign == Foreign::Warn {
            return Ok(());
        }
        let mut seen = HashSet::new();
        for job in &self.jobs {
            let JobTarget::Directory(path) = &job.target else { continue };
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            let shown = path.display().to_string();
            if !seen.insert(path) {
                let error =
                    Error::new(ErrorKind::InvalidInput, "two jobs write to the files of one directory");
                return Err(error.with("path", shown).hint("name another directory with each -D"));
            }
        }
        Ok(())
    }

    /// Flags without effect on files of a server, which have no page cache here and no raw calls.
    fn check_servers(&self) -> Result<()> {
        let Some(job) = self.jobs.iter().find(|job| File::is_url(job.target.path())) else { return Ok(()) };
        let url = job.target.path().display().to_string();
        let refused = |message: &str, hint: &str| {
            Err(Error::new(ErrorKind::InvalidInput, message).with("url", &url).hint(hint))
        };
        if matches!(job.target, JobTarget::Directory(_)) {
            return refused(
                "directories of a server are not used by URL",
                "name one file: -P nfs://SERVER/EXPORT/PATH, -P s3://BUCKET/KEY; or a directory on a mount",
            );
        }
        let is_gather = matches!(self.task, BenchTask::Gather(_));
        let (no_cache, no_raw) = ("it is not in this machine's page cache", "there are no raw calls for it");
        for (is_given, flag, why) in [
            (self.drop_cache, "--drop-cache", no_cache),
            (self.warm, "--warm", no_cache),
            (self.trim, "--trim", no_cache),
            (is_gather, "--gather", no_cache),
            (self.ceiling, "--ceiling", no_raw),
        ] {
            if is_given {
                return refused(
                    &format!("{flag} does nothing for a file of a server: {why}"),
                    &format!("leave out {flag}, or name a file on a mount"),
                );
            }
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<()> {
        let most = if matches!(self.task, BenchTask::Gather(_)) { MOST_PIECES } else { 65536 };
        if let Some(batch) = self.batch
            && !(1..=most).contains(&batch)
        {
            return bad(format!("a batch of {batch}"), &format!("use -B 1..{most}"));
        }
        if !(1..=64).contains(&self.batches) {
            return bad(format!("{} batches in flight", self.batches), "use --batches 1..64");
        }
        if self.repeat == 0 {
            return bad("0 repetitions", "use --repeat 1 or more");
        }
        if self.runtime.is_some_and(|time| time.is_zero()) {
            return bad("a run of 0 seconds", "use -T 1 or more, or leave -T out to go over the data once");
        }
        if self.drop_cache && self.warm {
            return bad("--drop-cache and --warm exclude each other", "choose one");
        }
        Ok(())
    }

    fn check_offsets(&self) -> Result<()> {
        let is_random = self.access.random() || matches!(self.task, BenchTask::Gather(_));
        if self.align == Some(0) {
            return bad("alignment 0", "use -a 4K, for example");
        }
        if self.unaligned && !is_random {
            return bad("-U without random I/O", "add -I 2 or -I 3");
        }
        if self.unaligned && self.align.is_some() {
            return bad("-U and -a exclude each other", "choose one");
        }
        Ok(())
    }

    fn check_mix(&self, types: &[Xfer]) -> Result<()> {
        let Some(reads) = self.mix else { return Ok(()) };
        if types.iter().any(|xfer| !xfer.is_batch()) {
            return bad("-M without batches", "-M goes with -x 6 and -x 7");
        }
        if reads > 100 {
            return bad(format!("{reads} percent of reads"), "use -M 0..100");
        }
        if self.verify {
            return bad("-V cannot check a mix of reads and writes", "leave out -V or -M");
        }
        Ok(())
    }

    /// Flags of forebay that would change nothing are refused. gdsio ignores its own flags where they do not apply, and
    /// so does forebay.
    fn check_idle(&self, types: &[Xfer]) -> Result<()> {
        let writes_alone = self.access.writes() && self.mix.is_none();
        let has_batches = self.bare
            || types.iter().any(|xfer| matches!(xfer, Xfer::CpuAsyncGpu | Xfer::Async) || xfer.is_batch());
        let is_transfer = self.task == BenchTask::Transfers;
        if self.warm && writes_alone {
            return bad("--warm does nothing for writes", "leave out --warm, or read: -I 0 or -I 2");
        }
        if self.batches > 1 && !(is_transfer && has_batches) {
            return bad(
                "--batches without batches",
                "--batches goes with -x 3, 5, 6 and 7; more threads: -w",
            );
        }
        Ok(())
    }

    /// Flags about the time of a run.
    fn check_time(&self) -> Result<()> {
        let is_transfer = self.task == BenchTask::Transfers;
        let by_time = self.runtime.is_some() || self.steady_percent.is_some();
        if self.steady_percent.is_some_and(|percent| !(0.1..=100.0).contains(&percent)) {
            return bad(
                "a steady rate within nothing, or within all",
                "use --until-steady=0.1 to 100 (percent)",
            );
        }
        let is_once = matches!(self.task, BenchTask::Files { .. } | BenchTask::OpenCost);
        if !self.ramp.is_zero() && (is_once || !by_time) {
            return bad("--ramp without a run by time", "add -T SECONDS or --until-steady");
        }
        if self.steady_percent.is_some() && !is_transfer {
            return bad("--until-steady is about transfers", "leave it out, or -T for --gather");
        }
        if self.rate.is_some() && !is_transfer {
            return bad("--rate is about transfers", "leave it out");
        }
        if self.rate.is_some() && self.batches > 1 {
            return bad(
                "--rate with several batches in flight",
                "leave out --batches: one at a time waits for the rate",
            );
        }
        let makes = self.access.writes() || matches!(self.task, BenchTask::Files { make: Some(_) });
        if self.unlink && !makes {
            return bad("--unlink does nothing for reads: they make no files", "leave it out");
        }
        Ok(())
    }

    /// Raw calls of the engine mapped exist for plain reads.
    fn check_bare(&self, types: &[Xfer]) -> Result<()> {
        if !self.bare || !self.only_mapped() || matches!(self.task, BenchTask::Gather(_)) {
            return Ok(());
        }
        if types.iter().any(|xfer| *xfer != Xfer::Gpud) || self.writes() {
            return bad("--bare --engine mapped reads with -x 0 only", "leave out -x, and -I 1 or -I 3");
        }
        if self.jobs.iter().any(|job| job.memory.is_host()) {
            return bad("--bare --engine mapped reads into device memory", "leave out -m");
        }
        Ok(())
    }

    fn check_gather(&self, types: &[Xfer]) -> Result<()> {
        if types != [Xfer::Gpud] || self.writes() {
            return bad("--gather reads by a kernel of its own", "leave out -x, --compare, -I and -M");
        }
        for job in &self.jobs {
            if !matches!(job.target, JobTarget::File(_)) {
                return bad("--gather without a file", "name one file for each job: -f FILE");
            }
            if job.memory != MemoryType::Device {
                return bad("--gather ends in device memory", "leave out -m");
            }
            if !job.io.is_fixed() {
                return bad("the pieces of a gather have one size", "use one size: -i 4K");
            }
            if job.io.max > MOST_GATHERED {
                return bad("a piece is larger than what one call may gather", "use -i up to 4G");
            }
        }
        Ok(())
    }

    fn check_files(&self, types: &[Xfer]) -> Result<()> {
        if types != [Xfer::Gpud] || self.writes() || self.bare {
            return bad("--files reads with -x 0 only", "leave out -x, --compare, -I, -M and --bare");
        }
        if self.verify || self.runtime.is_some() || self.ceiling {
            return bad("--files reads each file once, unverified", "leave out -V, -T and --ceiling");
        }
        if self.jobs.len() != 1 || self.jobs[0].memory != MemoryType::Device {
            return bad(
                "--files is one job that ends in device memory",
                "leave out -m, and give -w, -d and -i once",
            );
        }
        Ok(())
    }

    fn check_open_cost(&self) -> Result<()> {
        if self.jobs.len() != 1 || !matches!(self.jobs[0].target, JobTarget::File(_)) {
            return bad("--open-cost without a file", "name one file: -f FILE");
        }
        if self.xfer != Xfer::Gpud || self.jobs[0].workers > 1 {
            return bad("--open-cost uses one thread, by the engine", "leave out -x and -w");
        }
        if self.writes() || self.bare || self.verify || !self.compare.is_empty() {
            return bad(
                "--open-cost only opens, reads and closes",
                "leave out -I, -M, --bare, -V and --compare",
            );
        }
        if self.warm || self.drop_cache || self.trim || self.ceiling || self.runtime.is_some() {
            return bad(
                "--open-cost has rounds of its own",
                "leave out --warm, --drop-cache, --trim, --ceiling and -T; --repeat N makes more rounds",
            );
        }
        Ok(())
    }
}

fn check_job(job: &Job, types: &[Xfer]) -> Result<()> {
    forebay_source::Location::of(job.target.path())?;
    if job.workers == 0 || job.workers > MOST_WORKERS {
        return bad(format!("{} threads", job.workers), &format!("use -w 1..{MOST_WORKERS}"));
    }
    if job.size == Some(0) {
        return bad("the size is 0", "use -s 1G, for example, or leave -s out to use the whole file");
    }
    if let Some(size) = job.size
        && size < job.io.min
    {
        return bad(
            format!("the size ({size}) is less than one I/O ({})", job.io.min),
            "use a smaller -i or a larger -s",
        );
    }
    if job.io.max > 16 << 30 {
        return bad(format!("an I/O of {} bytes", job.io.max), "use -i up to 16G");
    }
    if let Some(other) = types.iter().find(|xfer| !xfer.uses_engine())
        && job.memory != MemoryType::Device
    {
        return bad(
            format!("-m with transfer type {}", other.number()),
            "-m goes with -x 0, 5, 6 and 7 only",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::OffsetsIn;
    use super::super::RateLimit;
    use super::super::job::IoAccess;
    use super::*;

    fn one() -> Workload {
        Workload::new(vec![Job::new(JobTarget::File("x".into()))])
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        let cases: Vec<(&str, Workload)> = vec![
            ("gather in a directory", {
                let mut w = Workload::new(vec![Job::new(JobTarget::Directory("x".into()))]);
                w.task = BenchTask::Gather(OffsetsIn::Gpu);
                w
            }),
            ("gather that writes", {
                let mut w = one();
                (w.task, w.access) = (BenchTask::Gather(OffsetsIn::Host), IoAccess::Write);
                w
            }),
            ("files, verified", {
                let mut w = one();
                (w.task, w.verify) = (BenchTask::Files { make: None }, true);
                w
            }),
            ("bare mapped batches", {
                let mut w = one();
                (w.bare, w.xfer, w.config.engine) = (true, Xfer::Batch, Some("mapped".into()));
                w
            }),
            ("warm writes", {
                let mut w = one();
                (w.warm, w.access) = (true, IoAccess::Write);
                w
            }),
            ("batches of single I/Os", {
                let mut w = one();
                w.batches = 2;
                w
            }),
            ("open cost, warm", {
                let mut w = one();
                (w.task, w.warm) = (BenchTask::OpenCost, true);
                w
            }),
            ("open cost of a write", {
                let mut w = one();
                (w.task, w.access) = (BenchTask::OpenCost, IoAccess::Write);
                w
            }),
            ("no job", Workload::new(vec![])),
            ("no size", {
                let mut w = one();
                w.jobs[0].size = Some(0);
                w
            }),
            ("small", {
                let mut w = one();
                w.jobs[0].size = Some(4096);
                w
            }),
            ("no worker", {
                let mut w = one();
                w.jobs[0].workers = 0;
                w
            }),
            ("memory", {
                let mut w = one();
                w.jobs[0].memory = MemoryType::Heap;
                w.xfer = Xfer::CpuGpu;
                w
            }),
            ("mix", {
                let mut w = one();
                w.mix = Some(50);
                w
            }),
            ("a ramp of one go over the data", {
                let mut w = one();
                w.ramp = Duration::from_secs(1);
                w
            }),
            ("a rate of files", {
                let mut w = one();
                (w.task, w.rate) = (BenchTask::Files { make: None }, Some(RateLimit::Ios(1)));
                w
            }),
            ("a rate of batches in flight", {
                let mut w = one();
                (w.xfer, w.batches, w.rate) = (Xfer::Batch, 2, Some(RateLimit::Ios(1)));
                w
            }),
            ("steady within nothing", {
                let mut w = one();
                w.steady_percent = Some(0.0);
                w
            }),
            ("what reads would remove", {
                let mut w = one();
                w.unlink = true;
                w
            }),
            ("time", {
                let mut w = one();
                w.runtime = Some(Duration::ZERO);
                w
            }),
            ("unaligned", {
                let mut w = one();
                w.unaligned = true;
                w
            }),
            ("one directory for two jobs", {
                let mut w = Workload::new(vec![
                    Job::new(JobTarget::Directory(".".into())),
                    Job::new(JobTarget::Directory("../forebay-bench/".into())),
                ]);
                assert!(w.check().is_ok(), "which read");
                w.access = IoAccess::Write;
                w
            }),
            (
                "threads of all jobs",
                Workload::new(vec![Job::new(JobTarget::File("x".into())); MOST_WORKERS + 1]),
            ),
            ("a server's page cache", {
                forebay_nfs::register();
                let mut w = Workload::new(vec![Job::new(JobTarget::File("nfs://a/b".into()))]);
                assert!(w.check().is_ok());
                w.drop_cache = true;
                w
            }),
            ("engine", {
                let mut w = one();
                w.config.engine = Some("fast".into());
                w
            }),
        ];
        assert!(one().check().is_ok());
        for (name, workload) in cases {
            let error = workload.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
            assert!(!error.hints().is_empty(), "{name}");
        }
    }
}
