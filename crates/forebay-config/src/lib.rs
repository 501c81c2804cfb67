//! Every option once.
//!
//! Precedence, highest first: what the program sets on [`Config`], the environment (`FOREBAY_*`), the default.
//! [`VARIABLES`] is the one table of variables; `docs/reference/environment.md` is generated from it. The options of
//! the drop-in libcufile (`cufile.json` and `CUFILE_*`) are in [`cufile`].

pub mod cpus;
pub mod cufile;
pub mod elsewhere;
pub mod env;
pub mod files;
mod servers;
mod variables;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

pub use servers::{MOST_ADDRESSES, Servers};
pub use variables::{VARIABLES, Variable};

/// What waiting for a device favours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Bytes per second.
    #[default]
    Throughput,
    /// The least CPU time per byte.
    Cpu,
    /// The shortest time per request: waits spin.
    Latency,
}

/// What happens to the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// Warm pages are read from the cache, cold ones by O_DIRECT; large aligned writes go by O_DIRECT.
    #[default]
    Auto,
    /// Everything goes through the page cache, and stays there.
    Keep,
    /// All aligned parts use O_DIRECT, warm or not.
    Bypass,
}

/// What transfers of cuFile's synchronous calls and batches come after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What stood on the default streams when the call began.
    #[default]
    Default,
    /// Nothing: the program synchronizes before it calls.
    None,
}

/// Whether small copies of several callers go through mailboxes that a kernel on the GPU polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resident {
    /// Where it is safe and prompt.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// How files on NFS are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nfs {
    /// `nfs://` by forebay's own client; mounts by the kernel, and beside it by their server where they are mounted over RDMA.
    #[default]
    Auto,
    /// By the kernel's mounts alone.
    Off,
    /// By the own client, over TCP; mounts, too, where reads are large.
    Tcp,
    /// `nfs://` over RDMA, or an error; mounts by their server where it takes RDMA.
    Rdma,
}

/// Whether objects of a gateway on this node are read and written by their files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum S3Local {
    /// Where the gateway has a socket here.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, or an error.
    Require,
}

impl S3Local {
    /// What the environment says now. Other options of it are not looked at.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(env::text)
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let value = lookup("FOREBAY_S3_LOCAL").filter(|value| !value.is_empty());
        value.map_or(Ok(Self::default()), |value| word("FOREBAY_S3_LOCAL", &value))
    }
}

/// Whether objects go by RDMA, between their server and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum S3Rdma {
    /// Where this machine has a NIC for it and the server takes it, and in bodies of HTTP elsewhere.
    #[default]
    Prefer,
    /// Never: no server is asked.
    Off,
    /// Always, or an error.
    Require,
}

impl S3Rdma {
    /// What the environment says now. Other options of it are not looked at.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(env::text)
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let value = lookup("FOREBAY_S3_RDMA").filter(|value| !value.is_empty());
        value.map_or(Ok(Self::default()), |value| word("FOREBAY_S3_RDMA", &value))
    }
}

/// How lanes talk to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring where it is allowed, threads otherwise.
    #[default]
    Auto,
    /// io_uring or an error.
    Ring,
    /// preadv and pwritev on the lanes' threads.
    Threads,
    /// io_uring whose submissions a thread of the kernel takes (SQPOLL), or an error. Each lane costs a busy CPU.
    Polled,
}

