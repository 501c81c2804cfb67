//! `forebay s3` with whole trees: what changes meanwhile, what is in the way, what cannot be read, servers that answer wrongly.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::support::objects::{Here, lines};
use fake_s3::{Asked, Fault};
use serde_json::Value;

#[test]
fn a_reply_about_other_keys_is_an_error() {
    let here = Here::new();
    for key in ["a/1", "a/2"] {
        here.server.put("bkt", key, "x");
    }
    let body = "<DeleteResult><Error><Key>xü</Key><Code>InternalError</Code></Error></DeleteResult>";
    here.server.fault_always(Asked::DeleteMany, Fault::Body(200, body.into()));
    let said = here.run("s3 rm --recursive s3://bkt/a").fails(1, "a key that it was not to remove");
    assert!(said.out.is_empty() && said.err.contains("0 files, 0 B in"), "{}{}", said.out, said.err);
    assert!(said.err.contains("2 failed"), "{}", said.err);
}

#[test]
fn keys_that_were_not_asked_for_are_not_removed() {
    let here = Here::new();
    here.server.put("bkt", "a/zzz/other", "x");
    let body = "<ListBucketResult><Contents><Key>zzz/other</Key><Size>1</Size></Contents></ListBucketResult>";
    here.server.fault_always(Asked::List, Fault::Body(200, body.into()));
    for more in ["", " --dryrun"] {
        let said = here.run(&format!("s3 rm --recursive s3://bkt/a{more}"));
        assert_eq!(said.fails(1, "lists keys that were not asked for").out, "");
    }
    assert_eq!(here.server.keys("bkt"), ["a/zzz/other"]);
}

#[test]
fn keys_that_xml_has_not_are_removed_one_by_one() {
    let here = Here::new();
    for number in 0..20 {
        here.server.put("bkt", &format!("a/{number}"), "x");
    }
    here.server.put("bkt", "a/\u{1}", "x");
    here.server.put("bkt", "a/folder/", "");
    here.run("s3 rm --recursive s3://bkt/a").ok();
    assert_eq!(here.server.keys("bkt"), [""; 0]);
    assert_eq!((here.server.requests(Asked::DeleteMany), here.server.requests(Asked::Delete)), (1, 1));
    // Each that was not removed counts.
    for number in 0..20 {
        here.server.put("bkt", &format!("a/{number}"), "x");
    }
    here.server.fault_always(Asked::DeleteMany, Fault::Error(403, "AccessDenied", None));
    let said = here.run("s3 rm --recursive s3://bkt/a").fails(1, "access denied");
    assert!(said.err.contains("20 failed"), "{}", said.err);
}

