//! Machines that are not here: files, answers, and what an exercise on them gives.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub)] // a module of a test, not of a library

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use forebay_doctor::exercise::{
    DriverOffer, Exercise, ExerciseOutcome, ExerciseResult, ExerciseTarget, FileRead, GpuSeen, Hinted,
    InPlace, LaneFacts, PinBudget, ServerAnswers,
};
use forebay_doctor::storage::{DiskKind, StoragePlace};
use forebay_doctor::system::{PauseFrames, System, Uname};
use forebay_engine::{Moved, Way};

const PIECE: u64 = 8 << 20;

/// A machine described by its files.
#[derive(Clone, Default)]
pub struct Fake {
    files: BTreeMap<String, Vec<u8>>,
    dirs: BTreeSet<String>,
    links: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    uname: Uname,
    io_uring: Option<i32>,
    memlock: Option<u64>,
    cpus: usize,
    not_writable: BTreeSet<String>,
    gpus: Vec<GpuSeen>,
    no_gpu: Option<Hinted>,
    /// The result of reads that a server writes into GPU memory.
    pub by_server: Option<InPlace>,
    /// What the server of its NFS mount says.
    pub answers: Option<ServerAnswers>,
}

impl Fake {
    pub fn new(kernel: &str, cpus: usize) -> Self {
        let mut fake = Self { cpus, ..Self::default() };
        fake.uname = Uname { release: kernel.into(), machine: "x86_64".into(), host: "fake".into() };
        fake.dir("/tmp").dir("/work");
        fake.file("/proc/self/status", "Name:\tforebay\nCapEff:\t0000000000000000\nSeccomp:\t0\n");
        fake.file("/proc/sys/kernel/osrelease", format!("{kernel}\n"));
        fake.file("/proc/meminfo", "MemTotal:       131072000 kB\n");
        fake
    }

    pub fn file(&mut self, path: &str, text: impl AsRef<[u8]>) -> &mut Self {
        self.files.insert(path.into(), text.as_ref().to_vec());
        let mut part = path;
        while let Some((parent, _)) = part.rsplit_once('/') {
            self.dirs.insert(if parent.is_empty() { "/".into() } else { parent.into() });
            part = parent;
        }
        self
    }

    pub fn dir(&mut self, path: &str) -> &mut Self {
        self.dirs.insert(path.into());
        self
    }

    pub fn link(&mut self, from: &str, to: &str) -> &mut Self {
        self.links.insert(from.into(), to.into());
        self
    }

    pub fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Takes a file away.
    pub fn without(&mut self, path: &str) -> &mut Self {
        self.files.remove(path);
        self
    }

    /// This user may neither read nor write there.
    pub fn forbid(&mut self, path: &str) -> &mut Self {
        self.not_writable.insert(path.into());
        self
    }

    /// A device on the PCI bus, at a sysfs path.
    pub fn pci(&mut self, sysfs: &str, class: u32, vendor: u32, device: u32) -> &mut Self {
        let pci = sysfs.rsplit('/').next().unwrap_or(sysfs);
        let dir = format!("/sys/bus/pci/devices/{pci}");
        self.file(&format!("{dir}/class"), format!("{class:#08x}\n"))
            .file(&format!("{dir}/vendor"), format!("{vendor:#06x}\n"))
            .file(&format!("{dir}/device"), format!("{device:#06x}\n"))
            .link(&dir, sysfs)
    }

    /// A block device with its number, at a sysfs path.
    pub fn disk(&mut self, number: &str, sysfs: &str) -> &mut Self {
        self.dir(sysfs).link(&format!("/sys/dev/block/{number}"), sysfs)
    }

    pub fn gpu(&mut self, pci: &str, name: &str, memory: u64) -> &mut Self {
        let index = self.gpus.len();
        self.gpus.push(GpuSeen {
            index: Some(index),
            name: name.into(),
            pci: pci.into(),
            uuid: "ce4dfa044611339ca1e22bf10a772fe0".into(),
            memory,
            driver_api: 13000,
        });
        self.pci_gpu(pci)
    }

