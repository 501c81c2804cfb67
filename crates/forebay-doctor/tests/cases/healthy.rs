//! Cases that look like a fault and are none: no findings, or notes only.

use serde_json::json;

use super::*;
use crate::trees::{NFS_LINE, PORT, mountstats};

/// The planted file, and the notes that it gives.
type Healthy = (&'static str, fn(&mut Tree) -> DoctorOptions, &'static [&'static str]);

pub const HEALTHY: &[Healthy] = &[
    (
        "a soft mount that gave up hours ago, and never says OK",
        |t| {
            t.file("/proc/uptime", "90000.12 1.0\n");
            all(t.append("/var/log/kern.log", "[ 9.0] nfs: server 10.0.0.1 not responding, timed out\n"))
        },
        &["nfs-not-responding"],
    ),
    (
        "the same in a saved copy, which lacks mounted file systems",
        |t| {
            t.file("/proc/uptime", "90000.12 1.0\n").without("/nfs");
            all(t.append("/var/log/kern.log", "[ 9.0] nfs: server 10.0.0.1 not responding, still trying\n"))
        },
        &["nfs-not-responding"],
    ),
    ("a slash behind the point", |t| all(t.replace("/etc/fstab", "/nfs nfs", "/nfs/ nfs")), &[]),
    (
        "a blank in the point",
        |t| {
            t.replace(MOUNTS, " /nfs ", " /n\\040fs ").replace("/etc/fstab", "/nfs nfs", "/n\\040fs nfs");
            all(t.dir("/n fs"))
        },
        &[],
    ),
    (
        "a link to the point",
        |t| {
            t.link("/data/nfs", "/nfs");
            all(t.replace("/etc/fstab", "/nfs nfs", "/data/nfs nfs"))
        },
        &[],
    ),
    (
        "another mount is missing than the one asked for",
        |t| {
            t.append("/etc/fstab", "10.0.0.9:/e /other nfs vers=4.0,proto=rdma 0 0\n");
            asked("/nfs/")
        },
        &[],
    ),
    (
        "a second port with a cable and no address",
        |t| {
            let second = "/sys/class/infiniband/mlx5_1/ports/1";
            t.file(&format!("{second}/state"), "4: ACTIVE\n")
                .file(&format!("{second}/link_layer"), "Ethernet\n")
                .file(&format!("{second}/gids/0"), "fe80:0000:0000:0000:0000:00ff:fe00:0002\n")
                .file(&format!("{second}/gid_attrs/types/0"), "RoCE v2\n");
            all(t.file("/sys/class/infiniband/mlx5_1/device/vendor", "0x15b3\n"))
        },
        &["rdma-gid"],
    ),
    (
        "a lost packet of millions",
        |t| {
            t.file(&format!("{PORT}/counters/port_rcv_packets"), "50000000\n");
            all(t.file(&format!("{PORT}/hw_counters/out_of_sequence"), "400\n"))
        },
        &[],
    ),
    (
        "lost packets, and nothing goes over RDMA",
        |t| {
            t.without("/etc/fstab").replace(MOUNTS, NFS_LINE, "");
            all(t.file(&format!("{PORT}/hw_counters/out_of_sequence"), "812\n"))
        },
        &[],
    ),
    (
        "16 READs side by side that take 12 ms",
        |t| {
            let stats = mountstats(1000, 1000, [10, 12000, 12100]);
            let line = "\txprt:\trdma 0 0 1 0 0 1000 1000 0 16000 0 0 0 0\n\tper-op";
            all(t.file("/proc/self/mountstats", stats.replace("\tper-op", line)))
        },
        &[],
    ),
    (
        "READs of 4 MiB that take 8 ms",
        |t| {
            let stats = mountstats(1000, 1000, [10, 8000, 8100]);
            all(t.file("/proc/self/mountstats", stats.replace("67108864 10 8000", "4194304000 10 8000")))
        },
        &[],
    ),
    (
        "a big file that is open a second time by O_DIRECT",
        |t| {
            nvidia(running(t, "python train.py"))
                .file("/proc/7/fdinfo/3", "pos:\t0\nflags:\t0100000\n")
                .link("/proc/7/fd/4", "/data/file")
                .file("/proc/7/fdinfo/4", format!("pos:\t0\nflags:\t0{:o}\n", libc::O_DIRECT))
                .file("/data/file", vec![0; 1 << 20]);
            pid()
        },
        &["libcufile"],
    ),
    (
        "a script, and a log that is written",
        |t| {
            nvidia(running(t, "python train.py"))
                .file("/proc/7/fdinfo/3", "pos:\t0\nflags:\t0100000\n")
                .link("/proc/7/fd/4", "/data/log")
                .file("/proc/7/fdinfo/4", "pos:\t0\nflags:\t0102001\n")
                .link("/proc/7/fd/5", "/data/written")
                .file("/proc/7/fdinfo/5", "pos:\t0\nflags:\t0100001\n")
                .file("/data/log", vec![0; 1 << 20])
                .file("/data/written", vec![0; 1 << 20]);
            pid()
        },
        &["libcufile"],
    ),
    (
        "NVIDIA's library is installed where there is no udev, and nothing uses it",
        |t| all(t.without("/run/udev/data/b259:6").without("/run/udev/data")),
        &[],
    ),
    (
        "types 0 and 2 cost the same, and the GPU moved the bytes",
        |_| bench(json!({"passes": [pass(0, 0.1), pass(2, 0.1)], "devices": [{"is_host": false}]})),
        &[],
    ),
    (
        "types 0 and 2 cost the same, one cold and one warm",
        |_| {
            let (mut cold, mut warm) = (staged(pass(0, 0.1)), staged(pass(2, 0.1)));
            (cold["state"], warm["state"]) = ("cold".into(), "warm".into());
            bench(json!({"passes": [cold, warm], "devices": [{"is_host": false}]}))
        },
        &[],
    ),
    (
        "an export on tmpfs",
        |t| {
            t.append(MOUNTS, "42 27 0:40 / /ram rw - tmpfs tmpfs rw\n").dir("/ram");
            t.file("/proc/fs/nfsd/portlist", "rdma 20049\n");
            all(t.file("/var/lib/nfs/etab", "/ram\t*(rw)\n"))
        },
        &[],
    ),
    ("exports of a server that does not run", |t| all(t.file("/etc/exports", "/data *(rw)\n")), &[]),
    (
        "a soft device with Ethernet's MTU",
        |t| {
            t.moved("/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/rxe0");
            t.without("/sys/class/infiniband/rxe0/device")
                .file("/sys/class/infiniband/rxe0/parent", "ens1\n");
            all(t
                .file("/sys/class/net/ens1/mtu", "1500\n")
                .append("/etc/modules-load.d/rpcrdma.conf", "rdma_rxe\n"))
        },
        &[],
    ),
    (
        "NVSwitches in a container",
        |t| {
            let switch = "/sys/bus/pci/devices/0000:05:00.0";
            t.file(&format!("{switch}/vendor"), "0x10de\n").file(&format!("{switch}/class"), "0x068000\n");
            all(contained(t))
        },
        &["container"],
    ),
    ("a unit that systemd orders by itself", |t| unit(t, "After=rdma.service\n"), &[]),
];
