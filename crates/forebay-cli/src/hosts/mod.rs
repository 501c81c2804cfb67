//! `forebay bench --hosts`: the same benchmark on several machines at a time, by ssh.
//!
//! Each machine runs the `forebay` of its PATH with this command line. All begin when the last one is connected, and end
//! with their ssh. A machine that fails has its error in its row.

mod remote;

use std::ffi::OsString;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result, plain, quoted};
use serde::Serialize;
use serde_json::Value;

use crate::console::{Console, Failure};
use crate::interrupt::Guard;
use crate::json_file::JsonFile;
use crate::load::Load;
use crate::ssh::Host;
use remote::HostRun;

/// Version of the JSON form. It changes when a field changes its meaning or goes away.
const VERSION: u32 = 1;
/// Flags for this machine alone; each has a value.
const OWN_FLAGS: [&str; 2] = ["--hosts", "--json"];
/// Some machines failed, others measured.
const EXIT_SOME_FAILED: i32 = 3;

/// A pass of all machines that have it.
#[derive(Debug, Serialize)]
struct Sum {
    /// Its number, from 0.
    pass: usize,
    io: String,
    xfer_type: u64,
    /// Machines that ran it.
    hosts: usize,
    gb_per_s: f64,
    iops: f64,
    /// The longest of the machines' 99th percentiles, in microseconds.
    p99_us: f64,
    /// Seconds of CPU per GB, over all machines.
    cpu_s_per_gb: f64,
}

#[derive(Debug, Serialize)]
struct HostsReport<'a> {
    version: u32,
    release: &'static str,
    hosts: &'a [HostRun],
    sums: &'a [Sum],
}

/// Runs the command line `args` (`forebay bench …`, or gdsio's) on the hosts that it names.
pub(crate) fn run(
    load: &Load,
    args: &[OsString],
    console: &Console<'_>,
) -> std::result::Result<i32, Failure> {
    if load.job_file.is_none() {
        // A wrong flag is one error here, in place of one from each machine.
        load.workload().map_err(Failure::usage)?;
    }
    let command = command(args).map_err(Failure::usage)?;
    let json = load.json.as_deref().map(|path| JsonFile::open(path, console)).transpose()?;
    let guard = Guard::new();
    let runs = remote::together(&load.hosts, &command);
    let signal = Guard::caught();
    drop(guard);
    let sums = sums(&runs);
    print(&runs, &sums, console);
    if let Some(json) = json {
        let release = env!("CARGO_PKG_VERSION");
        json.write(&HostsReport { version: VERSION, release, hosts: &runs, sums: &sums }, console)?;
    }
    let failed = runs.iter().filter(|run| run.error.is_some()).count();
    match signal {
        Some(signal) => Err(Failure::interrupted(signal, "the figures are of the time until then")),
        None if failed == runs.len() => Err(none_measured(&load.hosts).into()),
        None if failed > 0 => Ok(EXIT_SOME_FAILED),
        None => Ok(0),
    }
}

fn none_measured(hosts: &[Host]) -> Error {
    let name = hosts.first().map_or("HOST", Host::name);
    Error::new(ErrorKind::Io, "no host measured anything")
        .hint(format!("this must work without a question: ssh {} forebay --version", quoted(name)))
}

/// The command line for the shell of another machine: without the flags for this one, with its report on standard output.
fn command(args: &[OsString]) -> Result<String> {
    let called = args.first().and_then(|first| Path::new(first).file_name());
    let is_gdsio = called.is_some_and(|name| name == "gdsio");
    let mut words = vec![if is_gdsio { "gdsio" } else { "forebay" }.to_owned()];
    let mut left = args.iter().skip(1);
    while let Some(word) = left.next() {
        let Some(word) = word.to_str() else {
            let error = Error::new(
                ErrorKind::InvalidInput,
                "cannot send an argument that is not UTF-8 to other hosts",
            );
            return Err(error
                .with("argument", word.display())
                .hint("rename the file, or name its directory by -D"));
        };
        let is_with_value = |flag: &str| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
        if OWN_FLAGS.contains(&word) {
            left.next();
        } else if !OWN_FLAGS.iter().any(|flag| is_with_value(flag)) {
            words.push(quoted(word));
        }
    }
    words.push("--json -".to_owned());
    Ok(words.join(" "))
}

