//! Which GPU goes with which path: the nearest on PCI, each once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::Device;
use crate::mounts;
use crate::order::Pairing;
use crate::targets::Target;
use crate::work::Job;

/// Pairs of devices and targets, and a sentence on how they were made. Where one side has fewer, it is used again.
pub(crate) fn pairs(devices: &[Device], targets: &[Target], pairing: Pairing) -> (Vec<Job>, Option<String>) {
    let count = devices.len().max(targets.len());
    let job = |device: usize, target: usize| Job {
        device: devices[device % devices.len()].name.clone(),
        target: targets[target % targets.len()].clone(),
    };
    if devices.is_empty() || targets.is_empty() {
        return (Vec::new(), None);
    }
    let given: Vec<usize> = (0..count).collect();
    if pairing == Pairing::Given || devices.len() < 2 || targets.len() < 2 || devices.len() != targets.len() {
        return (given.iter().map(|at| job(*at, *at)).collect(), None);
    }
    let gpus: Vec<_> = devices.iter().map(|device| gpu_path(&device.pci)).collect();
    let drives: Vec<_> = targets.iter().map(|target| mounts::block_device(&target.given)).collect();
    let distance =
        |gpu: usize, drive: usize| Some(distance(gpus[gpu].as_deref()?, drives[drive].as_deref()?));
    let chosen = nearest(count, &distance);
    let is_known = (0..count).all(|gpu| (0..count).all(|drive| distance(gpu, drive).is_some()));
    let how = if chosen != given {
        "GPUs and paths are paired by their distance on PCI; --pair given takes them in the order given."
    } else if is_known {
        "GPUs and paths are paired in the order given, which no other is nearer than on PCI."
    } else {
        "GPUs and paths are paired in the order given: how near they are on PCI is not known."
    };
    (chosen.iter().enumerate().map(|(gpu, drive)| job(gpu, *drive)).collect(), Some(how.to_owned()))
}

/// For each of `count` GPUs its drive: two pairs swap drives while that makes them nearer. What is as near in the order given
/// stays in it.
fn nearest(count: usize, distance: &dyn Fn(usize, usize) -> Option<usize>) -> Vec<usize> {
    let cost = |gpu: usize, drive: usize| distance(gpu, drive).unwrap_or(64);
    let mut chosen: Vec<usize> = (0..count).collect();
    // Swaps that make the sum less, until none does.
    loop {
        let mut changed = false;
        for one in 0..count {
            for other in one + 1..count {
                let now = cost(one, chosen[one]) + cost(other, chosen[other]);
                if cost(one, chosen[other]) + cost(other, chosen[one]) < now {
                    chosen.swap(one, other);
                    changed = true;
                }
            }
        }
        if !changed {
            return chosen;
        }
    }
}

/// The folder in /sys of a GPU.
fn gpu_path(pci: &str) -> Option<PathBuf> {
    // The driver writes a domain of eight digits, the kernel one of four.
    let pci = pci.to_lowercase();
    let (domain, rest) = pci.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    fs::canonicalize(format!("/sys/bus/pci/devices/{domain:04x}:{rest}")).ok()
}

/// Bridges between two devices of /sys: PCI addresses of the paths that are not shared.
fn distance(one: &Path, other: &Path) -> usize {
    let (one, other) = (addresses(one), addresses(other));
    let shared = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    one.len() + other.len() - 2 * shared
}

fn addresses(path: &Path) -> Vec<&str> {
    // Roots are `pci0000:00`, functions `0000:03:00.0`.
    let names = path.iter().filter_map(|name| name.to_str());
    names.filter(|name| name.starts_with("pci") || name.matches(':').count() == 2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ones_are_paired() {
        let gpus = [
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
            "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0",
        ];
        let drives = [
            "/sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0/nvme/nvme1/nvme1n1",
            "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/nvme/nvme0/nvme0n1",
        ];
        let of = |gpu: usize, drive: usize| Some(distance(Path::new(gpus[gpu]), Path::new(drives[drive])));
        assert_eq!(of(0, 1), Some(2));
        assert_eq!(of(0, 0), Some(6));
        assert_eq!(nearest(2, &of), [1, 0]);
    }

    #[test]
    fn what_is_as_near_stays_as_given() {
        assert_eq!(nearest(3, &|_, _| None), [0, 1, 2]);
        assert_eq!(nearest(3, &|_, _| Some(4)), [0, 1, 2]);
    }
}
