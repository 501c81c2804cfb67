//! Texts that HTML and Markdown share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use forebay_doctor::topology::{Distance, Part};
use forebay_ways::EngineKind;

use crate::model::{
    Compared, Machine, NO_LOAD, PathFacts, Place, Report, Row, Run, Source, State, Table, Why,
};
use crate::quantity::{CLEAR_FACTOR, MIN_RUNS, Quantity, Verdict, figure, ratio};

/// A row above this percentage of its ceiling gets a note: the row or its ceiling was measured wrongly.
const MAX_PERCENT: f64 = 105.0;

/// A cell without a figure.
pub(super) const NONE: &str = "–";

/// Whether any row has a published figure of this quantity.
pub(super) fn has_published(table: &Table, quantity: Quantity) -> bool {
    table.rows.iter().any(|row| row.published.contains_key(&quantity))
}

/// Whether published figures have columns of their own: several would make a table wider than paper.
pub(super) fn has_columns(table: &Table, quantity: Quantity) -> bool {
    has_published(table, quantity) && !is_stacked(table)
}

/// Whether published figures stand below ours.
pub(super) fn is_stacked(table: &Table) -> bool {
    table.columns.iter().filter(|quantity| has_published(table, **quantity)).count() > 3
}

/// Median of a row.
pub(super) fn median(row: &Row, quantity: Quantity) -> String {
    row.summary(quantity).map_or(NONE.to_owned(), |one| figure(one.median))
}

/// Least and greatest, where there are several runs.
pub(super) fn range(row: &Row, quantity: Quantity) -> Option<String> {
    let one = row.summary(quantity)?;
    (one.runs > 1).then(|| format!("{}–{}", figure(one.min), figure(one.max)))
}

/// Whether a row ran once while others of its table ran several times.
pub(super) fn is_lone(table: &Table, row: &Row) -> bool {
    row.runs.len() == 1 && table.rows.iter().any(|other| other.runs.len() > 1)
}

/// The source's figure.
pub(super) fn published(row: &Row, quantity: Quantity) -> String {
    let bound = if row.at_most.contains(&quantity) { "< " } else { "" };
    row.published.get(&quantity).map_or(NONE.to_owned(), |value| format!("{bound}{}", figure(*value)))
}

/// Why ratios have no verdict, once for all tables.
fn unjudged(report: &Report) -> Option<String> {
    let mut whys: Vec<String> = Vec::new();
    for (table, row) in report.tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)))
    {
        let few = || ratios(table, row).iter().any(|(_, verdict)| *verdict == Some(Verdict::Few));
        let why = match &row.unjudged {
            _ if row.runs.is_empty() => continue,
            Some(why) => why.clone(),
            None if few() => {
                format!("too few runs (fewer than {MIN_RUNS}, and less than {CLEAR_FACTOR} × apart)")
            }
            None => continue,
        };
        if !whys.contains(&why) {
            whys.push(why);
        }
    }
    (!whys.is_empty()).then(|| format!("Ratios without a verdict are not judged: {}.", whys.join("; ")))
}

/// The heading of the ratios.
pub(super) fn ratio_title(table: &Table) -> Option<String> {
    table.ratio.as_ref().map(|Compared { base, .. }| format!("against {base}"))
}

/// A row against the one that it is compared with: `throughput 1.82× (theirs up to 6.00×)`, with the verdict.
pub(super) fn ratios(table: &Table, row: &Row) -> Vec<(String, Option<Verdict>)> {
    let Some(compared) = &table.ratio else { return Vec::new() };
    let base = table.base_of(row);
    let published = |quantity: &Quantity| {
        if let Some(best) = row.published_ratio.get(quantity) {
            let limit = if quantity.more_is_better() { "up" } else { "down" };
            return Some(format!("theirs {limit} to {}×", figure(*best)));
        }
        let (one, base) = (row.published.get(quantity)?, base?.published.get(quantity)?);
        (*base > 0.0).then(|| format!("theirs {}×", figure(one / base)))
    };
    let of = |quantity: &Quantity| {
        let ours = base
            .and_then(|base| ratio(*quantity, &row.summary(*quantity)?, &base.summary(*quantity)?))
            .map(|(value, verdict)| (format!("{} {}×", quantity.word(), figure(value)), verdict));
        // Why nothing is judged stands once, at the top.
        let judged = |verdict: Verdict| match (&row.unjudged, verdict) {
            (Some(_), _) => (String::new(), None),
            (None, Verdict::Few) => (String::new(), Some(verdict)),
            (None, verdict) => (format!(", {}", verdict.word()), Some(verdict)),
        };
        match (ours, published(quantity)) {
            (Some((ours, verdict)), theirs) => {
                let theirs = theirs.map_or(String::new(), |theirs| format!(" ({theirs})"));
                let (word, verdict) = judged(verdict);
                Some((format!("{ours}{word}{theirs}"), verdict))
            }
            (None, Some(theirs)) => Some((format!("{}: {theirs}", quantity.word()), None)),
            (None, None) => None,
        }
    };
    compared.quantities.iter().filter_map(of).collect()
}

