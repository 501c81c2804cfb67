//! Each finding over a made tree: a healthy machine has none, and one thing planted gives that finding alone, with
//! where it was read and what to type.
#![allow(clippy::unwrap_used, reason = "tests")]

mod trees;

use std::collections::BTreeSet;

use forebay_doctor::doctor::SavedBench;
use forebay_doctor::finding::Severity;
use forebay_doctor::{DoctorOptions, DoctorReport, RootedSystem, diagnose, gpu};
use serde_json::json;
use trees::{CARD, DRIVE, GPU, NFS_LINE, PORT, Tree, healthy, mountstats};

fn look(tree: &Tree, options: &DoctorOptions) -> DoctorReport {
    // Thousands of small files: in memory where that is possible.
    let memory = std::path::Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(place).unwrap();
    tree.write(dir.path());
    let system = RootedSystem::new(dir.path());
    diagnose(&system, &gpu::by_files(&system), options).unwrap_or_else(|why| panic!("{why:?}"))
}

fn bad(report: &DoctorReport) -> Vec<&'static str> {
    let bad = report.findings.iter().filter(|finding| finding.severity > Severity::Ok);
    bad.map(|finding| finding.id).collect()
}

#[test]
fn a_healthy_machine_has_no_finding() {
    for paths in [vec![], vec!["/nfs".to_owned(), "/data".to_owned()]] {
        let report = look(&healthy(), &DoctorOptions { paths, ..DoctorOptions::default() });
        assert_eq!((bad(&report), report.exit_code), (vec![], 0), "{:#?}", report.findings);
    }
    let report =
        look(&contained(&mut healthy()).clone(), &DoctorOptions { pod: true, ..DoctorOptions::default() });
    assert_eq!((bad(&report), report.exit_code), (vec!["container"], 0), "{:#?}", report.findings);
    let report = look(running(&mut healthy(), "python train.py"), &pid());
    assert_eq!((bad(&report), report.exit_code), (vec!["no-counters"], 0), "{:#?}", report.findings);
}

use Severity::{Blocks, Note, Slower};

/// One finding: its name, what is planted, how bad it is, a part of its evidence, a part of its fix.
struct Case {
    id: &'static str,
    what: &'static str,
    plant: fn(&mut Tree) -> DoctorOptions,
    severity: Severity,
    seen: &'static str,
    fix: &'static str,
}

const fn case(
    id: &'static str,
    what: &'static str,
    severity: Severity,
    seen: &'static str,
    fix: &'static str,
    plant: fn(&mut Tree) -> DoctorOptions,
) -> Case {
    Case { id, what, plant, severity, seen, fix }
}

fn all(_: &mut Tree) -> DoctorOptions {
    DoctorOptions::default()
}

fn asked(path: &str) -> DoctorOptions {
    DoctorOptions { paths: vec![path.to_owned()], ..DoctorOptions::default() }
}

fn pid() -> DoctorOptions {
    DoctorOptions { pid: Some(7), ..DoctorOptions::default() }
}

fn bench(report: serde_json::Value) -> DoctorOptions {
    DoctorOptions { benches: vec![SavedBench { path: "b.json".into(), report }], ..DoctorOptions::default() }
}

fn pass(kind: u64, cpu: f64) -> serde_json::Value {
    json!({"xfer_type": kind, "io": "READ", "threads": 4, "cpu": {"user_s_per_gb": cpu, "system_s_per_gb": 0.0},
           "engines": [{"engine": "mapped", "bytes": 1 << 30}], "refused": []})
}

/// The machine as a container of its.
fn contained(tree: &mut Tree) -> &mut Tree {
    tree.file("/.dockerenv", "");
    tree
}

