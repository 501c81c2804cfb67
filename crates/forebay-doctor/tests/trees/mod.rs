//! Made trees of /proc, /sys and /etc.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub)] // a module of a test, not of a library

use std::collections::BTreeMap;
use std::path::Path;

/// What a path holds.
#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Dir,
}

/// A machine's files, before they are written down.
#[derive(Clone, Debug, Default)]
pub struct Tree(BTreeMap<String, Node>);

impl Tree {
    pub fn file(&mut self, path: &str, text: impl AsRef<[u8]>) -> &mut Self {
        self.0.insert(path.to_owned(), Node::File(text.as_ref().to_vec()));
        self
    }

    pub fn dir(&mut self, path: &str) -> &mut Self {
        self.0.insert(path.to_owned(), Node::Dir);
        self
    }

    pub fn link(&mut self, path: &str, target: &str) -> &mut Self {
        self.0.insert(path.to_owned(), Node::Link(target.to_owned()));
        self
    }

    /// Takes a path away, and all below it.
    pub fn without(&mut self, path: &str) -> &mut Self {
        let below = format!("{path}/");
        let before = self.0.len();
        self.0.retain(|name, _| name != path && !name.starts_with(&below));
        assert_ne!(before, self.0.len(), "{path} was not there");
        self
    }

    /// Puts a directory elsewhere.
    pub fn moved(&mut self, from: &str, to: &str) -> &mut Self {
        let below = format!("{from}/");
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(&below)).cloned().collect();
        for name in names {
            let node = self.0.remove(&name).unwrap();
            self.0.insert(name.replacen(from, to, 1), node);
        }
        self
    }

    /// Changes a file's text.
    pub fn replace(&mut self, path: &str, from: &str, to: &str) -> &mut Self {
        let Some(Node::File(bytes)) = self.0.get(path) else { panic!("no file {path}") };
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains(from), "no {from:?} in {path}");
        self.file(path, text.replace(from, to))
    }

    pub fn append(&mut self, path: &str, more: &str) -> &mut Self {
        let old = match self.0.get(path) {
            Some(Node::File(bytes)) => bytes.clone(),
            _ => Vec::new(),
        };
        self.file(path, [old, more.as_bytes().to_vec()].concat())
    }

    /// The files as `collect.sh` prints them.
    pub fn printed(&self) -> String {
        let lines = self.0.iter().map(|(path, node)| match node {
            Node::File(bytes) => {
                let text = String::from_utf8(bytes.clone()).unwrap();
                let lines: String = text.lines().flat_map(|line| [" ", line, "\n"]).collect();
                format!(">{path}\n{lines}")
            }
            Node::Link(target) => format!("@{path}\t{target}\n"),
            Node::Dir => format!("/{path}\n"),
        });
        lines.chain([".\n".to_owned()]).collect()
    }

    pub fn write(&self, root: &Path) {
        for (path, node) in &self.0 {
            let here = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(here.parent().unwrap()).unwrap();
            match node {
                Node::File(bytes) => std::fs::write(here, bytes).unwrap(),
                Node::Link(target) => std::os::unix::fs::symlink(target, here).unwrap(),
                Node::Dir => std::fs::create_dir_all(here).unwrap(),
            }
        }
    }
}

pub const GPU: &str = "0000:1b:00.0";
pub const DRIVE: &str = "0000:1c:00.0";
pub const CARD: &str = "0000:1d:00.0";

/// A GPU server that has all it should have: a GPU and its driver, an NVMe drive, a RoCE card, and an NFS mount over
/// RDMA that is there after a reboot.
pub fn healthy() -> Tree {
    let mut tree = Tree::default();
    kernel(&mut tree);
    gpu(&mut tree);
    drive(&mut tree);
    network(&mut tree);
    tree
}

