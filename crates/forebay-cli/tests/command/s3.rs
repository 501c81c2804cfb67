//! `forebay s3`, against a server in the process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::support::objects::{Here, lines};
use crate::support::{Done, finish, sample};
use fake_s3::{Asked, Fault};
use serde_json::Value;

#[test]
fn listings_are_those_that_users_know() {
    let here = Here::new();
    here.server.put("bkt", "a/one", vec![1; 1536]);
    here.server.put("bkt", "a/b/two", "xyz");
    here.server.put("bkt", "ü +%", "");
    let listed = |args: &str| {
        let out = here.run(args).ok().out;
        // Behind the time.
        let cut = |line: &str| line.get(19..).unwrap_or(line).trim_start().to_owned();
        out.lines().map(cut).collect::<Vec<_>>()
    };
    assert_eq!(listed("s3 ls"), ["bkt"]);
    assert_eq!(listed("s3 ls s3://bkt"), ["PRE a/", "0 ü +%"]);
    assert_eq!(listed("s3 ls s3://bkt/a/"), ["PRE b/", "1536 one"]);
    assert_eq!(listed("s3 ls s3://bkt/a/o --human-readable"), ["1.5 KiB one"]);
    assert_eq!(listed("s3 ls s3://bkt --recursive"), ["3 a/b/two", "1536 a/one", "0 ü +%"]);
    let out = here.run("s3 ls s3://bkt --recursive --json").ok().out;
    let all: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((all.len(), &all[2]["key"], &all[1]["bytes"]), (3, &"ü +%".into(), &1536.into()));
    assert!(all[0]["etag"].is_string() && all[0]["modified"].as_str().unwrap().ends_with('Z'));
    here.run("s3 ls s3://bkt/none").fails(1, "no key begins with it");
    here.run("s3 ls s3://missing-bucket/").fails(1, "no such bucket");
    here.run("s3 ls bkt").fails(2, "does not begin with s3://");
}

#[test]
fn files_are_copied_both_ways() {
    let here = Here::new();
    // One call; parts; none.
    for (name, len) in [("small", 100_000), ("long", (40 << 20) + 5), ("empty", 0)] {
        let path = sample(here.path(), name, len);
        let bytes = std::fs::read(path).unwrap();
        here.run(&format!("s3 cp {name} s3://bkt/to/ --verify")).ok();
        assert!(here.server.get("bkt", &format!("to/{name}")).unwrap() == bytes, "{name}");
        here.run(&format!("s3 cp s3://bkt/to/{name} copy --verify")).ok();
        assert!(here.read("copy") == bytes, "{name}");
        here.run(&format!("cp s3://bkt/to/{name} s3://bkt/again")).ok();
        assert!(here.server.get("bkt", "again").unwrap() == bytes, "{name}");
    }
    assert_eq!(here.server.open_uploads(), 0);
    // Through host memory unless a device is named: a driver is not asked for.
    assert!(!here.run("cp small s3://bkt/x").ok().err.contains("no GPU in use"));
    assert!(here.run("cp small s3://bkt/x -d 0").ok().err.contains("no GPU in use"));
    here.run("s3 rm s3://bkt/x").ok();
    let before = here.server.requests(Asked::Get);
    here.run("s3 cp s3://bkt/to/long s3://bkt/copy").ok();
    assert!(here.server.get("bkt", "copy") == here.server.get("bkt", "to/long"));
    assert_eq!(here.server.requests(Asked::Get), before, "the server copies by itself");
    here.run("s3 cp s3://bkt/none x").fails(1, "no such object");
    here.run("s3 cp none s3://bkt/x").fails(1, "cannot open file");
    here.run("s3 cp small other").fails(2, "neither source nor destination");
    here.run("s3 cp small s3://missing-bucket/x").fails(1, "no such bucket");
    assert!(!here.path().join("x").exists() && here.server.get("bkt", "x").is_none());
}

