//! gdscheck fails; slow over RDMA; hardly any bandwidth.

use forebay_doctor::finding::Severity::{Blocks, Note, Slower};
use serde_json::json;

use super::*;
use crate::trees::{GPU, mountstats};

pub(super) const CASES: &[Case] = &[
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
            let mut one = staged(pass(0, 0.0));
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
            t.file("/data/file", vec![0; 1 << 20]);
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
    case("lsm-denied", "of a browser", Note, "snap.firefox", "sudo aa-enforce snap.firefox", |t| {
        all(t.append("/var/log/kern.log", "[ 9.0] audit: apparmor=\"DENIED\" profile=\"snap.firefox\" name=\"/proc/driver/nvidia/params\" comm=\"firefox\"\n"))
    }),
    case("lsm-denied", "hours ago", Note, "[ 9.0] audit", "aa-complain docker-default", |t| {
        t.file("/proc/uptime", "90000.12 1.0\n");
        all(t.append("/var/log/kern.log", "[ 9.0] audit: apparmor=\"DENIED\" profile=\"docker-default\" name=\"/dev/nvidia0\" comm=\"gdsio\"\n"))
    }),
    case("lsm-denied", "AppArmor", Blocks, "apparmor=\"DENIED\"", "aa-complain docker-default", |t| {
        all(t.append("/var/log/kern.log", "[ 9.0] audit: type=1400 apparmor=\"DENIED\" operation=\"open\" profile=\"docker-default\" name=\"/dev/infiniband/uverbs0\" comm=\"gdsio\"\n"))
    }),
    case(
        "lsm-denied",
        "SELinux",
        Blocks,
        "avc:  denied",
        "sudo setenforce 1; for good: sudo ausearch -m avc -c gdsio",
        |t| {
            all(t.append(
                "/var/log/kern.log",
                "[ 9.0] audit: type=1400 avc:  denied  { read } for comm=\"gdsio\" name=\"nvidia-uvm\"\n",
            ))
        },
    ),
];
