//! The texts on ceilings, single runs and compared reports, over made rows.

use super::{html, words};
use crate::compare::Comparison;
use crate::model::{
    Ceiling, Chart, ChartKind, Command, Load, Machine, Report, Row, Run, Share, State, Table, VERSION, Why,
};
use crate::plan::Planned;
use crate::quantity::{Quantity, Verdict};

/// A run of this many GB/s, with a ceiling.
fn run(gb_per_s: f64, ceiling: Option<f64>) -> Run {
    let ceiling = ceiling.map(|gb_per_s| Ceiling { gb_per_s, method: "raw calls".to_owned(), above: None });
    let bytes = (gb_per_s * 1e9) as u64;
    Run { seconds: 1.0, bytes, ops: 1, user_s: 1.0, ceiling, ..Run::default() }
}

/// A table whose rows are compared with the one of type `2`; all others differ in their size.
fn table(rows: &[(&str, &str, &[Run])]) -> Table {
    let planned = Planned::new("t", "A table", &["type", "size"], &[Quantity::GbPerS]);
    let mut table = planned.ratio(0, "2", &[Quantity::GbPerS]).table;
    for (kind, size, runs) in rows {
        table.rows.push(Row {
            id: format!("{kind} · {size}"),
            labels: vec![(*kind).to_owned(), (*size).to_owned()],
            command: String::new(),
            published: std::collections::BTreeMap::new(),
            at_most: Vec::new(),
            published_ratio: std::collections::BTreeMap::new(),
            unjudged: None,
            wanted: runs.len(),
            state: State::Done,
            runs: runs.to_vec(),
            notes: Vec::new(),
        });
    }
    table
}

fn report(table: Table) -> Report {
    Report {
        version: VERSION,
        release: "1".to_owned(),
        build: String::new(),
        begun: String::new(),
        updated: String::new(),
        machine: Machine { cpus: 2, memory: 1, ..Machine::default() },
        title: String::new(),
        note: String::new(),
        earlier: Vec::new(),
        command: Command {
            presets: Vec::new(),
            spec: None,
            devices: Vec::new(),
            paths: Vec::new(),
            extent: "default".to_owned(),
            server: None,
            hosts: Vec::new(),
            size: None,
            repeat: None,
            seconds: None,
            pairing: String::new(),
        },
        files: Vec::new(),
        notes: Vec::new(),
        tables: vec![table],
    }
}

#[test]
fn the_ceiling_is_the_greatest_beside_the_row() {
    let own = [run(1.0, Some(1.0)), run(2.0, None), run(3.0, Some(2.5))];
    // Type 2 of this size takes turns with it; the other size and another method do not tell.
    let mut other = run(1.0, Some(9.0));
    other.ceiling.as_mut().unwrap().method = "others".to_owned();
    let rows = [
        ("0", "4K", &own[..]),
        ("2", "4K", &[run(1.0, Some(4.0)), other]),
        ("0", "1M", &[run(1.0, Some(50.0))]),
    ];
    let table = table(&rows);
    let ceiling = table.ceiling_of(&table.rows[0]).unwrap();
    assert_eq!((ceiling.greatest, ceiling.least, ceiling.times, ceiling.percent), (4.0, 1.0, 3, 50.0));
    assert_eq!(words::ceiling(&table, &table.rows[0]), "50 % of 4.00 GB/s (of 3: 1.00–4.00)");
    assert_eq!(words::ceiling(&table, &table.rows[2]), "2 % of 50.0 GB/s");
}

#[test]
fn a_rate_above_its_ceiling_is_not_cut_and_says_why() {
    let found = "the file has holes";
    for (speed, above, said, why) in [
        (1.9, None, "95 % of 2.00 GB/s", None),
        (2.08, None, "104 % of 2.00 GB/s", None),
        (4.72, None, "236 % of 2.00 GB/s", Some("raw calls beside other runs of it were slower")),
        (4.72, Some(found), "236 % of 2.00 GB/s", Some(found)),
    ] {
        let mut run = run(speed, Some(2.0));
        run.ceiling.as_mut().unwrap().above = above.map(str::to_owned);
        let table = table(&[("0", "4K", &[run])]);
        assert_eq!(words::ceiling(&table, &table.rows[0]), said);
        let notes = words::footnotes(&table).all;
        let note = why.map(|why| format!("Above its ceiling, which is not what limits it: {why}."));
        assert_eq!(notes.iter().find(|one| one.starts_with("Above")), note.as_ref(), "{notes:?}");
    }
}

