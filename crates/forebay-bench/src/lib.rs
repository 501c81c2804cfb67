//! forebay's load generator as a library.
//!
//! A [`Workload`] says what to run: [`Job`]s (a target, a device, workers, sizes), a transfer type ([`Xfer`], gdsio's
//! `-x`) and an [`IoAccess`] (`-I`). [`run`] runs it and gives a [`BenchReport`]. The engine's types are 0, 5, 6 and 7;
//! types 1 to 4 and `bare` are raw calls without engine code, so that the engine has something honest to be measured
//! against. A [`BenchTask`] other than transfers gathers pieces of a mapped file, reads many files, or measures what
//! opening one costs. Workloads may come from gdsio's job files ([`jobfile`]); [`mod@format`] prints gdsio's lines.
//!
//! ```
//! use forebay_bench::{IoAccess, Job, JobTarget, Silent, Workload, Xfer, run};
//!
//! let directory = tempfile::tempdir().unwrap();
//! let mut job = Job::new(JobTarget::Directory(directory.path().into()));
//! job.size = Some(1 << 20);
//! job.workers = 2;
//! let mut work = Workload::new(vec![job]);
//! work.access = IoAccess::Write;
//! work.verify = true; // writes carry a pattern, a second pass reads and checks every byte
//! let report = run(&work, &Silent).unwrap();
//! assert_eq!(report.passes.len(), 2);
//! println!("{}", report.passes[0].line());
//! ```

mod counters;
mod files;
mod memory;
mod movers;
mod observer;
mod plan;
mod raw;
pub mod report;
mod run;
mod verify;
mod workers;
mod workload;

pub use files::empty::empty_bytes;
pub use files::room::{Room, room};
pub use memory::DeviceMemory;
pub use observer::{Observer, Progress, Silent};
pub use report::{BenchReport, OpenCost, OpenStep, Pass, format, text};
pub use run::{ROUNDS as OPEN_COST_ROUNDS, run, run_on};
pub use verify::pattern_key;
pub use workload::job::{IoAccess, IoSize, Job, JobTarget, MemoryType, Xfer};
pub use workload::{BenchTask, Foreign, OffsetsIn, RateLimit, Workload, WriteFill, jobfile};
