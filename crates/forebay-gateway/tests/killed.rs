//! A gateway that is killed at each system call of PUT, DELETE and the end of an upload: the object is the old one or the new one,
//! the call can be sent again, and the sweep leaves nothing.
//!
//! The test starts itself as the gateway, stops it at each entry to a system call, and kills it there.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{keys, put, read, temporaries, variants};
use forebay_gateway::posix::{Abilities, Options, PosixStore};
use forebay_gateway::store::{Condition, ListAsk, Meta, Store, StoreError};

const CHILD: &str = "FOREBAY_TEST_KILLED";
const UNIT: u64 = 5 << 20;

/// The calls. All of them, in both variants, take minutes: `make gateway-long`.
const OPERATIONS: [&str; 6] = ["put", "replace", "replace-if", "delete", "finish", "finish-copy"];
const QUICK: [&str; 2] = ["put", "replace-if"];

fn main() {
    if let Ok(what) = std::env::var(CHILD) {
        let words: Vec<&str> = what.splitn(4, ' ').collect();
        let operation = words[0];
        // Not probed again: that would take most of the time.
        let abilities = Abilities {
            unnamed_files: words[1] == "true",
            link_refuses: true,
            rename_refuses: true,
            locks: true,
            attribute_room: words[2].parse().unwrap(),
            copies: true,
            fine_times: true,
        };
        let store = open(Path::new(words[3]), abilities);
        // SAFETY: stops this process; its parent lets it go on.
        unsafe { libc::raise(libc::SIGSTOP) };
        act(&store, operation);
        return;
    }
    if std::env::args().any(|arg| arg == "--list") {
        println!("killed: test");
        return;
    }
    let is_long = std::env::args().any(|arg| arg == "--ignored");
    let (operations, variants_of) = if is_long { (&OPERATIONS[..], 2) } else { (&QUICK[..], 1) };
    for operation in operations {
        for (variant, abilities) in variants().into_iter().enumerate().take(variants_of) {
            let mut stops = 0;
            while killed_at(operation, variant, abilities, stops) {
                // The return from a call and the entry to the next are one place.
                stops += 2;
            }
            assert!(stops > 10, "{operation}: the calls were not seen");
            println!("{operation} (variant {variant}): killed at {} places", stops / 2);
        }
    }
}

fn open(dir: &Path, abilities: Abilities) -> PosixStore {
    PosixStore::open(dir, Options { abilities: Some(abilities), ..Options::default() }).unwrap()
}

fn meta() -> Meta {
    // With a record that lies beside the file where attributes have little room.
    Meta { user: BTreeMap::from([("is".into(), "new".repeat(100))]), ..Meta::default() }
}

/// Before the gateway is started: what is there.
fn prepare(store: &PosixStore, operation: &str) {
    store.make_bucket("bucket").unwrap();
    if operation != "put" {
        put(store, "a/b/k", b"old");
    }
    if operation.starts_with("finish") {
        let id = store.begin_upload("bucket", "a/b/k", meta()).unwrap();
        let numbers = if operation == "finish" { [1, 2] } else { [3, 5] };
        for number in numbers {
            let part = store.begin_part("bucket", "a/b/k", &id, number, Some(UNIT)).unwrap();
            part.write_at(b"x", UNIT - 1).unwrap();
            part.publish(UNIT, Meta::default(), &Condition::None).unwrap();
        }
    }
}

fn act(store: &PosixStore, operation: &str) {
    if operation == "delete" {
        return store.remove("bucket", "a/b/k", &Condition::None).unwrap();
    }
    if operation.starts_with("finish") {
        let id = store.uploads("bucket").unwrap().remove(0).id;
        let parts = store.parts("bucket", "a/b/k", &id).unwrap();
        let parts: Vec<_> = parts.into_iter().map(|part| (part.number, part.facts.etag)).collect();
        store.finish_upload("bucket", "a/b/k", &id, &parts, None, &Condition::None).unwrap();
        return;
    }
    let condition = match operation {
        "put" => Condition::Absent,
        "replace-if" => Condition::Matches(vec!["*".into()]),
        _ => Condition::None,
    };
    let draft = store.begin("bucket", "a/b/k", None).unwrap();
    draft.write_at(b"new bytes", 0).unwrap();
    draft.publish(9, meta(), &condition).unwrap();
}

