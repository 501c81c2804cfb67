//! What is written down about the machine, and the time of day.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_bench::report::MachineReport;
use forebay_error::Result;
use forebay_gpu::{DeviceName, Devices};

use crate::model::{Device, Machine, PathFacts};
use crate::mounts;

/// This machine as far as it concerns these devices and paths.
pub(crate) fn this(devices: &[DeviceName], paths: &[impl AsRef<Path>]) -> Result<Machine> {
    let MachineReport { kernel, cpus, cpu_model } = MachineReport::this();
    let found = Devices::discover();
    let devices = devices
        .iter()
        .map(|name| {
            let device = found.named(name)?;
            let info = device.info();
            Ok(Device {
                name: name.to_string(),
                model: info.name.clone(),
                pci: info.pci.clone(),
                is_host: info.is_host,
                driver: info.driver_version,
            })
        })
        .collect::<Result<_>>()?;
    let mounts = mounts::all();
    let paths = paths.iter().map(|path| facts(path.as_ref(), &mounts)).collect();
    Ok(Machine { kernel, cpu_model, cpus, memory: memory("MemTotal").unwrap_or(0), devices, paths })
}

fn facts(path: &Path, mounts: &[mounts::Mount]) -> PathFacts {
    let mount = mounts::of(path, mounts);
    PathFacts {
        path: path.display().to_string(),
        file_system: mount.map_or_else(String::new, |mount| mount.file_system.clone()),
        source: mount.map_or_else(String::new, |mount| mount.source.clone()),
        drive: drive(path).unwrap_or_default(),
        options: mount.map_or_else(String::new, |mount| options(&mount.options)),
    }
}

/// The options of a mount that other figures come from.
fn options(all: &str) -> String {
    let names = ["proto=", "vers=", "nfsvers=", "rsize=", "wsize=", "nconnect=", "sync", "dax"];
    let counts =
        |one: &&str| names.iter().any(|name| one == name || name.ends_with('=') && one.starts_with(name));
    all.split(',').filter(counts).collect::<Vec<_>>().join(",")
}

/// The model of the drive below a path.
fn drive(path: &Path) -> Option<String> {
    let folder = mounts::block_device(path)?;
    // A partition's folder lies in its drive's.
    [folder.join("device/model"), folder.parent()?.join("device/model")]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .map(|model| model.trim().to_owned())
}

/// A line of /proc/meminfo in bytes.
pub(crate) fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Now, UTC, as `2026-11-22 18:05:09`.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    utc(seconds)
}

fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // Days since 1 March 0000, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn options_that_count() {
        let all = "rw,vers=4.0,rsize=1048576,namlen=255,hard,proto=rdma,port=20049,addr=10.0.0.1";
        assert_eq!(super::options(all), "vers=4.0,rsize=1048576,proto=rdma");
    }

    #[test]
    fn days_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_370_709, "2026-11-22 18:05:09"),
            (4_107_542_399, "2100-02-28 23:59:59"),
        ] {
            assert_eq!(super::utc(seconds), text);
        }
    }
}