/// Why a row has no figures, or not all.
pub(super) fn outcome(row: &Row) -> Option<String> {
    match &row.state {
        State::Done => None,
        State::Waiting if row.runs.is_empty() => Some("not run yet".to_owned()),
        State::Waiting => Some(format!("{} of {} runs so far", row.runs.len(), row.wanted)),
        State::Failed { reason, hint } => {
            let hint = hint.as_ref().map_or(String::new(), |hint| format!(" (hint: {hint})"));
            Some(format!("failed: {reason}{hint}"))
        }
        State::Absent { reason } => Some(format!("not here: {reason}")),
    }
}

/// The engines that moved a row's bytes: `staged 97 % (O_DIRECT), host 3 % (page cache)`.
pub(super) fn engines(runs: &[Run]) -> String {
    let mut bytes: BTreeMap<&str, (u64, BTreeMap<&str, u64>)> = BTreeMap::new();
    for share in runs.iter().flat_map(|run| &run.engines) {
        let (sum, ways) = bytes.entry(&share.engine).or_default();
        *sum += share.bytes;
        for (way, count) in &share.ways {
            *ways.entry(way).or_default() += count;
        }
    }
    let all: u64 = bytes.values().map(|(sum, _)| sum).sum();
    let mut parts: Vec<_> = bytes.into_iter().filter(|(_, (sum, _))| *sum > 0).collect();
    parts.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(*sum));
    let several = parts.len() > 1;
    let words = parts.into_iter().map(|(engine, (sum, ways))| {
        let share = if several { format!(" {}", percent(sum, all)) } else { String::new() };
        let mixed = ways.len() > 1;
        let ways: Vec<String> = ways
            .into_iter()
            .map(|(way, count)| if mixed { format!("{way} {}", percent(count, sum)) } else { way.to_owned() })
            .collect();
        let ways = if ways.is_empty() { String::new() } else { format!(" ({})", ways.join(", ")) };
        format!("{engine}{share}{ways}")
    });
    let text = words.collect::<Vec<_>>().join(", ");
    if text.is_empty() { NONE.to_owned() } else { text }
}

/// A part in percent; below one it is `<1 %`.
fn percent(part: u64, of: u64) -> String {
    match part as f64 * 100.0 / of.max(1) as f64 {
        value if value < 1.0 => "< 1 %".to_owned(),
        value => format!("{value:.0} %"),
    }
}

/// The state of the page cache before a row's runs.
pub(super) fn cache(row: &Row) -> String {
    let mut states: Vec<&str> =
        row.runs.iter().map(|run| run.cache.as_str()).filter(|one| !one.is_empty()).collect();
    states.dedup();
    if states.is_empty() { NONE.to_owned() } else { states.join(", ") }
}

/// The ceiling and the percent reached, in the unit of the table.
pub(super) fn ceiling(table: &Table, row: &Row) -> String {
    let Some(ceiling) = table.ceiling_of(row) else { return NONE.to_owned() };
    let unit = table.unit();
    let times = match ceiling.times {
        1 => String::new(),
        times => format!(" (of {times}: {}–{})", unit.rate(ceiling.least), unit.rate(ceiling.greatest)),
    };
    format!("{:.0} % of {} {}{times}", ceiling.percent, unit.rate(ceiling.greatest), unit.title())
}

/// User and system CPU, medians.
pub(super) fn cpu(row: &Row) -> String {
    let (Some(user), Some(system)) =
        (row.summary(Quantity::UserPercent), row.summary(Quantity::SystemPercent))
    else {
        return NONE.to_owned();
    };
    format!("{} % + {} %", figure(user.median), figure(system.median))
}

/// Runs and the range of the first column.
pub(super) fn repetitions(table: &Table, row: &Row) -> String {
    let range = table.columns.first().and_then(|quantity| Some((range(row, *quantity)?, quantity)));
    match range {
        Some((range, quantity)) => format!("{}: {range} {}", row.runs.len(), quantity.title()),
        None if row.runs.len() == 1 => "1: no range".to_owned(),
        None => row.runs.len().to_string(),
    }
}