macro_rules! words {
    ($type:ty, $option:literal, $($word:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                // In whatever case: people write FOREBAY_NFS=TCP.
                match text.to_ascii_lowercase().as_str() {
                    $($word => Ok($value),)+
                    _ => Err(Error::new(ErrorKind::InvalidInput, format!("unknown {}: {text:?}", $option))
                        .hint(format!("use one of: {}", [$($word),+].join(", ")))),
                }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if *self == $value { return f.write_str($word); })+
                Ok(())
            }
        }
    };
}
words!(Objective, "objective", "throughput" => Self::Throughput, "cpu" => Self::Cpu, "latency" => Self::Latency);
words!(Order, "order", "default" => Self::Default, "none" => Self::None);
words!(Resident, "resident kernel", "auto" => Self::Auto, "off" => Self::Off);
words!(CachePolicy, "cache policy", "auto" => Self::Auto, "keep" => Self::Keep, "bypass" => Self::Bypass);
words!(Nfs, "way to NFS", "auto" => Self::Auto, "off" => Self::Off, "tcp" => Self::Tcp, "rdma" => Self::Rdma);
words!(S3Local, "way to objects on this node", "auto" => Self::Auto, "off" => Self::Off, "require" => Self::Require);
words!(S3Rdma, "way of objects by RDMA", "prefer" => Self::Prefer, "off" => Self::Off, "require" => Self::Require);
words!(IoBackend, "I/O backend", "auto" => Self::Auto, "ring" => Self::Ring, "threads" => Self::Threads, "sqpoll" => Self::Polled);

/// The options of a session. `Config::from_env()` is the default that a user can change from the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Lanes per device; 0 chooses by the CPUs that this process may use.
    pub lanes: usize,
    /// Processes of this machine that share its CPUs, as the program that started them says (`LOCAL_WORLD_SIZE`): each has
    /// its part of the lanes.
    pub processes: usize,
    /// Slots per lane.
    pub slots: usize,
    /// Bytes per slot, a power of two from 64 KiB to 64 MiB.
    pub slot_size: usize,
    /// See [`Objective`].
    pub objective: Objective,
    /// See [`CachePolicy`].
    pub cache: CachePolicy,
    /// See [`IoBackend`].
    pub io: IoBackend,
    /// See [`Order`].
    pub order: Order,
    /// See [`Resident`].
    pub resident: Resident,
    /// Names of the engines that payload may use; empty allows all.
    pub strict: Vec<String>,
    /// The engine to use whatever election says.
    pub engine: Option<String>,
    /// The most bytes of page cache that may be pinned for devices; 0 pins nothing, `None` depends on the memory that
    /// is available.
    pub pin_budget: Option<u64>,
    /// How long a file must have been left alone before its pages are pinned.
    pub pin_settle: Duration,
    /// Where pages are registered more slowly than this, in GB/s, that begins with their second or third visit; 0: nowhere.
    pub pin_pace: u64,
    /// How long a call of NVIDIA's libcufile may take (the engine `libcufile`).
    pub libcufile_timeout: Duration,
    /// See [`Nfs`].
    pub nfs: Nfs,
    /// Connections to an NFS server that carry bytes, 1 to 16.
    pub nfs_connections: usize,
    /// Further addresses of NFS servers.
    pub nfs_servers: Servers,
    /// See [`S3Local`].
    pub s3_local: S3Local,
    /// See [`S3Rdma`].
    pub s3_rdma: S3Rdma,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lanes: 0,
            processes: 1,
            slots: 8,
            slot_size: 2 << 20,
            objective: Objective::default(),
            cache: CachePolicy::default(),
            io: IoBackend::default(),
            order: Order::default(),
            resident: Resident::default(),
            strict: Vec::new(),
            engine: None,
            pin_budget: None,
            pin_settle: Duration::from_millis(DEFAULT_SETTLE_MS),
            pin_pace: 50,
            libcufile_timeout: Duration::from_secs(30),
            nfs: Nfs::default(),
            nfs_connections: 8,
            nfs_servers: Servers::default(),
            s3_local: S3Local::default(),
            s3_rdma: S3Rdma::default(),
        }
    }
}

/// Most lanes that a search for the best number tries: 12 fill a link. On two H200 with 32 CPUs two processes of 12 each loaded a
/// model 32 % faster than with as many as CPUs, at 38 % less CPU.
const MAX_TRIED_LANES: usize = 12;

/// Default slot size where processes share a machine: the CPUs' cache holds the slots of all. Four ranks on four H200 loaded a
/// model in 0.151 s, with slots of 2 MiB in 0.179; two in 0.161 and 0.165. One alone takes 0.27 s, with 2 MiB 0.24.
const SHARED_SLOT_SIZE: usize = 1 << 20;