fn kernel(tree: &mut Tree) {
    tree.file("/proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
        .file("/proc/sys/kernel/arch", "x86_64\n")
        .file("/proc/cpuinfo", "processor\t: 0\nprocessor\t: 1\n")
        .file("/proc/meminfo", "MemTotal:       131072000 kB\n")
        .file("/proc/cmdline", "root=/dev/nvme0n1p2 iommu=pt\n")
        .file("/proc/modules", "nvidia_fs 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
        .file("/proc/self/status", "Name:\tforebay\nCapEff:\t0000000000000000\nSeccomp:\t0\n")
        .file(
            "/proc/self/limits",
            "Max locked memory         unlimited            unlimited            bytes\n",
        )
        .file("/proc/self/cgroup", "0::/user.slice\n")
        .file("/proc/sys/kernel/io_uring_disabled", "0\n")
        .file("/proc/1/comm", "systemd\n")
        .file("/sys/class/misc/fuse/dev", "10:229\n")
        .file("/var/log/kern.log", "[    1.0] Linux version 6.8.0\n")
        .dir("/tmp")
        .dir("/run/udev/data");
}

fn gpu(tree: &mut Tree) {
    let bus = format!("/sys/bus/pci/devices/{GPU}");
    let information = "Model: \t\t NVIDIA H100 PCIe\nGPU UUID: \t GPU-ce4dfa04-4611-339c-a1e2-2bf10a772fe0\n";
    tree.file(&format!("/proc/driver/nvidia/gpus/{GPU}/information"), information)
        .file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
        )
        .file("/proc/driver/nvidia-fs/version", "version: 2.26.6\n")
        .file("/usr/src/nvidia-fs-2.26.6/Makefile", "")
        .file("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "")
        .file("/usr/lib/x86_64-linux-gnu/libcufile.so.0", "")
        .dir("/usr/local/cuda-13.0")
        .file("/dev/nvidiactl", "")
        .file("/dev/nvidia0", "")
        .file("/dev/nvidia-uvm", "")
        .file("/dev/nvidia-fs0", "")
        .file(&format!("{bus}/vendor"), "0x10de\n")
        .file(&format!("{bus}/device"), "0x2331\n")
        .file(&format!("{bus}/class"), "0x030200\n")
        .file(&format!("{bus}/numa_node"), "0\n")
        .file(
            &format!("{bus}/resource"),
            "0x0000000000000000 0x0000000000000001 0x0\n0x0000380000000000 0x0000381fffffffff 0x14220c\n",
        );
    link(tree, &bus, 16, "32.0 GT/s PCIe");
}

fn drive(tree: &mut Tree) {
    let sysfs = format!("/sys/devices/pci0000:1a/{DRIVE}/nvme/nvme1/nvme1n1");
    tree.link("/sys/dev/block/259:6", &sysfs)
        .link("/sys/class/block/nvme1n1", &sysfs)
        .file(&format!("{sysfs}/queue/scheduler"), "[none] mq-deadline kyber bfq\n")
        .file(&format!("{sysfs}/queue/read_ahead_kb"), "128\n")
        .file(&format!("/sys/devices/pci0000:1a/{DRIVE}/numa_node"), "0\n")
        .file("/run/udev/data/b259:6", "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=xfs\n")
        .file("/data/file", "x");
    link(tree, &format!("/sys/bus/pci/devices/{DRIVE}"), 4, "16.0 GT/s PCIe");
}

fn link(tree: &mut Tree, device: &str, lanes: u32, speed: &str) {
    for which in ["current", "max"] {
        tree.file(&format!("{device}/{which}_link_width"), format!("{lanes}\n"))
            .file(&format!("{device}/{which}_link_speed"), format!("{speed}\n"));
    }
}

pub const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";
pub const NFS_LINE: &str = "41 27 0:50 / /nfs rw,relatime - nfs4 10.0.0.1:/e \
rw,vers=4.0,rsize=1048576,wsize=1048576,hard,proto=rdma,port=20049,nconnect=4,addr=10.0.0.1\n";

fn network(tree: &mut Tree) {
    tree.file(
        "/proc/self/mountinfo",
        format!("27 1 259:6 / / rw - xfs /dev/nvme1n1 rw\n40 27 259:6 / /data rw - xfs /dev/nvme1n1 rw\n{NFS_LINE}"),
    )
    .file("/proc/self/mountstats", mountstats(1000, 1000, [10, 300, 320]))
    .file("/run/udev/data/b0:50", "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=nfs4\n")
    .file("/sys/class/bdi/0:50/read_ahead_kb", "8192\n")
    .dir("/nfs")
    .file("/etc/fstab", "10.0.0.1:/e /nfs nfs vers=4.0,proto=rdma,port=20049,_netdev 0 0\n")
    .file("/etc/modules-load.d/rpcrdma.conf", "rpcrdma\n")
    .file(&format!("{PORT}/state"), "4: ACTIVE\n")
    .file(&format!("{PORT}/phys_state"), "5: LinkUp\n")
    .file(&format!("{PORT}/link_layer"), "Ethernet\n")
    .file(&format!("{PORT}/gids/0"), "fe80:0000:0000:0000:0000:00ff:fe00:0001\n")
    .file(&format!("{PORT}/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0002\n")
    .file(&format!("{PORT}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n")
    .file(&format!("{PORT}/gid_attrs/types/0"), "RoCE v2\n")
    .file(&format!("{PORT}/gid_attrs/types/1"), "RoCE v2\n")
    .file(&format!("{PORT}/gid_attrs/ndevs/0"), "ens1\n")
    .file(&format!("{PORT}/counters/port_xmit_data"), "2000000000\n")
    .file(&format!("{PORT}/counters/port_rcv_data"), "2000000000\n")
    .file(&format!("{PORT}/hw_counters/out_of_sequence"), "0\n")
    .file("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
    .file("/sys/class/infiniband/mlx5_0/device/numa_node", "0\n")
    .file("/sys/class/net/ens1/ecn/roce_np/enable/3", "1\n")
    .file("/sys/class/net/ens1/ecn/roce_rp/enable/3", "1\n")
    .file("/sys/class/net/ens1/mtu", "9000\n")
    .file("/sys/class/misc/rdma_cm/dev", "10:120\n")
    .file("/sos_commands/networking/ethtool_-a_ens1", "Pause parameters for ens1:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\ton\n")
    .file("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "RoCE v2\n")
    .file("/dev/infiniband/uverbs0", "")
    .file(&format!("/sys/bus/pci/devices/{CARD}/vendor"), "0x15b3\n")
    .file(&format!("/sys/bus/pci/devices/{CARD}/class"), "0x020000\n");
}

/// Counters of the mount; times are queue, server and all, in milliseconds.
pub fn mountstats(count: u64, sent: u64, [queue, server, all]: [u64; 3]) -> String {
    format!(
        "device 10.0.0.1:/e mounted on /nfs with fstype nfs4 statvers=1.1\n\
         \tbytes:\t0 0 67108864 0 67108864 0 0 0\n\tper-op statistics\n\
         \t        READ: {count} {sent} 0 200000 67108864 {queue} {server} {all} 0\n"
    )
}