/// `false`: the operation was over before this stop.
fn killed_at(operation: &str, variant: usize, abilities: Abilities, stop: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), abilities);
    prepare(&store, operation);
    let id = store.uploads("bucket").unwrap().first().map(|upload| upload.id.clone());
    let (unnamed, room) = (abilities.unnamed_files, abilities.attribute_room);
    let was_killed = run(&format!("{operation} {unnamed} {room} {}", dir.path().display()), stop);
    let place = format!("{operation} variant {variant} stop {stop}");
    let is_new = check(&store, operation, &place);
    assert!(was_killed || is_new, "{place}: it ended well");
    // Sent again, as a client does.
    match operation {
        "put" if is_new => {}
        "finish" | "finish-copy" => {
            let known = store.parts("bucket", "a/b/k", id.as_ref().unwrap());
            match known {
                Ok(_) => act(&store, operation),
                Err(error) => assert!(matches!(error, StoreError::NoUpload) && is_new, "{place}: {error}"),
            }
        }
        _ => act(&store, operation),
    }
    assert!(check(&store, operation, &place), "{place}: sent again");
    store.sweep(Duration::ZERO).unwrap();
    assert_eq!(temporaries(dir.path()), Vec::<String>::new(), "{place}");
    assert_eq!(store.uploads("bucket").unwrap().len(), 0, "{place}");
    let expected: &[&str] = if operation == "delete" { &[] } else { &["a/b/k"] };
    assert_eq!(keys(&store, &ListAsk { max: 9, ..ListAsk::default() }), expected, "{place}");
    was_killed
}

/// Whether the operation has happened; panics where it has in part.
fn check(store: &PosixStore, operation: &str, place: &str) -> bool {
    let facts = match store.facts("bucket", "a/b/k") {
        Err(StoreError::NoObject) if operation == "delete" => return true,
        Err(StoreError::NoObject) if operation == "put" => return false,
        facts => facts.unwrap_or_else(|error| panic!("{place}: {error}")),
    };
    let bytes = read(store, "a/b/k");
    if facts.meta == Meta::default() {
        assert_eq!(bytes, b"old", "{place}");
        return false;
    }
    assert_eq!(facts.meta.user, meta().user, "{place}");
    if operation.starts_with("finish") {
        let mut part = vec![0; UNIT as usize];
        part[UNIT as usize - 1] = b'x';
        assert!(bytes == [part.as_slice(), &part].concat(), "{place}: the bytes");
    } else {
        assert_eq!(bytes, b"new bytes", "{place}");
    }
    true
}

/// Runs a gateway and kills it at a stop. `false`: it ended first.
#[allow(clippy::zombie_processes, reason = "waited for by its number: each stop is a result of waitpid")]
fn run(what: &str, stop: usize) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, what).stdin(Stdio::null());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    let pid = child.id() as libc::pid_t;
    // The first stop is that of exec, the second its own.
    assert!(libc::WIFSTOPPED(wait(pid)));
    go_on(pid, libc::PTRACE_CONT);
    let status = wait(pid);
    assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP, "{status:x}");
    for _ in 0..=stop {
        go_on(pid, libc::PTRACE_SYSCALL);
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0, "{what}");
            return false;
        }
        assert!(libc::WIFSTOPPED(status), "{what}: {status:x}");
    }
    // SAFETY: the process is this one's child and was not waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while !libc::WIFSIGNALED(wait(pid)) {}
    true
}

fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: writes a number.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn go_on(pid: libc::pid_t, how: libc::c_uint) {
    // SAFETY: the child is stopped; no address is given.
    unsafe { libc::ptrace(how, pid, 0, 0) };
}