/// Most lanes that an option may ask for.
pub const MAX_LANES: usize = 64;

/// Shortest settle time. Before kernel 6.13 a file's times move in steps of up to 10 ms: two such steps.
const MIN_SETTLE: Duration = Duration::from_millis(20);

/// Shortest time limit for NVIDIA's libcufile: a healthy library may take as long for a call.
const MIN_LIBCUFILE_TIMEOUT: Duration = Duration::from_millis(20);

/// Default settle time. Another process's direct write changes the file's times when it starts, not when it ends: a
/// second later it should be over.
const DEFAULT_SETTLE_MS: u64 = 1000;

impl Config {
    /// The defaults with the environment's changes.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(env::text)
    }

    /// As [`Config::from_env`] with any source of variables.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut config = Self::default();
        let read = |name: &'static str| lookup(name).filter(|value| !value.is_empty());
        if let Some(value) = read("FOREBAY_LANES") {
            config.lanes = count("FOREBAY_LANES", &value)?;
        }
        // Not an option of forebay's: a value that is no number counts as unset.
        config.processes = read("LOCAL_WORLD_SIZE").and_then(|value| value.parse().ok()).unwrap_or(1).max(1);
        if config.processes > 1 {
            config.slot_size = SHARED_SLOT_SIZE;
        }
        if let Some(value) = read("FOREBAY_SLOTS") {
            config.slots = count("FOREBAY_SLOTS", &value)?;
        }
        if let Some(value) = read("FOREBAY_SLOT_SIZE") {
            config.slot_size =
                parse_size(&value).map_err(|error| error.with("variable", "FOREBAY_SLOT_SIZE"))? as usize;
        }
        if let Some(value) = read("FOREBAY_OBJECTIVE") {
            config.objective = word("FOREBAY_OBJECTIVE", &value)?;
        }
        if let Some(value) = read("FOREBAY_CACHE") {
            config.cache = word("FOREBAY_CACHE", &value)?;
        }
        if let Some(value) = read("FOREBAY_IO") {
            config.io = word("FOREBAY_IO", &value)?;
        }
        if let Some(value) = read("FOREBAY_ORDER") {
            config.order = word("FOREBAY_ORDER", &value)?;
        }
        if let Some(value) = read("FOREBAY_RESIDENT") {
            config.resident = word("FOREBAY_RESIDENT", &value)?;
        }
        if let Some(value) = read("FOREBAY_STRICT") {
            config.strict = value.split(',').map(|word| word.trim().to_owned()).collect();
        }
        config.engine = read("FOREBAY_ENGINE");
        if let Some(value) = read("FOREBAY_PIN_BUDGET") {
            config.pin_budget =
                Some(parse_size(&value).map_err(|error| error.with("variable", "FOREBAY_PIN_BUDGET"))?);
        }
        if let Some(value) = read("FOREBAY_PIN_SETTLE") {
            config.pin_settle = Duration::from_millis(count("FOREBAY_PIN_SETTLE", &value)? as u64);
        }
        if let Some(value) = read("FOREBAY_PIN_PACE") {
            config.pin_pace = count("FOREBAY_PIN_PACE", &value)? as u64;
        }
        if let Some(value) = read("FOREBAY_VENDOR_TIMEOUT") {
            config.libcufile_timeout = Duration::from_millis(count("FOREBAY_VENDOR_TIMEOUT", &value)? as u64);
        }
        if let Some(value) = read("FOREBAY_NFS") {
            config.nfs = word("FOREBAY_NFS", &value)?;
        }
        if let Some(value) = read("FOREBAY_NFS_CONNECTIONS") {
            config.nfs_connections = count("FOREBAY_NFS_CONNECTIONS", &value)?;
        }
        if let Some(value) = read("FOREBAY_NFS_SERVERS") {
            config.nfs_servers = word("FOREBAY_NFS_SERVERS", &value)?;
        }
        config.s3_local = S3Local::from_lookup(&lookup)?;
        config.s3_rdma = S3Rdma::from_lookup(lookup)?;
        config.checked()
    }

    /// Returns the options if they are within bounds.
    pub fn checked(self) -> Result<Self> {
        let bad = |what: &str, hint: &str| Err(Error::new(ErrorKind::InvalidInput, what).hint(hint));
        if self.lanes > MAX_LANES {
            return bad("too many lanes", "use FOREBAY_LANES=1..64");
        }
        if !(2..=64).contains(&self.slots) {
            return bad("slots out of range", "use FOREBAY_SLOTS=2..64");
        }
        if !self.slot_size.is_power_of_two() || !(64 << 10..=64 << 20).contains(&self.slot_size) {
            return bad(
                "slot size out of range",
                "use a power of two from 64K to 64M, for example FOREBAY_SLOT_SIZE=4M",
            );
        }
        if !(1..=16).contains(&self.nfs_connections) {
            return bad("the number of NFS connections is out of range", "use FOREBAY_NFS_CONNECTIONS=1..16")
                .map_err(|error| error.with("connections", self.nfs_connections));
        }
        if self.pin_settle < MIN_SETTLE {
            return bad(
                "the pages' settling time is shorter than a file's clock",
                "use FOREBAY_PIN_SETTLE=20 or more",
            );
        }
        if self.libcufile_timeout < MIN_LIBCUFILE_TIMEOUT {
            return bad(
                "the time-out of NVIDIA's libcufile is shorter than a slow read",
                "use FOREBAY_VENDOR_TIMEOUT=20 or more",
            );
        }
        Ok(self)
    }

    /// Lanes per device that work at first: the configured number, or three quarters of this process's part of the CPUs,
    /// 1 to 12.
    pub fn effective_lanes(&self) -> usize {
        if self.lanes > 0 {
            self.lanes
        } else {
            (self.cpus_of(allowed_cpus()) * 3 / 4).clamp(1, MAX_TRIED_LANES)
        }
    }

    /// The most lanes that may work: the configured number, or as many as this process's part of the CPUs, 1 to 12.
    pub fn most_lanes(&self) -> usize {
        if self.lanes > 0 { self.lanes } else { self.cpus_of(allowed_cpus()).clamp(1, MAX_TRIED_LANES) }
    }

    /// This process's part of `cpus` that it may run on. One that may run on fewer CPUs than the program that started it has
    /// them for itself.
    pub fn cpus_of(&self, cpus: usize) -> usize {
        if self.processes > 1 && cpus::are_shared() { (cpus / self.processes).max(1) } else { cpus }
    }

    /// The most lanes that may ever work: CPUs may be added.
    pub fn lanes_limit(&self) -> usize {
        if self.lanes > 0 { self.lanes } else { MAX_TRIED_LANES }
    }
}