/// Notes on all tables: a busy machine first.
pub(super) fn top(report: &Report) -> Vec<String> {
    let first = report.busy().into_iter().chain(unjudged(report));
    first.chain(parts(report)).chain(report.notes.iter().cloned()).collect()
}

/// The source of the published figures, and its findings.
pub(super) fn source(source: &Source) -> String {
    let hardware = if source.hardware.is_empty() { String::new() } else { format!(" ({})", source.hardware) };
    format!("{}{hardware}. {}", source.name, source.claims.join(" ")).trim_end().to_owned()
}

/// The parts of a report that was measured on several machines, after reboots, or by several builds.
pub(super) fn parts(report: &Report) -> Vec<String> {
    let now = report.place();
    let part = |(index, place): (usize, &Place)| {
        let of = match place.differs(&now) {
            Some(differs) => format!("another machine or build than the last part: {differs}"),
            None => "this machine before a reboot, or a machine like it".to_owned(),
        };
        format!("Part {}, until {} UTC, was measured on {of}.", index + 1, place.until)
    };
    let mut all: Vec<String> = report.earlier.iter().enumerate().map(part).collect();
    if !all.is_empty() {
        all.push("A row says so where its runs, or its comparison, are of two parts.".to_owned());
    }
    all
}

/// The parts that runs are of.
fn parts_of(row: &Row) -> BTreeSet<usize> {
    row.runs.iter().map(|run| run.place + 1).collect()
}

/// Whether a row and what it is compared with are of different parts.
fn of_two_parts(table: &Table, row: &Row) -> Option<String> {
    let (own, base) = (parts_of(row), table.base_of(row).map(parts_of).unwrap_or_default());
    if own.len() > 1 {
        let names: Vec<String> = own.iter().map(ToString::to_string).collect();
        return Some(format!("Its runs are of parts {}.", names.join(" and ")));
    }
    let other = !own.is_empty() && !base.is_empty() && own != base;
    other.then(|| "It is compared with a row of another part.".to_owned())
}

/// The load and the pairs' parts of a row's last run, and the parts of the report that it is of.
pub(super) fn beside(table: &Table, row: &Row) -> Vec<String> {
    let mut all: Vec<String> = of_two_parts(table, row).into_iter().collect();
    if let Some(run) = row.runs.last() {
        if let Some(load) = &run.load {
            let by = if load.by == NO_LOAD {
                "No load by the report".to_owned()
            } else {
                format!("Load by {}", load.by)
            };
            all.push(format!(
                "{by}: CPU {:.0} % busy before the run, {:.0} % during it, memory {:.0} % in use.",
                load.alone_percent, load.during_percent, load.memory_percent
            ));
        }
        if !run.pairs.is_empty() {
            let unit = table.unit();
            let parts: Vec<_> = run
                .pairs
                .iter()
                .map(|pair| format!("{} {} {}", pair.name, unit.rate(pair.gb_per_s), unit.title()))
                .collect();
            let sum: f64 = run.pairs.iter().map(|pair| pair.gb_per_s).sum();
            all.push(format!("At once: {}; sum {} {}.", parts.join(", "), unit.rate(sum), unit.title()));
        }
    }
    all.extend(row.notes.iter().cloned());
    all
}

/// The sentences of a table's rows, each once, and which of them each row has.
pub(super) struct Footnotes {
    pub(super) all: Vec<String>,
    pub(super) of: Vec<Vec<usize>>,
}

pub(super) fn footnotes(table: &Table) -> Footnotes {
    let mut all: Vec<String> = Vec::new();
    let mut of = Vec::new();
    for row in &table.rows {
        let whys = row.runs.iter().flat_map(|run| run.refused.iter().chain(&run.notes)).map(why);
        let ceiling = table.ceiling_of(row);
        let method = ceiling
            .map(|one| format!("Ceiling: {}; the greatest of all measured beside the runs.", one.method));
        let above = ceiling.filter(|one| one.percent > MAX_PERCENT).map(|_| above_ceiling(row));
        let mut own = Vec::new();
        for text in whys.chain(method).chain(above) {
            let at = all.iter().position(|known| *known == text).unwrap_or_else(|| {
                all.push(text);
                all.len() - 1
            });
            if !own.contains(&at) {
                own.push(at);
            }
        }
        of.push(own);
    }
    Footnotes { all, of }
}

