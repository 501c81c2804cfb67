//! The values, by name and by the numbers of the C interface.

use std::path::PathBuf;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};
use serde_json::Value;

use super::keys::{Key, Kind, Target, Typed};
use super::parameters::{ArrayParameter, BoolParameter, FLAGS, SIZES, SizeParameter, StringParameter};
use super::table::KEYS;

/// The options of the drop-in libcufile. [`Settings::default`] is what holds without a file;
/// [`Settings::from_env`] reads file and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    sizes: [u64; SIZES],
    flags: [bool; FLAGS],
    posix_pool: Slabs,
    gpu_bounce: Slabs,
    rdma_transport: String,
    /// The level of logging, and the log's path.
    pub log: Log,
    /// Where NVIDIA's library would use no direct path.
    pub denylist: Denylist,
    /// Unaligned writes take the POSIX path.
    pub posix_unaligned_writes: bool,
    /// `allow_compat_mode=false` makes opening fail: see [`Settings::refuses_to_open`].
    pub strict_compat: bool,
    /// Whose structures the program has.
    pub interface: Interface,
}

/// A version of the C interface: the program's own, which the library cannot find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// 1.15 to 1.18.
    #[default]
    V1_15,
    /// 1.19 and later: longer statistics.
    V1_19,
}

impl Interface {
    /// The variable that names it. A cufile.json cannot: it is for all programs, and the longer structures of one would be
    /// written beyond the end of another's.
    pub const VARIABLE: &str = "FOREBAY_CUFILE_VERSION";

    /// What `cuFileGetVersion` reports: 1000 × major + 10 × minor.
    pub fn number(self) -> i32 {
        match self {
            Self::V1_15 => 1150,
            Self::V1_19 => 1190,
        }
    }

    /// By its name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "1.15" => Some(Self::V1_15),
            "1.19" => Some(Self::V1_19),
            _ => None,
        }
    }
}

/// The level of logging, and the log's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The file that `CUFILE_LOGFILE_PATH` names; set but empty, it can be read back and names none.
    pub file: Option<String>,
    /// The folder of log files; empty means none.
    pub dir: String,
    /// How much is logged.
    pub level: LogLevel,
    /// Where a log file ends; `None` sets no limit.
    pub max_file_size_mb: Option<u64>,
}

/// Where a log was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// In this file.
    File(PathBuf),
    /// In a file in this folder.
    Folder(PathBuf),
}

impl Log {
    /// Where a log was asked for; `None` if nowhere.
    pub fn place(&self) -> Option<LogPlace> {
        match &self.file {
            Some(file) if !file.is_empty() => Some(LogPlace::File(file.into())),
            _ if !self.dir.is_empty() => Some(LogPlace::Folder((&self.dir).into())),
            _ => None,
        }
    }
}

/// How much is logged. A message is written if its level is not greater than the log's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What a user should know.
    Notice,
    /// What failed.
    #[default]
    Error,
    /// What may be a mistake.
    Warn,
    /// What happened.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const ALL: [Self; 6] = [Self::Notice, Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// Its name in `cufile.json` and in log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Notice => "NOTICE",
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
            Self::Trace => "TRACE",
        }
    }
}

impl FromStr for LogLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            bad(format!("unknown log level: {text:?}"))
                .hint(format!("use one of: {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

/// Where NVIDIA's library would use no direct path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denylist {
    /// Names of block drivers.
    pub drivers: Vec<String>,
    /// Block devices.
    pub devices: Vec<String>,
    /// Mount points.
    pub mounts: Vec<String>,
    /// Types of file systems.
    pub filesystems: Vec<String>,
}

/// Buffers of several sizes: how large, and how many of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slabs {
    /// Sizes in KiB, ascending.
    pub sizes_kb: Vec<u64>,
    /// How many of each.
    pub counts: Vec<u64>,
}

/// Which buffers [`Slabs`] are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Host memory for POSIX I/O.
    Posix,
    /// Bounce buffers in GPU memory.
    GpuBounce,
}

impl Slabs {
    /// What is wrong with them.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.sizes_kb.is_empty() || self.counts.len() != self.sizes_kb.len() {
            return Err("needs as many counts as sizes, at least one");
        }
        if self.sizes_kb[0] == 0 || self.counts.contains(&0) {
            return Err("needs sizes and counts above 0");
        }
        if self.sizes_kb.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("needs ascending sizes");
        }
        Ok(())
    }
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

