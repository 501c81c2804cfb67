//! The JSON of `forebay bench --hosts`: the runs of several machines as one.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::bench::{self, Report};
use crate::model::{Ceiling, PairShare, Run, Share, Why};
use crate::work::Bench;

/// The exit code of `forebay bench --hosts` if some hosts failed and others measured.
pub(super) const EXIT_SOME_FAILED: i32 = 3;

#[derive(Deserialize)]
struct Hosts {
    hosts: Vec<HostRun>,
}

#[derive(Deserialize)]
struct HostRun {
    host: String,
    report: Option<Report>,
    error: Option<String>,
}

/// The pass that counts, of all hosts. Before the JSON there is a table.
pub(super) fn parse(text: &str, bench: &Bench) -> Result<Run, Why> {
    let json = text.find("{\n").map_or("", |at| &text[at..]);
    let found: Hosts = serde_json::from_str(json).map_err(|error| bench::unreadable(&error))?;
    let (mut parts, mut failed) = (Vec::new(), Vec::new());
    for HostRun { host, report, error } in found.hosts {
        let error = error.unwrap_or_else(|| "no report".to_owned());
        let run = report.ok_or_else(|| bench::why(error)).and_then(|report| report.run(bench));
        match run {
            Ok(run) => parts.push((host, run)),
            Err(why) => failed.push(Why { text: format!("{host} failed: {}", why.text), ..why }),
        }
    }
    let mut run =
        merge(&parts).ok_or_else(|| failed.first().cloned().unwrap_or(bench::why("no host".to_owned())))?;
    run.notes.extend(failed);
    Ok(run)
}

/// Bytes, I/Os and CPU add up; times and percentiles are those of the slowest host.
fn merge(parts: &[(String, Run)]) -> Option<Run> {
    let most = |of: fn(&Run) -> f64| parts.iter().map(|(_, run)| of(run)).fold(0.0, f64::max);
    let most_of = |of: fn(&Run) -> Option<f64>| parts.iter().filter_map(|(_, run)| of(run)).reduce(f64::max);
    let sum = |of: fn(&Run) -> f64| parts.iter().map(|(_, run)| of(run)).sum::<f64>();
    let ops: u64 = parts.iter().map(|(_, run)| run.ops).sum();
    let all_us = sum(|run| run.mean_us * run.ops as f64);
    let (first, others) = parts.split_first()?;
    let is_alike = others.iter().all(|(_, run)| run.cache == first.1.cache);
    Some(Run {
        seconds: most(|run| run.seconds),
        bytes: parts.iter().map(|(_, run)| run.bytes).sum(),
        ops,
        mean_us: all_us / ops.max(1) as f64,
        p50_us: most_of(|run| run.p50_us),
        p99_us: most(|run| run.p99_us),
        p999_us: most_of(|run| run.p999_us),
        user_s: sum(|run| run.user_s),
        system_s: sum(|run| run.system_s),
        resident_bytes: parts.iter().map(|(_, run)| run.resident_bytes).sum(),
        others_percent: most_of(|run| run.others_percent),
        cache: if is_alike { first.1.cache.clone() } else { "mixed".to_owned() },
        engines: engines(parts),
        refused: once(parts.iter().flat_map(|(_, run)| &run.refused)),
        notes: once(parts.iter().flat_map(|(_, run)| &run.notes)),
        ceiling: ceiling(parts),
        pairs: parts.iter().map(|(host, run)| share(host, run)).collect(),
        storage: parts.iter().flat_map(|(host, run)| storage(host, run)).collect(),
        ..Run::default()
    })
}

fn share(host: &str, run: &Run) -> PairShare {
    PairShare { name: host.to_owned(), gb_per_s: run.bytes as f64 / 1e9 / run.seconds.max(1e-9) }
}

fn storage(host: &str, run: &Run) -> Vec<crate::model::StorageReport> {
    let mut all = run.storage.clone();
    for one in &mut all {
        one.name = format!("{host}: {}", one.name);
    }
    all
}

/// Most bytes first.
fn engines(parts: &[(String, Run)]) -> Vec<Share> {
    let mut all: Vec<Share> = Vec::new();
    for share in parts.iter().flat_map(|(_, run)| &run.engines) {
        let at = all.iter().position(|one| one.engine == share.engine).unwrap_or_else(|| {
            all.push(Share { engine: share.engine.clone(), bytes: 0, ways: BTreeMap::new() });
            all.len() - 1
        });
        all[at].bytes += share.bytes;
        for (way, bytes) in &share.ways {
            *all[at].ways.entry(way.clone()).or_default() += bytes;
        }
    }
    all.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    all
}

fn once<'a>(all: impl Iterator<Item = &'a Why>) -> Vec<Why> {
    let mut found: Vec<Why> = Vec::new();
    for why in all {
        if !found.contains(why) {
            found.push(why.clone());
        }
    }
    found
}

/// The sum, where all hosts measured one.
fn ceiling(parts: &[(String, Run)]) -> Option<Ceiling> {
    let all: Option<Vec<&Ceiling>> = parts.iter().map(|(_, run)| run.ceiling.as_ref()).collect();
    let all = all?;
    let method = format!("{}; the sum of {} hosts", all.first()?.method, all.len());
    let above = all.iter().find_map(|one| one.above.clone());
    Some(Ceiling { gb_per_s: all.iter().map(|one| one.gb_per_s).sum(), method, above })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn runs_of_two_hosts_are_one() {
        let run = |seconds: f64, bytes: u64, ops: u64, us: f64, cache: &str| Run {
            seconds,
            bytes,
            ops,
            mean_us: us,
            p99_us: 2.0 * us,
            user_s: 0.5,
            cache: cache.to_owned(),
            engines: vec![Share { engine: "staged".to_owned(), bytes, ways: BTreeMap::new() }],
            ceiling: Some(Ceiling { gb_per_s: 2.0, method: "raw".to_owned(), above: None }),
            ..Run::default()
        };
        let one = run(1.0, 1_000_000_000, 100, 10.0, "cold");
        let other = run(2.0, 3_000_000_000, 300, 50.0, "warm");
        let Some(all) = merge(&[("a".to_owned(), one), ("b".to_owned(), other)]) else { unreachable!() };
        assert_eq!((all.bytes, all.ops, all.cache.as_str()), (4_000_000_000, 400, "mixed"));
        for (found, wanted) in
            [(all.seconds, 2.0), (all.mean_us, 40.0), (all.p99_us, 100.0), (all.user_s, 1.0)]
        {
            assert!(near(found, wanted), "{found} {wanted}");
        }
        assert!(all.ceiling.is_some_and(|one| near(one.gb_per_s, 4.0)));
        assert!(near(all.pairs[1].gb_per_s, 1.5) && all.pairs[0].name == "a", "{:?}", all.pairs);
        assert_eq!((all.engines.len(), all.engines[0].bytes), (1, 4_000_000_000));
        assert!(merge(&[]).is_none());
    }
}
