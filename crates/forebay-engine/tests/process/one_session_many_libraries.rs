//! Several shared objects with the engine in them, in one process: one session.

use std::ffi::c_int;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use crate::common::{Scratch, disk, in_process, pattern};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use tempfile::TempDir;

const KEY: u64 = 17;
const LEN: usize = 3 << 20;

/// A process of its own, with the software GPU.
fn alone(body: impl FnOnce(&TempDir, &Path)) {
    let Some(example) = example() else {
        return println!("skipped: no shared object; cargo build -p forebay-engine --example shared_object");
    };
    let fake = fake_cuda::library_path().unwrap();
    let variables = [("FOREBAY_LIBCUDA", fake.to_str().unwrap())];
    in_process(&[], &variables, || body(&tempfile::tempdir().unwrap(), &example));
}

/// Cargo puts it beside the folder of the test executables.
fn example() -> Option<PathBuf> {
    let executable = std::env::current_exe().unwrap();
    let path = executable.ancestors().nth(2)?.join("examples/libshared_object.so");
    path.exists().then_some(path)
}

/// A copy of the example: to the linker, another object.
struct Object(Library);

impl Object {
    fn load(path: &Path, flags: c_int) -> Self {
        // SAFETY: loading it runs no code of forebay.
        Self(unsafe { Library::open(Some(path), RTLD_NOW | flags) }.unwrap())
    }

    fn copy(folder: &TempDir, example: &Path, name: &str) -> Self {
        let path = folder.path().join(name);
        fs::copy(example, &path).unwrap();
        Self::load(&path, RTLD_LOCAL)
    }

    fn ask(&self, name: &str) -> i64 {
        let name = format!("shared_{name}");
        // SAFETY: the example exports such functions by these names.
        let answer = unsafe { self.0.get::<extern "C" fn() -> i64>(name.as_bytes()).unwrap()() };
        assert!(answer >= 0, "{name} failed");
        answer
    }