fn unknown(parameter: u32) -> Error {
    bad("no such parameter").with("parameter", parameter)
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self {
            sizes: [0; SIZES],
            flags: [false; FLAGS],
            posix_pool: Slabs::default(),
            gpu_bounce: Slabs::default(),
            rdma_transport: String::new(),
            log: Log::default(),
            denylist: Denylist::default(),
            posix_unaligned_writes: false,
            strict_compat: false,
            interface: Interface::default(),
        };
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            // The table's defaults have their key's type: a test looks at each.
            let _ = settings.set(key, &serde_json::from_str(key.default).unwrap_or_default());
        }
        settings
    }
}

impl Settings {
    /// A number, in the unit that its name ends with.
    pub fn size(&self, parameter: SizeParameter) -> u64 {
        self.sizes[parameter as usize]
    }

    /// Whether an option is on.
    pub fn flag(&self, parameter: BoolParameter) -> bool {
        self.flags[parameter as usize]
    }

    /// Whether `allow_compat_mode=false` makes opening fail (5001): with `forebay_strict_compat`, and nothing that
    /// overrides it.
    pub fn refuses_to_open(&self) -> bool {
        self.strict_compat
            && !self.flag(BoolParameter::AllowCompatMode)
            && !self.flag(BoolParameter::ForceCompatMode)
    }

    /// A number by its parameter's number; `None` if there is no such parameter.
    pub fn get_size(&self, parameter: u32) -> Option<u64> {
        SizeParameter::from_number(parameter).map(|parameter| self.size(parameter))
    }

    /// Sets a number that is in its parameter's range.
    pub fn set_size(&mut self, parameter: u32, value: u64) -> Result<()> {
        let parameter = SizeParameter::from_number(parameter).ok_or_else(|| unknown(parameter))?;
        let kind = Key::of(Target::Size(parameter)).map_or(Kind::Any, |key| key.kind);
        kind.check(&Value::from(value)).map_err(|what| bad(what).with("parameter", parameter.name()))?;
        self.sizes[parameter as usize] = value;
        Ok(())
    }

    /// The range of a number; a greatest of 0 means that there is no limit, as in NVIDIA's library. `None` for
    /// parameters that have no range: the level of statistics, and those that do not exist.
    pub fn min_max(parameter: u32) -> Option<(u64, u64)> {
        let parameter =
            SizeParameter::from_number(parameter).filter(|&p| p != SizeParameter::ProfileStats)?;
        match Key::of(Target::Size(parameter))?.kind {
            Kind::Number { min, max } => Some((min as u64, max.unwrap_or(0))),
            _ => None,
        }
    }

    /// Whether an option is on, by its parameter's number; `None` if there is no such parameter.
    pub fn get_bool(&self, parameter: u32) -> Option<bool> {
        BoolParameter::from_number(parameter).map(|parameter| self.flag(parameter))
    }

    /// Switches an option by its parameter's number.
    pub fn set_bool(&mut self, parameter: u32, value: bool) -> Result<()> {
        let parameter = BoolParameter::from_number(parameter).ok_or_else(|| unknown(parameter))?;
        self.flags[parameter as usize] = value;
        Ok(())
    }

    /// A text by its parameter's number; `None` if there is no such parameter, or no `CUFILE_LOGFILE_PATH` was set.
    pub fn get_string(&self, parameter: u32) -> Option<String> {
        match StringParameter::from_number(parameter)? {
            StringParameter::LoggingLevel => Some(self.log.level.name().to_owned()),
            StringParameter::EnvLogfilePath => self.log.file.clone(),
            StringParameter::LogDir => Some(self.log.dir.clone()),
            StringParameter::RdmaTransport => Some(self.rdma_transport.clone()),
        }
    }

    /// Sets a text by its parameter's number.
    pub fn set_string(&mut self, parameter: u32, value: &str) -> Result<()> {
        match StringParameter::from_number(parameter).ok_or_else(|| unknown(parameter))? {
            StringParameter::LoggingLevel => self.log.level = value.parse()?,
            StringParameter::EnvLogfilePath => self.log.file = Some(value.to_owned()),
            StringParameter::LogDir => value.clone_into(&mut self.log.dir),
            StringParameter::RdmaTransport => {
                let key = Key::of(Target::RdmaTransport).ok_or_else(|| unknown(parameter))?;
                self.set(key, &Value::from(value)).map_err(bad)?;
            }
        }
        Ok(())
    }

    /// Buffers of several sizes.
    pub fn slabs(&self, pool: Pool) -> &Slabs {
        match pool {
            Pool::Posix => &self.posix_pool,
            Pool::GpuBounce => &self.gpu_bounce,
        }
    }

