//! The work of a row.

use crate::objects::ObjectRow;
use crate::order::Extent;
use crate::targets::Target;

/// The name of the model that is made.
pub(crate) const MODEL: &str = "forebay-report.safetensors";
/// Libraries that load it; the first is forebay.
pub(crate) const LOADERS: [&str; 6] =
    ["forebay", "safetensors", "fastsafetensors", "instanttensor", "instanttensor-mmap", "runai"];

/// gdsio's `-I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Read,
    Write,
    RandRead,
    RandWrite,
}

impl Io {
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "random read",
            Self::RandWrite => "random write",
        }
    }

    fn number(self) -> &'static str {
        match self {
            Self::Read => "0",
            Self::Write => "1",
            Self::RandRead => "2",
            Self::RandWrite => "3",
        }
    }
}

/// The page cache before a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    Cold,
    Warm,
}

/// A job of `forebay bench`: a file and the device it goes to.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) device: String,
    pub(crate) target: Target,
}

/// `forebay bench` with these flags.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) jobs: Vec<Job>,
    /// gdsio's `-x`.
    pub(crate) xfer: u8,
    pub(crate) io: Io,
    /// Bytes per I/O.
    pub(crate) size: u64,
    /// Threads for each job; entries, for batches.
    pub(crate) threads: usize,
    pub(crate) cache: Cache,
    /// How long; `None` is once over the data.
    pub(crate) seconds: Option<f64>,
    /// Passes in one process, of which this one counts.
    pub(crate) pass: usize,
    /// Bytes of the file that each thread has of its own; `None`: all share the target's file.
    pub(crate) each: Option<u64>,
    /// More flags.
    pub(crate) more: Vec<String>,
}

/// The work of a row, and what runs beside it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) run: Program,
    /// The one CPU that it may use.
    pub(crate) cpu: Option<usize>,
    /// Whether the load generator runs beside it, where load is looked at.
    pub(crate) load: Option<bool>,
    /// Whether the file server's CPU is looked at.
    pub(crate) server: bool,
}

/// A program.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    /// Ourselves.
    Bench(Box<Bench>),
    /// A load of a model by a library of Python.
    Peer(Peer),
    /// Ourselves, and a gateway.
    Objects(ObjectRow),
}

/// A load by a library of Python.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: String,
    pub(crate) file: Target,
    /// `cuda:0`, or `cpu`.
    pub(crate) device: String,
    pub(crate) cache: Cache,
    /// Which load of the process counts, from 1 on.
    pub(crate) load: usize,
}

impl Job {
    /// `GPU 0 – /mnt/a`.
    pub(crate) fn name(&self) -> String {
        format!("GPU {} – {}", self.device, self.target.given.display())
    }
}

impl Bench {
    /// The arguments behind `forebay`.
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = vec!["bench".to_owned()];
        let mut push = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
        for job in &self.jobs {
            let (flag, path) = match self.each {
                Some(_) => ("-D", job.target.folder()),
                None => ("-f", job.target.file.clone()),
            };
            push(&[flag, &path.display().to_string(), "-d", &job.device]);
        }
        if let Some(bytes) = self.each {
            push(&["-s", &size(bytes)]);
        }
        push(&["-x", &self.xfer.to_string(), "-I", self.io.number(), "-i", &size(self.size)]);
        if self.io.writes() && !self.more.iter().any(|flag| flag == "-R") {
            // A thin or compressing device may not store zeros, and later rows would read blocks that no drive holds.
            push(&["-R"]);
        }
        push(&["-w", &self.threads.to_string()]);
        if let Some(seconds) = self.seconds {
            push(&["-T", &seconds.to_string()]);
        }
        if self.pass > 1 {
            push(&["--repeat", &self.pass.to_string()]);
        }
        match self.cache {
            // This machine's page cache has nothing of them.
            _ if self.jobs.iter().any(|job| job.target.is_url()) => {}
            Cache::Warm if self.io.writes() => {}
            Cache::Warm => push(&["--warm"]),
            Cache::Cold if self.jobs.iter().all(|job| job.target.can_be_cold) => {
                push(&["--drop-cache"]);
                if self.uses_engine() {
                    // Raw types 1 to 3 use O_DIRECT for small writes, too.
                    push(&["--cache", "bypass"]);
                }
            }
            Cache::Cold => {}
        }
        args.extend(self.more.iter().cloned());
        args
    }

    /// Whether the engine moves its bytes, not raw calls.
    pub(crate) fn uses_engine(&self) -> bool {
        !(1..=4).contains(&self.xfer)
    }

    /// Whether a row's runs measure what raw calls reach, which there are none of for a URL: with --quick and --full only rows of the engine do, since raw
    /// calls are near their own.
    pub(crate) fn has_ceiling(&self, extent: Extent) -> bool {
        let is_local = self.jobs.iter().all(|job| !job.target.is_url());
        is_local && self.pass == 1 && (extent == Extent::Default || self.uses_engine())
    }

    /// Why it cannot be run here.
    pub(crate) fn absent(&self) -> Option<String> {
        if !self.uses_engine() && self.jobs.iter().any(|job| job.target.is_url()) {
            return Some("raw calls need a file of the kernel's: name a directory of a mount".to_owned());
        }
        let own = self.jobs.iter().find(|job| !job.target.made)?;
        self.io.writes().then(|| {
            format!(
                "{} is only read: writes are measured where a directory is given",
                own.target.given.display()
            )
        })
    }
}

/// A size as it is typed: `4K`, `1M`.
pub(crate) fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A command line as it is typed.
pub(crate) fn typed(args: &[String]) -> String {
    let quote = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    args.iter().map(quote).collect::<Vec<_>>().join(" ")
}