/// CPUs that this process may run on: its affinity mask and its cgroup's quota, as they were when this was first asked. It is asked
/// where a call may take microseconds, and sizes what cannot change later; threads of forebay's with an affinity of their own get the
/// same answer. Only the number of active lanes follows a change: it is measured, and uses [`cpus::cpus_now`].
pub fn allowed_cpus() -> usize {
    // Finding out reads several files.
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn count(name: &'static str, value: &str) -> Result<usize> {
    value.parse().map_err(|_| {
        let takes =
            VARIABLES.iter().find(|variable| variable.name == name).map_or("a number", |found| found.values);
        Error::new(ErrorKind::InvalidInput, format!("not a number: {value:?}"))
            .with("variable", name)
            .hint(format!("{name} takes {takes}"))
    })
}

/// One of a variable's words.
fn word<T: FromStr<Err = Error>>(name: &'static str, value: &str) -> Result<T> {
    value.parse().map_err(|error: Error| error.with("variable", name))
}

/// Reads a size as `4096`, `4K`, `1M`, `1MB`, `2MiB`, `1.5G` (powers of 1024).
///
/// ```
/// assert_eq!(forebay_config::parse_size("4K").unwrap(), 4096);
/// assert_eq!(forebay_config::parse_size("1MB").unwrap(), 1 << 20);
/// assert!(forebay_config::parse_size("4X").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || {
        Error::new(ErrorKind::InvalidInput, format!("not a size: {text:?}"))
            .hint("write sizes as 4096, 4K, 1M or 2G")
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_shl(shift).filter(|size| size >> shift == whole).ok_or_else(bad);
    }
    let fraction: f64 = number.parse().map_err(|_| bad())?;
    Ok((fraction * (1u64 << shift) as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config> {
        let owned: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Config::from_lookup(|name| owned.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn environment_changes_defaults() {
        let config =
            with(&[("FOREBAY_LANES", "3"), ("FOREBAY_SLOT_SIZE", "1M"), ("FOREBAY_CACHE", "keep")]).unwrap();
        assert_eq!((config.lanes, config.slot_size, config.cache), (3, 1 << 20, CachePolicy::Keep));
        assert_eq!(config.effective_lanes(), 3);
    }

    #[test]
    fn processes_of_a_machine_share_its_cpus() {
        let of = |processes: &str| with(&[("LOCAL_WORLD_SIZE", processes)]).unwrap();
        assert_eq!(of("4").cpus_of(64), if cpus::are_shared() { 16 } else { 64 });
        assert_eq!([of("1"), of("0"), of("many"), of("")].map(|config| config.cpus_of(64)), [64; 4]);
        let alone = of("1000000");
        assert!(!cpus::are_shared() || alone.most_lanes() == 1, "each has one");
        assert!(of("1").most_lanes() <= 12);
        assert_eq!([of("1"), of("2")].map(|config| config.slot_size), [2 << 20, 1 << 20]);
        let set = with(&[("LOCAL_WORLD_SIZE", "1000000"), ("FOREBAY_LANES", "20")]).unwrap();
        assert_eq!((set.effective_lanes(), set.most_lanes()), (20, 20));
    }

    #[test]
    fn bad_values_are_errors_with_a_hint() {
        for pair in [
            ("FOREBAY_CACHE", "warm"),
            ("FOREBAY_SLOT_SIZE", "3M"),
            ("FOREBAY_SLOTS", "1"),
            ("FOREBAY_NFS", "udp"),
            ("FOREBAY_NFS_CONNECTIONS", "0"),
            ("FOREBAY_NFS_CONNECTIONS", "17"),
            ("FOREBAY_NFS_CONNECTIONS", "a few"),
            ("FOREBAY_NFS_SERVERS", "10.0.0.11"),
            ("FOREBAY_LANES", "many"),
        ] {
            let error = with(&[pair]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!error.hints().is_empty(), "{pair:?}");
        }
    }

    #[test]
    fn bad_values_are_told_with_their_variable_and_what_it_takes() {
        let told = |name, value| {
            let error = with(&[(name, value)]).unwrap_err();
            format!("{error}; {}", error.hints()[0])
        };
        let words =
            "unknown way to NFS: \"nonsense\" (variable=FOREBAY_NFS); use one of: auto, off, tcp, rdma";
        assert_eq!(told("FOREBAY_NFS", "nonsense"), words);
        let number =
            "not a number: \"x\" (variable=FOREBAY_NFS_CONNECTIONS); FOREBAY_NFS_CONNECTIONS takes 1..16";
        assert_eq!(told("FOREBAY_NFS_CONNECTIONS", "x"), number);
        let range = "the number of NFS connections is out of range (connections=17); use FOREBAY_NFS_CONNECTIONS=1..16";
        assert_eq!(told("FOREBAY_NFS_CONNECTIONS", "17"), range);
    }

    #[test]
    fn words_are_taken_in_any_case() {
        let config = with(&[("FOREBAY_NFS", "TCP"), ("FOREBAY_CACHE", "Keep")]).unwrap();
        assert_eq!((config.nfs, config.cache), (Nfs::Tcp, CachePolicy::Keep));
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        assert_eq!(with(&[("FOREBAY_ENGINE", "")]).unwrap(), Config::default());
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert!(parse_size("99999999999T").is_err());
        assert_eq!(parse_size("1.5K").unwrap(), 1536);
        assert!(parse_size("").is_err());
    }
}
