//! RDMA, NFS, the log, and what a reboot takes.

use forebay_doctor::finding::Severity::{Blocks, Note, Slower};
use serde_json::json;

use super::*;
use crate::trees::{CARD, NFS_LINE, PORT, mountstats};

pub(super) const CASES: &[Case] = &[
    // QSAN 4: no RDMA traffic.
    case(
        "rdma-link-down",
        "the only link",
        Blocks,
        "ports/1/state: 1: DOWN",
        "sudo ip link set ens1 up",
        |t| {
            all(t
                .file(&format!("{PORT}/state"), "1: DOWN\n")
                .file(&format!("{PORT}/phys_state"), "3: Disabled\n"))
        },
    ),
    case("rdma-link-down", "a second port", Note, "mlx5_1/ports/1/state: 1: DOWN", "rdma link show", |t| {
        t.file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        all(t.file("/sys/class/infiniband/mlx5_1/device/vendor", "0x15b3\n"))
    }),
    case("rdma-link-down", "InfiniBand without a subnet manager", Blocks, "state: 2: INIT", "opensm", |t| {
        all(t.file(&format!("{PORT}/state"), "2: INIT\n").file(&format!("{PORT}/link_layer"), "InfiniBand\n"))
    }),
    case(
        "rdma-no-device",
        "the module of the card is missing",
        Blocks,
        "(a Mellanox card)",
        "sudo modprobe mlx5_ib",
        |t| all(t.without("/sys/class/infiniband").without("/dev/infiniband")),
    ),
    case("rdma-no-device", "no card at all", Blocks, "/sys/class/infiniband/*: not there", "rdma_rxe", |t| {
        t.without(&format!("/sys/bus/pci/devices/{CARD}"));
        all(t.without("/sys/class/infiniband").without("/dev/infiniband"))
    }),
    case(
        "rdma-no-traffic",
        "counters stand still",
        Slower,
        "counters/port_xmit_data: 1000",
        "rdma statistic show",
        |t| {
            all(t
                .file(&format!("{PORT}/counters/port_xmit_data"), "1000\n")
                .file(&format!("{PORT}/counters/port_rcv_data"), "1000\n"))
        },
    ),
    case(
        "rdma-flow-control",
        "pause frames and ECN are off",
        Note,
        "ethtool -a ens1: RX off, TX off",
        "ethtool -A ens1 rx on tx on",
        |t| {
            t.replace("/sos_commands/networking/ethtool_-a_ens1", "\ton", "\toff");
            t.file("/sys/class/net/ens1/ecn/roce_rp/enable/3", "0\n");
            all(t.file("/sys/class/net/ens1/ecn/roce_np/enable/3", "0\n"))
        },
    ),
    case(
        "rdma-flow-control",
        "packets are lost",
        Slower,
        "hw_counters/out_of_sequence: 812",
        "mlnx_qos -i ens1",
        |t| all(t.file(&format!("{PORT}/hw_counters/out_of_sequence"), "812\n")),
    ),
    case("rdma-gid", "no GID for RoCE v2", Blocks, "IB/RoCE v1", "ip address add", |t| {
        all(t
            .file(&format!("{PORT}/gid_attrs/types/0"), "IB/RoCE v1\n")
            .file(&format!("{PORT}/gid_attrs/types/1"), "IB/RoCE v1\n"))
    }),
    case("rdma-gid", "no address", Blocks, "fe80:", "ip address add ADDRESS/24 dev ens1", |t| {
        all(t.without(&format!("{PORT}/gids/1")))
    }),
    case(
        "roce-mode",
        "version 1",
        Slower,
        "default_roce_mode: IB/RoCE v1",
        "cma_roce_mode -d mlx5_0 -p 1 -m 2",
        |t| all(t.file("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1\n")),
    ),
    case(
        "nic-distance",
        "the card of another socket",
        Note,
        "/sys/class/infiniband/mlx5_0/device/numa_node: 1",
        "nvidia-smi topo -m",
        |t| all(t.file("/sys/class/infiniband/mlx5_0/device/numa_node", "1\n")),
    ),
    case(
        "nfs-server-port",
        "a server without RDMA",
        Slower,
        "/proc/fs/nfsd/portlist: tcp 2049, tcp 2049",
        "echo rdma 20049",
        |t| all(t.file("/proc/fs/nfsd/portlist", "tcp 2049\ntcp 2049\n")),
    ),
    case(
        "nfs-port",
        "fstab without a port",
        Note,
        "/etc/fstab:1: 10.0.0.1:/e /nfs nfs vers=4.0,proto=rdma,_netdev",
        "port=20049",
        |t| all(t.replace("/etc/fstab", ",port=20049", "")),
    ),
    case("rdma-refused", "the server does not listen", Slower, "rejected", "echo rdma 20049", |t| {
        t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");

        all(t.append(
            "/var/log/kern.log",
            "[ 9.0] rpcrdma: connection to 10.0.0.1:20049 rejected: port space\n",
        ))
    }),
    // QSAN 5: as much CPU as without.
    case(
        "equal-cpu",
        "types 0, 1 and 2",
        Slower,
        "-x 1: 0.0900 s of CPU per GB (staged)",
        "forebay check PATH",
        |_| {
            let passes = [staged(pass(0, 0.1)), staged(pass(1, 0.09)), staged(pass(2, 0.102))];
            bench(json!({"passes": passes, "devices": [{"is_host": false}]}))
        },
    ),
    // QSAN 6: 4.1 and 4.2 do not mount.
    case(
        "nfs-mount-failed",
        "the log says so",
        Slower,
        "nfs4_discover_server_trunking",
        "vers=4.0,proto=rdma",
        |t| {
            t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");

            all(t.append(
                "/var/log/kern.log",
                "[ 9.0] NFS: nfs4_discover_server_trunking unhandled error -5. Exiting with error EIO\n",
            ))
        },
    ),
    case("nfs-mount-failed", "access denied", Slower, "access denied", "exportfs -v", |t| {
        t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");
        let line = "[ 9.0] mount.nfs: access denied by server while mounting 10.0.0.1:/e\n";
        all(t.append("/var/log/kern.log", line))
    }),
    case(
        "nfs-mount-failed",
        "a wrong option",
        Slower,
        "incorrect mount option",
        "sudo mount -v POINT",
        |t| {
            t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");
            all(t.append("/var/log/kern.log", "[ 9.0] mount.nfs: an incorrect mount option was specified\n"))
        },
    ),
    case("nfs-mount-failed", "no option", Slower, "Unknown parameter", "sudo mount -v POINT", |t| {
        t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");
        all(t.append("/var/log/kern.log", "[ 9.0] nfs: Unknown parameter 'rzise'\n"))
    }),
    case("nfs-mount-failed", "a lost lease", Slower, "state manager", "nfs4_unique_id", |t| {
        t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");
        let line = "[ 9.0] NFS: state manager: lease expired failed on NFSv4 server 10.0.0.1 with error 13\n";
        all(t.append("/var/log/kern.log", line))
    }),
    case(
        "mount-missing",
        "4.2 in fstab, not mounted",
        Blocks,
        "/etc/fstab:1: 10.0.0.1:/e /nfs nfs vers=4.2",
        "want vers=4.0 (or 3)",
        |t| {
            t.replace("/etc/fstab", "vers=4.0", "vers=4.2");
            all(t.replace(MOUNTS, NFS_LINE, ""))
        },
    ),
    // QSAN 7: server not responding.
    case(
        "nfs-not-responding",
        "still",
        Blocks,
        "not responding, still trying (and 1 before)",
        "rpcinfo -t 10.0.0.1 nfs",
        |t| {
            let line = "[ 9.0] nfs: server 10.0.0.1 not responding, still trying\n";
            all(t.append("/var/log/kern.log", &format!("{line}[ 9.5] nfs: server 10.0.0.1 OK\n{line}")))
        },
    ),
    case("nfs-not-responding", "it came back", Note, "not responding, timed out", "PFC and ECN", |t| {
        all(t.append(
            "/var/log/kern.log",
            "[ 9.0] nfs: server 10.0.0.1 not responding, timed out\n[ 9.5] nfs: server 10.0.0.1 OK\n",
        ))
    }),
    case("nfs-sent-again", "answers were lost", Slower, "READ: 1000 calls, 1100 sent", "ethtool -S", |t| {
        all(t.file("/proc/self/mountstats", mountstats(1000, 1100, [10, 300, 320])))
    }),
    case("log-unreadable", "no permission", Note, "dmesg: ", "--log log.txt", |t| {
        all(t.without("/var/log/kern.log"))
    }),
    // QSAN 8: not there after a reboot.
    case(
        "mount-missing",
        "in fstab, not mounted",
        Blocks,
        "/proc/self/mountinfo: no NFS at /nfs",
        "sudo mount /nfs",
        |t| all(t.replace(MOUNTS, NFS_LINE, "")),
    ),
    case(
        "mount-missing",
        "a unit, not mounted",
        Blocks,
        "/etc/systemd/system/nfs.mount:7: What=10.0.0.1:/e",
        "systemctl start nfs.mount",
        |t| {
            t.replace(MOUNTS, NFS_LINE, "");
            unit(t, "After=network-online.target\n")
        },
    ),
    case(
        "unit-network",
        "a unit before the network",
        Note,
        "nfs.mount:2: DefaultDependencies=no",
        "a After=network-online.target",
        |t| unit(t, "DefaultDependencies=no\nAfter=rdma.service\n"),
    ),
    case(
        "boot-modules",
        "rpcrdma is in no list",
        Note,
        "no rpcrdma",
        "tee /etc/modules-load.d/rpcrdma.conf",
        |t| all(t.file("/etc/modules-load.d/rpcrdma.conf", "# rpcrdma\n")),
    ),
    case(
        "boot-modules",
        "a soft device",
        Note,
        "no rdma_rxe",
        "rdma link add rxe0 type rxe netdev ens1",
        |t| {
            t.moved("/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/rxe0");
            t.without("/sys/class/infiniband/rxe0/device")
                .file("/sys/class/infiniband/rxe0/parent", "ens1\n");
            all(t)
        },
    ),
    case("mount-by-hand", "in no fstab", Note, "no line for /nfs", "| sudo tee -a /etc/fstab", |t| {
        all(t.without("/etc/fstab"))
    }),
    // QSAN 9.
    case("tmpfs-direct", "before 6.6", Slower, "osrelease: 6.1.0-40-amd64", "rd_size=2097152", |t| {
        t.append("/proc/meminfo", "MemAvailable:    4194304 kB\n");
        t.file("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
            .dir("/ram")
            .file("/run/udev/data/b0:40", "E:ID_FS_USAGE=x\n");
        t.append(MOUNTS, "42 27 0:40 / /ram rw - tmpfs tmpfs rw\n");
        asked("/ram")
    }),
];
