//! NFS mounts of this client: active ones with their counters, and configured ones.

use forebay_sys::kernel_text::unescape;

use crate::storage::{MountLine, NfsMount, mounts};
use crate::system::System;

/// An active mount.
pub(crate) struct MountedNfs {
    pub line: MountLine,
    pub nfs: NfsMount,
    pub counted: MountCounters,
}

impl MountedNfs {
    pub(crate) fn is_rdma(&self) -> bool {
        self.nfs.transport.starts_with("rdma")
    }

    /// The value of an option, as `addr`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        value(&self.line.options, name)
    }
}

/// Counters of /proc/self/mountstats since the mount.
#[derive(Default)]
pub(crate) struct MountCounters {
    /// Bytes that programs read through the page cache.
    pub normal_read: u64,
    /// Bytes that programs read by O_DIRECT.
    pub direct_read: u64,
    /// Bytes that READ and WRITE calls carried.
    pub wire: u64,
    pub read: CallCounters,
    pub write: CallCounters,
    /// Mean number of calls in flight, over all connections.
    pub depth: f64,
}

/// Calls of one kind; times are sums in milliseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallCounters {
    pub count: u64,
    /// Transmissions: more than calls where some were sent again.
    pub sent: u64,
    /// Bytes that they carried.
    pub bytes: u64,
    pub queue_ms: u64,
    pub server_ms: u64,
    pub all_ms: u64,
}

impl CallCounters {
    /// Mean milliseconds of a sum.
    pub(crate) fn mean(self, sum: u64) -> f64 {
        sum as f64 / self.count.max(1) as f64
    }
}

/// All NFS mounts.
pub(crate) fn mounted(system: &dyn System) -> Vec<MountedNfs> {
    let stats = system.text("/proc/self/mountstats").unwrap_or_default();
    let lines = mounts(system).into_iter();
    lines
        .filter_map(|line| {
            let nfs = NfsMount::parse(&line.file_system, &line.options)?;
            Some(MountedNfs { counted: counted(&stats, &line.point), nfs, line })
        })
        .collect()
}

/// The section of a mount: `device SOURCE mounted on POINT with fstype nfs4 statvers=1.1`, then indented lines.
fn counted(stats: &str, point: &str) -> MountCounters {
    let mut all = MountCounters::default();
    let title = format!(" mounted on {point} with fstype nfs");
    let section = stats.lines().skip_while(|line| !line.contains(&title)).skip(1);
    for line in section.take_while(|line| !line.starts_with("device ")) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
        match name {
            "bytes:" => (all.normal_read, all.direct_read) = (at(0), at(2)),
            // Port, binds, connects, their time, idle time, sent, received, unknown, and the sum of calls in flight.
            "xprt:" if at(5) > 0 => all.depth += at(8) as f64 / at(5) as f64,
            "READ:" | "READ_PLUS:" | "WRITE:" => {
                let (sum, payload) =
                    if name == "WRITE:" { (&mut all.write, at(3)) } else { (&mut all.read, at(4)) };
                sum.count += at(0);
                sum.sent += at(1);
                sum.bytes += payload;
                sum.queue_ms += at(5);
                sum.server_ms += at(6);
                sum.all_ms += at(7);
                all.wire += payload;
            }
            _ => {}
        }
    }
    all
}

/// A mount configured in /etc.
pub(crate) struct ConfiguredMount {
    /// `/etc/fstab`, or the unit's file.
    pub place: String,
    /// The line with its options, from 1.
    pub line: usize,
    pub text: String,
    /// As mountinfo writes it.
    pub point: String,
    pub options: String,
    /// The whole unit, where it is one.
    pub unit: Option<String>,
    /// It is mounted at boot.
    pub at_boot: bool,
}

impl ConfiguredMount {
    pub(crate) fn is_rdma(&self) -> bool {
        value(&self.options, "proto").is_some_and(|proto| proto.starts_with("rdma"))
            || self.options.split(',').any(|option| option == "rdma")
    }

    pub(crate) fn version(&self) -> Option<&str> {
        value(&self.options, "vers").or_else(|| value(&self.options, "nfsvers"))
    }

    /// The file and the line, as `/etc/fstab:3`.
    pub(crate) fn at(&self) -> String {
        format!("{}:{}", self.place, self.line)
    }

    pub(crate) fn has_port(&self) -> bool {
        value(&self.options, "port").is_some()
    }
}