#[test]
fn a_second_sync_moves_nothing() {
    let here = Here::new();
    for name in ["a", "a b/ü+%", "c/d/e", "skip.tmp"] {
        here.write(&format!("from/{name}"), name.as_bytes());
    }
    sample(here.path(), "from/long", 3 << 20);
    let said = here.run("s3 sync from s3://bkt/p --exclude *.tmp").ok();
    assert_eq!(lines(&said.out).len(), 4, "{}", said.out);
    assert!(said.out.contains("upload: from/c/d/e to s3://bkt/p/c/d/e\n"), "{}", said.out);
    assert_eq!(here.server.keys("bkt"), ["p/a", "p/a b/ü+%", "p/c/d/e", "p/long"]);
    assert!(here.server.get("bkt", "p/long").unwrap() == here.read("from/long"));
    let moves = here.moves();
    assert_eq!(here.run("s3 sync from s3://bkt/p --exclude *.tmp").ok().out, "");
    here.run("s3 sync s3://bkt/p to").ok();
    assert!(here.read("to/long") == here.read("from/long") && here.read("to/a b/ü+%") == b"a b/\xc3\xbc+%");
    let after = here.moves();
    assert!(after > moves);
    assert_eq!(here.run("s3 sync s3://bkt/p to").ok().out, "");
    assert_eq!(here.moves(), after, "a second run moves something");
    // One of another length, one too many.
    here.write("from/a", b"longer");
    std::fs::remove_file(here.path().join("from/long")).unwrap();
    let dry = here.run("s3 sync from s3://bkt/p --exclude *.tmp --delete --dryrun").ok().out;
    assert_eq!(lines(&dry), ["(dryrun) delete: s3://bkt/p/long", "(dryrun) upload: from/a to s3://bkt/p/a"]);
    assert_eq!(here.moves(), after);
    here.run("s3 sync from s3://bkt/p --exclude *.tmp --delete").ok();
    assert_eq!(here.server.keys("bkt"), ["p/a", "p/a b/ü+%", "p/c/d/e"]);
    assert_eq!(here.server.get("bkt", "p/a").unwrap(), b"longer");
    let json = here.run("s3 sync s3://bkt/p to --delete --json").ok().out;
    let all: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let actions: Vec<_> = all.iter().map(|one| one["action"].as_str().unwrap()).collect();
    assert!(actions.contains(&"download") && actions.contains(&"delete"), "{json}");
    assert!(!here.path().join("to/long").exists());
    here.run("s3 sync s3://bkt/p s3://bkt/q").ok();
    assert_eq!(here.server.get("bkt", "q/c/d/e").unwrap(), b"c/d/e");
}

#[test]
fn trees_are_copied_and_removed() {
    let here = Here::new();
    for number in 0..300 {
        here.write(&format!("tree/{}/{number}", number % 7), format!("{number}").as_bytes());
    }
    here.run("s3 cp tree s3://bkt/t --recursive --exclude 3/* --include 3/3").ok();
    assert_eq!(here.server.keys("bkt").len(), 300 - 43 + 1);
    here.run("s3 cp s3://bkt/t back --recursive").ok();
    assert_eq!(here.read("back/0/0"), b"0");
    // Keys that are no names of files are errors; the others are copied.
    here.server.put("bkt", "t/../../out", "x");
    here.server.put("bkt", "t/folder/", "");
    here.run("s3 cp s3://bkt/t again --recursive").fails(1, "the key is no name of a file");
    assert_eq!(here.read("again/0/0"), b"0");
    assert!(!here.path().join("out").exists() && !here.path().parent().unwrap().join("out").exists());
    here.run("s3 rm s3://bkt/t").ok();
    assert!(here.server.get("bkt", "t/0/0").is_some());
    here.run("s3 rm s3://bkt/t/0/0").ok();
    assert!(here.server.get("bkt", "t/0/0").is_none());
    let dry = here.run("s3 rm s3://bkt/t --recursive --dryrun").ok().out;
    assert_eq!(lines(&dry).len(), 259);
    here.run("s3 rm s3://bkt/t --recursive").ok();
    assert_eq!(here.server.keys("bkt"), [""; 0]);
    here.run("s3 rm s3://bkt").fails(2, "--recursive");
}

#[test]
fn what_fails_is_named_and_the_rest_is_done() {
    let here = Here::new();
    for name in ["1", "2", "3"] {
        here.write(&format!("from/{name}"), name.as_bytes());
    }
    here.server.faults(|seen| {
        (seen.asked == Asked::Put && seen.key == "2").then_some(Fault::Error(403, "AccessDenied", None))
    });
    let said = here.run("s3 sync from s3://bkt").fails(1, "access denied");
    assert!(said.err.contains("s3://bkt/2") && said.err.contains("1 failed"), "{}", said.err);
    assert_eq!(here.server.keys("bkt"), ["1", "3"]);
    here.server.no_faults();
    let mut wrong = here.command(&["s3", "ls", "s3://bkt/"]);
    wrong.env("AWS_SECRET_ACCESS_KEY", "not the secret");
    let said = finish(wrong).fails(1, "the signature is wrong");
    assert!(!said.err.contains("not the secret"), "{}", said.err);
}