    fn ask_of(&self, name: &str, file: &fs::File) -> i64 {
        let name = format!("shared_{name}");
        // SAFETY: as above.
        let answer = unsafe {
            self.0.get::<extern "C" fn(BorrowedFd<'_>) -> i64>(name.as_bytes()).unwrap()(file.as_fd())
        };
        assert!(answer >= 0, "{name} failed");
        answer
    }
}

fn sum(len: usize) -> i64 {
    pattern(KEY, 0, len).into_iter().map(i64::from).sum()
}

/// How many descriptors of this process are of memory files with this name.
fn memory_files(name: &str) -> usize {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

/// All parts of a session are the same, seen from two objects.
fn check_shared(one: &Object, two: &Object) {
    assert_eq!(one.ask("open_session"), two.ask("open_session"));
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = fs::File::open(scratch.path()).unwrap();
    let before = one.ask("requests");
    for object in [two, one, two] {
        assert_eq!(object.ask_of("read", &file), sum(LEN));
    }
    assert_eq!((one.ask("requests"), two.ask("requests")), (before + 3, before + 3));
    // Both count in one place, which others find.
    let seen = forebay_stats::Reader::attach(std::process::id()).unwrap().snapshot().unwrap();
    assert_eq!(seen.read.ok as i64, before + 3);
    assert_eq!(memory_files("forebay-counters"), 1);
    // What one has left idle is used by the other.
    assert_eq!(one.ask_of("second_descriptor", &file), two.ask_of("second_descriptor", &file));
    // Longer than a file must have been left alone.
    std::thread::sleep(Duration::from_millis(1500));
    let before = two.ask("pinned");
    let bytes = one.ask_of("pin", &file);
    assert!(two.ask("pinned") >= before + bytes, "one has pinned {bytes}");
    assert_eq!(one.ask("pinned"), two.ask("pinned"));
    assert_eq!((one.ask("notes"), two.ask("notes")), (0, 0));
}

#[test]
fn two_objects_share_a_session() {
    alone(|folder, example| {
        let [one, two] = ["one.so", "two.so"].map(|name| Object::copy(folder, example, name));
        // The second one's slot is not used, though it is asked first.
        two.ask("open_session");
        check_shared(&one, &two);
    });
}

#[test]
fn an_object_that_is_loaded_later_joins_in() {
    alone(|folder, example| {
        let one = Object::copy(folder, example, "one.so");
        one.ask("open_session");
        let path = folder.path().join("two.so");
        fs::copy(example, &path).unwrap();
        // Its symbols come before those of `one` in all searches.
        let two = Object::load(&path, RTLD_GLOBAL);
        check_shared(&one, &two);
        let three = Object::copy(folder, example, "three.so");
        check_shared(&two, &three);
    });
}

#[test]
fn many_may_open_it_at_the_same_time() {
    alone(|folder, example| {
        let objects: Vec<_> =
            (0..4).map(|number| Object::copy(folder, example, &format!("{number}.so"))).collect();
        let start = Barrier::new(objects.len());
        let sessions: Vec<_> = std::thread::scope(|scope| {
            let start = &start;
            let ask = |object: &Object| {
                start.wait();
                object.ask("open_session")
            };
            let threads: Vec<_> = objects.iter().map(|object| scope.spawn(move || ask(object))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(sessions.iter().all(|session| *session == sessions[0]), "{sessions:?}");
        check_shared(&objects[0], &objects[3]);
    });
}

#[test]
fn objects_that_take_part_stay_loaded() {
    alone(|folder, example| {
        let [one, two] = ["one.so", "two.so"].map(|name| Object::copy(folder, example, name));
        let session = two.ask("open_session");
        drop((one, two));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("one.so") && maps.contains("two.so"), "unloaded");
        let three = Object::copy(folder, example, "three.so");
        assert_eq!(three.ask("open_session"), session);
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        assert_eq!(three.ask_of("read", &fs::File::open(scratch.path()).unwrap()), sum(LEN));
    });
}

/// A copy of the example that says that it is of another build.
fn other_build(folder: &TempDir, example: &Path, slot: &Object) -> Object {
    const ID: std::ops::Range<usize> = 16..48;
    let mut bytes = fs::read(example).unwrap();
    // SAFETY: the symbol is a slot, which begins with these bytes.
    let head: [u8; ID.end] = unsafe { **slot.0.get::<*const [u8; ID.end]>(b"forebay_session_v1").unwrap() };
    let found: Vec<_> = (0..bytes.len() - ID.end).filter(|at| bytes[*at..*at + ID.end] == head).collect();
    assert!(!found.is_empty(), "the slot is not in the file");
    for at in found {
        bytes[at + ID.start..at + ID.end].iter_mut().for_each(|byte| *byte = !*byte);
    }
    let path = folder.path().join("other.so");
    fs::write(&path, bytes).unwrap();
    Object::load(&path, RTLD_LOCAL)
}

#[test]
fn another_build_has_its_own() {
    alone(|folder, example| {
        let one = Object::copy(folder, example, "one.so");
        let other = other_build(folder, example, &one);
        let two = Object::copy(folder, example, "two.so");
        assert_ne!(one.ask("open_session"), other.ask("open_session"));
        assert_eq!(one.ask("open_session"), two.ask("open_session"));
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = fs::File::open(scratch.path()).unwrap();
        for object in [&one, &other, &two] {
            assert_eq!(object.ask_of("read", &file), sum(LEN));
        }
        assert_eq!((one.ask("requests"), other.ask("requests"), two.ask("requests")), (2, 1, 2));
        assert_ne!(one.ask_of("second_descriptor", &file), other.ask_of("second_descriptor", &file));
        assert_eq!((one.ask("notes"), other.ask("notes"), two.ask("notes")), (1, 2, 1));
    });
}
