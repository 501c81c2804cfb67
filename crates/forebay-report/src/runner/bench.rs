//! The JSON of `forebay bench`, as far as a report needs it.

use std::collections::BTreeMap;

use forebay_ways::Way;
use serde::Deserialize;

use crate::model::{Ceiling, PairShare, Run, Share, StorageReport, Why};
use crate::work::Bench;

/// The report of `forebay bench`.
#[derive(Deserialize)]
pub(super) struct Report {
    passes: Vec<Pass>,
}

#[derive(Deserialize)]
struct Pass {
    bytes: u64,
    ops: u64,
    seconds: f64,
    cpu: Cpu,
    resident_bytes: Option<u64>,
    latency_us: Latency,
    engines: Vec<Engine>,
    refused: Vec<Refusal>,
    notes: Vec<Why>,
    state: String,
    ceiling: Option<Ceiling>,
    jobs: Vec<Job>,
    #[serde(default)]
    storage: Vec<StorageReport>,
}

#[derive(Deserialize)]
struct Cpu {
    user_s: f64,
    system_s: f64,
    one_cpu_user_s: Option<f64>,
    one_cpu_system_s: Option<f64>,
    #[serde(default)]
    others_percent: Option<f64>,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    p50: Option<f64>,
    p99: f64,
    p99_9: Option<f64>,
}

#[derive(Deserialize)]
struct Engine {
    #[serde(rename = "engine")]
    name: String,
    bytes: u64,
    /// The ways' bytes, and others of its numbers.
    #[serde(flatten)]
    numbers: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Refusal {
    engine: String,
    reason: String,
    hint: Option<String>,
}

#[derive(Deserialize)]
struct Job {
    bytes: u64,
    seconds: f64,
}

/// The pass that counts. Before the JSON there are gdsio's lines.
pub(super) fn parse(text: &str, bench: &Bench) -> Result<Run, Why> {
    let json = text.find("{\n").map_or("", |at| &text[at..]);
    let report: Report = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    report.run(bench)
}

pub(super) fn unreadable(error: &serde_json::Error) -> Why {
    why(format!("forebay bench gave no report that can be read: {error}"))
}

impl Report {
    /// The pass that counts.
    pub(super) fn run(self, bench: &Bench) -> Result<Run, Why> {
        let pass = self.passes.into_iter().nth(bench.pass - 1);
        pass.map(|pass| run(pass, bench)).ok_or_else(|| why("forebay bench gave no such pass".to_owned()))
    }
}

pub(super) fn why(text: String) -> Why {
    Why { text, hint: None }
}

fn run(pass: Pass, bench: &Bench) -> Run {
    // Jobs on one file are one pair.
    let several = bench.jobs.windows(2).any(|two| two[0].target.file != two[1].target.file);
    let pairs = bench.jobs.iter().zip(&pass.jobs).filter(|_| several);
    Run {
        place: 0,
        seconds: pass.seconds,
        bytes: pass.bytes,
        ops: pass.ops,
        mean_us: pass.latency_us.mean,
        p50_us: pass.latency_us.p50,
        p99_us: pass.latency_us.p99,
        p999_us: pass.latency_us.p99_9,
        user_s: pass.cpu.user_s,
        system_s: pass.cpu.system_s,
        one_cpu_user_s: pass.cpu.one_cpu_user_s,
        one_cpu_system_s: pass.cpu.one_cpu_system_s,
        others_percent: pass.cpu.others_percent,
        resident_bytes: pass.resident_bytes,
        server_percent: None,
        load: None,
        cache: if bench.io.writes() { String::new() } else { pass.state },
        engines: pass.engines.into_iter().map(share).collect(),
        refused: pass
            .refused
            .into_iter()
            .map(|one| Why { text: format!("not {}: {}", one.engine, one.reason), hint: one.hint })
            .collect(),
        notes: pass.notes,
        ceiling: pass.ceiling,
        pairs: pairs
            .map(|(job, part)| PairShare {
                name: job.name(),
                gb_per_s: part.bytes as f64 / 1e9 / part.seconds.max(1e-9),
            })
            .collect(),
        storage: pass.storage,
    }
}

fn share(engine: Engine) -> Share {
    let ways = engine.numbers.into_iter().filter(|(_, bytes)| *bytes > 0);
    let ways =
        ways.filter_map(|(name, bytes)| Some((Way::of_name(&name)?.words().to_owned(), bytes))).collect();
    Share { engine: engine.name, bytes: engine.bytes, ways }
}