#[test]
fn one_object_is_removed_by_its_name() {
    let here = Here::new();
    here.server.put("bkt", "k", "x");
    here.server.fault_once(Asked::Delete, 0, Fault::Error(403, "AccessDenied", None));
    here.run("s3 rm s3://bkt/k").fails(1, "s3://bkt/k");
    let said = here.run("s3 rm s3://bkt/k").ok();
    assert!(said.err.contains("rm: 1 file, "), "{}", said.err);
    assert_eq!(here.server.requests(Asked::DeleteMany), 0);
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_sent_again() {
    let here = Here::new();
    here.write("from/f", b"AAAA");
    let path = here.path().join("from/f");
    let file = path.clone();
    here.server.faults(move |seen| {
        if seen.asked == Asked::Put && seen.before == 0 {
            fs::write(&file, "BBBB").unwrap();
        }
        None
    });
    here.run("s3 sync from s3://bkt").ok();
    assert_eq!(here.server.get("bkt", "f").unwrap(), b"BBBB");
    // One that never rests.
    let mut bytes = b"CCCC".to_vec();
    here.server.faults(move |seen| {
        if seen.asked == Asked::Put {
            bytes.push(b'C');
            fs::write(&path, &bytes).unwrap();
        }
        None
    });
    here.write("from/f", b"of another length");
    let said = here.run("s3 sync from s3://bkt").fails(1, "the file is written while it is sent");
    assert!(said.err.contains("1 failed"), "{}", said.err);
}

#[test]
fn keys_take_the_places_of_folders_and_files() {
    let here = Here::new();
    here.server.put("bkt", "key/a", "the key");
    here.server.put("bkt", "key/b", "b");
    here.server.put("bkt", "folder/a/x", "below");
    here.write("one/a/deep/x", b"x");
    here.write("one/gone/deep/x", b"x");
    fs::create_dir_all(here.path().join("one/b")).unwrap();
    here.run("s3 sync s3://bkt/key one --delete").ok();
    assert_eq!((here.read("one/a"), here.read("one/b")), (b"the key".to_vec(), b"b".to_vec()));
    assert!(!here.path().join("one/gone").exists(), "an empty folder is left");
    here.write("two/a", b"a file");
    here.run("s3 sync s3://bkt/folder two --delete").ok();
    assert_eq!(here.read("two/a/x"), b"below");
    for args in ["s3 sync s3://bkt/key one --delete", "s3 sync s3://bkt/folder two --delete"] {
        assert_eq!(here.run(args).ok().out, "", "{args}");
    }
    // Nothing is taken away without --delete.
    here.run("s3 sync s3://bkt/folder one").fails(1, "a file has the name of a folder");
    assert_eq!(here.read("one/a"), b"the key");
}

#[test]
fn names_that_cannot_be_read_do_not_keep_the_others_back() {
    let here = Here::new();
    for name in ["a", "z"] {
        here.write(&format!("from/{name}"), name.as_bytes());
    }
    symlink("nowhere", here.path().join("from/m")).unwrap();
    for key in ["0", "b", "zz"] {
        here.server.put("bkt", key, "x");
    }
    let said = here.run("s3 sync from s3://bkt --delete").fails(1, "cannot look at the file");
    assert!(said.err.contains("1 failed"), "{}", said.err);
    // Where the source is not known as a whole, nothing is known to be gone.
    assert_eq!(here.server.keys("bkt"), ["a", "b", "z", "zz"]);
    here.run("s3 cp --recursive from s3://bkt/copy").fails(1, "cannot look at the file");
    assert_eq!(here.server.keys("bkt"), ["a", "b", "copy/a", "copy/z", "z", "zz"]);
    // In the destination a link that leads nowhere is no file.
    here.write("to/a", b"old");
    symlink("nowhere", here.path().join("to/m")).unwrap();
    here.run("s3 sync s3://bkt/copy to --delete").ok();
    assert_eq!(here.read("to/a"), b"a");
}

#[test]
fn a_destination_that_cannot_be_made_ends_the_command() {
    let here = Here::new();
    for number in 0..100 {
        here.server.put("bkt", &format!("a/{number}"), "x");
    }
    here.write("file", b"x");
    let said = here.run("s3 sync s3://bkt/a file/below").fails(1, "cannot create the directory");
    assert_eq!(said.err.matches("cannot create the directory").count(), 1, "{}", said.err);
    assert!(said.err.contains("the rest was not tried"), "{}", said.err);
    assert_eq!(here.server.requests(Asked::Get), 0);
}

#[test]
fn files_of_some_megabytes_go_together() {
    let here = Here::new();
    for number in 0..16 {
        here.server.put_pattern("bkt", &format!("medium/{number}"), 2 << 20);
        here.server.put_pattern("bkt", &format!("long/{number}"), 6 << 20);
    }
    here.server.faults(|seen| {
        let is_of_object = matches!(seen.asked, Asked::Get | Asked::Head);
        is_of_object.then_some(Fault::Late(Duration::from_millis(100)))
    });
    here.run("s3 sync s3://bkt/medium medium").ok();
    assert_eq!((here.server.requests(Asked::Head), here.server.requests(Asked::Get)), (0, 16));
    assert!(here.server.most_under_way() >= 8, "{}", here.server.most_under_way());
    here.run("s3 sync s3://bkt/long long").ok();
    assert_eq!(here.server.requests(Asked::Head), 0, "the length is asked for, which is known");
    assert!(here.read("long/3").len() == 6 << 20);
}

#[test]
fn no_key_is_an_error_or_a_note() {
    let here = Here::new();
    here.server.put("bkt", "k", "x");
    here.run("s3 cp --recursive s3://bkt/k to").fails(1, "no key begins with it");
    for args in ["s3 sync s3://bkt/none to", "s3 rm --recursive s3://bkt/none"] {
        let said = here.run(args).ok();
        assert!(said.err.contains("note: no key begins with s3://bkt/none/\n"), "{}", said.err);
    }
    here.write("file", b"x");
    here.run("s3 cp --recursive file s3://bkt/x").fails(1, "the source is no directory");
}

#[test]
fn markers_of_folders_are_not_in_them() {
    let here = Here::new();
    here.server.put("bkt", "m/", "");
    assert_eq!(here.run("s3 ls s3://bkt/m/").ok().out, "");
    here.server.put("bkt", "m/x", "x");
    assert_eq!(here.run("s3 ls s3://bkt/m/").ok().out.lines().count(), 1);
    assert_eq!(here.run("s3 ls s3://bkt/m/ --recursive").ok().out.lines().count(), 2);
}

#[test]
fn buckets_are_destinations_and_objects_are_not_their_own() {
    let here = Here::new();
    here.write("small", b"x");
    here.run("cp small s3://bkt").ok();
    here.run("cp small s3://bkt/folder/").ok();
    assert_eq!(here.server.keys("bkt"), ["folder/small", "small"]);
    for args in
        ["cp s3://bkt/small s3://bkt/small", "s3 cp s3://bkt/small s3://bkt", "cp s3://bkt/small S3://bkt"]
    {
        here.run(args).fails(1, "the same object");
    }
    here.run("s3 cp s3://bkt/small -").fails(2, "standard output cannot be named here");
    here.run("s3 cp - s3://bkt/x").fails(2, "standard input cannot be named here");
    here.run("cp s3://bkt/folder copy").fails(1, "it is a folder");
    assert!(!here.path().join("-").exists());
}

#[test]
fn each_line_has_a_form_in_json() {
    let here = Here::new();
    here.write("small", b"abc");
    let line = |args: &str, action: &str| {
        let out = here.run(args).ok().out;
        let value: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["action"], action, "{out}");
        value
    };
    assert_eq!(line("s3 cp small s3://bkt --json", "upload")["destination"], "s3://bkt/small");
    assert_eq!(line("s3 cp s3://bkt/small copy --json", "download")["bytes"], 3);
    assert_eq!(line("s3 cp s3://bkt/small s3://bkt/x --json --dryrun", "copy")["dryrun"], true);
    here.server.fault_always(Asked::Put, Fault::Error(403, "AccessDenied", None));
    let said = here.run("s3 sync . s3://bkt/tree --json --exclude copy").fails(1, "access denied");
    let value: Value = serde_json::from_str(lines(&said.out)[0]).unwrap();
    assert!(
        value["action"] == "fail" && value["error"].as_str().unwrap().contains("access denied"),
        "{value}"
    );
    assert!(value["hints"].as_array().is_some_and(|hints| !hints.is_empty()), "{value}");
}

#[test]
fn an_interrupted_probe_leaves_no_object() {
    let here = Here::new();
    here.server.put("bkt", "k", "x");
    here.server.faults(|seen| {
        (seen.asked == Asked::Part).then_some(Fault::SlowRequest(1 << 20, Duration::from_millis(100)))
    });
    here.interrupt("s3 probe s3://bkt/k --write", Asked::Part, 1);
    assert_eq!(here.server.keys("bkt"), ["k"]);
}

#[test]
fn a_bench_does_not_write_objects() {
    let here = Here::new();
    here.server.put("bkt", "k", vec![0; 1 << 20]);
    let said = here.run("bench -P s3://bkt/k -I 1 -x 0 -s 1M -i 64K -T 1");
    assert!(!said.fails(1, "objects are not written in place").err.contains("--overwrite"));
    here.run("bench -D s3://bkt/k -I 0 -x 0 -w 2").fails(2, "-P s3://BUCKET/KEY");
}