/// NFS mounts of /etc/fstab and of units in /etc/systemd/system.
pub(crate) fn configured(system: &dyn System) -> Vec<ConfiguredMount> {
    let fstab = system.whole_text("/etc/fstab").unwrap_or_default();
    let lines = fstab.lines().enumerate();
    let mut all: Vec<ConfiguredMount> = lines.filter_map(|(at, line)| fstab_line(at + 1, line)).collect();
    let units = "/etc/systemd/system";
    let names = system.list(units);
    let wants: Vec<String> = names
        .iter()
        .filter(|name| name.rsplit_once('.').is_some_and(|(_, kind)| kind == "wants"))
        .flat_map(|dir| system.list(&format!("{units}/{dir}")))
        .collect();
    for name in &names {
        let Some((stem, "mount")) = name.rsplit_once('.') else { continue };
        let place = format!("{units}/{name}");
        let enabled = wants.contains(name);
        let automatic = names.contains(&format!("{stem}.automount"));
        all.extend(system.whole_text(&place).and_then(|text| unit(place, text, enabled && !automatic)));
    }
    let mounts = mounts(system);
    for one in &mut all {
        one.point = as_mounted(system, &mounts, &one.point);
    }
    all
}

/// A point without escapes, slashes at its end and links. The mounted file system itself is not asked: it may hang.
fn as_mounted(system: &dyn System, mounts: &[MountLine], written: &str) -> String {
    let point = unescape(written);
    let point = match point.trim_end_matches('/') {
        "" => "/",
        point => point,
    };
    if mounts.iter().any(|mount| mount.point == point) {
        return point.to_owned();
    }
    system.resolve(point).unwrap_or_else(|| point.to_owned())
}

fn fstab_line(number: usize, line: &str) -> Option<ConfiguredMount> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, point, "nfs" | "nfs4", options, ..] = words.as_slice() else { return None };
    let manual = |option: &str| matches!(option, "noauto" | "x-systemd.automount");
    Some(ConfiguredMount {
        place: "/etc/fstab".to_owned(),
        line: number,
        text: line.trim().to_owned(),
        point: (*point).to_owned(),
        options: (*options).to_owned(),
        unit: None,
        at_boot: !options.split(',').any(manual),
    })
}

fn unit(place: String, text: String, at_boot: bool) -> Option<ConfiguredMount> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.find_map(|rest| rest.strip_prefix('=')).map(|value| value.trim().to_owned())
    };
    if !field("Type")?.starts_with("nfs") {
        return None;
    }
    let is_options = |line: &str| line.trim().starts_with("Options=");
    Some(ConfiguredMount {
        line: text.lines().position(is_options).map_or(1, |index| index + 1),
        text: format!("What={} Options={}", field("What")?, field("Options").unwrap_or_default()),
        point: field("Where")?,
        options: field("Options").unwrap_or_default(),
        unit: Some(text),
        place,
        at_boot,
    })
}

fn value<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    options
        .split(',')
        .filter_map(|option| option.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountstats_are_read_by_mount() {
        let stats = "device a:/x mounted on /other with fstype nfs4 statvers=1.1\n\tbytes:\t9 9 9 9 9 9 9 9\n\
                     device b:/y mounted on /mnt with fstype nfs statvers=1.1\n\
                     \tbytes:\t100 0 50 0 150 0 1 0\n\tper-op statistics\n\
                     \t        READ: 10 12 0 1000 2000 30 400 450 0\n\t       WRITE: 2 2 0 5000 10 1 2 3 0\n";
        let told = counted(stats, "/mnt");
        assert_eq!((told.normal_read, told.direct_read, told.wire), (100, 50, 7000));
        assert_eq!(
            (told.read.count, told.read.sent, told.read.server_ms, told.write.count),
            (10, 12, 400, 2)
        );
        assert_eq!(counted(stats, "/nowhere").read.count, 0);
    }

    #[test]
    fn units_and_fstab_are_read() {
        let line = fstab_line(3, "s:/e  /mnt nfs proto=rdma,port=20049,vers=4.0,_netdev 0 0").unwrap();
        assert_eq!(line.at(), "/etc/fstab:3");
        assert!(line.is_rdma() && line.at_boot && line.has_port() && line.version() == Some("4.0"));
        assert!(!fstab_line(1, "s:/e /mnt nfs4 noauto 0 0").unwrap().at_boot);
        assert!(
            fstab_line(1, "# s:/e /mnt nfs x 0 0").is_none()
                && fstab_line(1, "/dev/sda / ext4 rw 0 1").is_none()
        );
        let text = "[Mount]\nWhat=s:/e\nWhere=/mnt\nType=nfs\nOptions=rdma,vers=3\n".to_owned();
        let one = unit("u".into(), text, true).unwrap();
        assert!(one.is_rdma() && !one.has_port() && one.point == "/mnt");
    }
}