    fn pci_gpu(&mut self, pci: &str) -> &mut Self {
        let dir = format!("/sys/bus/pci/devices/{pci}");
        let bars = "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n\
                    0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n";
        self.file(&format!("{dir}/resource"), bars)
            .file(&format!("{dir}/vendor"), "0x10de\n")
            .file(&format!("{dir}/class"), "0x030200\n")
            .file(&format!("{dir}/device"), "0x2335\n")
            .file(&format!("{dir}/current_link_speed"), "32.0 GT/s PCIe\n")
            .file(&format!("{dir}/max_link_speed"), "32.0 GT/s PCIe\n")
            .file(&format!("{dir}/current_link_width"), "16\n")
            .file(&format!("{dir}/max_link_width"), "16\n")
    }

    pub fn driver(&mut self, version: &str) -> &mut Self {
        let text = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root)\n"
        );
        self.file("/proc/driver/nvidia/version", text)
    }
}

impl System for Fake {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn list(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let names: BTreeSet<String> = self
            .files
            .keys()
            .chain(&self.dirs)
            .chain(self.links.keys())
            .filter_map(|name| name.strip_prefix(&prefix)?.split('/').next().map(str::to_owned))
            .collect();
        names.into_iter().collect()
    }
    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.is_dir(path) || self.links.contains_key(path)
    }
    fn is_dir(&self, path: &str) -> bool {
        path == "/" || self.dirs.contains(path)
    }
    fn resolve(&self, path: &str) -> Option<String> {
        self.links.get(path).cloned().or_else(|| self.exists(path).then(|| path.to_owned()))
    }
    fn link(&self, path: &str) -> Option<String> {
        self.links.get(path).cloned()
    }
    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned()
    }
    fn uname(&self) -> Uname {
        self.uname.clone()
    }
    fn io_uring(&self) -> Result<(), i32> {
        self.io_uring.map_or(Ok(()), Err)
    }
    fn memlock(&self) -> Option<u64> {
        self.memlock
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn access(&self, path: &str, write: bool) -> bool {
        self.exists(path) && !(write && self.not_writable.contains(path))
    }
    fn free_space(&self, _: &str) -> Option<u64> {
        Some(40 << 30)
    }
    fn device_number(&self, _: &str) -> Option<(u32, u32)> {
        None
    }
    fn cwd(&self) -> String {
        "/work".into()
    }
    fn file_len(&self, path: &str) -> Option<u64> {
        self.files.get(path).map(|bytes| bytes.len() as u64)
    }
    fn kernel_log(&self) -> io::Result<(String, String)> {
        Ok((String::new(), "dmesg".to_owned()))
    }
    fn pause_frames(&self, _: &str) -> Option<PauseFrames> {
        None
    }
}

/// The name of memory in a PCI BAR that each machine has.
pub const BAR: &str = "p2pmem:0000:05:00.0";

impl Exercise for Fake {
    fn offered(&self) -> DriverOffer {
        DriverOffer { gpus: self.gpus.clone(), missing: self.no_gpu.clone() }
    }

    fn lanes(&self, target: ExerciseTarget) -> Result<LaneFacts, Hinted> {
        let backend = if self.io_uring.is_some() { "threads" } else { "io_uring" };
        let lanes = (self.cpus / 2).clamp(1, 8);
        Ok(LaneFacts {
            target,
            lanes,
            most: self.cpus,
            slots: 8,
            slot_size: 2 << 20,
            backend: backend.into(),
            notes: Vec::new(),
        })
    }

    fn exercise(&self, target: ExerciseTarget, place: &StoragePlace) -> ExerciseResult {
        if !place.writable && place.sample.is_none() {
            return ExerciseResult::skipped(
                target,
                Hinted::new("this user may not write here").fix("forebay check -f FILE"),
            );
        }
        let engine = if target == ExerciseTarget::Host { "host" } else { "staged" };
        let works = |cached, direct| ExerciseOutcome::Works {
            bytes: PIECE,
            moved: Moved::from_ways([cached, direct, 0, 0, 0, 0, 0, 0]),
            elapsed_us: 1000,
        };
        let memory = place.kind == DiskKind::Memory;
        ExerciseResult {
            target,
            engine: Some(engine.into()),
            cold: if memory {
                ExerciseOutcome::Skipped(Hinted::new("tmpfs is memory, never cold"))
            } else {
                works(0, PIECE)
            },
            warm: works(PIECE, 0),
            write: match (place.writable, memory) {
                (true, true) => works(PIECE, 0),
                (true, false) => works(0, PIECE),
                (false, _) => ExerciseOutcome::Skipped(Hinted::new("mounted read-only")),
            },
            alignment: (!memory).then_some((512, 512)),
            direct_refused: memory.then(|| "tmpfs".to_owned()),
            residency: Some("cachestat".into()),
        }
    }

