//! The report for people.

use std::fmt::Write;

use super::{BenchReport, FileReport, Medians, OpenCost, Pass, ResidencyReport};

/// Bytes in words: `4.0 GiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// One pass in a few lines.
pub fn pass(pass: &Pass) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} {}{}{}: {:.2} GB/s, {:.0} {}, {} in {:.2} s",
        pass.io.to_lowercase(),
        what(pass),
        if pass.bare { " (bare)" } else { "" },
        if pass.verified { ", verified" } else { "" },
        pass.gb_per_s,
        pass.iops,
        if pass.task == "files" { "files/s" } else { "IOPS" },
        bytes(pass.bytes),
        pass.seconds
    );
    limits(&mut text, pass);
    let latency = &pass.latency_us;
    let _ = writeln!(
        text,
        "  latency us  mean {:.1}  p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
        latency.mean, latency.p50, latency.p90, latency.p99, latency.p99_9, latency.max
    );
    let cpu = &pass.cpu;
    let _ = writeln!(
        text,
        "  CPU s/GB    user {:.4}  system {:.4}  (user {:.2} s, system {:.2} s)",
        cpu.user_s_per_gb, cpu.system_s_per_gb, cpu.user_s, cpu.system_s
    );
    let (ceiling, method) = ceiling(pass);
    let _ = writeln!(
        text,
        "  ceiling     {ceiling}{}",
        method.map_or(String::new(), |method| format!("  ({method})"))
    );
    if let Some(above) = pass.ceiling.as_ref().and_then(|ceiling| ceiling.above.as_ref()) {
        let _ = writeln!(text, "  above       {above}");
    }
    for engine in &pass.engines {
        let mut ways: Vec<String> =
            engine.moved.taken().map(|(way, count)| format!("{} {}", bytes(count), way.words())).collect();
        if engine.resident > 0 {
            ways.push(format!("{} of it by the resident kernel", bytes(engine.resident)));
        }
        let share = engine.bytes as f64 * 100.0 / pass.bytes.max(1) as f64;
        let share = if pass.engines.len() > 1 { format!(" ({share:.1} %)") } else { String::new() };
        let _ = writeln!(text, "  engine      {}{share}: {}", engine.engine, ways.join(", "));
    }
    pins(&mut text, pass);
    let _ = writeln!(text, "  state       {}{}", pass.state, residency(pass));
    for refusal in &pass.refused {
        let _ = writeln!(text, "  not {}: {}", refusal.engine, refusal.reason);
        hint(&mut text, refusal.hint.as_deref());
    }
    for note in &pass.notes {
        let _ = writeln!(text, "  note: {}", note.text);
        hint(&mut text, note.hint.as_deref());
    }
    text
}

/// What kept the pass from running free, or ended it.
fn limits(text: &mut String, pass: &Pass) {
    if pass.interrupted {
        let _ = writeln!(text, "  interrupted: the figures are of the time until then");
    }
    if let Some(ramp) = pass.ramp_s {
        let _ = writeln!(text, "  ramp        {ramp} s before it, not counted");
    }
    if let Some(limit) = &pass.rate_limit {
        let rate = limit.bytes_per_s.map(|rate| format!("{}/s", bytes(rate)));
        let rate = rate.or(limit.iops.map(|rate| format!("{rate} IOPS"))).unwrap_or_default();
        let _ = writeln!(text, "  limit       {rate}");
    }
    if let Some(steady) = &pass.steady {
        let word = if steady.is_steady { "steady     " } else { "not steady " };
        let _ = writeln!(
            text,
            "  {word} {:.2} GB/s, {:.0} IOPS in the last 5 s, each within {:.1} %",
            steady.gb_per_s, steady.iops, steady.spread_percent
        );
    }
}

/// The direction, in a word.
fn what(pass: &Pass) -> &'static str {
    match pass.task {
        "gather" => "GATHER",
        "files" => "FILES",
        _ => pass.xfer_name,
    }
}

fn pins(text: &mut String, pass: &Pass) {
    if let (Some(before), Some(after)) = (pass.pinned_before, pass.pinned_after)
        && before + after > 0
    {
        let _ = writeln!(text, "  pinned      {} before, {} after", bytes(before), bytes(after));
    }
    if let (Some(map_ms), Some(place)) = (pass.map_ms, pass.offsets_in) {
        let depth = pass.io_depth.unwrap_or(1);
        let place = if place == "gpu" { "GPU" } else { "host" };
        let _ = writeln!(
            text,
            "  gather      {depth} pieces per call, offsets in {place} memory; mapped in {map_ms:.1} ms before it"
        );
    }
}