#[test]
fn a_signed_url_is_read_by_anyone() {
    let here = Here::new();
    here.server.require_signatures();
    here.server.put("bkt", "a b/ü", "the bytes");
    let url = here.run("s3 presign s3://bkt/a%20b/ü --expires-in 60").ok().out;
    let path = url.trim().strip_prefix(&here.server.endpoint()).unwrap();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(here.server.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", here.server.address())
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let reply = get(path);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("the bytes"), "{reply}");
    assert!(get(&path.replace("Expires=60", "Expires=61")).starts_with("HTTP/1.1 403"));
    here.run("s3 presign s3://bkt/").fails(2, "names no object");
    let too_long = here.run("s3 presign s3://bkt/a --expires-in 604801");
    assert_eq!(too_long.code, Some(2));
}

#[test]
fn an_interrupted_upload_leaves_nothing() {
    let here = Here::new();
    sample(here.path(), "long", 100 << 20);
    here.server.faults(|seen| {
        (seen.asked == Asked::Part && seen.part > Some(2))
            .then_some(Fault::SlowRequest(1 << 20, Duration::from_millis(100)))
    });
    for args in ["s3 cp long s3://bkt/x", "s3 sync . s3://bkt/"] {
        here.interrupt(args, Asked::Part, 2);
        let ended = Instant::now();
        while here.server.open_uploads() > 0 {
            assert!(ended.elapsed() < Duration::from_secs(5), "{args}: parts are left");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(here.server.keys("bkt"), [""; 0], "{args}");
    }
}

#[test]
fn an_interrupted_copy_of_the_server_ends() {
    let here = Here::new();
    here.server.put("bkt", "a", "a");
    here.server.fault_always(Asked::Copy, Fault::Late(Duration::from_secs(10)));
    let began = Instant::now();
    here.interrupt("s3 cp s3://bkt/a s3://bkt/b", Asked::Copy, 1);
    assert!(began.elapsed() < Duration::from_secs(8), "the reply was waited for");
}

#[test]
fn one_version_is_neither_removed_nor_a_tree() {
    let here = Here::new();
    here.server.keep_versions("bkt");
    let old = here.server.put("bkt", "k", "the old one").unwrap();
    here.server.put("bkt", "k", "the new one");
    let url = format!("s3://bkt/k?versionId={old}");
    for args in [
        format!("s3 rm {url}"),
        format!("s3 rm {url} --recursive"),
        format!("s3 cp {url} s3://bkt/copy"),
        format!("s3 cp s3://bkt/k s3://bkt/copy?versionId={old}"),
        format!("s3 cp {url} to --recursive"),
        format!("s3 sync {url} to"),
        format!("s3 ls {url}"),
        format!("s3 probe {url} --write"),
    ] {
        here.run(&args).fails(2, "one version of an object cannot be given here");
    }
    assert_eq!(here.server.keys("bkt"), ["k"]);
    assert_eq!(here.server.get("bkt", "k").unwrap(), b"the new one");
    here.run(&format!("s3 cp {url} copy")).ok();
    assert_eq!(here.read("copy"), b"the old one");
}

#[test]
fn names_of_files_are_escaped_in_keys() {
    let here = Here::new();
    here.write("a%20b?.bin", b"x");
    here.run("cp a%20b?.bin s3://bkt/dir/").ok();
    here.run("s3 cp a%20b?.bin s3://bkt/other/").ok();
    assert_eq!(here.server.keys("bkt"), ["dir/a%20b?.bin", "other/a%20b?.bin"]);
    let bad = OsStr::from_bytes(b"bad\xff");
    std::fs::write(here.path().join(bad), "x").unwrap();
    let mut command = here.command(&["cp"]);
    command.arg(bad).arg("s3://bkt/dir/");
    finish(command).fails(1, "no UTF-8");
}

#[test]
fn trees_in_each_other_are_refused() {
    let here = Here::new();
    here.server.put("bkt", "data/x", "x");
    for args in [
        "s3 sync s3://bkt/data s3://bkt --delete",
        "s3 sync s3://bkt/data s3://bkt/data",
        "s3 cp s3://bkt/data s3://bkt/data/copy --recursive",
    ] {
        here.run(args).fails(2, "one tree lies in the other");
    }
    assert_eq!(here.server.keys("bkt"), ["data/x"]);
    here.run("s3 sync s3://bkt/data s3://bkt/data2").ok();
    assert_eq!(here.server.keys("bkt"), ["data/x", "data2/x"]);
}

#[test]
fn files_behind_links_are_not_removed() {
    let here = Here::new();
    here.server.put("bkt", "p/a", "a");
    here.write("outside/x", b"x");
    here.write("to/own/x", b"x");
    std::os::unix::fs::symlink("../outside", here.path().join("to/link")).unwrap();
    for more in ["--dryrun", ""] {
        let said = here.run(&format!("s3 sync s3://bkt/p to --delete {more}"));
        let said = said.fails(1, "a file behind a link is not removed");
        assert!(said.out.contains("delete: to/own/x\n") && !said.out.contains("link"), "{}", said.out);
        assert_eq!(here.read("outside/x"), b"x");
    }
    assert!(!here.path().join("to/own/x").exists());
    here.run("s3 sync s3://bkt/p to --delete --exclude link/*").ok();
}

#[test]
fn a_copy_that_differs_and_has_its_name_is_not_said_to_be_removed() {
    let here = Here::new();
    here.write("x", b"abc");
    here.server.fault_always(Asked::Get, Fault::Replace(b"xyz".into()));
    let said = here.run("cp x s3://bkt/x --verify").fails(1, "the copy has its name already");
    assert!(said.err.contains("the copy differs") && !said.err.contains("was removed"), "{}", said.err);
}

#[test]
fn excluded_names_are_not_looked_at() {
    let here = Here::new();
    here.write("from/a", b"a");
    here.write("from/closed/b", b"b");
    std::os::unix::fs::symlink("nowhere", here.path().join("from/dangling")).unwrap();
    std::fs::write(here.path().join("from").join(OsStr::from_bytes(b"bad\xff")), "x").unwrap();
    let closed = here.path().join("from/closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    here.run("s3 sync from s3://bkt --exclude bad* --exclude closed/*").fails(1, "cannot look at the file");
    here.run("s3 sync from s3://bkt --exclude dangling --exclude closed/*").fails(1, "a name is no UTF-8");
    here.run("s3 sync from s3://bkt --exclude bad? --exclude dangling --exclude closed/*").ok();
    assert_eq!(here.server.keys("bkt"), ["a"]);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_mistyped_source_removes_nothing() {
    let here = Here::new();
    here.write("to/x", b"x");
    here.run("s3 sync s3://bkt/typo to --delete").fails(1, "no key begins with it");
    assert_eq!(here.read("to/x"), b"x");
    here.run("s3 sync s3://bkt/typo to").ok();
}

#[test]
fn flags_of_trees_are_refused_for_one_object() {
    let here = Here::new();
    here.write("x", b"x");
    here.server.put("bkt", "k", "k");
    for args in [
        "s3 cp x s3://bkt/x --exclude x",
        "s3 cp s3://bkt/k s3://bkt/x --include x",
        "s3 rm s3://bkt/k --exclude k",
    ] {
        here.run(args).fails(2, "these flags are for trees");
    }
    for args in ["s3 cp s3://bkt/k s3://bkt/x --verify", "s3 cp s3://bkt/ y --recursive --verify"] {
        here.run(args).fails(2, "--verify is for one file");
    }
    for args in [
        "s3 cp s3://bkt/k s3://bkt/x --device 0",
        "s3 cp s3://bkt/ y --recursive -d 1",
        "s3 cp . s3://bkt/tree --recursive --device 0",
    ] {
        here.run(args).fails(2, "--device is for one file");
    }
    here.run("cp . s3://bkt/tree --device 0").fails(1, "forebay s3 cp SRC DST --recursive");
    assert_eq!(here.server.keys("bkt"), ["k"]);
    assert!(!here.path().join("y").exists());
    let out = here.run("s3 rm s3://bkt/k --json").ok().out;
    assert!(out.contains(r#""action":"delete""#), "{out}");
}

/// Of an object that is read in ranges, none of which has a checksum.
#[test]
fn verified_copies_are_compared_with_the_checksum_of_the_store() {
    let here = Here::new();
    sample(here.path(), "x", 20_000_000);
    let fits = "has the checksum that its store keeps (crc64nvme)";
    let note = |done: Done, note: &str| assert!(done.err.contains(note), "no {note:?} in:\n{}", done.err);
    note(here.run("cp x s3://bkt/x --verify").ok(), fits);
    note(here.run("cp s3://bkt/x y --verify").ok(), fits);
    assert!(here.read("y") == here.read("x"));
    // Bytes that changed in the store: both reads give the same wrong ones.
    let wrong = Fault::Header("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=".to_owned());
    here.server.fault_always(Asked::Head, wrong);
    here.run("cp s3://bkt/x z --verify").fails(1, "others than those of its checksum");
    assert!(!here.path().join("z").exists());
    here.run("cp x s3://bkt/x --verify").fails(1, "others than those of its checksum");
    for (fault, why) in [
        (
            Fault::Header("x-amz-checksum-type", "COMPOSITE".to_owned()),
            "crc64nvme is of the checksums of its parts",
        ),
        (Fault::Without("x-amz-checksum-crc64nvme"), "the store gives no checksum of it"),
    ] {
        here.server.fault_always(Asked::Head, fault);
        let done = here.run("cp s3://bkt/x y --verify").ok();
        note(done, &format!("no checksum of s3://bkt/x was compared: {why}"));
    }
    here.server.no_faults();
    let done = here.run("cp s3://bkt/x y").ok();
    assert!(!done.err.contains("checksum"), "{}", done.err);
}

#[test]
fn a_probe_says_what_the_endpoint_can_do() {
    let here = Here::new();
    here.server.put_pattern("bkt", "long", 20_000_000);
    let out = here.run("s3 probe s3://bkt/long --write").ok().out;
    let of = |start: &str| {
        out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {out}"))
    };
    for name in
        ["keep-alive", "ranges", "conditional reads", "conditional writes", "checked writes", "multipart"]
    {
        assert!(of(name)[18..].trim_start().starts_with("yes: "), "{out}");
    }
    assert!(of("addresses").ends_with("1: 127.0.0.1") && of("tls").contains("no: clear text"), "{out}");
    assert_eq!(out.lines().filter(|line| line.starts_with("read ")).count(), 3);
    assert_eq!(here.server.keys("bkt"), ["long"], "the probe leaves an object");
    // A server that closes, ignores conditions and whole ranges.
    here.server.close_each();
    here.server.faults(|seen| (seen.asked == Asked::Get).then_some(Fault::Whole));
    let out = here.run("s3 probe s3://bkt/long").ok().out;
    for name in ["keep-alive", "ranges"] {
        assert!(out.lines().any(|line| line.starts_with(name) && line.contains("no: ")), "{out}");
    }
    assert!(out.contains("hint: turn it on at the server") && out.contains("not measured"), "{out}");
    here.server.no_faults();
    here.run("s3 probe s3://bkt/none").fails(1, "no such object");
    here.run("s3 probe s3://bkt/").fails(2, "names no object");
}

/// docs/reference/s3-probe-json.md names each key.
#[test]
fn the_page_names_every_key_of_a_probe() {
    fn keys(value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                all.push(key.clone());
                keys(value, all);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, all)),
            _ => {}
        }
    }
    let here = Here::new();
    here.server.put("bkt", "long", vec![7; 2 << 20]);
    let said = here.run("s3 probe s3://bkt/long --write --json -").ok();
    assert!(said.err.contains("ranges") && !said.err.contains(fake_s3::SECRET_KEY));
    let value: Value = serde_json::from_str(&said.out).unwrap();
    let mut all = Vec::new();
    keys(&value, &mut all);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/s3-probe-json.md");
    let page = std::fs::read_to_string(page).unwrap();
    all.extend(
        value["trials"].as_array().unwrap().iter().map(|trial| trial["name"].as_str().unwrap().to_owned()),
    );
    for key in all {
        assert!(page.contains(&format!("`{key}`")), "docs/reference/s3-probe-json.md does not name {key}");
    }
}
