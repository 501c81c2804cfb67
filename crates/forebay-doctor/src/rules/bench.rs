//! Saved reports of `forebay bench --json`: equal CPU in all types, the CPU's path, no GPU.

use forebay_ways::EngineKind;
use serde_json::Value;

use super::command::BY_CPU;
use super::is_passing;
use crate::engines::size;
use crate::facts::SavedBench;
use crate::finding::{Findings, Severity};

pub(super) fn find(saved: &[SavedBench], found: &mut Findings) {
    let passes: Vec<Pass<'_>> = saved.iter().flat_map(passes).collect();
    equal_cpu(&passes, found);
    for pass in &passes {
        if pass.kind == 0 {
            cpu_path(pass, found);
        }
    }
    by_cpu_only(&passes, found);
    for bench in saved {
        no_gpu(bench, found);
    }
}

struct Pass<'a> {
    place: &'a str,
    json: &'a Value,
    kind: u64,
    /// Seconds of CPU, user and system, per GB.
    cpu: f64,
}

impl Pass<'_> {
    /// The engine that moved the most bytes.
    fn engine(&self) -> Option<&Value> {
        let engines = self.json["engines"].as_array()?;
        engines.iter().max_by_key(|engine| engine["bytes"].as_u64())
    }

    /// An engine of the CPU moved the bytes.
    fn by_cpu(&self) -> bool {
        let name = self.engine().and_then(|engine| engine["engine"].as_str());
        let kind = name.and_then(|name| name.parse::<EngineKind>().ok());
        kind.is_some_and(|kind| kind.is_forebays() && !kind.is_direct())
    }
}

fn passes(bench: &SavedBench) -> Vec<Pass<'_>> {
    let all = bench.report["passes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let pass = |json| {
        let cpu = &Value::get(json, "cpu")?;
        let cpu = cpu["user_s_per_gb"].as_f64()? + cpu["system_s_per_gb"].as_f64()?;
        Some(Pass { place: &bench.path, json, kind: json["xfer_type"].as_u64()?, cpu })
    };
    all.iter().filter_map(pass).collect()
}

/// The GPU's type costs as much CPU as the classic path: both go through the CPU.
fn equal_cpu(passes: &[Pass<'_>], found: &mut Findings) {
    let same = |a: &Pass<'_>, b: &Pass<'_>| {
        ["io", "io_size", "threads", "bare", "state"].iter().all(|key| a.json[key] == b.json[key])
    };
    for direct in passes.iter().filter(|pass| pass.kind == 0) {
        let Some(classic) = passes.iter().find(|pass| pass.kind == 2 && same(direct, pass)) else { continue };
        if !direct.by_cpu() || direct.cpu < 0.001 || direct.cpu < 0.9 * classic.cpu {
            continue;
        }
        let text = "the GPU's transfer type costs as much CPU as the classic path: the GPU path is not used";
        let fix = "the report's refusals have the reason; forebay check PATH tries each engine; nvidia-smi shows whether GPU memory is used";
        let finding = found.add("equal-cpu", Severity::Slower, text, Some(fix));
        for pass in
            [Some(direct), passes.iter().find(|pass| pass.kind == 1 && same(direct, pass)), Some(classic)]
                .into_iter()
                .flatten()
        {
            let engine = pass.engine().and_then(|engine| engine["engine"].as_str()).unwrap_or("raw calls");
            let cpu = pass.cpu;
            finding.seen(pass.place, format!("-x {}: {cpu:.4} s of CPU per GB ({engine})", pass.kind));
        }
        return;
    }
}

/// A pass of the GPU's type whose bytes an engine of the CPU moved, with the fix.
fn cpu_path(pass: &Pass<'_>, found: &mut Findings) {
    let Some(engine) = pass.engine().filter(|_| pass.by_cpu()) else { return };
    let refused = pass.json["refused"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(refused) =
        refused.iter().find(|one| one["hint"].is_string() && !one["reason"].as_str().is_some_and(is_passing))
    else {
        return;
    };
    let text = format!(
        "the bytes took the CPU's path ({}), not {}: {}",
        engine["engine"].as_str().unwrap_or_default(),
        refused["engine"].as_str().unwrap_or_default(),
        refused["reason"].as_str().unwrap_or_default()
    );
    let finding = found.add("cpu-path", Severity::Slower, text, refused["hint"].as_str());
    finding.seen(
        pass.place,
        format!(
            "engines: {} of {}",
            engine["engine"].as_str().unwrap_or_default(),
            size(engine["bytes"].as_u64().unwrap_or(0))
        ),
    );
}

fn by_cpu_only(passes: &[Pass<'_>], found: &mut Findings) {
    let Some(first) = passes.first().filter(|_| passes.iter().all(|pass| (1..=4).contains(&pass.kind)))
    else {
        return;
    };
    let kind = first.kind.to_string();
    let what = BY_CPU.iter().find(|(known, _)| *known == kind).map_or("", |(_, what)| what);
    let text = format!("the benchmark's transfer type is not the GPU's: {what}");
    found
        .add("transfer-type", Severity::Slower, text, Some("forebay bench -x 0 …"))
        .seen(first.place, format!("-x {kind}"));
}

fn no_gpu(bench: &SavedBench, found: &mut Findings) {
    let devices = bench.report["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !devices.is_empty() && devices.iter().all(|device| device["is_host"] == true) {
        let text = "the benchmark moved bytes to host memory: it found no GPU";
        found
            .add("bench-no-gpu", Severity::Slower, text, Some("forebay check says why"))
            .seen(&bench.path, "devices: host memory");
    }
}
