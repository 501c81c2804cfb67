//! Objects of a gateway beside the same bytes as files: the work of a row, one process, and its figures.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::child::Child;
use crate::model::{Run, Share, Why};
use crate::targets::Target;
use crate::work::size;

/// How whole objects are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectWay {
    /// As files, without a gateway.
    Posix,
    /// By their files, which the gateway on this machine hands out.
    Local,
    /// By HTTP, from the same gateway.
    Http,
}

impl ObjectWay {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Posix, Self::Local, Self::Http];

    /// Its name in a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Local => "local",
            Self::Http => "http",
        }
    }
}

/// The work on each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectIo {
    /// Opened and read whole, from the page cache.
    Warm,
    /// The same, from the drive.
    Cold,
    /// Written anew, whole and durable.
    Write,
}

impl ObjectIo {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Warm, Self::Cold, Self::Write];

    /// Its name in a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Write => "write",
        }
    }
}

/// The work of a row's process, as `--objects` has it: `local,warm,16M,8,256M,0.5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectWork {
    /// How they are reached.
    pub way: ObjectWay,
    /// The work on each.
    pub io: ObjectIo,
    /// Bytes of an object.
    pub size: u64,
    /// Objects at a time.
    pub threads: usize,
    /// Bytes of all.
    pub total: u64,
    /// It goes on for at least this time, but once over what is cold.
    pub seconds: f64,
}

impl ObjectWork {
    /// Objects, at least one for each thread.
    pub fn count(&self) -> usize {
        ((self.total / self.size) as usize).max(self.threads)
    }
}

impl fmt::Display for ObjectWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, io, threads, seconds, .. } = self;
        let (own, all) = (size(self.size), size(self.total));
        write!(f, "{},{},{own},{threads},{all},{seconds}", way.name(), io.name())
    }
}

impl FromStr for ObjectWork {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::new(ErrorKind::InvalidInput, format!("no work on objects: {text:?}"))
                .hint("--objects local,warm,16M,8,256M,0.5")
        };
        let words: Vec<&str> = text.split(',').collect();
        let [way, io, own, threads, total, seconds] = words[..] else { return Err(wrong()) };
        let bytes = |text| forebay_config::parse_size(text).ok().filter(|bytes| *bytes > 0).ok_or_else(wrong);
        Ok(Self {
            way: ObjectWay::ALL.into_iter().find(|one| one.name() == way).ok_or_else(wrong)?,
            io: ObjectIo::ALL.into_iter().find(|one| one.name() == io).ok_or_else(wrong)?,
            size: bytes(own)?,
            threads: threads.parse().ok().filter(|count| (1..=1024).contains(count)).ok_or_else(wrong)?,
            total: bytes(total)?,
            seconds: seconds.parse().ok().filter(|time| (0.0..=3600.0).contains(time)).ok_or_else(wrong)?,
        })
    }
}

/// The figures that the process prints, as one line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ObjectFigures {
    /// Wall time.
    pub seconds: f64,
    /// Bytes of all objects that were moved.
    pub bytes: u64,
    /// Of each object, in µs, ascending.
    pub latencies: Vec<f64>,
    /// CPU of the process, the gateway's with it.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
    /// What moved the bytes.
    pub engine: String,
}

/// The work of a row.
#[derive(Clone, Debug)]
pub(crate) struct ObjectRow {
    pub(crate) target: Target,
    pub(crate) device: String,
    pub(crate) work: ObjectWork,
}

impl ObjectRow {
    /// The arguments behind `forebay`.
    pub(crate) fn args(&self) -> Vec<String> {
        let folder = self.target.given.display().to_string();
        let words = ["report", &folder, "-d", &self.device, "--objects", &self.work.to_string()];
        words.map(str::to_owned).to_vec()
    }

    /// Why it cannot be run here.
    pub(crate) fn absent(&self) -> Option<String> {
        if !self.target.made {
            return Some("objects are made where a directory is given".to_owned());
        }
        let is_memory = self.work.io == ObjectIo::Cold && !self.target.can_be_cold;
        is_memory.then(|| "memory by nature (tmpfs): nothing of it is cold".to_owned())
    }

    pub(crate) fn child(&self, executable: &[std::ffi::OsString]) -> Child {
        Child::new(executable.iter().cloned().chain(self.args().into_iter().map(Into::into)))
    }

    /// Reads the figures from the last line.
    pub(crate) fn parse(&self, text: &str) -> std::result::Result<Run, Why> {
        let line = text.lines().last().unwrap_or_default();
        let found: ObjectFigures = serde_json::from_str(line).map_err(|error| Why {
            text: format!("the work on objects gave nothing that can be read: {error}"),
            hint: None,
        })?;
        let ObjectFigures { seconds, bytes, latencies, user_s, system_s, engine } = found;
        let at =
            |part: f64| latencies.get(((latencies.len() as f64 * part) as usize).min(latencies.len() - 1));
        if latencies.is_empty() {
            return Err(Why { text: "no object was moved".to_owned(), hint: None });
        }
        let cache = match self.work.io {
            ObjectIo::Write => "",
            io => io.name(),
        };
        Ok(Run {
            seconds,
            bytes,
            ops: latencies.len() as u64,
            mean_us: latencies.iter().sum::<f64>() / latencies.len() as f64,
            p50_us: at(0.5).copied(),
            p99_us: at(0.99).copied().unwrap_or_default(),
            p999_us: at(0.999).copied(),
            user_s,
            system_s,
            cache: cache.to_owned(),
            engines: vec![Share { engine, bytes, ways: [].into() }],
            ..Run::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_read_as_it_is_written() -> Result<()> {
        for text in ["posix,warm,1M,1,64M,0.25", "local,cold,16M,8,256M,0.5", "http,write,1G,1,1G,2"] {
            assert_eq!(text.parse::<ObjectWork>()?.to_string(), text);
        }
        for text in [
            "",
            "local,warm,1M,1,64M",
            "near,warm,1M,1,64M,1",
            "local,warm,0,1,64M,1",
            "local,warm,1M,0,1M,1",
        ] {
            assert!(text.parse::<ObjectWork>().is_err(), "{text}");
        }
        Ok(())
    }
}