/// A process 7 that moves bytes of /data/file.
fn running<'a>(tree: &'a mut Tree, program: &str) -> &'a mut Tree {
    tree.file("/proc/7/cmdline", program.replace(' ', "\0") + "\0")
        .file("/proc/7/status", "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-1\n")
        .file("/proc/7/limits", "Max locked memory         unlimited            unlimited            bytes\n")
        .file("/proc/7/environ", "HOME=/\0")
        .file("/proc/7/cgroup", "0::/user.slice\n")
        .file("/proc/7/maps", "7f00 r-xp 0 0:0 0 /usr/lib/libc.so.6\n")
        .link("/proc/7/fd/3", "/data/file")
        .file("/proc/7/fdinfo/3", "pos:\t0\nflags:\t0140000\n");
    for name in ["mountinfo", "mountstats"] {
        tree.link(&format!("/proc/7/{name}"), &format!("/proc/self/{name}"));
    }
    tree
}

const MOUNTS: &str = "/proc/self/mountinfo";
const CASES: &[Case] = &[
    // QSAN 1: gdscheck fails.
    case(
        "iommu",
        "the IOMMU translates",
        Slower,
        "/proc/cmdline: root=/dev/nvme0n1p2 intel_iommu=on",
        "iommu=pt",
        |t| {
            t.file("/proc/cmdline", "root=/dev/nvme0n1p2 intel_iommu=on\n");
            t.file("/sys/class/iommu/dmar0/name", "").file("/sys/kernel/iommu_groups/7/type", "DMA-FQ\n");
            all(t)
        },
    ),
    case(
        "driver-mismatch",
        "library newer than module",
        Blocks,
        "library: /usr/lib/x86_64-linux-gnu/libcuda.so.590.44.01",
        "sudo reboot",
        |t| {
            t.without("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05");
            all(t.file("/usr/lib/x86_64-linux-gnu/libcuda.so.590.44.01", ""))
        },
    ),
    case("driver-mismatch", "the log says so", Slower, "NVRM: API mismatch", "sudo reboot", |t| {
        all(t.append("/var/log/kern.log", "[ 9.0] NVRM: API mismatch: the client has the version 1, but this kernel module has the version 2\n"))
    }),
    case(
        "cuda-mismatch",
        "CUDA newer than the driver allows",
        Slower,
        "/usr/local: cuda-13.0",
        "newer driver",
        |t| {
            t.without("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05");
            t.replace("/proc/driver/nvidia/version", "580.95.05", "535.104.05");
            all(t)
        },
    ),
    case(
        "nvidia-fs",
        "module not loaded",
        Note,
        "/proc/driver/nvidia-fs/version: not there",
        "sudo modprobe nvidia_fs",
        |t| all(t.without("/proc/driver/nvidia-fs/version").replace("/proc/modules", "nvidia_fs", "other")),
    ),
    case(
        "nvidia-fs-version",
        "another one is installed",
        Slower,
        "/proc/driver/nvidia-fs/version: 2.20",
        "rmmod nvidia_fs",
        |t| all(t.file("/proc/driver/nvidia-fs/version", "version: 2.20\n")),
    ),
    case(
        "nvidia-fs-load",
        "built for another kernel",
        Note,
        "nvidia_fs: disagrees about version",
        "nvidia-fs-dkms",
        |t| {
            all(t.append(
                "/var/log/kern.log",
                "[ 9.0] nvidia_fs: disagrees about version of symbol module_layout\n",
            ))
        },
    ),
    case("gpu-no-gds", "a gaming GPU", Note, "GPU: NVIDIA GeForce RTX 4090", "forebay run", |t| {
        all(t.replace(
            &format!("/proc/driver/nvidia/gpus/{GPU}/information"),
            "NVIDIA H100 PCIe",
            "NVIDIA GeForce RTX 4090",
        ))
    }),
    // QSAN 2: mounted over RDMA, and slow.
    case(
        "nfs-not-rdma",
        "TCP though RDMA is there",
        Slower,
        "/proc/self/mountinfo: vers=4.0",
        "proto=rdma,port=20049",
        |t| {
            t.replace(MOUNTS, "proto=rdma,port=20049", "proto=tcp,port=2049");
            t.without("/etc/fstab");
            asked("/nfs")
        },
    ),
    case(
        "nfs-not-rdma",
        "no RDMA device at all",
        Note,
        "/sys/class/infiniband/*: not there",
        "modprobe mlx5_ib",
        |t| {
            t.replace(MOUNTS, "proto=rdma,port=20049", "proto=tcp,port=2049");
            t.without("/etc/fstab").without("/sys/class/infiniband").without("/dev/infiniband");
            asked("/nfs")
        },
    ),
    case(
        "nfs-version",
        "4.2 over RDMA",
        Note,
        "/proc/self/mountinfo: vers=4.2",
        "vers=4.0,proto=rdma",
        |t| all(t.replace(MOUNTS, "vers=4.0", "vers=4.2")),
    ),
    case(
        "nfs-server-slow",
        "the server's disks",
        Slower,
        "READ: 1000 calls, 1000 sent, queue 10 ms, server 12000 ms",
        "iostat -x",
        |t| all(t.file("/proc/self/mountstats", mountstats(1000, 1000, [10, 12000, 12100]))),
    ),
    case("nfs-client-queue", "calls wait for a slot", Slower, "queue 9000 ms", "nconnect=8", |t| {
        all(t.file("/proc/self/mountstats", mountstats(1000, 1000, [9000, 300, 9400])))
    }),
    case(
        "nfs-buffered",
        "all through the page cache",
        Note,
        "bytes: normal 134217728, direct 0",
        "--direct=1",
        |t| {
            t.replace("/proc/self/mountstats", "bytes:\t0 0 67108864", "bytes:\t134217728 0 0");
            asked("/nfs")
        },
    ),
    case(
        "nfs-read-ahead",
        "smaller than a READ",
        Note,
        "/sys/class/bdi/0:50/read_ahead_kb: 128",
        "echo 8192 |",
        |t| all(t.file("/sys/class/bdi/0:50/read_ahead_kb", "128\n")),
    ),
    case("nfs-small-reads", "rsize of 32 KiB", Slower, "rsize=32768", "rsize=1048576", |t| {
        all(t.replace(MOUNTS, "rsize=1048576", "rsize=32768"))
    }),
    case(
        "cpu-path",
        "a benchmark's bytes went by staged",
        Slower,
        "b.json: engines: staged",
        "ulimit -l unlimited",
        |t| {
            let mut one = pass(0, 0.0);
            one["engines"] = json!([{"engine": "staged", "bytes": 1 << 30}]);
            one["refused"] = json!([{"engine": "mapped", "reason": "too little may be pinned", "hint": "ulimit -l unlimited"}]);
            all(t);
            bench(json!({"passes": [one], "devices": [{"is_host": false}]}))
        },
    ),
    case(
        "buffered",
        "a file open without O_DIRECT",
        Slower,
        "/proc/7/fdinfo/3: flags 100000",
        "O_DIRECT",
        |t| {
            nvidia(running(t, "python train.py")).file("/proc/7/fdinfo/3", "pos:\t0\nflags:\t0100000\n");
            pid()
        },
    ),
    // QSAN 3: runs, and hardly any bandwidth.
    case("transfer-type", "gdsio -x 2", Slower, "/proc/7/cmdline: gdsio -D /nfs -x 2", "-x 0", |t| {
        running(t, "gdsio -D /nfs -x 2 -d 0");
        pid()
    }),
    case(
        "transfer-type",
        "a saved report of type 2 only",
        Slower,
        "b.json: -x 2",
        "forebay bench -x 0",
        |_| bench(json!({"passes": [pass(2, 0.1)], "devices": [{"is_host": false}]})),
    ),
    case("gpu-index", "gdsio -d 3", Blocks, "-d 3", "-d 0 to -d 0", |t| {
        running(t, "/usr/local/gds/gdsio -D /nfs -x 0 -d 3");
        pid()
    }),
    case(
        "gpu-index",
        "CUDA_VISIBLE_DEVICES",
        Blocks,
        "CUDA_VISIBLE_DEVICES=5",
        "export CUDA_VISIBLE_DEVICES=0",
        |t| {
            running(t, "python x").file("/proc/7/environ", "CUDA_VISIBLE_DEVICES=5\0");
            pid()
        },
    ),
    case(
        "bench-no-gpu",
        "a saved report without a GPU",
        Slower,
        "devices: host memory",
        "forebay check",
        |_| bench(json!({"passes": [], "devices": [{"is_host": true}]})),
    ),
    case("lsm-denied", "AppArmor", Blocks, "apparmor=\"DENIED\"", "aa-complain docker-default", |t| {
        all(t.append("/var/log/kern.log", "[ 9.0] audit: type=1400 apparmor=\"DENIED\" operation=\"open\" profile=\"docker-default\" name=\"/dev/infiniband/uverbs0\" comm=\"gdsio\"\n"))
    }),
    case("lsm-denied", "SELinux", Blocks, "avc:  denied", "audit2allow", |t| {
        all(t.append(
            "/var/log/kern.log",
            "[ 9.0] audit: type=1400 avc:  denied  { read } for comm=\"gdsio\" name=\"nvidia-uvm\"\n",
        ))
    }),
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
        "counters/port_xmit_data: 0",
        "rdma statistic show",
        |t| {
            all(t
                .file(&format!("{PORT}/counters/port_xmit_data"), "0\n")
                .file(&format!("{PORT}/counters/port_rcv_data"), "0\n"))
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
        "/etc/fstab: 10.0.0.1:/e /nfs nfs vers=4.0,proto=rdma,_netdev",
        "add port=20049",
        |t| all(t.replace("/etc/fstab", ",port=20049", "")),
    ),
    case("rdma-refused", "the server does not listen", Slower, "rejected", "echo rdma 20049", |t| {
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
        "-x 1: 0.0900 s of CPU per GB",
        "forebay check PATH",
        |_| {
            bench(
                json!({"passes": [pass(0, 0.1), pass(1, 0.09), pass(2, 0.102)], "devices": [{"is_host": false}]}),
            )
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
            all(t.append(
                "/var/log/kern.log",
                "[ 9.0] NFS: nfs4_discover_server_trunking unhandled error -5. Exiting with error EIO\n",
            ))
        },
    ),
    case(
        "mount-missing",
        "4.2 in fstab, not mounted",
        Blocks,
        "/etc/fstab: 10.0.0.1:/e /nfs nfs vers=4.2",
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
        "/etc/systemd/system/nfs.mount: What=10.0.0.1:/e",
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
        "nfs.mount: After=rdma.service",
        "After=network-online.target",
        |t| unit(t, "After=rdma.service\n"),
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
    case("mount-by-hand", "in no fstab", Note, "no line for /nfs", "tee -a /etc/fstab", |t| {
        all(t.without("/etc/fstab"))
    }),
    // QSAN 9.
    case("tmpfs-direct", "before 6.6", Slower, "osrelease: 6.1.0-40-amd64", "modprobe brd", |t| {
        t.file("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
            .dir("/ram")
            .file("/run/udev/data/b0:40", "E:ID_FS_USAGE=x\n");
        t.append(MOUNTS, "42 27 0:40 / /ram rw - tmpfs tmpfs rw\n");
        asked("/ram")
    }),
    // Drives.
    case("drive-link", "two lanes of four", Slower, "current_link_width: 2", "lspci -vvs", |t| {
        all(t.file(&format!("/sys/bus/pci/devices/{DRIVE}/current_link_width"), "2\n"))
    }),
    case(
        "drive-link",
        "a slot of the last generation",
        Slower,
        "current_link_speed: 8.0 GT/s PCIe",
        "lspci -vvs",
        |t| all(t.file(&format!("/sys/bus/pci/devices/{DRIVE}/current_link_speed"), "8.0 GT/s PCIe\n")),
    ),
    case(
        "scheduler",
        "bfq",
        Slower,
        "queue/scheduler: none mq-deadline [bfq]",
        "echo none | sudo tee",
        |t| all(t.file(&queue("scheduler"), "none mq-deadline [bfq]\n")),
    ),
    case("read-ahead", "switched off", Note, "queue/read_ahead_kb: 0", "echo 128 | sudo tee", |t| {
        all(t.file(&queue("read_ahead_kb"), "0\n"))
    }),
    case(
        "numa",
        "drive and GPU on two nodes",
        Note,
        "0000:1c:00.0/numa_node: 1",
        "numactl --cpunodebind=0",
        |t| all(t.file(&format!("/sys/devices/pci0000:1a/{DRIVE}/numa_node"), "1\n")),
    ),
    case("pcie-width", "the GPU has 8 of 16 lanes", Slower, "current_link_width: 8", "reseat", |t| {
        all(t.file(&format!("/sys/bus/pci/devices/{GPU}/current_link_width"), "8\n"))
    }),
    case(
        "pcie-speed",
        "the GPU idles",
        Note,
        "current_link_speed: 2.5 GT/s PCIe",
        "look again under load",
        |t| all(t.file(&format!("/sys/bus/pci/devices/{GPU}/current_link_speed"), "2.5 GT/s PCIe\n")),
    ),
    case("pcie-link", "hidden by the hypervisor", Note, "current_link_width: not there", "", |t| {
        all(t.without(&format!("/sys/bus/pci/devices/{GPU}/current_link_width")))
    }),
    // Containers and pods.
    case(
        "no-gpu-device",
        "docker without --gpus",
        Slower,
        "/dev/nvidiactl: not there",
        "docker run --gpus all",
        |t| all(contained(t).without("/dev/nvidiactl")),
    ),
    case(
        "no-gpu-device",
        "a pod without a GPU",
        Slower,
        "/dev/nvidiactl: not there",
        "nvidia.com/gpu: 1",
        |t| {
            t.without("/dev/nvidiactl");
            DoctorOptions { pod: true, ..DoctorOptions::default() }
        },
    ),
    case("no-uvm", "a GPU by --device alone", Blocks, "/dev/nvidia-uvm: not there", "--gpus all", |t| {
        all(contained(t).without("/dev/nvidia-uvm"))
    }),
    case(
        "nvidia-fs",
        "a container without its devices",
        Note,
        "/dev/nvidia-fs0: not there",
        "NVIDIA_GDS=enabled",
        |t| all(contained(t).without("/dev/nvidia-fs0")),
    ),
    case(
        "no-verbs",
        "a container without /dev/infiniband",
        Note,
        "/dev/infiniband/*: not there",
        "--device /dev/infiniband",
        |t| all(contained(t).without("/dev/infiniband")),
    ),
    case("small-shm", "Docker's 64 MiB", Note, "size=65536k", "--shm-size", |t| {
        all(contained(t).append(MOUNTS, "43 27 0:61 / /dev/shm rw - tmpfs shm rw,size=65536k\n"))
    }),
    case(
        "memory-limit",
        "a small cgroup",
        Slower,
        "cgroup memory limit: 67108864 bytes",
        "resources.limits.memory",
        |t| all(t.file("/sys/fs/cgroup/user.slice/memory.max", "67108864\n")),
    ),
    case("oom-kills", "killed for memory", Slower, "memory.events: oom_kill 2", "docker run --memory", |t| {
        all(t.file("/sys/fs/cgroup/user.slice/memory.events", "low 0\noom 2\noom_kill 2\n"))
    }),
    case("cpu-quota", "less than a CPU", Note, "cgroup cpu.max: 0.5 CPUs", "FOREBAY_LANES", |t| {
        all(t.file("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n"))
    }),
    case("cpu-throttled", "stopped for it", Slower, "cpu.stat: nr_throttled 300", "--cpus", |t| {
        all(t.file("/sys/fs/cgroup/user.slice/cpu.stat", "usage_usec 1\nnr_periods 1000\nnr_throttled 300\n"))
    }),
    case("memlock", "8 MiB", Slower, "RLIMIT_MEMLOCK: 1048576 bytes", "ulimit -l unlimited", |t| {
        all(t.replace(
            "/proc/self/limits",
            "unlimited            unlimited",
            "1048576              1048576  ",
        ))
    }),
    case(
        "io-uring",
        "switched off",
        Slower,
        "/proc/sys/kernel/io_uring_disabled: 2",
        "sysctl -w kernel.io_uring_disabled=0",
        |t| all(t.file("/proc/sys/kernel/io_uring_disabled", "2\n")),
    ),
    // A running process.
    case("libcufile", "NVIDIA's", Note, "/proc/7/maps: /opt/libcufile.so.0", "forebay run", |t| {
        nvidia(running(t, "python train.py"));
        pid()
    }),
    case(
        "libcufile-copies",
        "two of them",
        Slower,
        "/proc/7/maps: /opt/own/libcufile.so.0",
        "forebay run",
        |t| {
            nvidia(running(t, "python train.py")).file("/opt/own/libcufile.so.0", "FOREBAY_STRICT");
            t.append("/proc/7/maps", "7f02 r-xp 0 0:0 0 /opt/own/libcufile.so.0\n");
            pid()
        },
    ),
    case(
        "cufile-json",
        "a misplaced key",
        Slower,
        "/etc/own.json: fs.block",
        "edit /etc/own.json: \"block\" belongs on the top level",
        |t| {
            running(t, "python x").file("/proc/7/environ", "CUFILE_ENV_PATH_JSON=/etc/own.json\0");
            t.file("/etc/own.json", "{\"fs\": {\"block\": {\"nvme\": {}}}}");
            pid()
        },
    ),
    case(
        "config-invalid",
        "a wrong variable",
        Blocks,
        "environment: FOREBAY_SLOTS=1",
        "FOREBAY_SLOTS=2..64",
        |t| {
            running(t, "python x").file("/proc/7/environ", "FOREBAY_SLOTS=1\0");
            pid()
        },
    ),
    case("no-counters", "it does not use forebay", Note, "/proc/7/fd: no counters", "forebay run", |t| {
        running(t, "python x");
        pid()
    }),
    // The machine.
    case(
        "no-gpu",
        "none on the bus",
        Slower,
        "/sys/bus/pci/devices/*/vendor: none is 0x10de",
        "use a machine with an NVIDIA GPU",
        |t| {
            t.without("/proc/driver/nvidia").without(&format!("/sys/bus/pci/devices/{GPU}"));
            all(t.without("/dev/nvidiactl").without("/dev/nvidia-uvm"))
        },
    ),
    case(
        "no-driver",
        "a GPU without its driver",
        Slower,
        "0000:1b:00.0/vendor",
        "apt install nvidia-open",
        |t| all(t.without("/proc/driver/nvidia").without("/dev/nvidiactl").without("/dev/nvidia-uvm")),
    ),
    case(
        "no-cuda",
        "a driver that offers none",
        Slower,
        "/proc/driver/nvidia/version: 580.95.05",
        "libnvidia-compute",
        |t| all(t.without("/proc/driver/nvidia/gpus")),
    ),
    case("gpu-hidden", "a GPU more on the bus", Note, "0000:2b:00.0", "CUDA_VISIBLE_DEVICES", |t| {
        t.file("/sys/bus/pci/devices/0000:2b:00.0/vendor", "0x10de\n");
        all(t.file("/sys/bus/pci/devices/0000:2b:00.0/class", "0x030200\n"))
    }),
    case("gpu-amd", "an AMD GPU beside it", Note, "0000:2b:00.0", "", |t| {
        t.file("/sys/bus/pci/devices/0000:2b:00.0/vendor", "0x1002\n");
        all(t.file("/sys/bus/pci/devices/0000:2b:00.0/class", "0x120000\n"))
    }),
    case("acs", "a bridge redirects", Note, "0000:1a:01.0/config", "setpci -s 0000:1a:01.0", |t| {
        let path = format!("/sys/devices/pci0000:1a/0000:1a:01.0/{GPU}");
        let mut config = vec![0u8; 4096];
        config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0x5f, 0, 0x1d, 0]);
        t.file("/sys/bus/pci/devices/0000:1a:01.0/config", &config);
        move_dir(t, &format!("/sys/bus/pci/devices/{GPU}"), &path);
        all(t)
    }),
    case("secure-boot", "an unsigned module does not load", Note, "SecureBoot-*: 1", "mokutil", |t| {
        let path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
        t.without("/proc/driver/nvidia-fs/version");
        all(t.file(path, [6, 0, 0, 0, 1]))
    }),
    case("wsl", "Windows", Note, "osrelease", "", |t| {
        all(t.file("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n"))
    }),
    case("udev", "no entry for the drive", Note, "/run/udev/data/b259:6: not there", "-v /run/udev", |t| {
        all(t.without("/run/udev/data/b259:6"))
    }),
];

fn queue(file: &str) -> String {
    format!("/sys/devices/pci0000:1a/{DRIVE}/nvme/nvme1/nvme1n1/queue/{file}")
}

fn move_dir(t: &mut Tree, from: &str, to: &str) {
    t.moved(from, to).link(from, to);
}

/// NVIDIA's library in process 7.
fn nvidia(tree: &mut Tree) -> &mut Tree {
    tree.file("/opt/libcufile.so.0", "NVIDIA's own")
        .append("/proc/7/maps", "7f01 r-xp 0 0:0 0 /opt/libcufile.so.0\n")
}

/// The mount by a unit in place of fstab.
fn unit(t: &mut Tree, ordering: &str) -> DoctorOptions {
    let options = "proto=rdma,port=20049,vers=4.0";
    let text =
        format!("[Unit]\n{ordering}[Mount]\nWhat=10.0.0.1:/e\nWhere=/nfs\nType=nfs\nOptions={options}\n");
    t.without("/etc/fstab").file("/etc/systemd/system/nfs.mount", text);
    t.link("/etc/systemd/system/remote-fs.target.wants/nfs.mount", "../nfs.mount");
    DoctorOptions::default()
}

/// What else is so where this is planted.
fn beside(case: &Case) -> &'static [&'static str] {
    match (case.id, case.what) {
        ("no-gpu-device" | "no-uvm" | "nvidia-fs" | "no-verbs" | "small-shm", what)
            if !what.contains("module not") =>
        {
            &["container"]
        }
        ("buffered", _) => &["libcufile"],
        ("libcufile-copies", _) => &["no-counters"],
        ("cufile-json" | "config-invalid" | "transfer-type" | "gpu-index", what)
            if !what.contains("saved") =>
        {
            &["no-counters"]
        }
        ("secure-boot", _) => &[],
        _ => &[],
    }
}

