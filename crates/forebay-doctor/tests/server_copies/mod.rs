//! NFS servers by files that were collected there.

use std::process::{Command, Stdio};

use forebay_doctor::finding::{Finding, Severity};
use forebay_doctor::system::{COLLECT, CollectedFiles};
use forebay_doctor::{DoctorOptions, RootedSystem, ServerCopy, System};

use crate::look;
use crate::trees::{PORT, Tree, healthy};

/// What the doctor says of a server beside a healthy client.
fn of_server(tree: &Tree, more: &str) -> Vec<Finding> {
    let files = CollectedFiles::parse(&(more.to_owned() + &tree.printed())).unwrap();
    let server = ServerCopy { host: "root@nfs1".to_owned(), machine: RootedSystem::collected(files) };
    let report = look(&healthy(), &DoctorOptions { servers: vec![server], ..DoctorOptions::default() });
    assert_eq!(report.servers, ["root@nfs1"]);
    let found: Vec<Finding> =
        report.findings.into_iter().filter(|finding| finding.severity > Severity::Ok).collect();
    assert!(found.iter().all(|finding| finding.host.as_deref() == Some("root@nfs1")), "{found:#?}");
    found
}

fn ids(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.id).collect()
}

fn server() -> Tree {
    let mut tree = healthy();
    tree.append("/proc/self/mountinfo", "42 27 0:40 / /ram rw - tmpfs tmpfs rw\n");
    tree.file("/proc/fs/nfsd/portlist", "rdma 20049\ntcp 2049\n").file("/var/lib/nfs/etab", "/ram\t*(rw)\n");
    tree
}

#[test]
fn a_healthy_server_has_no_finding() {
    assert_eq!(of_server(&server(), "Welcome to nfs1\n\n"), []);
}

#[test]
fn what_clients_wait_for_is_found_there() {
    let tree = server()
        .file("/proc/fs/nfsd/portlist", "tcp 2049\n")
        .file("/etc/nfs.conf", "\n[general]\n[nfsd]\n# rdma=n\n")
        .file("/var/lib/nfs/etab", "/data\t*(rw)\n")
        .file("/sys/devices/pci0000:1a/0000:1c:00.0/nvme/nvme1/nvme1n1/queue/scheduler", "[bfq] none\n")
        .file("/sys/class/net/ens1/mtu", "1500\n")
        .clone();
    let found = of_server(&tree, "");
    assert_eq!(ids(&found), ["scheduler", "nfs-server-port", "export-not-tmpfs", "mtu"], "{found:#?}");
    let fix = found[1].fix.as_deref().unwrap();
    assert!(fix.ends_with("sudo sed -i '3a rdma=y\\nrdma-port=20049' /etc/nfs.conf"), "{fix}");
    assert_eq!(found[3].evidence[1], "root@nfs1: /sys/class/net/ens1/mtu: 1500");
}

#[test]
fn a_link_that_is_down_blocks_a_server_that_listens_on_it() {
    let found = of_server(server().file(&format!("{PORT}/state"), "1: DOWN\n"), "");
    assert_eq!((ids(&found), found[0].severity), (vec!["rdma-link-down"], Severity::Blocks));
}

#[test]
fn a_machine_without_a_server_and_files_of_another_user() {
    let tree = server().without("/proc/fs/nfsd").clone();
    let found = of_server(&tree, "!/sos_commands/kernel/dmesg\n");
    assert_eq!(ids(&found), ["nfs-server-absent", "server-hidden"]);
    assert_eq!(found[1].fix.as_deref(), Some("--server ssh:root@nfs1"));
}

/// The script's functions on files of a test.
#[test]
fn a_file_whose_last_line_has_no_end_swallows_none_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name).display().to_string());
    std::fs::write(&one, "/data *(rw)\n\n/more *(ro)").unwrap();
    std::fs::write(&other, "").unwrap();
    let functions = COLLECT.split("\nwhole ").next().unwrap();
    let script = format!("{functions}\nwhole '{one}' '{other}'\necho .\n");
    let done = Command::new("sh").args(["-c", &script]).output().unwrap();
    let files = CollectedFiles::parse(&String::from_utf8_lossy(&done.stdout)).unwrap();
    let there = RootedSystem::collected(files);
    assert_eq!(there.read(&one).unwrap(), b"/data *(rw)\n\n/more *(ro)\n");
    assert_eq!(there.read(&other).unwrap(), b"");
}

/// The script itself, on this machine.
#[test]
fn this_machine_s_files_are_collected() {
    let done = Command::new("sh").args(["-c", COLLECT]).stderr(Stdio::null()).output().unwrap();
    let files = CollectedFiles::parse(&String::from_utf8_lossy(&done.stdout)).unwrap();
    let there = RootedSystem::collected(files);
    let here = RootedSystem::new("/");
    for path in ["/proc/sys/kernel/osrelease", "/proc/sys/kernel/hostname", "/sys/class/net/lo/mtu"] {
        assert_eq!(there.text(path), here.text(path), "{path}");
    }
    assert_eq!(there.list("/sys/class/block"), here.list("/sys/class/block"));
    for disk in there.list("/sys/class/block") {
        let path = format!("/sys/class/block/{disk}");
        assert_eq!(there.resolve(&path), here.resolve(&path));
        assert_eq!(there.text(&format!("{path}/dev")), here.text(&format!("{path}/dev")));
    }
    assert!(done.status.success());
}
