//! The command line of a benchmark: transfer type and GPU.

use crate::facts::Facts;
use crate::facts::ProcessFacts;
use crate::finding::{Findings, Severity};

/// Transfer types of gdsio that go through the CPU.
pub(super) const BY_CPU: [(&str, &str); 4] = [
    ("1", "storage to host memory, no GPU"),
    ("2", "storage to host memory to GPU"),
    ("3", "the same, asynchronous"),
    ("4", "through the page cache to the GPU"),
];

pub(super) fn find(facts: &Facts<'_>, process: &ProcessFacts, found: &mut Findings) {
    let words: Vec<&str> = process.program.split_whitespace().collect();
    let is_benchmark = words.iter().take(3).any(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        matches!(name, "gdsio" | "bench")
    });
    if !is_benchmark {
        return;
    }
    let place = format!("/proc/{}/cmdline", process.pid);
    if let Some((_, what)) =
        option(&words, "-x").and_then(|kind| BY_CPU.iter().find(|(known, _)| *known == kind))
    {
        let text = format!("the benchmark's transfer type is not the GPU's: {what}");
        let fix = "-x 0 (or 5, 6, 7: streams and batches)";
        found.add("transfer-type", Severity::Slower, text, Some(fix)).seen(&place, &process.program);
    }
    let gpus = facts.gpus.iter().filter(|gpu| gpu.maker == "NVIDIA").count();
    if let Some(index) = option(&words, "-d")
        .and_then(|value| value.parse::<usize>().ok())
        .filter(|&index| index >= gpus && gpus > 0)
    {
        let text = format!("the benchmark asks for GPU {index}, and there are {gpus}");
        let fix = format!("-d 0 to -d {}: nvidia-smi -L lists them", gpus - 1);
        found.add("gpu-index", Severity::Blocks, text, Some(&fix)).seen(&place, &process.program);
    }
}

/// `-x 0` and `-x0`.
fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word.starts_with(name))?;
    match words[at].strip_prefix(name) {
        Some("") => words.get(at + 1).copied(),
        rest => rest,
    }
}
