//! `forebay doctor`: findings without transfers, of this machine, a process, a pod, or a saved tree.

use std::fmt::Write;

use forebay_config::Config;
use forebay_error::plain;
use forebay_objects::{ObjectRdma, ObjectUrl};
use forebay_stats::Snapshot;
use serde::Serialize;

use crate::cufile::{CufileConfig, library};
use crate::exercise::{DriverOffer, Hinted};
use crate::facts::Facts;
pub use crate::facts::{MappedLibrary, ProcessFacts, SavedBench};
use crate::finding::{Finding, Severity};
use crate::gpu;
use crate::machine::MachineFacts;
use crate::nfs_server::{self, ServerCopy};
use crate::objects;
use crate::render::{counts, finding_lines};
use crate::report::missing;
use crate::rules::findings;
use crate::site::SiteRules;
use crate::storage::{self, StoragePlace};
use crate::system::{ProcessView, System};

/// The things to examine.
#[derive(Clone, Debug, Default)]
pub struct DoctorOptions {
    /// Directories or files; empty looks for mounted file systems.
    pub paths: Vec<String>,
    /// A running process.
    pub pid: Option<u32>,
    /// Its counters, where it has any.
    pub counters: Option<Snapshot>,
    /// This is a pod: fixes are of its manifest.
    pub pod: bool,
    /// A kernel log in place of this machine's, and its name.
    pub log: Option<(String, String)>,
    /// Saved reports of `forebay bench --json`.
    pub benches: Vec<SavedBench>,
    /// NFS servers whose files were collected there.
    pub servers: Vec<ServerCopy>,
    /// Objects of S3. The machine is looked at, too, where something else is asked for.
    pub objects: Vec<ObjectUrl>,
    /// Answers of servers of objects that were asked for RDMA before. Those of `objects` are asked now.
    pub rdma: Vec<ObjectRdma>,
    /// What the site makes of findings.
    pub site: SiteRules,
}

impl DoctorOptions {
    /// Whether nothing but objects is asked for.
    fn is_of_objects(&self) -> bool {
        let has_machine = !self.paths.is_empty() || self.pid.is_some() || self.pod || self.log.is_some();
        let has_objects = !self.objects.is_empty() || !self.rdma.is_empty();
        has_objects && !has_machine && self.benches.is_empty() && self.servers.is_empty()
    }
}

/// The doctor's result.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// Name and version of this schema.
    pub schema: &'static str,
    /// Version of forebay.
    pub version: &'static str,
    /// The worst severity.
    pub worst: Severity,
    /// 0, 1 or 2.
    pub exit_code: i32,
    /// The process examined.
    pub process: Option<ProcessFacts>,
    /// Paths examined.
    pub places: Vec<String>,
    /// NFS servers examined.
    pub servers: Vec<String>,
    /// Ids of findings that the site leaves out.
    pub ignored: Vec<&'static str>,
    /// The findings, worst first.
    pub findings: Vec<Finding>,
}

/// Reads the machine, and tries nothing.
pub fn diagnose(
    system: &dyn System,
    offered: &DriverOffer,
    options: &DoctorOptions,
) -> Result<DoctorReport, Hinted> {
    let Some(pid) = options.pid else { return look(system, offered, options, None) };
    if !system.is_dir(&format!("/proc/{pid}")) {
        let fix =
            if system.exists("/proc/self/status") { "ps -e lists them" } else { "mount -t proc proc /proc" };
        return Err(Hinted::new(format!("no such process: {pid}")).fix(fix));
    }
    let process = process(system, pid, options.counters.clone());
    look(&ProcessView::new(system, pid), offered, options, Some(process))
}

fn look(
    system: &dyn System,
    offered: &DriverOffer,
    options: &DoctorOptions,
    process: Option<ProcessFacts>,
) -> Result<DoctorReport, Hinted> {
    let is_bench = |bench: &SavedBench| bench.report["passes"].is_array();
    if let Some(other) = options.benches.iter().find(|bench| !is_bench(bench)) {
        return Err(Hinted::new(format!("{} is no report of forebay bench: it has no passes", other.path))
            .fix("make one: forebay bench … --json FILE"));
    }
    let (places, mut found) = if options.is_of_objects() {
        (Vec::new(), Vec::new())
    } else {
        of_machine(system, offered, options, process.as_ref())?
    };
    for server in &options.servers {
        found.extend(nfs_server::look(server, system));
    }
    found.extend(objects::look(system, options, &found));
    let ignored = options.site.apply(&mut found);
    let worst = found.first().map_or(Severity::Ok, |finding| finding.severity);
    Ok(DoctorReport {
        schema: "forebay.doctor/1",
        version: crate::VERSION,
        worst,
        exit_code: match worst {
            Severity::Blocks => 2,
            Severity::Slower => 1,
            Severity::Note | Severity::Ok => 0,
        },
        process,
        places: places.into_iter().chain(options.objects.iter().map(ToString::to_string)).collect(),
        servers: options.servers.iter().map(|server| server.host.clone()).collect(),
        ignored,
        findings: found,
    })
}

