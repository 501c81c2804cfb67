//! Flags that would change nothing.

use forebay_bench::{BenchTask, Workload, Xfer};
use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};

use super::Load;

fn idle(flag: &str, whom: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{flag} does nothing {whom}"))
}

impl Load {
    /// Refuses flags that are about the engine where only raw calls are made.
    pub(super) fn check_engine_flags(&self, work: &Workload) -> Result<()> {
        let raw_types = work.types().iter().all(|xfer| !xfer.uses_engine());
        if work.task != BenchTask::Transfers || !(work.bare || raw_types) {
            return Ok(());
        }
        // Raw calls can read mapped pages, as the engine of that name.
        let is_mapped = work.bare && self.engine.as_deref() == Some("mapped");
        for (is_given, flag) in [
            (self.engine.is_some() && !is_mapped, "--engine"),
            (!self.strict.is_empty(), "--strict"),
            (self.lanes.is_some(), "--lanes"),
            (self.io_backend.is_some(), "--io"),
            (self.trim && !is_mapped, "--trim"),
            (self.objective.is_some() && !work.bare, "--objective"),
        ] {
            if is_given {
                return Err(idle(flag, "for raw calls").hint(format!(
                    "leave out {flag}, or measure the engine: -x 0, 5, 6 or 7 without --bare"
                )));
            }
        }
        Ok(())
    }

    /// Refuses flags of gdsio's that change nothing here. gdsio takes and ignores them.
    pub(super) fn check_gdsio_flags(&self, work: &Workload) -> Result<()> {
        let types = work.types();
        let is_cached =
            work.task == BenchTask::Transfers && types.iter().all(|xfer| *xfer == Xfer::CpuCachedGpu);
        if is_cached && self.cache == Some(CachePolicy::Bypass) {
            return Err(idle("--cache bypass", "for -x 4").hint("leave it out, or read by O_DIRECT: -x 2"));
        }
        if self.is_gdsio {
            return Ok(());
        }
        let has_batches =
            matches!(work.task, BenchTask::Gather(_)) || types.iter().any(|xfer| xfer.is_batch());
        for (is_given, flag, whom, hint) in [
            (
                self.batch.is_some() && !has_batches,
                "-B",
                "without batches",
                "-B goes with -x 6 and 7; more threads: -w",
            ),
            (self.random && !work.writes(), "-R", "for reads", "leave out -R, or write: -I 1 or -I 3"),
            (self.refill && !work.writes(), "-F", "for reads", "leave out -F, or write: -I 1 or -I 3"),
            (
                self.no_direct == Some(0) && is_cached,
                "-O 0",
                "for -x 4",
                "leave it out, or read by O_DIRECT: -x 2",
            ),
        ] {
            if is_given {
                return Err(idle(flag, whom).hint(hint));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{load, work};

    #[test]
    fn gdsio_takes_its_own_flags_where_they_change_nothing() {
        for line in ["-f a -x 4 -O 0", "-f a -x 0 -B 8", "-f a -R", "-f a -F"] {
            load(line).named_gdsio().workload().unwrap();
        }
        assert!(work("-f a -I 1 -s 1M -R -F").is_ok() && work("-f a --compare 0,6 -B 8").is_ok());
        assert!(work("-f a -x 6 -M 70 -R").is_ok() && work("-f a --gather -i 4K -B 8").is_ok());
        assert!(work("-f a --bare --engine mapped --trim").is_ok());
    }
}