fn passes(run: &HostRun) -> &[Value] {
    let report = run.report.as_ref().and_then(|report| report["passes"].as_array());
    report.map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The passes of one number, of all machines that have it.
fn sum(pass: usize, all: &[&Value]) -> Sum {
    let add = |field: &str| all.iter().map(|one| number(&one[field])).sum::<f64>();
    let cpu = all.iter().map(|one| number(&one["cpu"]["user_s"]) + number(&one["cpu"]["system_s"]));
    Sum {
        pass,
        io: all.first().and_then(|one| one["io"].as_str()).unwrap_or_default().to_owned(),
        xfer_type: all.first().and_then(|one| one["xfer_type"].as_u64()).unwrap_or(0),
        hosts: all.len(),
        gb_per_s: add("gb_per_s"),
        iops: add("iops"),
        p99_us: all.iter().map(|one| number(&one["latency_us"]["p99"])).fold(0.0, f64::max),
        cpu_s_per_gb: cpu.sum::<f64>() * 1e9 / add("bytes").max(1.0),
    }
}

fn sums(runs: &[HostRun]) -> Vec<Sum> {
    let most = runs.iter().map(|run| passes(run).len()).max().unwrap_or(0);
    let of = |pass: usize| {
        let all: Vec<&Value> = runs.iter().filter_map(|run| passes(run).get(pass)).collect();
        sum(pass, &all)
    };
    (0..most).map(of).collect()
}

/// A row for each machine and pass, below them the sum; a machine that failed has its reason.
fn print(runs: &[HostRun], sums: &[Sum], console: &Console<'_>) {
    let width = runs.iter().map(|run| run.host.chars().count()).max().unwrap_or(0).max(4);
    let row = |name: &str, rest: &str| console.line(format!("{name:<width$}  {rest}").trim_end());
    let figures = |of: &Sum| {
        let Sum { io, xfer_type, gb_per_s, iops, p99_us, cpu_s_per_gb, .. } = of;
        format!("{io:<9} {xfer_type:>2} {gb_per_s:>9.3} {iops:>11.0} {p99_us:>10.1} {cpu_s_per_gb:>8.3}")
    };
    if !sums.is_empty() {
        row("host", "I/O        x      GB/s        IOPS     p99 us CPU s/GB");
    }
    for of_all in sums {
        for run in runs {
            if let Some(pass) = passes(run).get(of_all.pass) {
                row(&run.host, &figures(&sum(of_all.pass, &[pass])));
            }
        }
        row("sum", &figures(of_all));
    }
    for run in runs {
        if let Some(error) = &run.error {
            row(&run.host, &format!("failed: {}", plain(error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_this_machine_are_left_out() {
        let of = |line: &str| command(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).unwrap();
        assert_eq!(
            of("/usr/bin/forebay bench --hosts a,b -f /d/it's --json x.json -x 0"),
            r"forebay bench -f '/d/it'\''s' -x 0 --json -"
        );
        assert_eq!(of("gdsio --hosts=a --json=x -w 4"), "gdsio -w 4 --json -");
    }

    #[test]
    fn rates_add_up_and_the_longest_latency_counts() {
        let pass = |rate: f64, p99: f64| {
            serde_json::json!({"io": "READ", "xfer_type": 0, "gb_per_s": rate, "iops": 10.0, "bytes": 1e9,
                               "cpu": {"user_s": 0.1, "system_s": 0.1}, "latency_us": {"p99": p99}})
        };
        let run = |pass: Value| HostRun {
            host: "a".to_owned(),
            report: Some(serde_json::json!({"passes": [pass]})),
            error: None,
        };
        let failed = HostRun { host: "c".to_owned(), report: None, error: Some("no".to_owned()) };
        let sums = sums(&[run(pass(1.0, 5.0)), run(pass(2.0, 9.0)), failed]);
        let sum = &sums[0];
        assert_eq!((sums.len(), sum.hosts), (1, 2));
        for (found, wanted) in
            [(sum.gb_per_s, 3.0), (sum.iops, 20.0), (sum.p99_us, 9.0), (sum.cpu_s_per_gb, 0.2)]
        {
            assert!((found - wanted).abs() < 1e-9, "{sum:?}");
        }
    }
}
