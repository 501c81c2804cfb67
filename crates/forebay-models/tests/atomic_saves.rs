//! Saves: whole or not at all, and nothing left behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use forebay_error::ErrorKind;
use forebay_models::Pending;

fn write(pending: &Pending, bytes: &[u8]) {
    pending.file().write_host(bytes, 0).unwrap();
}

fn save(path: &Path, bytes: &[u8]) {
    let pending = Pending::create(path).unwrap();
    write(&pending, bytes);
    pending.commit(true).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn appears_whole_and_replaces_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let pending = Pending::create(&path).unwrap();
    write(&pending, b"one");
    assert!(!path.exists());
    pending.commit(true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    let plain = folder.path().join("plain");
    fs::write(&plain, b"").unwrap();
    assert_eq!(mode(&path), mode(&plain), "a new file has the process's default mode");

    let mut old = fs::File::open(&path).unwrap();
    let pending = Pending::create(&path).unwrap();
    write(&pending, b"second");
    assert_eq!(fs::read(&path).unwrap(), b"one");
    pending.commit(false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    let mut kept = String::new();
    std::io::Read::read_to_string(&mut old, &mut kept).unwrap();
    assert_eq!(kept, "one", "who had the old file open still has it");
    assert_eq!(names(folder.path()), ["model", "plain"]);
}

#[test]
fn dropped_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    let pending = Pending::create(&path).unwrap();
    write(&pending, b"new");
    drop(pending);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["model"]);
}

#[test]
fn mode_and_owner_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    save(&path, b"one");
    for bits in [0o640, 0o600, 0o755] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        save(&path, b"two");
        assert_eq!(mode(&path), bits);
    }
    // Only the superuser gives files away.
    if std::os::unix::fs::chown(&path, Some(1234), Some(4321)).is_ok() {
        save(&path, b"three");
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid()), (1234, 4321));
    }
}

#[test]
fn links_stay_links() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), b"old").unwrap();
    symlink("other/file", folder.path().join("link")).unwrap();
    symlink("link", folder.path().join("second")).unwrap();
    symlink("other/missing", folder.path().join("dangling")).unwrap();
    save(&folder.path().join("second"), b"new");
    save(&folder.path().join("dangling"), b"made");
    assert_eq!(fs::read(other.join("file")).unwrap(), b"new");
    assert_eq!(fs::read(other.join("missing")).unwrap(), b"made");
    for link in ["link", "second", "dangling"] {
        assert!(fs::symlink_metadata(folder.path().join(link)).unwrap().is_symlink(), "{link}");
    }
    assert_eq!(names(&other), ["file", "missing"]);
    symlink("loop", folder.path().join("loop")).unwrap();
    assert_eq!(Pending::create(folder.path().join("loop")).unwrap_err().errno(), libc::ELOOP);
}

#[test]
fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    fs::write(path.join("file"), b"").unwrap();
    for (name, kind) in [
        ("", ErrorKind::IsDirectory),
        ("missing/x", ErrorKind::NotFound),
        ("file/x", ErrorKind::InvalidInput),
        ("new/", ErrorKind::InvalidInput),
    ] {
        let error = Pending::create(path.join(name)).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error:?}");
        assert!(error.context().iter().any(|(key, _)| *key == "path"), "{error:?}");
    }
    let error = Pending::create("/dev/null").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    assert_eq!(names(&path), ["file"]);
}

/// Leftovers of dead saves go with the next save of the same name; those of living ones, and files that only look
/// alike, stay.
#[test]
fn leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let hidden = |name: &str| folder.path().join(name);
    fs::write(hidden(".model.forebay-0123456789abcdef"), b"dead").unwrap();
    fs::write(hidden(".model.forebay-fedcba9876543210"), b"alive").unwrap();
    fs::write(hidden(".model2.forebay-0123456789abcdef"), b"another's").unwrap();
    fs::write(hidden(".model.forebay-notes"), b"a user's").unwrap();
    fs::create_dir(hidden(".model.forebay-0000000000000000")).unwrap();
    let alive = fs::File::open(hidden(".model.forebay-fedcba9876543210")).unwrap();
    alive.lock().unwrap();
    save(&path, b"new");
    let expected = [
        ".model.forebay-0000000000000000",
        ".model.forebay-fedcba9876543210",
        ".model.forebay-notes",
        ".model2.forebay-0123456789abcdef",
        "model",
    ];
    assert_eq!(names(folder.path()), expected);
}