    fn bar(&self, name: &str) -> Result<ExerciseTarget, Hinted> {
        if name == BAR {
            return Ok(ExerciseTarget::Bar(name.to_owned()));
        }
        Err(Hinted::new(format!("no such device: {name}")))
    }

    fn exercise_by_drive(&self, target: ExerciseTarget, place: &StoragePlace) -> ExerciseResult {
        if place.kind != DiskKind::Nvme {
            return ExerciseResult::skipped(target, Hinted::new("no drive lies below these files"));
        }
        ExerciseResult { engine: Some("p2p".to_owned()), ..self.exercise(target, place) }
    }

    fn read_by_server(&self, _: ExerciseTarget, _: &StoragePlace) -> Option<InPlace> {
        self.by_server.clone()
    }

    fn ask_server(&self, _: &StoragePlace) -> Option<ServerAnswers> {
        self.answers.clone()
    }

    fn read_in_place(&self, _: ExerciseTarget, place: &StoragePlace) -> InPlace {
        match place.kind {
            DiskKind::Network | DiskKind::Overlay => InPlace::Refused(
                Hinted::new(format!("pages of a {} file system are not pinned", place.file_system))
                    .fix("keep the file on a local file system"),
            ),
            _ if !place.writable && place.sample.is_none() => {
                InPlace::Skipped(Hinted::new("there is no file to try it with"))
            }
            _ => InPlace::Works { bytes: PIECE, elapsed_us: 500 },
        }
    }

    fn pin_budget(&self, target: ExerciseTarget) -> Option<PinBudget> {
        let limited_by = "a quarter of the available memory".to_owned();
        let registering = "not measured yet".to_owned();
        (target != ExerciseTarget::Host).then_some(PinBudget { bytes: 31 << 30, limited_by, registering })
    }

    fn read_file(&self, target: ExerciseTarget, path: &str) -> Result<FileRead, Hinted> {
        if !self.exists(path) {
            return Err(Hinted::new("cannot open file: No such file or directory").fix("check the path"));
        }
        Ok(FileRead { target, bytes: PIECE, engine: "staged".into(), moved: Moved::of(Way::Direct, PIECE) })
    }
}

const NO_LIBRARY: &str = "the CUDA driver library cannot be loaded";

/// A cloud VM: one H200, ext4 on a virtio disk, no udev, root.
pub fn h200_vm() -> Fake {
    let mut fake = Fake::new("6.18.44", 16);
    fake.driver("580.159.04").gpu("0000:00:06.0", "NVIDIA H200", 141 << 30);
    fake.file("/proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t0\n");
    fake.file("/proc/cpuinfo", "flags\t\t: fpu sse hypervisor avx\n");
    fake.file(
        "/proc/self/mountinfo",
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
         25 27 0:23 / /dev/shm rw - tmpfs tmpfs rw\n\
         22 27 0:21 / /proc rw - proc proc rw\n",
    );
    fake.dir("/dev/shm").disk("254:0", "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda");
    fake.file("/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0", "").link(
        "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0",
        "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.1.15.1",
    );
    fake
}