/// A table has one unit: that of its columns.
#[test]
fn ceilings_have_the_unit_of_the_table() {
    let mut table = table(&[("0", "4K", &[run(1.0, Some(2.0))])]);
    assert_eq!(words::ceiling(&table, &table.rows[0]), "50 % of 2.00 GB/s");
    table.columns = vec![Quantity::MeanUs, Quantity::GibPerS];
    assert_eq!(words::ceiling(&table, &table.rows[0]), "50 % of 1.86 GiB/s");
}

/// Rows of different conditions have a ratio, and no verdict.
#[test]
fn what_is_not_judged_says_so() {
    let runs = |speed: f64| vec![run(speed, None); 3];
    let mut table = table(&[("0", "4K", &runs(3.0)), ("2", "4K", &runs(1.0))]);
    let of = |table: &Table| words::ratios(table, &table.rows[0]);
    assert_eq!(of(&table), [("throughput 3.00×, better".to_owned(), Some(Verdict::Better))]);
    table.rows[0].unjudged = Some("no GPU".to_owned());
    assert_eq!(of(&table), [("throughput 3.00×".to_owned(), None)]);
    let once = "Ratios without a verdict are not judged: no GPU.";
    assert_eq!(words::top(&report(table.clone())), [once]);
    assert_eq!(html(&report(table)).matches("not judged").count(), 1);
}

/// A busy machine is the first note. The load that `busy` makes does not count.
#[test]
fn a_busy_machine_is_said_at_the_top() {
    let of = |others: &[f64], load: bool| {
        let load = load.then(|| Load {
            by: String::new(),
            alone_percent: 0.0,
            during_percent: 0.0,
            memory_percent: 0.0,
        });
        let runs: Vec<_> = others
            .iter()
            .map(|others| Run { others_percent: Some(*others), load: load.clone(), ..run(1.0, None) })
            .collect();
        Report { notes: vec!["a note".to_owned()], ..report(table(&[("0", "4K", &runs)])) }
    };
    let busy = of(&[2.0, 70.0, 3.0], false);
    let said =
        "Busy machine: other programs used up to 70 % of all CPUs during a run (median of 3 runs 3 %).";
    assert!(words::top(&busy)[0].starts_with(said), "{:?}", words::top(&busy));
    for text in [html(&busy), super::markdown(&busy)] {
        assert!(text.find(said).unwrap() < text.find("a note").unwrap(), "{text}");
    }
    for idle in [of(&[2.0, 9.0], false), of(&[80.0], true), of(&[], false)] {
        assert_eq!(words::top(&idle), ["a note"]);
    }
}

/// Their points are named after them, and by their names.
#[test]
fn published_points_say_whose_they_are() {
    let mut table = table(&[("0", "4K", &[run(1.0, None)]), ("2", "4K", &[run(1.0, None)])]);
    table.rows[0].published.insert(Quantity::GbPerS, 8.8);
    let chart = Chart {
        title: "A chart".to_owned(),
        kind: ChartKind::Bars,
        x: 1,
        series: 0,
        only: Vec::new(),
        y: Quantity::GbPerS,
        over: None,
        log: false,
        mark: None,
    };
    table.charts.push(chart);
    assert!(html(&report(table.clone())).contains("0, published"));
    table.source =
        Planned::new("", "", &[], &[]).source("Micron", "", "", &[]).called("0", "GDS").table.source;
    let page = html(&report(table));
    assert!(page.contains("Micron: GDS") && page.contains("class=\"theirs\">Micron</th>"), "{page}");
    assert!(!page.contains(">published<") && !page.contains(", published"), "{page}");
}

#[test]
fn runs_measure_ceilings_before_and_after_the_others() {
    let measures = |wanted: usize| {
        let runs = vec![Run::default(); wanted];
        let row = &table(&[("0", "4K", &runs)]).rows[0];
        (0..wanted).map(|run| row.measures_ceiling(run)).collect::<Vec<_>>()
    };
    assert_eq!((measures(1), measures(3)), (vec![true], vec![true, false, true]));
}

/// The bars or lines of a page, and what is below them.
fn page(kind: ChartKind, rows: &[(&str, &str, &[Run])]) -> String {
    let mut table = table(rows);
    let title = "A chart".to_owned();
    let chart = Chart {
        title,
        kind,
        x: 1,
        series: 0,
        only: Vec::new(),
        y: Quantity::GbPerS,
        over: None,
        log: false,
        mark: None,
    };
    table.charts.push(chart);
    html(&report(table))
}