/// Paths of this machine, and its findings.
fn of_machine(
    system: &dyn System,
    offered: &DriverOffer,
    options: &DoctorOptions,
    process: Option<&ProcessFacts>,
) -> Result<(Vec<String>, Vec<Finding>), Hinted> {
    let mut asked = options.paths.clone();
    if let (true, Some(process)) = (asked.is_empty(), process) {
        asked.extend(process.files.iter().map(|(_, path)| path.clone()).filter(|path| system.exists(path)));
    }
    let mut places: Vec<StoragePlace> = Vec::new();
    for place in storage::probe(system, &asked, None) {
        let place = place.map_err(|path| missing(&path))?;
        // A file and a link to it are one place.
        if !places.iter().any(|known| known.path == place.path) {
            places.push(place);
        }
    }
    let mut machine = MachineFacts::probe(system);
    if options.pod {
        machine.container = Some("kubernetes".to_owned());
    }
    let library = library(system);
    let cufile = CufileConfig::probe(system);
    let found = findings(&Facts {
        system,
        machine: &machine,
        offered,
        gpus: &gpu::probe(system, &offered.gpus),
        places: &places,
        config: &Config::from_lookup(|name| system.env(name)).map_err(|error| Hinted::from(&error)),
        cufile: &cufile,
        library: library.as_ref(),
        tried: None,
        process,
        log: options.log.as_ref(),
        benches: &options.benches,
    });
    Ok((places.into_iter().map(|place| place.path).collect(), found))
}

fn process(system: &dyn System, pid: u32, counters: Option<Snapshot>) -> ProcessFacts {
    let line = system.read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = String::from_utf8_lossy(line.strip_suffix(&[0]).unwrap_or(&line)).replace('\0', " ");
    ProcessFacts {
        pid,
        program,
        libraries: mapped(system, pid),
        files: files(system, pid),
        cpu_seconds: cpu(system, pid),
        counters,
    }
}

/// The libcufile.so.0 among its mappings. forebay's has forebay's name in it.
fn mapped(system: &dyn System, pid: u32) -> Vec<MappedLibrary> {
    let maps = system.text(&format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut all: Vec<MappedLibrary> = Vec::new();
    for line in maps.lines() {
        let Some(path) = line.find('/').map(|at| line[at..].trim_end_matches(" (deleted)")) else { continue };
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.starts_with("libcufile.so") && all.iter().all(|known| known.path != path) {
            let within = format!("/proc/{pid}/root{path}");
            let read = |path: &str| system.read_plain(path);
            let bytes = read(&within).or_else(|_| read(path)).unwrap_or_default();
            let own = bytes.windows(8).any(|window| window == b"FOREBAY_");
            all.push(MappedLibrary { path: path.to_owned(), own });
        }
    }
    all
}

/// Data files: no devices, libraries or system files.
fn files(system: &dyn System, pid: u32) -> Vec<(String, String)> {
    const SYSTEM_PATHS: [&str; 8] =
        ["/dev/", "/proc/", "/sys/", "/memfd:", "/usr/", "/lib", "/run/", "/etc/"];
    const MAX_FILES: usize = 16;
    let dir = format!("/proc/{pid}/fd");
    let links = system.list(&dir).into_iter().filter_map(|number| {
        let path = system.link(&format!("{dir}/{number}"))?;
        (path.starts_with('/')
            && !path.ends_with(" (deleted)")
            && !SYSTEM_PATHS.iter().any(|start| path.starts_with(start)))
        .then_some((number, path))
    });
    let view = ProcessView::new(system, pid);
    let mut all: Vec<(String, String)> = Vec::new();
    for (number, path) in links.filter(|(_, path)| view.exists(path) && !view.is_dir(path)) {
        if all.len() < MAX_FILES && all.iter().all(|(_, known)| *known != path) {
            all.push((number, path));
        }
    }
    all
}

/// Fields 14 and 15 of stat, in hundredths of a second. The second field is a name in parentheses that may hold anything.
fn cpu(system: &dyn System, pid: u32) -> Option<f64> {
    let stat = system.text(&format!("/proc/{pid}/stat"))?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

/// The report for people; findings in order only with `all`.
pub fn text(report: &DoctorReport, all: bool) -> String {
    let mut out = String::new();
    let title = match report.worst {
        Severity::Ok => "nothing is wrong",
        Severity::Note => "nothing is wrong; see the notes",
        Severity::Slower => "something makes it slower",
        Severity::Blocks => "something does not work",
    };
    let _ = writeln!(out, "forebay doctor {}: {title}", report.version);
    if let Some(process) = &report.process {
        let _ = writeln!(out, "process {}: {}", process.pid, plain(&process.program));
    }
    let servers = report.servers.iter().map(|server| format!("server {server}"));
    let looked: Vec<String> = report.places.iter().cloned().chain(servers).collect();
    let _ = writeln!(out, "looked at: {}\n", plain(&looked.join(", ")));
    let shown = report.findings.iter().filter(|finding| all || finding.severity > Severity::Ok);
    for finding in shown {
        finding_lines(&mut out, finding, "");
    }
    let ignored = match report.ignored.len() {
        0 => String::new(),
        count => format!(", {count} ignored"),
    };
    let _ = writeln!(out, "{}{ignored}", counts(&report.findings));
    out
}