/// The engine opens its two descriptors of a file without a name as of any other.
#[test]
fn nameless_files_have_o_direct_where_named_ones_do() {
    let folder = tempfile::tempdir().unwrap();
    let named =
        forebay_engine::File::options().write(true).create(true).open(folder.path().join("named")).unwrap();
    let path = folder.path().join("model");
    let pending = Pending::create(&path).unwrap();
    assert_eq!(pending.file().alignment(), named.alignment());
    let Some(fd) = pending.file().direct_fd().filter(|_| pending.is_nameless()) else {
        println!("skipped: no O_DIRECT or no nameless files here");
        return;
    };
    let room = vec![7_u8; 3 * 4096];
    let aligned = room.as_ptr().align_offset(4096);
    // SAFETY: 4096 bytes at the first multiple of 4096 within 12288 bytes that outlive the call.
    let put = unsafe { libc::pwrite(fd, room.as_ptr().add(aligned).cast(), 4096, 4096) };
    assert_eq!(put, 4096, "{}", std::io::Error::last_os_error());
    pending.commit(true).unwrap();
    assert_eq!(fs::read(&path).unwrap()[4096..], [7; 4096]);
}

/// Runs a test of this file in a process of its own.
fn alone(name: &str, folder: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("PENDING_FOLDER", folder)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn given() -> Option<PathBuf> {
    std::env::var_os("PENDING_FOLDER").map(PathBuf::from)
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn saver() {
    let Some(folder) = given() else { return };
    let fill = std::process::id() as u8;
    for _ in 0..10_000 {
        save(&folder.join("model"), &vec![fill; 100_000]);
    }
}

/// Two processes save one name while a third kills them now and then: what is there is always one of the files, whole.
#[test]
fn never_a_mix_and_never_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    save(&path, &vec![0; 100_000]);
    for round in 0..10 {
        let mut savers = [alone("saver", folder.path()), alone("saver", folder.path())];
        let until = std::time::Instant::now() + std::time::Duration::from_millis(30 + 7 * round);
        while std::time::Instant::now() < until {
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len(), 100_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix");
        }
        for saver in &mut savers {
            saver.kill().unwrap();
            saver.wait().unwrap();
        }
    }
    save(&path, b"last");
    assert_eq!(names(folder.path()), ["model"]);
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn fills_the_disk() {
    let Some(folder) = given() else { return };
    let pending = Pending::create(folder.join("model")).unwrap();
    let error = pending.file().preallocate(64 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    drop(pending);
    assert_eq!(fs::read(folder.join("model")).unwrap(), b"old");
    assert_eq!(names(&folder), ["model"]);
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn is_read_only() {
    let Some(folder) = given() else { return };
    let error = Pending::create(folder.join("model")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error:?}");
    assert!(error.hints()[0].contains("another"), "{error:?}");
}

/// In a mount namespace of its own, where this user may make one.
#[test]
fn full_and_read_only_file_systems() {
    let folder = tempfile::tempdir().unwrap();
    for (name, remount) in [("fills_the_disk", "true"), ("is_read_only", "mount -o remount,ro $F")] {
        let script = format!(
            "F={}; mount -t tmpfs -o size=2m none $F 2>/dev/null || exit 77; printf old > $F/model; {remount}; \
             PENDING_FOLDER=$F {} --exact {name} --ignored",
            folder.path().display(),
            std::env::current_exe().unwrap().display()
        );
        let done = Command::new("unshare").args(["-Urm", "sh", "-c", &script]).output();
        let Ok(done) = done else {
            println!("skipped: no unshare command");
            return;
        };
        let text =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        if done.status.code() == Some(77) || text.contains("unshare failed") {
            println!("skipped: no mount namespaces here");
            return;
        }
        assert!(done.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[test]
fn a_path_with_a_zero_byte_is_refused_as_such() {
    let error = forebay_models::Pending::create_like(std::path::Path::new("a\0b"), 0o644).unwrap_err();
    assert_eq!(
        (error.message(), error.hints()),
        ("the path has a zero byte", &["leave it out".to_owned()][..])
    );
}

#[test]
fn nothing_is_saved_elsewhere() {
    for (name, said) in
        [("s3://bucket/key", "no client for S3"), ("mine://server/file", "no client for mine://")]
    {
        let error = Pending::create(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(said) && error.hints().len() == 1, "{error:?}");
    }
}

/// Many small files of a folder: what dead saves left is removed once for all of them.
#[test]
fn small_files_are_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (path, time) = (folder.path().join("small"), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    let hidden = [".small.forebay-0123456789abcdef", ".other.forebay-0123456789abcdef"];
    for name in hidden {
        fs::write(folder.path().join(name), b"dead").unwrap();
    }
    Pending::write(&path, b"new", Some(time)).unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap()),
        (b"new".into(), time)
    );
    assert_eq!(names(folder.path()).len(), 3);
    Pending::clear(folder.path());
    assert_eq!(names(folder.path()), ["small"]);
    // One that is replaced keeps its rights, and nobody sees a part of either.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let old = fs::File::open(&path).unwrap();
    Pending::write(&path, b"newer", None).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"newer");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(old.metadata().unwrap().len(), 3);
    assert!(Pending::write(folder.path().join("none/small"), b"", None).is_err());
    assert!(Pending::write(folder.path(), b"", None).is_err());
    assert_eq!(names(folder.path()), ["small"]);
}
