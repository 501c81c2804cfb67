//! What a descriptor allows each process that has it: its receiver, a process that it was passed to, root, the file's owner.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use forebay_gateway::AccountEntry;

use crate::node::{
    FileReply, Node, as_user, can_be_another_user, has_views, path_only, reopened_for_writing,
    without_mounts, without_namespaces,
};
use crate::served::{KEY, SECRET};
use crate::writes::Steps;

/// Whom an account with a user of its own acts for.
const THEIRS: u32 = 1000;
const OTHER: u32 = 12_345;

/// A gateway with an account of its own user, one of another user, and one that may only read.
fn node() -> Node {
    let theirs = AccountEntry {
        uid: Some(THEIRS),
        gid: Some(THEIRS),
        directory: "theirs".into(),
        ..AccountEntry::new("theirs", SECRET)
    };
    let reader = AccountEntry { read_only: true, ..AccountEntry::new("reader", SECRET) };
    let node = Node::with(vec![AccountEntry::new(KEY, SECRET), theirs, reader]);
    let bucket = node.directory.path().join("theirs/bucket");
    std::fs::create_dir_all(&bucket).unwrap();
    std::os::unix::fs::chown(&bucket, Some(THEIRS), Some(THEIRS)).unwrap();
    node
}

/// With the right to mount, and without.
fn nodes() -> Vec<(bool, Node)> {
    let mut nodes = vec![(false, without_mounts(node))];
    if has_views() {
        nodes.push((true, node()));
    }
    nodes
}

/// Accounts, and where their objects lie.
fn accounts(node: &Node) -> [(&'static str, PathBuf); 2] {
    [(KEY, node.path("k")), ("theirs", node.directory.path().join("theirs/bucket/k"))]
}

/// Has processes of each user try to write by a descriptor that they have.
fn try_to_write(file: &File) {
    for uid in [0, THEIRS, OTHER] {
        as_user(uid, || {
            let _ = std::fs::set_permissions(
                format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)),
                std::fs::Permissions::from_mode(0o666),
            );
            if let Ok(again) = reopened_for_writing(file) {
                let _ = again.write_all_at(b"WRONG", 0);
            }
        });
    }
}

#[test]
fn nobody_writes_by_a_descriptor_that_reads() {
    if !can_be_another_user() {
        eprintln!("skipped: another user needs root");
        return;
    }
    for (mounts, node) in nodes() {
        for (key, path) in accounts(&node) {
            std::fs::write(&path, b"bytes").unwrap();
            std::os::unix::fs::chown(&path, Some(if key == KEY { 0 } else { THEIRS }), None).unwrap();
            for mode in [0o600, 0o644, 0o666] {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
                // The key that only reads sees the file of the first.
                for key in [key].into_iter().chain((key == KEY).then_some("reader")) {
                    for peer in [0, THEIRS, OTHER] {
                        let ask = || node.ask("GET", "/bucket/k", key, &[("x-forebay-file", "read")]);
                        let FileReply { status, text, file } = as_user(peer, ask);
                        // Without mounts it depends on the machine.
                        assert!(status == 200 || (!mounts && text.contains("NotByFile")), "{text}");
                        let Some(file) = file else { continue };
                        try_to_write(&file);
                        try_to_write(&path_only(&file));
                        assert_eq!(std::fs::read(&path).unwrap(), b"bytes", "{key} {peer} {mode:o}");
                    }
                }
            }
        }
    }
}

#[test]
fn nobody_writes_an_object_by_what_is_left_of_its_draft() {
    if !can_be_another_user() {
        eprintln!("skipped: another user needs root");
        return;
    }
    for (mounts, node) in nodes() {
        for (key, path) in accounts(&node) {
            for peer in [0, THEIRS, OTHER] {
                let (kept, inode) = as_user(peer, || {
                    let steps = Steps::new(&node);
                    let begun = steps.put_as(key, "/bucket/k", &[("x-forebay-file", "write")]);
                    let file = begun.file.unwrap_or_else(|| panic!("{}", begun.text));
                    file.write_all_at(b"bytes", 0).unwrap();
                    let (kept, inode) = (path_only(&file), file.metadata().unwrap().ino());
                    drop(file);
                    let publish = [("x-forebay-file", "publish"), ("x-forebay-length", "5")];
                    let published = steps.put_as(key, "/bucket/k", &publish);
                    assert_eq!(published.status, 200, "{}", published.text);
                    (kept, inode)
                });
                try_to_write(&kept);
                assert_eq!(std::fs::read(&path).unwrap(), b"bytes", "{key} {peer}");
                let found = std::fs::metadata(&path).unwrap();
                assert_eq!(found.uid(), if key == KEY { 0 } else { THEIRS });
                // It is the very file where no process can open it for writing, and else a copy.
                assert_eq!(found.ino() == inode, mounts, "{key} {peer}");
            }
        }
    }
}

/// As packaging/forebay-s3.service.in has it: `RestrictNamespaces=user mnt`, no CAP_SYS_ADMIN.
#[test]
#[cfg(target_endian = "little")]
fn the_service_s_namespaces_are_enough_for_files_and_none_for_bytes() {
    let others = libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let status = |kinds| {
        let act = || {
            let node = Node::start();
            node.bucket.put("k", b"bytes").unwrap();
            assert_eq!(node.gateway.raw().get("/bucket/k").text(), "bytes");
            node.ask("GET", "/bucket/k", KEY, &[("x-forebay-file", "read")]).status
        };
        without_mounts(|| without_namespaces(kinds, act))
    };
    if without_mounts(lends) {
        assert_eq!(status(others), 200);
    }
    assert_eq!(status(others | libc::CLONE_NEWUSER | libc::CLONE_NEWNS), 409);
}

/// Whether a gateway hands out files without CAP_SYS_ADMIN: a container may forbid user namespaces, too.
fn lends() -> bool {
    let node = Node::start();
    node.bucket.put("k", b"bytes").unwrap();
    let lends = node.ask("GET", "/bucket/k", KEY, &[("x-forebay-file", "read")]).status == 200;
    if !lends {
        eprintln!("skipped: files without CAP_SYS_ADMIN need user namespaces");
    }
    lends
}
