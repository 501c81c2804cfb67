//! Which NIC a device's memory is registered with, where several lead to a server: the one that is nearest on the PCI bus.

use std::sync::Mutex;

use forebay_gpu::{DeviceInfo, PciDistance, PciPlace};

use crate::runtime::lock;

/// Which NIC is the nearest to a device.
pub(super) struct NearestFirst {
    place: Option<PciPlace>,
    /// Of NICs that are as near, each device begins with another one.
    turn: usize,
    /// The results by the NICs' names: /sys is not read for each transfer.
    known: Mutex<Vec<(Vec<String>, Vec<usize>)>>,
}

impl NearestFirst {
    pub(super) fn new(device: &DeviceInfo) -> Self {
        Self { place: PciPlace::of(&device.pci), turn: device.index, known: Mutex::default() }
    }

    /// The numbers of NICs, in the order in which they are to be tried.
    pub(super) fn of(&self, nics: &[forebay_verbs::Device]) -> Vec<usize> {
        let mut known = lock(&self.known);
        let is_it =
            |(names, _): &&(Vec<String>, Vec<usize>)| names.iter().eq(nics.iter().map(|nic| &nic.name));
        if let Some((_, order)) = known.iter().find(is_it) {
            return order.clone();
        }
        let places = nics.iter().map(|nic| PciPlace::of_path(nic.path.as_deref()?));
        let order = order(self.place.as_ref(), &places.collect::<Vec<_>>(), self.turn);
        known.push((nics.iter().map(|nic| nic.name.clone()).collect(), order.clone()));
        order
    }
}

fn order(device: Option<&PciPlace>, nics: &[Option<PciPlace>], turn: usize) -> Vec<usize> {
    let distance = |nic: &usize| match (device, &nics[*nic]) {
        (Some(device), Some(nic)) => device.distance(nic),
        _ => PciDistance::Far,
    };
    let mut order: Vec<_> = (0..nics.len()).collect();
    order.sort_by_key(distance);
    for alike in order.chunk_by_mut(|one, other| distance(one) == distance(other)) {
        let turn = turn % alike.len();
        alike.rotate_left(turn);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, node: u32) -> Option<PciPlace> {
        PciPlace::parse(path).map(|place| PciPlace { node: Some(node), ..place })
    }

    #[test]
    fn the_nearest_nic_comes_first_and_those_as_near_take_turns() {
        let gpu = place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0);
        let far = place("pci0000:97/0000:97:01.0/0000:98:00.0", 1);
        let node = place("pci0000:37/0000:37:01.0/0000:38:00.0", 0);
        let near = place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", 0);
        let bridge = place("pci0000:15/0000:15:02.0/0000:30:00.0", 0);
        let nics = [None, far.clone(), node, near, bridge, far];
        assert_eq!(order(gpu.as_ref(), &nics, 0), [3, 4, 2, 0, 1, 5]);
        assert_eq!(order(gpu.as_ref(), &nics, 4), [3, 4, 2, 1, 5, 0]);
        assert_eq!(order(None, &nics[..3], 1), [1, 2, 0]);
        assert!(order(None, &[], 1).is_empty());
    }
}