#[test]
fn charts_and_tables_mark_rows_that_ran_once() {
    let (once, thrice) = ([run(5.0, None)], [run(1.0, None), run(2.0, None), run(3.0, None)]);
    let some: [(&str, &str, &[Run]); 2] = [("0", "4K", &once), ("2", "4K", &thrice)];
    let all: [(&str, &str, &[Run]); 2] = [("0", "4K", &once), ("2", "4K", &once)];
    let none: [(&str, &str, &[Run]); 2] = [("0", "4K", &thrice), ("2", "4K", &thrice)];
    let bars = page(ChartKind::Bars, &some);
    assert!(bars.contains(">5.00 *</text>") && bars.contains(">2.00</text>"), "{bars}");
    assert!(bars.contains("* one run: no range.") && bars.contains("<small>one run</small>"));
    let lines = page(ChartKind::Lines, &some);
    assert_eq!(lines.matches("class=\"s0 once\"").count(), 1, "{lines}");
    assert!(lines.contains("Hollow points are of one run") && !lines.contains("class=\"s1 once\""));
    // Where every row ran once, the top of the report says so, once.
    for (rows, said) in [(&all, 1), (&none, 0)] {
        let text = page(ChartKind::Bars, rows);
        assert_eq!(text.matches("too few runs (fewer than 3").count(), said, "{text}");
        assert!(!text.contains("one run"), "{text}");
    }
}

/// Charts of one quantity have one scale, and sides have their colours whatever else a table has.
#[test]
fn pairs_are_compared_by_eye() {
    let of = |speed: f64| [run(speed, None)];
    let (slow, fast) = (of(1.0), of(40.0));
    let rows: [(&str, &str, &[Run]); 3] = [("0", "4K", &slow), ("2", "4K", &slow), ("0", "1M", &fast)];
    let mut table = table(&rows);
    for (row, xfer) in table.rows.iter_mut().zip([0, 2, 0]) {
        row.command = format!("forebay bench -f a -x {xfer} -w 4");
    }
    // The traditional path first: it keeps its colour.
    table.rows.swap(0, 1);
    for size in ["4K", "1M"] {
        let (title, only) = (size.to_owned(), vec![(1, size.to_owned())]);
        let y = Quantity::GbPerS;
        table.charts.push(Chart {
            title,
            kind: ChartKind::Bars,
            x: 1,
            series: 0,
            only,
            y,
            over: None,
            log: false,
            mark: None,
        });
    }
    let text = html(&report(table));
    let charts: Vec<&str> = text.split("<svg").skip(1).collect();
    for chart in &charts {
        assert!(chart.contains(">40</text>"), "both reach 40: {chart}");
    }
    assert!(charts[0].contains("class=\"s1\"") && charts[0].contains("class=\"s0\""), "{text}");
    assert!(charts[0].find("class=\"s1\"") < charts[0].find("class=\"s0\""), "{text}");
}

/// A row that is not possible here has no command: the others keep the colours of their types.
#[test]
fn absent_rows_leave_the_colours() {
    let one = [run(1.0, None)];
    let rows: [(&str, &str, &[Run]); 4] =
        [("1", "4K", &one), ("2", "4K", &one), ("1", "1M", &[]), ("2", "1M", &[])];
    let mut table = table(&rows);
    for (row, xfer) in table.rows.iter_mut().zip([1, 2]) {
        row.command = format!("forebay bench -f a -x {xfer} -w 4");
    }
    table.charts.push(Chart {
        title: "All".to_owned(),
        kind: ChartKind::Bars,
        x: 1,
        series: 0,
        only: Vec::new(),
        y: Quantity::GbPerS,
        over: None,
        log: false,
        mark: None,
    });
    let text = html(&report(table));
    let chart = text.split("<svg").nth(1).unwrap();
    assert!(chart.contains("class=\"s1\"") && chart.contains("class=\"s4\""), "{chart}");
    assert!(!chart.contains("class=\"s0\""), "{chart}");
}

