//! A device's port: its MTU, its link, and the GID of an address.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use forebay_error::Result;

use super::errors::check_errno;
use super::memory::Inner;
use super::sys;
use crate::{Why, gid_of};

/// Where the kernel lists devices.
pub(super) const DEVICES: &str = "/sys/class/infiniband";

/// What pairing in band needs of a port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    pub(super) is_ethernet: bool,
    /// 0 with Ethernet.
    pub(super) lid: u16,
    pub(super) mtu: u32,
}

impl Port {
    /// The port, with the GID that the address has there.
    pub(super) fn query(domain: &Inner, number: u8, address: IpAddr) -> Result<Self> {
        // SAFETY: zero is a value of each field; the context is open as long as the domain.
        let attributes = unsafe {
            let mut attributes: sys::PortAttr = std::mem::zeroed();
            let code = domain.libraries.ibv.ibv_query_port(domain.context(), number, &raw mut attributes);
            check_errno(code, "cannot query a port of the RDMA device")?;
            attributes
        };
        let folder: PathBuf = [DEVICES, &domain.device.name, "ports", &number.to_string()].iter().collect();
        let is_ethernet = attributes.link_layer == sys::LINK_LAYER_ETHERNET;
        let found = if is_ethernet { roce_gid(&folder, address) } else { first_gid(&folder) };
        let (gid_index, gid) =
            found.map_err(|error| error.with("device", &domain.device.name).with("address", address))?;
        let lid = if is_ethernet { 0 } else { attributes.lid };
        // 256 bytes are 1, and each step doubles them.
        let mtu = 128 << attributes.active_mtu.clamp(1, 5);
        Ok(Self { gid, gid_index, is_ethernet, lid, mtu })
    }
}

/// The entry of a table of GIDs; none where there is no more.
fn entry(folder: &Path, index: u8) -> Option<[u8; 16]> {
    let text = fs::read_to_string(folder.join("gids").join(index.to_string())).ok()?;
    Some(text.trim().parse::<Ipv6Addr>().ok()?.octets())
}

/// Where a port has an address for RoCE v2. A table has each address twice, for versions 1 and 2, and begins with a link-local one: its first
/// entry leads nowhere as a rule.
fn roce_gid(folder: &Path, address: IpAddr) -> Result<(u8, [u8; 16])> {
    let gid = gid_of(address);
    let mut found = (0..=u8::MAX)
        .map_while(|index| entry(folder, index).map(|entry| (index, entry)))
        .filter(|(_, entry)| *entry == gid)
        .peekable();
    if found.peek().is_none() {
        return Err(Why::NoRoute
            .error("cannot pair in band: the RDMA device has no GID of its address")
            .hint("ip address show; rdma link show"));
    }
    let is_version_2 = |index: u8| {
        let kind = fs::read_to_string(folder.join("gid_attrs/types").join(index.to_string()));
        kind.is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    found.find(|(index, _)| is_version_2(*index)).ok_or_else(|| {
        Why::Unsupported.error("cannot pair in band: the RDMA device has its address for RoCE v1 only")
    })
}

/// The first address of a device's ports below a folder of devices.
pub(super) fn address_of(devices: &Path, device: &str) -> Result<IpAddr> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let all = names(devices);
    if !all.iter().any(|name| name == device) {
        let error = Why::NoDevice.error("no RDMA device has this name").with("device", device);
        return Err(error.with("devices", all.join(" ")).hint("rdma link show"));
    }
    let ports = devices.join(device).join("ports");
    let folders = names(&ports).into_iter().map(|number| ports.join(number));
    folders
        .filter(|folder| {
            let layer = fs::read_to_string(folder.join("link_layer"));
            layer.is_ok_and(|layer| layer.trim() == "Ethernet")
        })
        .find_map(|folder| (0..=u8::MAX).map_while(|index| entry(&folder, index)).find_map(ip_of))
        .ok_or_else(|| {
            let error = Why::NoRoute.error("the RDMA device has no address of IP as a GID");
            error.with("device", device).hint("name its interface's address in place of it: ip address show")
        })
}

/// The address of a GID that others can reach.
fn ip_of(gid: [u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid);
    let is_one = !address.is_unspecified() && !address.is_unicast_link_local();
    is_one.then(|| address.to_canonical())
}

/// An InfiniBand port's own GID.
fn first_gid(folder: &Path) -> Result<(u8, [u8; 16])> {
    entry(folder, 0)
        .map(|gid| (0, gid))
        .ok_or_else(|| Why::NoRoute.error("cannot pair in band: the RDMA device's port has no GID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, entries: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("forebay-port-{}-{name}", std::process::id()));
        for part in ["gids", "gid_attrs/types"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        for (index, (gid, kind)) in entries.iter().enumerate() {
            fs::write(folder.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
            fs::write(folder.join(format!("gid_attrs/types/{index}")), format!("{kind}\n")).unwrap();
        }
        folder
    }

    #[test]
    fn a_device_is_found_by_its_first_address() {
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        let local = ("fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2");
        let mapped = ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2");
        let devices = table("devices", &[]);
        for (device, layer, entries) in [
            ("rxe0", "Ethernet", &[local, (zero, "RoCE v2"), mapped][..]),
            ("rxe1", "Ethernet", &[local][..]),
            ("mlx5_0", "InfiniBand", &[mapped][..]),
        ] {
            let port = table(&format!("devices/{device}/ports/1"), entries);
            fs::write(port.join("link_layer"), format!("{layer}\n")).unwrap();
        }
        assert_eq!(address_of(&devices, "rxe0").unwrap(), IpAddr::from([10, 9, 0, 1]));
        for (device, why) in [
            ("rxe1", Why::NoRoute),
            ("mlx5_0", Why::NoRoute),
            ("mlx5_1", Why::NoDevice),
            ("..", Why::NoDevice),
        ] {
            let error = address_of(&devices, device).unwrap_err();
            assert_eq!(Why::of(&error), Some(why), "{error}");
            assert!(!error.hints().is_empty());
        }
        fs::remove_dir_all(devices).unwrap();
    }

    #[test]
    fn the_routes_own_address_is_taken() {
        let local = "fe80:0000:0000:0000:5054:00ff:fe12:3456";
        let mapped = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        let entries = [
            (local, "IB/RoCE v1"),
            (local, "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a09:0002", "RoCE v2"),
            (mapped, "IB/RoCE v1"),
            (mapped, "RoCE v2"),
        ];
        let folder = table("v2", &entries);
        let address: IpAddr = "10.9.0.1".parse().unwrap();
        assert_eq!(roce_gid(&folder, address).unwrap(), (4, gid_of(address)));
        assert_eq!(roce_gid(&folder, "fe80::5054:ff:fe12:3456".parse().unwrap()).unwrap().0, 1);
        assert_eq!(first_gid(&folder).unwrap().0, 0);
        let error = roce_gid(&folder, "10.9.0.3".parse().unwrap()).unwrap_err();
        assert_eq!(Why::of(&error), Some(Why::NoRoute));
        fs::remove_dir_all(folder).unwrap();

        let folder = table("v1", &entries[3..4]);
        assert_eq!(Why::of(&roce_gid(&folder, address).unwrap_err()), Some(Why::Unsupported));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(Why::of(&first_gid(&folder).unwrap_err()), Some(Why::NoRoute));
    }
}
