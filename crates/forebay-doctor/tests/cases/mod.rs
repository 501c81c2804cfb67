//! Each finding: the fault planted in the healthy tree, and the doctor's output.

#![allow(unreachable_pub)] // a module of a test, not of a library

mod far;
mod gds;
mod healthy;
mod machine;
mod network;
mod objects;

use forebay_doctor::DoctorOptions;
use forebay_doctor::doctor::SavedBench;
use forebay_doctor::finding::Severity;
use serde_json::json;

pub use healthy::HEALTHY;

use crate::trees::{DRIVE, Tree};

/// All cases.
pub fn all_cases() -> impl Iterator<Item = &'static Case> {
    gds::CASES.iter().chain(network::CASES).chain(machine::CASES).chain(far::CASES).chain(objects::CASES)
}

/// Objects that come as well as they can: the planted files.
type HealthyObject = (&'static str, fn(&mut Tree) -> DoctorOptions);

pub fn healthy_objects() -> &'static [HealthyObject] {
    objects::HEALTHY
}

/// One finding: its name, the planted fault, its severity, a part of its evidence, a part of its fix.
pub struct Case {
    pub id: &'static str,
    pub what: &'static str,
    pub plant: fn(&mut Tree) -> DoctorOptions,
    pub severity: Severity,
    pub seen: &'static str,
    pub fix: &'static str,
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

pub fn pid() -> DoctorOptions {
    DoctorOptions { pid: Some(7), ..DoctorOptions::default() }
}

fn bench(report: serde_json::Value) -> DoctorOptions {
    DoctorOptions { benches: vec![SavedBench { path: "b.json".into(), report }], ..DoctorOptions::default() }
}

fn pass(kind: u64, cpu: f64) -> serde_json::Value {
    json!({"xfer_type": kind, "io": "READ", "threads": 4, "cpu": {"user_s_per_gb": cpu, "system_s_per_gb": 0.0},
           "engines": [{"engine": "mapped", "bytes": 1 << 30}], "refused": []})
}

/// The same, moved by the CPU.
fn staged(mut pass: serde_json::Value) -> serde_json::Value {
    pass["engines"][0]["engine"] = "staged".into();
    pass
}

/// The machine as a container of its.
pub fn contained(tree: &mut Tree) -> &mut Tree {
    tree.file("/.dockerenv", "");
    tree
}

/// A process 7 that moves bytes of /data/file.
pub fn running<'a>(tree: &'a mut Tree, program: &str) -> &'a mut Tree {
    tree.file("/proc/7/cmdline", program.replace(' ', "\0") + "\0")
        .file("/proc/7/status", "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-1\n")
        .file("/proc/7/limits", "Max locked memory         unlimited            unlimited            bytes\n")
        .file("/proc/7/environ", "HOME=/\0")
        .file("/proc/7/cgroup", "0::/user.slice\n")
        .file("/proc/7/maps", "7f00 r-xp 0 0:0 0 /usr/lib/libc.so.6\n")
        .link("/proc/7/fd/3", "/data/file")
        .file("/proc/7/fdinfo/3", format!("pos:\t0\nflags:\t0{:o}\n", libc::O_DIRECT));
    for name in ["mountinfo", "mountstats"] {
        tree.link(&format!("/proc/7/{name}"), &format!("/proc/self/{name}"));
    }
    tree
}

const MOUNTS: &str = "/proc/self/mountinfo";

/// A mount of a file system at /far, which is looked at.
fn mounted(t: &mut Tree, line: &str) -> DoctorOptions {
    t.append(MOUNTS, &format!("43 27 {line}\n")).dir("/far");
    asked("/far")
}

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
pub fn beside(case: &Case) -> &'static [&'static str] {
    match (case.id, case.what) {
        ("no-gpu-device" | "no-uvm" | "nvidia-fs" | "no-verbs" | "small-shm", what)
            if !what.contains("module not") =>
        {
            &["container"]
        }
        ("buffered" | "udev", _) => &["libcufile"],
        ("libcufile-copies", _) => &["no-counters"],
        ("cufile-json" | "config-invalid" | "transfer-type" | "gpu-index", what)
            if !what.contains("saved") =>
        {
            &["no-counters"]
        }
        _ => &[],
    }
}