/// Explains a row above its ceiling, by the reason that its last run found, if any.
fn above_ceiling(row: &Row) -> String {
    let found = row.runs.iter().rev().find_map(|run| run.ceiling.as_ref()?.above.as_ref());
    let why = found.map_or("raw calls beside other runs of it were slower", String::as_str);
    format!("Above its ceiling, which is not what limits it: {why}.")
}

fn why(one: &Why) -> String {
    one.hint.as_ref().map_or(one.text.clone(), |hint| format!("{} (hint: {hint})", one.text))
}

/// File system and drive of a path: `ext4 on /dev/vda, QEMU HARDDISK (rw,noatime)`.
pub(super) fn path(facts: &PathFacts) -> String {
    let drive = if facts.drive.is_empty() { String::new() } else { format!(", {}", facts.drive) };
    let mount = if facts.mount.is_empty() { String::new() } else { format!(" ({})", facts.mount) };
    format!("{}: {} on {}{drive}{mount}", facts.path, facts.file_system, facts.source)
}

/// The machine in name and value.
pub(super) fn machine(machine: &Machine) -> Vec<(&'static str, String)> {
    let device = |device: &crate::model::Device| {
        if device.is_host {
            format!("{}: host memory (no GPU in use)", device.name)
        } else {
            let (major, minor) = (device.driver / 1000, device.driver % 1000 / 10);
            format!("{}: {} at {}, driver for CUDA {major}.{minor}", device.name, device.model, device.pci)
        }
    };
    let gib = machine.memory as f64 / f64::from(1 << 30);
    let cpu = if machine.cpu_model.is_empty() { String::new() } else { format!(" of {}", machine.cpu_model) };
    let mut all = vec![
        ("Machine", machine.product.clone()),
        ("CPUs", format!("{}{cpu}", machine.cpus)),
        ("Governor", machine.governor.clone()),
        ("Memory", format!("{gib:.0} GiB")),
        ("Cgroup limits", machine.limits.clone()),
        ("Kernel", machine.kernel.clone()),
        ("GPU driver", machine.gpu_driver.clone()),
    ];
    all.extend(machine.devices.iter().map(|one| ("Device", device(one))));
    all.extend(machine.paths.iter().map(|one| ("Path", path(one))));
    all.retain(|(_, value)| !value.is_empty());
    all
}

/// Heads and rows of the table of GPUs, drives and network cards.
pub(super) fn parts_of_machine(machine: &Machine) -> (Vec<String>, Vec<Vec<String>>) {
    let none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
    let heads = ["device", "model", "firmware", "PCI address", "PCIe link", "NUMA node"].map(str::to_owned);
    let is_measured = |name: &str| machine.paths.iter().any(|path| path.disk == name);
    let row = |part: &Part| {
        let measured = if is_measured(&part.name) { " (measured)" } else { "" };
        let node = part.numa_node.map_or_else(String::new, |node| node.to_string());
        let name = format!("{}{measured}", part.name);
        [&name, &part.model, &part.firmware, &part.pci, &part.link, &node].map(|text| none(text)).to_vec()
    };
    (heads.to_vec(), machine.topology.parts().map(row).collect())
}

/// Heads and rows of the matrix of distances.
pub(super) fn matrix(machine: &Machine) -> (Vec<String>, Vec<Vec<String>>) {
    let names = || machine.topology.parts().map(|part| part.name.clone());
    let row = |(name, cells): (String, &Vec<Distance>)| {
        std::iter::once(name).chain(cells.iter().map(|one| one.word().to_owned())).collect()
    };
    let rows = names().zip(&machine.topology.matrix).map(row).collect();
    (std::iter::once(String::new()).chain(names()).collect(), rows)
}

/// The legend of the matrix.
pub(super) fn distances(machine: &Machine) -> String {
    let words = machine.topology.legend().into_iter().map(|one| format!("{}: {}", one.word(), one.meaning()));
    words.collect::<Vec<_>>().join("; ")
}

/// Explains the engine names in "moved by" for a table.
pub(super) fn engines_explained(table: &Table) -> String {
    let shares = || table.rows.iter().flat_map(|row| &row.runs).flat_map(|run| &run.engines);
    let moved = EngineKind::ALL.into_iter().filter(|one| shares().any(|share| share.engine == one.name()));
    let engines = moved.map(|engine| format!("{engine}: {}", engine.words()));
    let raw = "raw: plain calls and copies, without forebay.".to_owned();
    engines.chain([raw]).collect::<Vec<_>>().join("; ")
}

