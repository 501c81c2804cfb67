//! Drives, containers, processes, the machine.

use super::*;
use crate::trees::{DRIVE, GPU};
use forebay_doctor::finding::Severity::{Blocks, Note, Slower};

pub(super) const CASES: &[Case] = &[
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
        "/sys/fs/cgroup/user.slice/memory.max: 67108864 bytes",
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
    case(
        "memlock",
        "8 MiB",
        Slower,
        "/proc/self/limits, Max locked memory: 1048576 bytes",
        "ulimit -l unlimited",
        |t| {
            all(t.replace(
                "/proc/self/limits",
                "unlimited            unlimited",
                "1048576              1048576  ",
            ))
        },
    ),
    case(
        "io-uring",
        "switched off",
        Slower,
        "/proc/sys/kernel/io_uring_disabled: 2",
        "echo 0 | sudo tee /proc/sys/kernel/io_uring_disabled",
        |t| all(t.file("/proc/sys/kernel/io_uring_disabled", "2\n")),
    ),
    case(
        "nvidia-fs",
        "a pod on a node without it",
        Note,
        "nvidia_fs in /proc/modules: not there",
        "gds.enabled=true",
        |t| {
            t.without("/usr/lib/x86_64-linux-gnu/libcufile.so.0").without("/proc/driver/nvidia-fs/version");
            t.replace("/proc/modules", "nvidia_fs", "other");
            DoctorOptions { pod: true, ..DoctorOptions::default() }
        },
    ),
    // A running process.
    case(
        "process-hidden",
        "another user's",
        Note,
        "/proc/7/mountinfo: not for this user",
        "sudo forebay doctor --pid 7",
        |t| {
            running(t, "python x").without("/proc/7/mountinfo");
            pid()
        },
    ),
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
        "/etc/own.json:1: fs.block",
        "edit /etc/own.json:1: \"block\" belongs on the top level",
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
        nvidia(running(t, "python train.py").without("/run/udev/data/b259:6"));
        pid()
    }),
];