    /// Sets buffers of several sizes: as many counts as sizes, none of them 0, sizes ascending.
    pub fn set_slabs(&mut self, pool: Pool, sizes_kb: &[u64], counts: &[u64]) -> Result<()> {
        let slabs = Slabs { sizes_kb: sizes_kb.to_vec(), counts: counts.to_vec() };
        slabs.check().map_err(bad)?;
        *self.slabs_mut(pool) = slabs;
        Ok(())
    }

    pub(super) fn slabs_mut(&mut self, pool: Pool) -> &mut Slabs {
        match pool {
            Pool::Posix => &mut self.posix_pool,
            Pool::GpuBounce => &mut self.gpu_bounce,
        }
    }

    /// Sets the value of a key if it has the key's type and range.
    pub(super) fn set(&mut self, key: &Key, value: &Value) -> Result<(), String> {
        match (key.target, key.kind.check(value)?) {
            (Target::Nothing, _) => {}
            (Target::Size(parameter), Typed::Number(number)) => {
                self.sizes[parameter as usize] = number as u64;
            }
            (Target::Flag(parameter), Typed::Flag(flag)) => self.flags[parameter as usize] = flag,
            (Target::Slabs(parameter), Typed::Numbers(numbers)) => *self.list(parameter) = numbers,
            (Target::LogDir, Typed::Text(text)) => self.log.dir = text,
            (Target::LogLevel, Typed::Text(text)) => {
                self.log.level = text.parse().map_err(|error: Error| error.to_string())?;
            }
            (Target::LogMaxSize, Typed::Number(0)) => {
                return Err("0 is out of range (-1, 1..4096)".to_owned());
            }
            (Target::LogMaxSize, Typed::Number(number)) => {
                self.log.max_file_size_mb = u64::try_from(number).ok();
            }
            (Target::RdmaTransport, Typed::Text(text)) => self.rdma_transport = text,
            (Target::UnalignedWrites, Typed::Flag(flag)) => self.posix_unaligned_writes = flag,
            (Target::StrictCompat, Typed::Flag(flag)) => self.strict_compat = flag,
            (Target::DenyDrivers, Typed::Texts(texts)) => self.denylist.drivers = texts,
            (Target::DenyDevices, Typed::Texts(texts)) => self.denylist.devices = texts,
            (Target::DenyMounts, Typed::Texts(texts)) => self.denylist.mounts = texts,
            (Target::DenyFilesystems, Typed::Texts(texts)) => self.denylist.filesystems = texts,
            _ => return Err("has no place among the settings".to_owned()),
        }
        Ok(())
    }

    fn list(&mut self, parameter: ArrayParameter) -> &mut Vec<u64> {
        match parameter {
            ArrayParameter::PosixPoolSlabSizeKb => &mut self.posix_pool.sizes_kb,
            ArrayParameter::PosixPoolSlabCount => &mut self.posix_pool.counts,
            ArrayParameter::GpuBounceBufferSlabSizeKb => &mut self.gpu_bounce.sizes_kb,
            ArrayParameter::GpuBounceBufferSlabCount => &mut self.gpu_bounce.counts,
        }
    }

    /// The value of a key, as JSON; of one that goes nowhere the default.
    pub fn value(&self, key: &Key) -> Value {
        match key.target {
            Target::Size(parameter) => self.size(parameter).into(),
            Target::Flag(parameter) => self.flag(parameter).into(),
            Target::Slabs(ArrayParameter::PosixPoolSlabSizeKb) => self.posix_pool.sizes_kb.clone().into(),
            Target::Slabs(ArrayParameter::PosixPoolSlabCount) => self.posix_pool.counts.clone().into(),
            Target::Slabs(ArrayParameter::GpuBounceBufferSlabSizeKb) => {
                self.gpu_bounce.sizes_kb.clone().into()
            }
            Target::Slabs(ArrayParameter::GpuBounceBufferSlabCount) => self.gpu_bounce.counts.clone().into(),
            Target::LogDir => self.log.dir.as_str().into(),
            Target::LogLevel => self.log.level.name().into(),
            Target::LogMaxSize => self.log.max_file_size_mb.map_or(Value::from(-1), Value::from),
            Target::RdmaTransport => self.rdma_transport.as_str().into(),
            Target::UnalignedWrites => self.posix_unaligned_writes.into(),
            Target::StrictCompat => self.strict_compat.into(),
            Target::DenyDrivers => self.denylist.drivers.clone().into(),
            Target::DenyDevices => self.denylist.devices.clone().into(),
            Target::DenyMounts => self.denylist.mounts.clone().into(),
            Target::DenyFilesystems => self.denylist.filesystems.clone().into(),
            Target::Nothing => serde_json::from_str(key.default).unwrap_or_default(),
        }
    }
}