/// A server: NVMe, driver 580 on kernel 6.18, udev, nvidia-fs, IOMMU translating, a narrow link, a cufile.json.
pub fn metal() -> Fake {
    let mut fake = Fake::new("6.18.0-12-generic", 64);
    fake.driver("580.95.05").gpu("0000:1b:00.0", "NVIDIA L40S", 48 << 30);
    let gpu = "/sys/bus/pci/devices/0000:1b:00.0";
    fake.file(&format!("{gpu}/current_link_width"), "8\n")
        .file(&format!("{gpu}/numa_node"), "0\n")
        .file(&format!("{gpu}/iommu_group/type"), "DMA-FQ\n")
        .file("/sys/class/iommu/dmar0/name", "")
        .file("/sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
        .file("/sys/class/dmi/id/product_name", "PowerEdge R760xa\n")
        .file("/proc/driver/nvidia-fs/version", "version: 2.26.6\n")
        .file("/boot/config-6.18.0-12-generic", "CONFIG_ZONE_DEVICE=y\nCONFIG_PCI_P2PDMA=y\n")
        .file("/sys/class/misc/rdma_cm/dev", "10:120\n")
        .file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
        .file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
        .dir("/sys/class/infiniband/mlx5_0/device")
        .dir("/sys/class/infiniband/mlx5_1/device");
    fake.memlock = Some(8 << 20);
    fake.file(
        "/proc/self/mountinfo",
        "27 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw\n\
         40 27 259:6 / /data rw - xfs /dev/nvme1n1 rw\n\
         41 27 0:50 / /nfs rw - nfs4 server:/export rw,vers=4.2,rsize=1048576,wsize=524288,hard,proto=rdma,\
         port=20049,nconnect=2\n",
    );
    let root = "/sys/devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1";
    fake.disk("259:2", &format!("{root}/nvme0n1p2")).file(&format!("{root}/nvme0n1p2/partition"), "2");
    let data = "/sys/devices/pci0000:15/0000:16:00.0/nvme/nvme1/nvme1n1";
    fake.disk("259:6", data)
        .file("/sys/devices/pci0000:80/0000:81:00.0/numa_node", "1\n")
        .file("/sys/devices/pci0000:15/0000:16:00.0/numa_node", "0\n");
    fake.dir("/data").dir("/nfs");
    for number in ["259:2", "259:6"] {
        fake.file(&format!("/run/udev/data/b{number}"), "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n");
    }
    fake.file("/usr/lib/x86_64-linux-gnu/libcufile.so.0", "");
    fake.file(
        "/etc/cufile.json",
        "{ // shipped\n \"properties\": { \"max_direct_io_size_kb\": 16384, \"posix_pool_slab_count\": [128, 64, 64],\n\
         \"use_compat_mode\": true },\n \"execution\": { \"max_io_threads\": 4, /* more */ \"parallel_io\": true },\n\
         \"fs\": { \"block\": { \"nvme\": { \"use_pci_p2pdma\": true } } } }\n",
    );
    fake
}

/// A container with Docker's seccomp profile, not root, 4 GiB of memory; the GPU's libraries are there.
pub fn container() -> Fake {
    let mut fake = Fake::new("6.8.0-60-generic", 8);
    fake.driver("595.45.04").gpu("0000:41:00.0", "NVIDIA A100-SXM4-80GB", 80 << 30);
    fake.file("/.dockerenv", "").file("/dev/nvidiactl", "").file("/dev/nvidia-uvm", "");
    fake.file("/proc/self/status", "CapEff:\t0000000000000000\nSeccomp:\t2\n");
    fake.file("/proc/self/cgroup", "0::/\n").file("/sys/fs/cgroup/memory.max", "268435456\n");
    fake.file("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    fake.io_uring = Some(libc_eperm());
    fake.memlock = Some(8 << 20);
    fake.file(
        "/proc/self/mountinfo",
        "900 800 0:60 / / rw - overlay overlay rw,lowerdir=/l\n\
         901 900 259:1 /models /models ro - ext4 /dev/nvme0n1p1 rw\n\
         902 900 0:61 / /dev/shm rw - tmpfs shm rw,size=65536k\n\
         903 900 259:1 /etc/hosts /etc/hosts rw - ext4 /dev/nvme0n1p1 rw\n",
    );
    fake.file("/etc/hosts", "").dir("/models").dir("/dev/shm").file("/models/a.safetensors", "x");
    fake.disk("259:1", "/sys/devices/pci0000:40/0000:42:00.0/nvme/nvme0/nvme0n1");
    fake
}

/// A machine without GPU: a laptop with xfs on an encrypted disk.
pub fn no_gpu() -> Fake {
    let mut fake = Fake::new("6.12.8", 4);
    fake.no_gpu =
        Some(Hinted::new(format!("{NO_LIBRARY} (library=libcuda.so.1)")).fix("install the NVIDIA driver"));
    fake.file(
        "/proc/self/mountinfo",
        "27 1 252:0 / / rw - xfs /dev/mapper/root rw\n30 27 0:40 / /tmp rw - tmpfs tmpfs rw\n",
    );
    fake.disk("252:0", "/sys/devices/virtual/block/dm-0");
    fake
}

/// A GPU on the bus without its driver, io_uring switched off, nothing writable.
pub fn broken() -> Fake {
    let mut fake = no_gpu();
    fake.pci_gpu("0000:01:00.0");
    fake.io_uring = Some(libc_eperm());
    fake.file("/proc/sys/kernel/io_uring_disabled", "2\n");
    for path in ["/", "/tmp", "/work"] {
        fake.not_writable.insert(path.into());
    }
    fake.set("FOREBAY_SLOTS", "1");
    fake
}

fn libc_eperm() -> i32 {
    1
}
