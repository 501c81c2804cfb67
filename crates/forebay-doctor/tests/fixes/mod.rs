//! Fixes as they are printed, typed on copies of what they change.

use std::path::Path;
use std::process::Command;

use forebay_doctor::{DoctorOptions, RootedSystem, diagnose, gpu};

use crate::trees::{NFS_LINE, Tree, healthy};

const MOUNTS: &str = "/proc/self/mountinfo";

/// The fix of a finding in a tree that lies in `root`.
fn fix(tree: &Tree, root: &Path, id: &str) -> String {
    tree.write(root);
    let system = RootedSystem::new(root);
    let report = diagnose(&system, &gpu::by_files(&system), &DoctorOptions::default()).unwrap();
    let found = report.findings.into_iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("no {id}")).fix.unwrap()
}

/// Types it below `root`, and has what it prints. What needs a system is a function that does nothing.
fn typed(fix: &str, root: &Path) -> String {
    let here = fix.replace("/etc/", &format!("{}/etc/", root.display()));
    let script = format!("set -e; sudo() {{ \"$@\"; }}; systemctl() {{ :; }}; mount() {{ :; }}; {here}");
    let done = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(done.status.success(), "{here}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The words that a shell makes of the command that begins with these.
fn words(fix: &str, start: &str) -> Vec<String> {
    let command = &fix[fix.find(start).unwrap()..];
    let script = format!("sudo() {{ printf '%s\\n' \"$@\"; }}; {command}");
    let done = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_port_goes_into_the_options_of_that_mount_alone() {
    let before = "# 10.0.0.1:/e /mnt/rdma nfs proto=rdma 0 0\n\
                  rdma-srv:/rdma /mnt/rdma nfs vers=4.0,proto=rdma,_netdev 0 0\n\
                  rdma-srv:/x /mnt/rdma2 nfs proto=rdma,port=20049 0 0\n\
                  rdma-srv:/y /mntXrdma nfs proto=rdma,noauto 0 0 # rdma\n";
    let dir = tempfile::tempdir().unwrap();
    let tree = healthy().file("/etc/fstab", before).clone();
    let fix = fix(&tree, dir.path(), "nfs-port");
    typed(&fix, dir.path());
    let after = std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap();
    let wanted = before.replace("proto=rdma,_netdev", "proto=rdma,port=20049,_netdev");
    assert_eq!(after, wanted, "{fix}");
    // Typed again it changes nothing.
    typed(&fix, dir.path());
    assert_eq!(std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap(), wanted, "{fix}");
}

#[test]
fn other_spellings_of_the_option_and_of_the_point() {
    for (before, after) in [
        ("s:/e /mnt/a\\040b.c nfs rdma 0 0\n", "s:/e /mnt/a\\040b.c nfs rdma,port=20049 0 0\n"),
        (" s:/e\t/mnt/x+y\tnfs4\trdma,vers=3\t0 0\n", " s:/e\t/mnt/x+y\tnfs4\trdma,port=20049,vers=3\t0 0\n"),
        ("s:/e /it's nfs vers=3,proto=rdma6\n", "s:/e /it's nfs vers=3,proto=rdma6,port=20049\n"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fix = fix(healthy().file("/etc/fstab", before), dir.path(), "nfs-port");
        typed(&fix, dir.path());
        assert_eq!(std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap(), after, "{fix}");
    }
}

#[test]
fn in_a_unit_only_its_options_change() {
    let before = "[Unit]\nDescription=data over rdma\n[Mount]\nWhat=rdma-srv:/rdma\nWhere=/mnt/rdma\nType=nfs\n\
                  # Options=rdma\nOptions=vers=4.0,proto=rdma,hard\n";
    let place = "/etc/systemd/system/mnt-a\\x2drdma.mount";
    let dir = tempfile::tempdir().unwrap();
    let tree = healthy().without("/etc/fstab").file(place, before).clone();
    let fix = fix(&tree, dir.path(), "nfs-port");
    typed(&fix, dir.path());
    let after = std::fs::read_to_string(dir.path().join(&place[1..])).unwrap();
    assert_eq!(after, before.replace("proto=rdma,hard", "proto=rdma,port=20049,hard"), "{fix}");
}

#[test]
fn mounting_again_keeps_all_other_options() {
    let line = "41 27 0:50 / /mnt/a\\040b ro,nosuid,noexec,noatime - nfs4 srv:/e\\040f \
                ro,seclabel,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,soft,proto=tcp,timeo=100,retrans=5,sec=krb5p,\
                context=\"u:r:t:s0:c1,c2\",clientaddr=10.0.0.2,addr=10.0.0.1\n";
    let mut tree = healthy();
    tree.replace(MOUNTS, NFS_LINE, line).without("/etc/fstab").dir("/mnt/a b");
    let dir = tempfile::tempdir().unwrap();
    let fix = fix(&tree, dir.path(), "nfs-not-rdma");
    let options = "vers=4.0,proto=rdma,port=20049,ro,rsize=1048576,wsize=1048576,soft,timeo=100,retrans=5,sec=krb5p,\
                   context=\"u:r:t:s0:c1,c2\",nosuid,noexec,noatime";
    assert_eq!(words(&fix, "sudo mount"), ["mount", "-t", "nfs", "-o", options, "srv:/e f", "/mnt/a b"]);
    assert!(fix.starts_with("sudo umount '/mnt/a b' && "), "{fix}");
}

#[test]
fn a_mount_by_hand_is_written_down_as_it_is() {
    let line = "41 27 0:50 / /mnt/a\\040b rw,nosuid,relatime - nfs srv:/e#f \
                ro,vers=3,rsize=1048576,wsize=1048576,hard,nolock,proto=rdma,sec=krb5,mountaddr=10.0.0.1,addr=10.0.0.1\n";
    let mut tree = healthy();
    tree.replace(MOUNTS, NFS_LINE, line).file("/etc/fstab", "# none\n").dir("/mnt/a b");
    let dir = tempfile::tempdir().unwrap();
    let fix = fix(&tree, dir.path(), "mount-by-hand");
    let written = "srv:/e\\043f /mnt/a\\040b nfs port=20049,mountproto=tcp,ro,vers=3,rsize=1048576,wsize=1048576,hard,\
                   nolock,proto=rdma,sec=krb5,nosuid,_netdev 0 0\n";
    assert_eq!(typed(&fix, dir.path()), written);
    let fstab = std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap();
    assert_eq!(fstab, format!("# none\n{written}"));
    // What it wrote is found.
    let system = RootedSystem::new(dir.path());
    let report = diagnose(&system, &gpu::by_files(&system), &DoctorOptions::default()).unwrap();
    let ids: Vec<&str> = report.findings.iter().map(|finding| finding.id).collect();
    assert!(!ids.contains(&"mount-missing"), "{ids:?}");
}

#[test]
fn a_version_changes_in_its_line_alone() {
    let before = "# vers=4.2\n\n10.0.0.1:/x /x nfs vers=4.2,noauto 0 0\n10.0.0.1:/e /nfs nfs proto=rdma,port=20049,vers=4.2 0 0\n";
    let dir = tempfile::tempdir().unwrap();
    let mut tree = healthy();
    tree.replace(MOUNTS, NFS_LINE, "").file("/etc/fstab", before);
    let fix = fix(&tree, dir.path(), "mount-missing");
    let command = fix.split_once("there: ").unwrap().1;
    assert_eq!(command, "sudo sed -i '4s/vers=4\\.2/vers=4.0/' /etc/fstab && sudo mount /nfs");
    typed(command, dir.path());
    let after = std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap();
    assert_eq!(after, before.replace("port=20049,vers=4.2", "port=20049,vers=4.0"));
}

#[test]
fn a_server_s_port_goes_below_its_section() {
    for (before, after) in [
        (Some("[general]\n[nfsd]\n# rdma=n\n"), "[general]\n[nfsd]\nrdma=y\nrdma-port=20049\n# rdma=n\n"),
        (Some("[general]\n"), "[general]\n[nfsd]\nrdma=y\nrdma-port=20049\n"),
        (None, "[nfsd]\nrdma=y\nrdma-port=20049\n"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = healthy();
        tree.file("/proc/fs/nfsd/portlist", "tcp 2049\n");
        if let Some(before) = before {
            tree.file("/etc/nfs.conf", before);
        }
        let fix = fix(&tree, dir.path(), "nfs-server-port");
        typed(fix.split_once("for good: ").unwrap().1, dir.path());
        assert_eq!(std::fs::read_to_string(dir.path().join("etc/nfs.conf")).unwrap(), after, "{fix}");
    }
}

#[test]
fn the_kernel_gets_an_argument_more() {
    let grub = "\n# GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"console=ttyS0\"\n";
    let dir = tempfile::tempdir().unwrap();
    let mut tree = healthy();
    tree.file("/etc/default/grub", grub).file("/sys/class/iommu/dmar0/name", "");
    tree.file("/sys/kernel/iommu_groups/7/type", "DMA-FQ\n");
    let fix = fix(&tree, dir.path(), "iommu");
    let (command, rest) = fix.split_once(" && ").unwrap();
    assert_eq!(rest, "sudo update-grub && sudo reboot");
    typed(command, dir.path());
    let after = std::fs::read_to_string(dir.path().join("etc/default/grub")).unwrap();
    assert_eq!(after, grub.replace("\"console", "\"iommu=pt console"), "{fix}");
}
