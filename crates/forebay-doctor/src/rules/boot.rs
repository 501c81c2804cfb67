//! Things that a reboot loses: mounts, modules, soft devices.

use forebay_error::quoted;

use super::{edit, nfs};
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::nfs::{ConfiguredMount, MountedNfs};
use crate::rdma::Port;
use crate::storage::mounts;

pub(super) fn find(
    facts: &Facts<'_>,
    mounted: &[MountedNfs],
    configured: &[ConfiguredMount],
    ports: &[Port],
    found: &mut Findings,
) {
    // Containers have neither units nor modules of their own.
    if facts.machine.container.is_some() || !facts.machine.proc_readable {
        return;
    }
    for one in configured {
        missing(one, mounted, found);
        unit(one, found);
        port(one, found);
    }
    for (mount, _) in nfs::relevant(facts, mounted).into_iter().filter(|(mount, _)| mount.is_rdma()) {
        if !automatic(facts, &mount.line.point) && !configured.iter().any(|one| one.point == mount.line.point)
        {
            let point = &mount.line.point;
            let text = format!("{point} is mounted by hand: a reboot loses it");
            let fix = format!("printf '%s\\n' {} | sudo tee -a /etc/fstab", quoted(&line_of(mount)));
            let finding = found.add("mount-by-hand", Severity::Note, text, Some(&fix));
            finding.seen("/etc/fstab, /etc/systemd/system/*.mount", format!("no line for {point}"));
        }
    }
    modules(facts, mounted, configured, ports, found);
}

/// The line of fstab that makes this mount.
fn line_of(mount: &MountedNfs) -> String {
    let mut changes = Vec::new();
    if mount.option("port").is_none() {
        changes.push("port=20049");
    }
    if mount.nfs.version == "3" {
        changes.push("mountproto=tcp");
    }
    // fstab has no quotes: blanks are octal there.
    let field = |text: &str| {
        let text = text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
        text.replace('\n', "\\012").replace('#', "\\043")
    };
    let options = nfs::with(mount, &changes);
    format!("{} {} nfs {options},_netdev 0 0", field(&mount.line.source), field(&mount.line.point))
}

/// The automounter mounts it again.
fn automatic(facts: &Facts<'_>, point: &str) -> bool {
    let lines = mounts(facts.system);
    let mut points = lines.iter().filter(|line| line.file_system == "autofs").map(|line| &line.point);
    points.any(|dir| point.starts_with(dir.as_str()))
}

fn missing(one: &ConfiguredMount, mounted: &[MountedNfs], found: &mut Findings) {
    if !one.at_boot || mounted.iter().any(|mount| mount.line.point == one.point) {
        return;
    }
    let text = format!("{} should be mounted at boot, and is not mounted", one.point);
    let name = quoted(one.place.rsplit('/').next().unwrap_or_default());
    let fix = match (&one.unit, one.version()) {
        (_, Some(version @ ("4.1" | "4.2"))) if one.is_rdma() => {
            let change = edit::replace(&one.place, one.line, &format!("vers={version}"), "vers=4.0");
            let reload = if one.unit.is_some() { " && sudo systemctl daemon-reload" } else { "" };
            format!(
                "servers that do not do {version} over RDMA want vers=4.0 (or 3) there: {change}{reload} && sudo mount {}",
                quoted(&one.point)
            )
        }
        (Some(_), _) => format!("sudo systemctl start {name}; why not: systemctl status {name}"),
        (None, _) => format!("sudo mount {}; why not: journalctl -b | grep -i mount", quoted(&one.point)),
    };
    let finding = found.add("mount-missing", Severity::Blocks, text, Some(&fix));
    finding.seen(&one.at(), &one.text).seen("/proc/self/mountinfo", format!("no NFS at {}", one.point));
}

fn unit(one: &ConfiguredMount, found: &mut Findings) {
    // systemd orders NFS after the network by itself, unless DefaultDependencies=no.
    let is_off = |line: &str| {
        let value = line.trim().strip_prefix("DefaultDependencies=").map(|value| value.trim().to_lowercase());
        value.is_some_and(|value| ["no", "false", "off", "0", "n", "f"].contains(&value.as_str()))
    };
    let text = one.unit.as_deref().filter(|text| !text.contains("network-online.target"));
    let mut lines = text.unwrap_or_default().lines().enumerate();
    let Some((at, line)) = lines.find(|&(_, line)| is_off(line)) else { return };
    let said = format!(
        "the unit of {} does not wait for network-online.target: at boot it may start before the network",
        one.point
    );
    let fix = format!(
        "sudo sed -i '/^\\[Unit\\]/a After=network-online.target\\nWants=network-online.target' {}; sudo systemctl daemon-reload",
        quoted(&one.place)
    );
    let place = format!("{}:{}", one.place, at + 1);
    found.add("unit-network", Severity::Note, said, Some(&fix)).seen(&place, line);
}