/// The table of `--open-cost`.
pub fn open_cost(cost: &OpenCost) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} ({}, {}) on {}, medians of {}",
        cost.path,
        bytes(cost.bytes),
        cost.file_system,
        cost.device,
        cost.rounds
    );
    let _ = writeln!(
        text,
        "  {:<22}{:>12}{:>12}{:>12}{:>10}  engine",
        "step", "median us", "least us", "first us", "GB/s"
    );
    for step in &cost.steps {
        let speed = step.gb_per_s.map_or("–".to_owned(), |speed| format!("{speed:.2}"));
        let _ = writeln!(
            text,
            "  {:<22}{:>12.1}{:>12.1}{:>12.1}{speed:>10}  {}",
            step.name,
            step.median_us,
            step.least_us,
            step.first_us,
            step.engine.unwrap_or("–")
        );
    }
    if let Some(refusal) = &cost.refused {
        let _ = writeln!(text, "  not {}: {}", refusal.engine, refusal.reason);
        hint(&mut text, refusal.hint.as_deref());
    }
    text
}

fn hint(text: &mut String, hint: Option<&str>) {
    if let Some(hint) = hint {
        let _ = writeln!(text, "    hint: {hint}");
    }
}

/// The ceiling with its percentage (`–` where none was measured), and its method.
pub fn ceiling(pass: &Pass) -> (String, Option<&str>) {
    match &pass.ceiling {
        Some(ceiling) => {
            (format!("{:.2} GB/s, {:.0} % reached", ceiling.gb_per_s, ceiling.percent), Some(&ceiling.method))
        }
        None => ("–".to_owned(), None),
    }
}

fn residency(pass: &Pass) -> String {
    let sum = |pick: fn(&FileReport) -> Option<&ResidencyReport>| {
        let known: Vec<_> = pass.files.iter().filter_map(pick).collect();
        let cached: u64 = known.iter().map(|one| one.cached).sum();
        let total: u64 = known.iter().map(|one| one.total).sum();
        (!known.is_empty()).then(|| format!("{:.1} %", cached as f64 * 100.0 / total.max(1) as f64))
    };
    let before = sum(|file| file.before.as_ref());
    let after = sum(|file| file.after.as_ref());
    let method = pass.files.iter().find_map(|file| file.before.as_ref()).map_or("", |one| one.method);
    match (before, after) {
        (Some(before), Some(after)) => {
            format!("  (in the page cache: {before} before, {after} after, by {method})")
        }
        _ => String::new(),
    }
}

/// Medians and ratios, where more than one pass ran.
pub fn summary(report: &BenchReport) -> String {
    let mut text = String::new();
    if report.summary.iter().all(|one| one.rounds < 2) && report.summary.len() < 2 {
        return text;
    }
    let without_gpu = report.devices.iter().any(|device| device.is_host);
    let _ = writeln!(text, "{:<18}{:>7}{}", "medians", "rounds", Medians::titles());
    for one in &report.summary {
        let name = format!("{} {}", one.xfer_type, one.xfer_name);
        let _ = writeln!(text, "{name:<18}{:>7}{}", one.rounds, one.medians.row());
    }
    for one in &report.summary {
        if let Some(ratio) = &one.ratio {
            let _ = writeln!(
                text,
                "type {} / type {}: bandwidth {:.2}, latency {:.2}, user CPU {:.2}, all CPU {:.2}{}",
                one.xfer_type,
                ratio.against,
                ratio.gb_per_s,
                ratio.mean_us,
                ratio.user_cpu,
                ratio.cpu,
                // The types differ only by a GPU, and there is none.
                match (ratio.cache_beside_drive, without_gpu) {
                    (true, _) => "  (page cache beside O_DIRECT)",
                    (false, true) => "  (no GPU: no verdict)",
                    (false, false) => "",
                }
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes() {
        assert_eq!(super::bytes(512), "512 B");
        assert_eq!(super::bytes(4 << 30), "4.0 GiB");
    }
}