/// Describes the machine and engines behind this table's measured figures: the second half of its meaning.
pub(super) fn ours(report: &Report, table: &Table) -> String {
    let mut runs: Vec<Run> = table.rows.iter().flat_map(|row| row.runs.clone()).collect();
    // The other paths' bytes, and other programs', are not ours.
    for run in &mut runs {
        run.engines.retain(|share| share.engine.parse::<EngineKind>().is_ok());
    }
    let device = report.machine.devices.first();
    let name = device
        .map_or("no device", |device| if device.is_host { "host memory" } else { device.model.as_str() });
    let path = report.machine.paths.first().map(|path| format!(", {} on {}", path.file_system, path.source));
    format!(
        "Ours: {} CPUs, {name}{}. Our bytes were moved by: {}.",
        report.machine.cpus,
        path.unwrap_or_default(),
        engines(&runs)
    )
}

/// The commands that make the files which a table's rows read.
pub(super) fn before_commands(report: &Report, table: &Table) -> Vec<String> {
    let uses = |what: &str| table.rows.iter().any(|row| row.command.contains(what));
    let mut lines = Vec::new();
    for path in &report.command.paths {
        let path = path.trim_end_matches('/');
        let file = format!("{path}/{}", crate::targets::FILE_NAME);
        let found = report.files.iter().find(|one| one.path == file);
        if let Some(facts) = found.filter(|_| uses(&file)) {
            let size = crate::work::size(facts.size);
            let words = ["-f", &file, "-s", &size, "-x", "1", "-I", "1", "-i", "1M", "-w", "1"];
            lines.push(
                "# The file that was measured is removed when the report is complete. This makes it again:"
                    .to_owned(),
            );
            lines.push(format!("forebay bench {}", crate::work::typed(&words.map(str::to_owned))));
        }
        let folder = format!("{path}/{}", crate::targets::FOLDER_NAME);
        let own: Vec<_> = report.files.iter().filter(|one| one.path.starts_with(&folder)).collect();
        if let Some(facts) = own.first().filter(|_| uses(&folder)) {
            let (size, count) = (crate::work::size(facts.size), own.len().to_string());
            let words = ["-D", &folder, "-s", &size, "-x", "1", "-I", "1", "-i", "1M", "-w", &count];
            lines.push(
                "# The workers' files are removed when the report is complete. This makes them again:"
                    .to_owned(),
            );
            lines.push(format!("mkdir -p {}", crate::work::typed(std::slice::from_ref(&folder))));
            lines.push(format!("forebay bench {}", crate::work::typed(&words.map(str::to_owned))));
        }
    }
    if uses(" monai_epoch.py ") {
        lines.push(
            "# monai_epoch.py is crates/forebay-report/src/monai_epoch.py in forebay's source.".to_owned(),
        );
    }
    if uses(" peers.py ") {
        lines.push("# peers.py is crates/forebay-report/src/peers.py in forebay's source. The model was removed, too: use your own.".to_owned());
    }
    lines
}

/// Counts rows by state.
pub(super) fn counts(report: &Report) -> String {
    let rows = report.rows().count();
    let of = |is: fn(&State) -> bool| report.rows().filter(|row| is(&row.state)).count();
    let mut text = format!("{rows} rows: {} measured", of(|state| *state == State::Done));
    for (count, word) in [
        (of(|state| matches!(state, State::Failed { .. })), "failed"),
        (of(|state| matches!(state, State::Absent { .. })), "not possible here"),
        (of(|state| *state == State::Waiting), "not run yet"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {word}");
        }
    }
    text
}

/// The command line of the report.
pub(super) fn command(report: &Report) -> String {
    let command = &report.command;
    let mut words = vec!["forebay".to_owned(), "report".to_owned()];
    words.extend(command.presets.iter().cloned());
    let mut push = |flag: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    };
    push("-d", Some(command.devices.join(",")).filter(|one| !one.is_empty()));
    push("--spec", command.spec.as_ref().map(|_| "FILE".to_owned()));
    push("--server", command.server.clone());
    push("--hosts", Some(command.hosts.join(",")).filter(|one| !one.is_empty()));
    push("--size", command.size.map(crate::work::size));
    push("--repeat", command.repeat.map(|one| one.to_string()));
    push("--seconds", command.seconds.map(|one| one.to_string()));
    if command.pairing == "given" {
        words.extend(["--pair".to_owned(), "given".to_owned()]);
    }
    match command.extent.as_str() {
        "default" => {}
        extent => words.push(format!("--{extent}")),
    }
    words.extend(command.paths.iter().cloned());
    format!("{} -o DIR", crate::work::typed(&words))
}