fn port(one: &ConfiguredMount, found: &mut Findings) {
    if !one.is_rdma() || one.has_port() {
        return;
    }
    let text = format!(
        "{} uses RDMA without port=20049: older clients then try port 2049, where no server takes RDMA",
        one.point
    );
    found.add("nfs-port", Severity::Note, text, Some(&add_port(one))).seen(&one.at(), &one.text);
}

/// Adds the port behind `rdma`, as an option of its own: in fstab of this point's lines, in a unit of `Options=`.
fn add_port(one: &ConfiguredMount) -> String {
    let (lines, before, then) = if one.unit.is_some() {
        (r"^\s*Options=".to_owned(), r"\s*Options=\s*", "; sudo systemctl daemon-reload")
    } else {
        let point = one.text.split_whitespace().nth(1).unwrap_or_default();
        (format!(r"^\s*[^#[:space:]]\S*\s+{}\s", of_regex(point)), r"\s*\S+\s+\S+\s+\S+\s+", "")
    };
    let replace = format!(r"s/^({before}(\S*,)?)(proto=rdma6?|rdma)([,[:space:]]|$)/\1\3,port=20049\4/");
    let script = format!("/{lines}/{{/[=,[:space:]]port=/!{replace}}}");
    format!("sudo sed -i -E {} {}{then}", quoted(&script), quoted(&one.place))
}

/// The text as an extended regular expression that matches it alone, between slashes.
fn of_regex(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\/.[]*+?(){}^$|".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Modules loaded at boot.
fn listed(facts: &Facts<'_>) -> Vec<String> {
    let dirs = ["/etc/modules-load.d", "/usr/lib/modules-load.d", "/run/modules-load.d", "/etc/rdma/modules"];
    let files = dirs.into_iter().flat_map(|dir| {
        facts.system.list(dir).into_iter().map(move |name| format!("{dir}/{name}")).collect::<Vec<_>>()
    });
    let files = files.chain(["/etc/modules".to_owned()]);
    let texts = files.filter_map(|path| facts.system.text(&path)).collect::<Vec<_>>().join("\n");
    texts
        .lines()
        .map(|line| line.trim().replace('-', "_"))
        .filter(|line| !line.starts_with(['#', ';']))
        .collect()
}

fn modules(
    facts: &Facts<'_>,
    mounted: &[MountedNfs],
    configured: &[ConfiguredMount],
    ports: &[Port],
    found: &mut Findings,
) {
    let is_there = mounted.iter().any(MountedNfs::is_rdma);
    let is_wanted = configured.iter().any(|one| one.is_rdma() && one.at_boot);
    if !is_there && !is_wanted {
        return;
    }
    let listed = listed(facts);
    let has = |names: &[&str]| listed.iter().any(|line| names.contains(&line.as_str()));
    if !has(&["rpcrdma", "xprtrdma"]) {
        let severity = if is_there { Severity::Note } else { Severity::Slower };
        let text = "rpcrdma is not loaded at boot: an NFS mount over RDMA may start before its module";
        let fix = "echo rpcrdma | sudo tee /etc/modules-load.d/rpcrdma.conf";
        found.add("boot-modules", severity, text, Some(fix)).seen("/etc/modules-load.d/*.conf", "no rpcrdma");
    }
    for port in ports.iter().filter(|port| port.is_soft) {
        let module = if port.is_iwarp { "siw" } else { "rdma_rxe" };
        if !has(&[module]) {
            let interface = port.interface.as_deref().unwrap_or("INTERFACE");
            let text = format!("{} is a soft RDMA device, and nothing creates it at boot", port.device);
            let kind = if port.is_iwarp { "siw" } else { "rxe" };
            let fix = format!(
                "echo {module} | sudo tee /etc/modules-load.d/{module}.conf; and a unit that runs, before the mounts: rdma link add {} type {kind} netdev {interface}",
                port.device
            );
            found
                .add("boot-modules", Severity::Note, text, Some(&fix))
                .seen("/etc/modules-load.d/*.conf", format!("no {module}"));
        }
    }
}
