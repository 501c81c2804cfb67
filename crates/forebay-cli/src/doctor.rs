//! `forebay doctor`: what is wrong, where it was read, what to type.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_config::files;
use forebay_doctor::doctor::{SavedBench, text};
use forebay_doctor::exercise::Hinted;
use forebay_doctor::system::{COLLECT, CollectedFiles};
use forebay_doctor::{DoctorOptions, RealSystem, RootedSystem, ServerCopy, SiteRules, diagnose, gpu, live};
use forebay_error::Error;
use forebay_gpu::Devices;
use forebay_objects::ObjectUrl;
use forebay_stats::Reader;

use crate::check::{self, FailOn};
use crate::ssh::Host;

/// The exit code where nothing was looked at, or the report could not be written.
pub(crate) const UNKNOWN: i32 = 3;
/// How long the collection on a server may take.
const COLLECT_LIMIT: Duration = Duration::from_mins(1);

/// Find what is wrong with this machine, a mount, a process, a pod or the way to an object, and what to type
///
/// Reads /proc, /sys and /etc, and asks the server of a URL; writes nothing and tries nothing (`forebay check` tries). Each finding says what is
/// wrong, where it was read, and what to type. Exit code, as monitoring takes it: 0 nothing or notes, 1 something makes
/// it slower, 2 something does not work, 3 nothing was looked at (a wrong argument, a server that is not reached).
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DoctorArgs {
    /// Directories, files or objects (s3://); by default the working directory, /tmp and the mounted file systems
    #[arg(value_name = "PATH", value_parser = crate::names::source_text())]
    paths: Vec<String>,

    /// A running process: its libcufile, its cufile.json, its files, its counters
    #[arg(short = 'p', long, value_name = "PID")]
    pid: Option<u32>,

    /// This is a pod: fixes are lines of its manifest
    #[arg(long)]
    pod: bool,

    /// The kernel's log in a file, where dmesg is not for this user
    #[arg(long, value_name = "FILE", value_parser = crate::names::source())]
    log: Option<PathBuf>,

    /// A report of `forebay bench --json`; may be given several times
    #[arg(long, value_name = "FILE", value_parser = crate::names::source())]
    bench: Vec<PathBuf>,

    /// Another machine's root: a node's in a pod (/host), or a saved copy (sosreport)
    #[arg(long, value_name = "DIR", conflicts_with = "pid", value_parser = crate::names::source())]
    root: Option<PathBuf>,

    /// An NFS server to look at, too: a script runs there by ssh, with your keys; may be given several times
    #[arg(long, value_name = "ssh:HOST", value_parser = Host::parse)]
    server: Vec<Host>,

    /// A finding to leave out; may be given several times
    #[arg(long, value_name = "ID")]
    ignore: Vec<String>,

    /// Severities of this site: a file of lines `ID SEVERITY` (ignore, note, slower, blocks)
    #[arg(long, value_name = "FILE", value_parser = crate::names::source())]
    severities: Option<PathBuf>,

    /// Print what is in order, too
    #[arg(long)]
    all: bool,

    /// Print the report as JSON (docs/reference/doctor.md)
    #[arg(long)]
    json: bool,

    /// The least that makes the exit code other than 0
    #[arg(long, value_name = "SEVERITY", value_enum, default_value_t = FailOn::Slower)]
    fail_on: FailOn,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &DoctorArgs, out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    // Only writing can fail, and the stream remembers that.
    print(args, out, err).unwrap_or(UNKNOWN)
}

fn print(args: &DoctorArgs, out: &mut dyn Write, err: &mut dyn Write) -> std::io::Result<i32> {
    // Another machine's tree has its own paths.
    let mut asked = args.paths.iter().filter(|_| args.root.is_none());
    if let Some(error) = asked.find_map(|path| crate::nfs::not_a_path("doctor", path.as_ref())) {
        return refuse(err, &Hinted::from(&error));
    }
    let report = options(args).and_then(|options| match &args.root {
        Some(root) => {
            let system = RootedSystem::new(root);
            diagnose(&system, &gpu::by_files(&system), &options)
        }
        None => diagnose(&RealSystem, &live::offered(&Devices::discover()), &options),
    });
    let report = match report {
        Ok(report) => report,
        Err(why) => return refuse(err, &why),
    };
    let shown =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report, args.all) };
    let code = args.fail_on.code(report.exit_code);
    match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
        // Its reader has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(code),
        written => written.map(|()| code),
    }
}

fn refuse(err: &mut dyn Write, why: &Hinted) -> std::io::Result<i32> {
    check::refuse(err, why).map(|_| UNKNOWN)
}

/// A server by its files.
fn look_there(host: &Host) -> Result<ServerCopy, Hinted> {
    let unread = |error: Error| {
        let hint = format!("its login shell must print nothing and not end early: ssh {} true", host.name());
        error.with("host", host.name()).hint(hint)
    };
    let text = host.run_script(COLLECT, COLLECT_LIMIT);
    let files = text.and_then(|text| CollectedFiles::parse(&text).map_err(unread));
    let files = files.map_err(|error| Hinted::from(&error))?;
    Ok(ServerCopy { host: host.name().to_owned(), machine: RootedSystem::collected(files) })
}

fn site(args: &DoctorArgs, read: impl Fn(&PathBuf) -> Result<String, Hinted>) -> Result<SiteRules, Hinted> {
    let mut rules = SiteRules::default();
    for id in &args.ignore {
        rules.ignore(id)?;
    }
    if let Some(path) = &args.severities {
        rules.read(&path.display().to_string(), &read(path)?)?;
    }
    Ok(rules)
}

fn options(args: &DoctorArgs) -> Result<DoctorOptions, Hinted> {
    if let Some(root) = args.root.as_deref().filter(|root| !root.join("proc").is_dir()) {
        return Err(Hinted::new(format!("no root of a machine: {}", root.display()))
            .fix("name a directory that has proc, sys and etc in it"));
    }
    let read = |path: &PathBuf| {
        let bytes = files::read_named(path, "cannot read file").map_err(|error| {
            Hinted::from(&if error.hints().is_empty() { error.hint("name a plain file") } else { error })
        })?;
        Ok::<_, Hinted>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let log = |path: &PathBuf| Ok::<_, Hinted>((read(path)?, path.display().to_string()));
    let bench = |path: &PathBuf| {
        let report = serde_json::from_str(&read(path)?).map_err(|error| {
            Hinted::new(format!("{} is no report of forebay bench: {error}", path.display()))
                .fix("make one: forebay bench … --json FILE")
        })?;
        Ok(SavedBench { path: path.display().to_string(), report })
    };
    let is_object = |path: &&String| args.root.is_none() && ObjectUrl::is_one(path.as_ref());
    let (objects, paths): (Vec<_>, Vec<_>) = args.paths.iter().partition(is_object);
    let object = |url: &String| ObjectUrl::parse(url.as_ref()).map_err(|error| Hinted::from(&error));
    Ok(DoctorOptions {
        paths: paths.into_iter().cloned().collect(),
        objects: objects.into_iter().map(object).collect::<Result<_, Hinted>>()?,
        rdma: Vec::new(),
        pid: args.pid,
        // A process without counters is a finding, not an error.
        counters: args.pid.and_then(|pid| Reader::attach(pid).ok()?.snapshot().ok()),
        pod: args.pod,
        log: args.log.as_ref().map(log).transpose()?,
        benches: args.bench.iter().map(bench).collect::<Result<_, Hinted>>()?,
        site: site(args, read)?,
        servers: args.server.iter().map(look_there).collect::<Result<_, Hinted>>()?,
    })
}
