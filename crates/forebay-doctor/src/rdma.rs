//! RDMA ports as /sys/class/infiniband shows them.

use crate::gpu::is_pci_address;
use crate::system::System;

/// Where the kernel lists RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// A port of an RDMA device.
pub(crate) struct Port {
    pub device: String,
    pub number: String,
    /// As `4: ACTIVE`.
    pub state: String,
    /// As `5: LinkUp`, `2: Polling`, `3: Disabled`.
    pub physical: String,
    /// As `Ethernet`, `InfiniBand`.
    pub link_layer: String,
    /// Its network interface.
    pub interface: Option<String>,
    /// A device of the kernel's own (rxe, siw) rather than a card.
    pub is_soft: bool,
    /// iWARP has no GIDs to choose from.
    pub is_iwarp: bool,
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }

    /// The directory of the port.
    pub(crate) fn dir(&self) -> String {
        format!("{CLASS}/{}/ports/{}", self.device, self.number)
    }

    /// `mlx5_0/1`, as `rdma link` writes it.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.device, self.number)
    }

    /// The path of the device's PCI address.
    pub(crate) fn device_link(&self) -> String {
        format!("{CLASS}/{}/device", self.device)
    }

    /// Its card's address on the PCI bus.
    pub(crate) fn pci(&self, system: &dyn System) -> Option<String> {
        let path = system.resolve(&self.device_link())?;
        path.rsplit('/').next().filter(|name| is_pci_address(name)).map(str::to_owned)
    }

    /// The file of its card's NUMA node.
    pub(crate) fn numa_file(&self) -> String {
        format!("{}/numa_node", self.device_link())
    }

    /// Its card's NUMA node, where the machine has any.
    pub(crate) fn numa_node(&self, system: &dyn System) -> Option<i64> {
        system.number(&self.numa_file()).filter(|node| *node >= 0)
    }

    /// Counters whose names are among these, where the driver has them.
    pub(crate) fn counters(&self, system: &dyn System, names: &[&str]) -> Vec<(String, i64)> {
        let dir = self.dir();
        let paths = ["counters", "hw_counters"]
            .into_iter()
            .flat_map(|group| names.iter().map(move |name| (group, *name)).collect::<Vec<_>>());
        paths
            .filter_map(|(group, name)| {
                let path = format!("{dir}/{group}/{name}");
                Some((system.number(&path)?, path))
            })
            .map(|(count, path)| (path, count))
            .collect()
    }

    /// GIDs that are set, with their types: `(fe80:…, RoCE v2)`.
    pub(crate) fn gids(&self, system: &dyn System) -> Vec<(String, String)> {
        let dir = self.dir();
        let indices = system.list(&format!("{dir}/gids")).into_iter();
        indices
            .filter_map(|index| {
                let gid = system.text(&format!("{dir}/gids/{index}"))?;
                let kind = system.text(&format!("{dir}/gid_attrs/types/{index}")).unwrap_or_default();
                gid.chars().any(|c| !matches!(c, '0' | ':')).then_some((gid, kind))
            })
            .collect()
    }
}

/// All ports.
pub(crate) fn ports(system: &dyn System) -> Vec<Port> {
    let mut all = Vec::new();
    for device in system.list(CLASS) {
        let base = format!("{CLASS}/{device}");
        let node_type = system.text(&format!("{base}/node_type")).unwrap_or_default();
        for number in system.list(&format!("{base}/ports")) {
            let text = |file: &str| system.text(&format!("{base}/ports/{number}/{file}")).unwrap_or_default();
            let by_card = || system.list(&format!("{base}/device/net")).into_iter().next();
            let interface = Some(text("gid_attrs/ndevs/0")).filter(|name| !name.is_empty());
            // Soft devices name their interface as their parent.
            let parent = system.text(&format!("{base}/parent"));
            all.push(Port {
                state: text("state"),
                physical: text("phys_state"),
                link_layer: text("link_layer"),
                interface: interface.or_else(|| parent.clone()).or_else(by_card),
                is_soft: parent.is_some() || !system.exists(&format!("{base}/device")),
                is_iwarp: node_type.contains("RNIC"),
                device: device.clone(),
                number,
            });
        }
    }
    all
}