/// Type 0 beside type 2: how the first page speaks of them.
#[test]
fn what_was_found() {
    let of = |speed: f64, cpu: f64| vec![Run { user_s: cpu * speed, ..run(speed, Some(4.0)) }; 3];
    let (ours, theirs) = (of(3.8, 0.2), of(1.9, 0.4));
    let rows: [(&str, &str, &[Run]); 4] =
        [("0", "1M", &ours), ("2", "1M", &theirs), ("0", "4K", &theirs), ("2", "4K", &ours)];
    let mut table = table(&rows);
    for (row, xfer) in table.rows.iter_mut().zip([0, 2, 0, 2]) {
        row.command = format!("forebay bench -f a -x {xfer} -w 4");
        let engine = if xfer == 0 { "staged" } else { "raw" };
        for run in &mut row.runs {
            run.engines = vec![Share { engine: engine.to_owned(), bytes: 9, ways: [].into() }];
        }
    }
    let found = super::findings::findings(&report(table.clone()));
    let said: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(said[0], "3.80 GB/s by staged in t: 0 · 1M, 95 % of the 4.00 GB/s that raw calls reach.");
    assert!(said[1].starts_with("1.25 × the CPU for each GB of the traditional path"), "{said:?}");
    assert!(said[1].contains("median of 2 pairs of rows (0.50 to 2.00 ×)"), "{said:?}");
    let lost = "throughput in 1 of 2 comparisons, most in t: 0 · 4K: 0.50 ×; CPU for each GB in 1 of 2";
    assert!(said[2].starts_with(lost), "{said:?}");
    assert!(said[3].starts_with("Not the storage alone: 1 of 2 rows reach 90 % or more"), "{said:?}");
    assert!(said[4].starts_with("Nothing: "), "{said:?}");
    table.rows[0].runs[0].refused =
        vec![Why { text: "not p2p: no BAR".to_owned(), hint: Some("use another drive".to_owned()) }];
    for (name, busy) in [("nvme0n1", 20.5), ("nvme1n1", 97.0), ("nvme2n1", 3.0)] {
        let none =
            serde_json::json!({ "ops_per_s": 0.0, "mb_per_s": 0.0, "kib_per_op": 0.0, "await_ms": 0.0 });
        let drive = serde_json::json!({
            "name": name, "read": none, "write": none, "in_flight": 4.0, "busy_percent": busy
        });
        table.rows[0].runs[2].storage.push(serde_json::from_value(drive).unwrap());
    }
    let found = super::findings::findings(&report(table));
    assert_eq!(found[4].1, "Use another drive.");
    assert!(found[3].1.contains("Most often: not p2p: no BAR."), "{found:?}");
    assert!(found[3].1.contains(" nvme1n1 was busy 97 % of the time, with 4.00 I/Os"), "{found:?}");
}

#[test]
fn charts_tell_of_rows_without_a_figure() {
    let one = [run(5.0, None)];
    let rows: [(&str, &str, &[Run]); 3] = [("0", "4K", &one), ("2", "4K", &one), ("3", "4K", &[])];
    assert!(page(ChartKind::Bars, &rows).contains("One row has no figure: the table says why."));
    assert!(!page(ChartKind::Bars, &rows[..2]).contains("no figure"));
}

#[test]
fn reports_of_single_runs_are_not_judged() {
    let of = |speed: f64| report(table(&[("0", "4K", &[run(speed, None)])]));
    let text = |old: f64, new: f64| Comparison::of(&of(old), &of(new)).text();
    let not_judged =
        "0 better, 0 worse, 0 within the noise, 2 not judged (fewer than 3 runs, and less than 2.5× apart)\n";
    assert_eq!(text(1.0, 1.3), not_judged);
    assert_eq!(text(1.3, 1.0), not_judged);
    assert!(text(3.0, 1.0).contains("worse: t: 0 · 4K: GB/s 3.00 -> 1.00"), "{}", text(3.0, 1.0));
}

#[test]
fn rows_of_one_report_alone_are_counted() {
    let one = [run(1.0, None)];
    let few = report(table(&[("0", "4K", &one)]));
    let more = report(table(&[("0", "4K", &one), ("0", "8K", &one), ("2", "8K", &one)]));
    for (old, new) in [(&few, &more), (&more, &few)] {
        assert_eq!(Comparison::of(old, new).notes, ["2 rows are not measured in both."]);
    }
}

#[test]
fn a_comparison_says_what_chance_does() {
    let of = |runs: usize| report(table(&[("0", "4K", &vec![run(1.0, None); runs])]));
    let notes = |runs: usize| Comparison::of(&of(runs), &of(runs)).notes.join(" ");
    assert!(notes(3).starts_with("With 3 runs a row, about one figure in 10 is called"), "{}", notes(3));
    assert_eq!((notes(1), notes(5)), (String::new(), String::new()));
    assert_eq!(Comparison::of(&of(1), &of(3)).notes, [""; 0], "none of them is judged by its range");
    assert_eq!(Comparison::of(&of(3), &of(3)).count(Verdict::Noise), 2);
}