#[test]
fn each_finding_is_found_alone_with_its_evidence_and_its_fix() {
    let mut failures = Vec::new();
    for case in CASES {
        let mut tree = healthy();
        let options = (case.plant)(&mut tree);
        let report = look(&tree, &options);
        let name = format!("{} ({})", case.id, case.what);
        let wanted: BTreeSet<&str> = beside(case).iter().copied().chain([case.id]).collect();
        let got: BTreeSet<&str> = bad(&report).into_iter().collect();
        if got != wanted {
            failures.push(format!("{name}: found {got:?}"));
            continue;
        }
        let found: Vec<_> = report
            .findings
            .iter()
            .filter(|finding| finding.id == case.id && finding.severity > Severity::Ok)
            .collect();
        if !found.iter().any(|finding| finding.severity == case.severity) {
            failures.push(format!(
                "{name}: severities {:?}",
                found.iter().map(|f| f.severity).collect::<Vec<_>>()
            ));
        }
        if !found.iter().any(|finding| {
            finding.evidence.iter().any(|seen| seen.contains(case.seen)) || case.seen.is_empty()
        }) {
            failures.push(format!("{name}: evidence {:?}", found[0].evidence));
        }
        if !found.iter().any(|finding| finding.fix.as_deref().unwrap_or_default().contains(case.fix)) {
            failures.push(format!("{name}: fix {:?}", found[0].fix));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
