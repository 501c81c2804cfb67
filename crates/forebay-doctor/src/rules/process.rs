//! A running process: its libcufile, its configuration, the engines that move its bytes.

use std::path::Path;

use forebay_error::quoted;
use forebay_stats::{EngineTotals, Snapshot, Way};
use forebay_ways::EngineKind;

use super::{command, is_passing};
use crate::engines::size;
use crate::facts::Facts;
use crate::facts::ProcessFacts;
use crate::finding::{Findings, Severity};

pub(super) fn find(facts: &Facts<'_>, process: &ProcessFacts, found: &mut Findings) {
    libraries(process, found);
    command::find(facts, process, found);
    match &process.counters {
        Some(counters) => moved(process, counters, found),
        None => without_counters(facts, process, found),
    }
    if process.libraries.iter().any(|library| !library.own) {
        buffered_files(facts, process, found);
    }
}

fn libraries(process: &ProcessFacts, found: &mut Findings) {
    let maps = format!("/proc/{}/maps", process.pid);
    let run = "start it on forebay: forebay run -- COMMAND";
    match process.libraries.as_slice() {
        [] => {}
        [one] if one.own => {
            let text = format!("the process has forebay's libcufile ({})", one.path);
            found.add("libcufile", Severity::Ok, text, None).seen(&maps, &one.path);
        }
        [one] => {
            let text = "the process has NVIDIA's libcufile: forebay moves none of its bytes";
            found.add("libcufile", Severity::Note, text, Some(run)).seen(&maps, &one.path);
        }
        several => {
            let text = "the process has several copies of libcufile: which one moves the bytes depends on the calling library";
            let finding = found.add("libcufile-copies", Severity::Slower, text, Some(run));
            for one in several {
                finding.seen(&maps, &one.path);
            }
        }
    }
}

fn without_counters(facts: &Facts<'_>, process: &ProcessFacts, found: &mut Findings) {
    // A process that this user may not inspect gives no findings.
    if !facts.machine.proc_readable {
        return;
    }
    let text = match process.libraries.as_slice() {
        [] => "the process has no counters: it has no libcufile, and has moved no bytes on forebay",
        libraries if libraries.iter().any(|library| library.own) => {
            "the process has moved no bytes on forebay yet"
        }
        _ => return,
    };
    let fix = "forebay run --receipt -- COMMAND";
    let finding = found.add("no-counters", Severity::Note, text, Some(fix));
    finding.seen(&format!("/proc/{}/fd", process.pid), "no counters").seen("program", &process.program);
}

/// Bytes by engine, and why not a better one.
fn moved(process: &ProcessFacts, counters: &Snapshot, found: &mut Findings) {
    let all = counters.engine_bytes();
    let seen = |engine: &EngineTotals| format!("{}: {}", engine.name, engine.ways(size));
    let place = format!("counters of {}", process.pid);
    let finding = found.add("engines", Severity::Ok, format!("forebay moved {}", size(all)), None);
    for engine in &counters.engines {
        finding.seen(&place, seen(engine));
    }
    let cpu = process.cpu_seconds.filter(|_| all >= 1 << 30).map(|seconds| seconds * 1e9 / all as f64);
    for refusal in counters.refusals.iter().filter(|refusal| refusal.bytes * 10 > all).take(3) {
        let text = format!(
            "{} of {} took the CPU's path, not {}: {}",
            size(refusal.bytes),
            size(all),
            refusal.engine,
            refusal.reason
        );
        // Without a fix, or where it passes with time, it is no fault of this process.
        let lasting = refusal.hint.is_some() && !is_passing(&refusal.reason);
        let severity = if lasting { Severity::Slower } else { Severity::Note };
        let fix = refusal.hint.clone().or_else(|| what_to_try(process, &refusal.engine));
        let finding = found.add("cpu-path", severity, text, fix.as_deref());
        finding.seen(&place, counters.engines.first().map(seen).unwrap_or_default());
        if let Some(cpu) = cpu {
            finding.seen(&format!("/proc/{}/stat", process.pid), format!("{cpu:.3} s of CPU per GB"));
        }
    }
    let buffered: u64 = counters.engines.iter().map(|engine| engine.moved[Way::Buffered]).sum();
    if buffered * 10 > all {
        let text = format!(
            "{} of {} were read cold through the page cache, not by O_DIRECT",
            size(buffered),
            size(all)
        );
        let fix = "align offsets, sizes and buffers to 4096; a file system with O_DIRECT (ext4, xfs, NFS)";
        let finding = found.add("buffered", Severity::Slower, text, Some(fix));
        finding.seen(
            &place,
            counters
                .engines
                .iter()
                .find(|engine| engine.moved[Way::Buffered] > 0)
                .map(seen)
                .unwrap_or_default(),
        );
    }
    for note in &counters.notes {
        found
            .add("engine-note", Severity::Note, note.text.clone(), note.hint.as_deref())
            .seen(&place, format!("said {} times", note.times));
    }
}

/// The fix where an engine's reason has none.
fn what_to_try(process: &ProcessFacts, engine: &str) -> Option<String> {
    match engine.parse() {
        Ok(EngineKind::P2p) => {
            let folder = process.files.first().and_then(|(_, path)| Path::new(path).parent()?.to_str());
            let folder = folder.map_or_else(String::new, |folder| format!(" {}", quoted(folder)));
            Some(format!("forebay check{folder}   # shows what drive, links, kernel and driver lack"))
        }
        Ok(mapped @ EngineKind::Mapped) => Some(format!(
            "forebay run --trace calls.trace -- COMMAND; forebay replay calls.trace   # what {mapped} would make of its calls; \
             FOREBAY_ENGINE={mapped} takes it for all of them"
        )),
        _ => None,
    }
}

/// Files that NVIDIA's library reads through host memory because they were opened without O_DIRECT. Readers open a file
/// twice, with and without O_DIRECT; small files and files only written are no loaded data.
fn buffered_files(facts: &Facts<'_>, process: &ProcessFacts, found: &mut Findings) {
    const MIN_DATA_BYTES: u64 = 1 << 20;
    let dir = format!("/proc/{}/fd", process.pid);
    let open: Vec<(String, String)> = facts
        .system
        .list(&dir)
        .into_iter()
        .filter_map(|number| Some((facts.system.link(&format!("{dir}/{number}"))?, number)))
        .collect();
    for (_, path) in &process.files {
        let flags = open.iter().filter(|(of, _)| of == path).filter_map(|(_, number)| {
            let info = format!("/proc/{}/fdinfo/{number}", process.pid);
            Some((flags(&facts.system.text(&info)?)?, info))
        });
        let flags: Vec<(i32, String)> = flags.collect();
        let reads = |flags: i32| flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_APPEND == 0;
        let Some((buffered, info)) = flags.iter().find(|(flags, _)| reads(*flags)) else { continue };
        let is_direct = flags.iter().any(|(flags, _)| flags & libc::O_DIRECT != 0);
        if is_direct || facts.system.file_len(path).is_none_or(|len| len < MIN_DATA_BYTES) {
            continue;
        }
        let said =
            format!("{path} is open without O_DIRECT: NVIDIA's libcufile reads it through host memory");
        let fix = "open it with O_DIRECT; or run the program on forebay, which opens it itself: forebay run -- COMMAND";
        found.add("buffered", Severity::Slower, said, Some(fix)).seen(info, format!("flags {buffered:o}"));
        return;
    }
}

/// The flags of `fdinfo`, which writes them in octal digits.
fn flags(text: &str) -> Option<i32> {
    text.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok())
}
