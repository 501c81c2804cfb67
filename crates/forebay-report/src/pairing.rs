//! Which GPU goes with which path: the nearest on PCI, each once.

use forebay_doctor::RealSystem;
use forebay_doctor::direct::pci_distance;

use crate::model::Device;
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
    let distance = |gpu: usize, drive: usize| {
        pci_distance(&RealSystem, &devices[gpu].pci, targets[drive].controller.as_deref()?)
    };
    let chosen = nearest(count, &distance);
    let is_known = (0..count).all(|gpu| (0..count).all(|drive| distance(gpu, drive).is_some()));
    let how = if chosen != given {
        "GPUs and paths are paired by their distance on PCI; --pair given takes them in the order given."
    } else if is_known {
        "GPUs and paths are paired in the order given: on PCI no other pairing is nearer."
    } else {
        "GPUs and paths are paired in the order given: how near they are on PCI is not known."
    };
    (chosen.iter().enumerate().map(|(gpu, drive)| job(gpu, *drive)).collect(), Some(how.to_owned()))
}

/// For each of `count` GPUs its drive: two pairs swap drives while that makes them nearer. Pairs that are equally near
/// keep the order given.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ones_are_paired() {
        let far = |gpu: usize, drive: usize| Some(if gpu == drive { 6 } else { 2 });
        assert_eq!(nearest(2, &far), [1, 0]);
    }

    #[test]
    fn what_is_as_near_stays_as_given() {
        assert_eq!(nearest(3, &|_, _| None), [0, 1, 2]);
        assert_eq!(nearest(3, &|_, _| Some(4)), [0, 1, 2]);
    }
}
