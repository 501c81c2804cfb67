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
    syncs_are_in_their_order();
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
        for number in numbers(operation) {
            let part = store.begin_part("bucket", "a/b/k", &id, number, Some(UNIT)).unwrap();
            part.write_at(&part_bytes(number), 0).unwrap();
            part.publish(UNIT, Meta::default(), &Condition::None).unwrap();
        }
    }
}

/// Parts at their place, or with gaps between them.
fn numbers(operation: &str) -> [u32; 2] {
    if operation == "finish" { [1, 2] } else { [3, 5] }
}

/// Of each part other bytes.
fn part_bytes(number: u32) -> Vec<u8> {
    (0..UNIT).map(|at| (at / 4099) as u8 ^ (number * 37) as u8).collect()
}

fn act(store: &PosixStore, operation: &str) {
    if operation == "delete" {
        return store.remove("bucket", "a/b/k", &Condition::None).unwrap();
    }
    if operation.starts_with("finish") {
        let id = common::uploads(store).remove(0).id;
        let parts = store.parts("bucket", "a/b/k", &id, 0, usize::MAX).unwrap();
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
    let id = common::uploads(&store).first().map(|upload| upload.id.clone());
    let (unnamed, room) = (abilities.unnamed_files, abilities.attribute_room);
    let was_killed = run(&format!("{operation} {unnamed} {room} {}", dir.path().display()), stop);
    let place = format!("{operation} variant {variant} stop {stop}");
    let is_new = check(&store, operation, &place);
    assert!(was_killed || is_new, "{place}: it ended well");
    // Sent again, as a client does.
    match operation {
        "put" if is_new => {}
        "finish" | "finish-copy" => {
            let known = store.parts("bucket", "a/b/k", id.as_ref().unwrap(), 0, usize::MAX);
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
    assert_eq!(common::uploads(&store).len(), 0, "{place}");
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
        assert!(bytes == numbers(operation).map(part_bytes).concat(), "{place}: the bytes");
    } else {
        assert_eq!(bytes, b"new bytes", "{place}");
    }
    true
}

/// The bytes are on the disk before the name is, and the name before the answer; new directories, too.
fn syncs_are_in_their_order() {
    for (variant, abilities) in variants().into_iter().enumerate().take(2) {
        for operation in OPERATIONS {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path(), abilities);
            prepare(&store, operation);
            let (unnamed, room) = (abilities.unnamed_files, abilities.attribute_room);
            let calls = traced(&format!("{operation} {unnamed} {room} {}", dir.path().display()));
            let place = format!("{operation} variant {variant}: {calls:#?}");
            let last = |what: &str| {
                calls
                    .iter()
                    .rposition(|call| call.starts_with(what))
                    .unwrap_or_else(|| panic!("{what}: {place}"))
            };
            let is_name = |call: &String| call.starts_with("name ") && call.ends_with(" k");
            if operation == "delete" {
                assert!(last("unlink k") < last("sync dir a/b"), "{place}");
                continue;
            }
            let named = calls.iter().rposition(is_name).unwrap_or_else(|| panic!("{place}"));
            let file = calls[..named].iter().rposition(|call| call == "sync file");
            assert!(file.is_some(), "{place}");
            assert!(calls[named..].iter().any(|call| call == "sync dir a/b"), "{place}");
            if operation == "put" {
                // The directories on the way.
                for above in ["sync dir .", "sync dir a"] {
                    assert!(calls[..named].iter().any(|call| call == above), "{above}: {place}");
                }
            }
        }
    }
}

/// The calls of an operation that bring something to the disk, or give or take a name.
fn traced(what: &str) -> Vec<String> {
    let (pid, mut calls) = (start(what), Vec::new());
    // SAFETY: the child is stopped. Without the option the kernel does not tell entries from returns.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_TRACESYSGOOD) };
    loop {
        go_on(pid, libc::PTRACE_SYSCALL);
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0, "{what}");
            return calls;
        }
        assert!(libc::WIFSTOPPED(status), "{what}: {status:x}");
        calls.extend(call_of(pid));
    }
}

fn call_of(pid: libc::pid_t) -> Option<String> {
    // SAFETY: all zero is a valid record; the kernel writes at most its size.
    let info = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        assert!(libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, &raw mut info) > 0);
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return None;
        }
        info.u.entry
    };
    let text = |address: u64| {
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        let mut bytes = [0; 256];
        let len = std::os::unix::fs::FileExt::read_at(&memory, &mut bytes, address).unwrap();
        let end = bytes[..len].iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    match info.nr as libc::c_long {
        libc::SYS_fsync | libc::SYS_fdatasync => {
            let path = std::fs::read_link(format!("/proc/{pid}/fd/{}", info.args[0])).unwrap();
            let path = path.to_string_lossy().into_owned();
            let below = path.split_once("/bucket").map_or("", |(_, below)| below.trim_start_matches('/'));
            let is_dir = std::fs::metadata(format!("/proc/{pid}/fd/{}", info.args[0])).unwrap().is_dir();
            let below = if below.is_empty() { "." } else { below };
            Some(if is_dir { format!("sync dir {below}") } else { "sync file".to_owned() })
        }
        libc::SYS_linkat | libc::SYS_renameat | libc::SYS_renameat2 => {
            Some(format!("name {}", text(info.args[3])))
        }
        libc::SYS_unlinkat => Some(format!("unlink {}", text(info.args[1]))),
        _ => None,
    }
}

/// Starts a gateway that has stopped itself before its operation.
#[allow(clippy::zombie_processes, reason = "waited for by its number: each stop is a result of waitpid")]
fn start(what: &str) -> libc::pid_t {
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
    pid
}

/// Runs a gateway and kills it at a stop. `false`: it ended first.
fn run(what: &str, stop: usize) -> bool {
    let pid = start(what);
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
