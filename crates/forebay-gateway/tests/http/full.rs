//! File systems without room: a small tmpfs in a mount namespace of the test's own. What does not fit is refused by its name, and leaves
//! nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use forebay_gateway::AccountEntry;

use crate::served::raw::Raw;
use crate::served::{Gateway, KEY, SECRET, pattern};

const INSIDE: &str = "FOREBAY_TEST_FULL";
const MIB: usize = 1 << 20;

/// Runs a test again with a tmpfs of its own. `None`: this is the outside, and it has run, or cannot.
fn mounted(test: &str, options: &str) -> Option<std::path::PathBuf> {
    if let Some(dir) = std::env::var_os(INSIDE) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        // In a user namespace tmpfs has no quotas: root goes without.
        command.args(if is_root { &["-m"][..] } else { &["-Urm"] }).args(["sh", "-ec", script, "sh"]);
        command.arg(dir.path()).arg(std::env::current_exe().unwrap()).arg(test);
        command.env(INSIDE, dir.path());
        command
    };
    let mount = format!("mount -t tmpfs -o {options} tmpfs \"$1\"; chmod 755 \"$1\"");
    let tried = unshare(&mount).output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        let why = tried.map_or_else(
            |error| error.to_string(),
            |tried| String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
        );
        eprintln!("skipped: no tmpfs with {options}: {why}");
        return None;
    }
    let run = unshare(&format!("{mount}; exec \"$2\" --exact \"$3\" --nocapture")).status().unwrap();
    assert!(run.success(), "inside: {run}");
    None
}

/// Bytes that are free.
fn room(dir: &Path) -> u64 {
    let facts = rustix::fs::statvfs(dir).unwrap();
    facts.f_bfree * facts.f_frsize
}

#[test]
fn a_put_that_does_not_fit_leaves_the_old_object_and_the_room() {
    let Some(dir) =
        mounted("full::a_put_that_does_not_fit_leaves_the_old_object_and_the_room", "size=16m,mode=755")
    else {
        return;
    };
    let gateway = Gateway::below(&dir, vec![AccountEntry::new(KEY, SECRET)]);
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let old = pattern(MIB);
    assert_eq!(raw.put("/bkt/k", &old).status, 200);
    let before = room(&dir);
    for round in 0..3 {
        let reply = raw.put("/bkt/k", &pattern(20 * MIB));
        // A server that answers early may close before the client has sent all.
        assert!(reply.status == 0 || (reply.status, reply.code().as_str()) == (507, "InsufficientStorage"));
        assert!(raw.get("/bkt/k").body == old, "round {round}");
        // Smaller ones see the reply for certain.
        let most = room(&dir) as usize + 4096;
        let reply = raw.put("/bkt/k", &pattern(most));
        assert_eq!((reply.status, reply.code().as_str()), (507, "InsufficientStorage"), "{}", reply.text());
        assert!(raw.get("/bkt/k").body == old, "round {round}");
        assert_eq!(room(&dir), before, "round {round}");
    }
    assert_eq!(raw.put("/bkt/other", b"fits").status, 200);
}

#[test]
fn a_complete_that_does_not_fit_leaves_the_upload_whole() {
    let Some(dir) =
        mounted("full::a_complete_that_does_not_fit_leaves_the_upload_whole", "size=24m,mode=755")
    else {
        return;
    };
    let gateway = Gateway::below(&dir, vec![AccountEntry::new(KEY, SECRET)]);
    gateway.bucket("bkt");
    let raw = gateway.raw();
    assert_eq!(raw.put("/bkt/k", b"old").status, 200);
    let id = raw.ask("POST", "/bkt/k?uploads", &[], b"").between("UploadId");
    let bytes = [pattern(7 * MIB), vec![3; 7 * MIB]];
    // With a gap between them: they are copied to the object's file.
    let mut parts = String::new();
    for (number, bytes) in [2, 9].into_iter().zip(&bytes) {
        let reply = raw.put(&format!("/bkt/k?partNumber={number}&uploadId={id}"), bytes);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let etag = reply.header("etag").unwrap();
        write!(parts, "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>").unwrap();
    }
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let complete = || raw.ask("POST", &format!("/bkt/k?uploadId={id}"), &[], body.as_bytes());
    let before = room(&dir);
    for _ in 0..2 {
        let reply = complete();
        assert_eq!((reply.status, reply.code().as_str()), (507, "InsufficientStorage"), "{}", reply.text());
        assert_eq!(raw.get("/bkt/k").text(), "old");
        assert_eq!(room(&dir), before);
    }
    // With more room it ends.
    let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&dir).status().unwrap();
    if !grown.success() {
        return eprintln!("skipped: more room for a full disk needs root");
    }
    let reply = complete();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(raw.get("/bkt/k").body == bytes.concat());
}

#[test]
fn an_account_s_quota_holds() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: an account with a user of its own needs root");
        return;
    }
    let options = "size=64m,mode=755,usrquota,usrquota_block_hardlimit=8m";
    let Some(dir) = mounted("full::an_account_s_quota_holds", options) else { return };
    let mut entry = AccountEntry::new("ana", SECRET);
    (entry.uid, entry.gid) = (Some(12345), Some(12345));
    let gateway = Gateway::below(&dir, vec![AccountEntry::new(KEY, SECRET), entry]);
    gateway.bucket("bkt");
    std::os::unix::fs::chown(gateway.directory().join("bkt"), Some(12345), Some(12345)).unwrap();
    let ana = Raw::new(gateway.address, "ana", SECRET);
    assert_eq!(ana.put("/bkt/k", &pattern(4 * MIB)).status, 200);
    let reply = ana.put("/bkt/more", &pattern(5 * MIB));
    assert_eq!((reply.status, reply.code().as_str()), (507, "InsufficientStorage"), "{}", reply.text());
    assert_eq!(ana.put("/bkt/small", &pattern(MIB)).status, 200);
    assert!(ana.get("/bkt/k").body == pattern(4 * MIB));
}
