//! Rights to a saved file: never more than before, and never through a link that the kernel refuses.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::ErrorKind;
use forebay_models::Pending;

const ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
/// A user and a group that need not exist.
const STRANGER: u32 = 1234;
const GROUP: u32 = 4321;

fn save(path: &Path) -> Vec<String> {
    let pending = Pending::create(path).unwrap();
    fill(pending)
}

fn fill(pending: Pending) -> Vec<String> {
    pending.file().write_host(b"new", 0).unwrap();
    pending.commit(true).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn set(path: &Path, name: &CStr, value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: both texts end with NUL; the value is read only.
    match unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn get(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = vec![0_u8; 4096];
    // SAFETY: both texts end with NUL; at most the given length is written.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(len).ok()?);
    Some(value)
}

/// An access list as the kernel keeps it: version 2, then tag, rights and number of each entry.
fn acl(owner: u16, user: (u32, u16), group: u16, mask: u16, other: u16) -> Vec<u8> {
    let nobody = u32::MAX;
    let entries = [
        (0x01, owner, nobody),
        (0x02, user.1, user.0),
        (0x04, group, nobody),
        (0x10, mask, nobody),
        (0x20, other, nobody),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(rights));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// A folder where attributes and access lists can be, or the reason why not.
fn folder_with_lists() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe");
    fs::write(&probe, b"").unwrap();
    match set(&probe, ACL, &acl(6, (STRANGER, 4), 0, 4, 0)) {
        Ok(()) => Some(folder),
        Err(error) => {
            println!("skipped: no access lists in {}: {error}", folder.path().display());
            None
        }
    }
}

fn is_root() -> bool {
    // SAFETY: no arguments; cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Runs a test of this file in a process of its own, as another user where `as_user` says so.
fn elsewhere(name: &str, folder: &Path, as_user: &[&str]) -> String {
    // The build folder may be closed to other users.
    let program = folder.join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    set_mode(&program, 0o755);
    let mut command = match as_user {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    let done = command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("PENDING_FOLDER", folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
    text
}

fn given() -> Option<PathBuf> {
    std::env::var_os("PENDING_FOLDER").map(PathBuf::from)
}

#[test]
fn no_setuid_and_no_setgid_bit_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    for bits in [0o4755, 0o2755, 0o6711, 0o1644] {
        fs::write(&path, b"old").unwrap();
        set_mode(&path, bits);
        assert_eq!(mode(&path), bits);
        assert_eq!(save(&path), [""; 0]);
        assert_eq!(mode(&path), bits & 0o777);
    }
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn saves_by_an_umask() {
    let Some(folder) = given() else { return };
    // SAFETY: nothing else in this process makes files.
    unsafe { libc::umask(0o027) };
    for (name, asked, expected) in [
        ("a", 0o4777, 0o750),
        ("b", 0o666, 0o640),
        ("c", 0o444, 0o440),
        ("d", 0o001, 0),
        ("e", 0o2070, 0o050),
    ] {
        let path = folder.join(name);
        assert_eq!(fill(Pending::create_like(&path, asked).unwrap()), [""; 0]);
        assert_eq!(mode(&path), expected, "{asked:o}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
    }
    let old = folder.join("old");
    fs::write(&old, b"old").unwrap();
    set_mode(&old, 0o666);
    assert_eq!(fill(Pending::create_like(&old, 0o700).unwrap()), [""; 0]);
    assert_eq!(mode(&old), 0o666, "a replaced file's mode stays");
}

#[test]
fn a_new_file_has_what_the_umask_leaves() {
    let folder = tempfile::tempdir().unwrap();
    elsewhere("saves_by_an_umask", folder.path(), &[]);
}

#[test]
fn the_mode_is_the_one_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    let pending = Pending::create(&path).unwrap();
    set_mode(&path, 0o600);
    fill(pending);
    assert_eq!(mode(&path), 0o600, "taken away while the save ran");
}

/// The group bits of a file with an access list are its mask: without the list they would be the group's.
#[test]
fn an_access_list_stays() {
    let Some(folder) = folder_with_lists() else { return };
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    set_mode(&path, 0o600);
    let list = acl(6, (STRANGER, 6), 0, 6, 0);
    set(&path, ACL, &list).unwrap();
    assert_eq!(mode(&path), 0o660);
    assert_eq!(save(&path), [""; 0]);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!((get(&path, ACL), mode(&path)), (Some(list), 0o660));
}

#[test]
fn attributes_stay_but_not_capabilities() {
    let Some(folder) = folder_with_lists() else { return };
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    set(&path, c"user.origin", b"there").unwrap();
    set(&path, c"user.empty", b"").unwrap();
    // CAP_NET_RAW, permitted and effective.
    let capability: Vec<u8> =
        [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let is_capable = set(&path, c"security.capability", &capability).is_ok();
    assert_eq!(save(&path), [""; 0]);
    assert_eq!(get(&path, c"user.origin"), Some(b"there".to_vec()));
    assert_eq!(get(&path, c"user.empty"), Some(Vec::new()));
    if is_capable {
        assert_eq!(get(&path, c"security.capability"), None);
    } else {
        println!("skipped in part: only root gives capabilities to files");
    }
}

#[test]
fn a_folder_s_list_is_for_new_files_only() {
    let Some(folder) = folder_with_lists() else { return };
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    set_mode(&path, 0o660);
    set(folder.path(), DEFAULT_ACL, &acl(6, (STRANGER, 6), 4, 6, 0)).unwrap();
    assert_eq!(save(&path), [""; 0]);
    assert_eq!((get(&path, ACL), mode(&path)), (None, 0o660), "the stranger had no rights there");
    let new = folder.path().join("new");
    save(&new);
    assert_eq!(get(&new, ACL), Some(acl(6, (STRANGER, 6), 4, 6, 0)));
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn saves_as_a_stranger() {
    let Some(folder) = given() else { return };
    for name in ["listed", "grouped", "member", "open"] {
        println!("{name}: {:?}", save(&folder.join(name)));
    }
}

/// Somebody may write to a file, but not give a file of its own to the owner or its group.
#[test]
fn what_cannot_be_given_away_gets_narrower() {
    if !is_root() {
        return;
    }
    let Some(folder) = folder_with_lists() else { return };
    set_mode(folder.path(), 0o777);
    let path = |name: &str| folder.path().join(name);
    for (name, bits) in [("listed", 0o600), ("grouped", 0o626), ("member", 0o660), ("open", 0o666)] {
        fs::write(path(name), b"old").unwrap();
        set_mode(&path(name), bits);
    }
    set(&path("listed"), ACL, &acl(6, (STRANGER, 6), 0, 6, 4)).unwrap();
    chown(path("member"), None, Some(GROUP)).unwrap();
    let groups = format!("--groups={GROUP}");
    let user = ["setpriv", "--reuid=1234", "--regid=1234", groups.as_str()];
    let text = elsewhere("saves_as_a_stranger", folder.path(), &user);
    let about = |name: &str| {
        let about = fs::metadata(path(name)).unwrap();
        (about.uid(), about.gid(), about.mode() & 0o7777)
    };
    assert_eq!(about("listed"), (STRANGER, STRANGER, 0o600));
    assert_eq!(get(&path("listed"), ACL), None);
    assert_eq!(about("grouped"), (STRANGER, STRANGER, 0o622));
    assert_eq!(about("member"), (STRANGER, GROUP, 0o660));
    assert_eq!(about("open"), (STRANGER, STRANGER, 0o666));
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("listed").contains("only the owner may use the file"), "{text}");
    assert!(line("grouped").contains("the group could not be kept"), "{text}");
    assert!(
        !line("member").contains("group") && line("member").contains("belongs to the user who saved it"),
        "{text}"
    );
    assert!(!line("open").contains("group"), "{text}");
}

#[test]
#[ignore = "run by others, in processes of their own"]
fn meets_a_refused_link() {
    let Some(folder) = given() else { return };
    for name in ["link", "dangling", "chain"] {
        let error = Pending::create(folder.join(name)).unwrap_err();
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::Io];
        assert!(
            kinds.contains(&error.kind()) && error.hints()[0].contains("name the file itself"),
            "{error:?}"
        );
        println!("{name}: errno {}", error.errno());
    }
}

/// What the kernel refuses to follow is not followed: here because the mount says so.
#[test]
fn links_on_a_mount_that_forbids_them() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs none $F && printf old > $F/file && ln -s file $F/link && ln -s missing $F/dangling \
                  && ln -s link $F/chain && mount -o remount,nosymfollow $F || exit 77; $0 --exact \
                  meets_a_refused_link --ignored --nocapture && ls -A $F && cat $F/file";
    let done = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("F", folder.path())
        .env("PENDING_FOLDER", folder.path())
        .output();
    let Ok(done) = done else {
        println!("skipped: no unshare command");
        return;
    };
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(77) || text.contains("unshare failed") {
        println!("skipped: no mount namespaces, or no nosymfollow, here: {text}");
        return;
    }
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
    for name in ["link", "dangling", "chain"] {
        assert!(text.contains(&format!("{name}: errno {}", libc::ELOOP)), "{text}");
    }
    assert!(text.ends_with("chain\ndangling\nfile\nlink\nold"), "{text}");
}

/// A stranger's link in a folder where all may write, such as /tmp.
#[test]
fn links_of_others_in_sticky_folders() {
    if !is_root() {
        return;
    }
    let protects = |what: &str| fs::read_to_string(format!("/proc/sys/fs/{what}")).unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o1777);
    let mine = tempfile::tempdir().unwrap();
    let victim = mine.path().join("victim");
    fs::write(&victim, b"old").unwrap();
    let path = |name: &str| folder.path().join(name);
    symlink(&victim, path("link")).unwrap();
    symlink(mine.path().join("missing"), path("dangling")).unwrap();
    symlink("link", path("chain")).unwrap();
    fs::write(path("theirs"), b"old").unwrap();
    chown(path("theirs"), Some(STRANGER), Some(STRANGER)).unwrap();
    for name in ["link", "dangling"] {
        std::os::unix::fs::lchown(path(name), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    if protects("protected_symlinks").trim() == "0" {
        println!("skipped: fs.protected_symlinks is 0 here");
    } else {
        let text = elsewhere("meets_a_refused_link", folder.path(), &[]);
        for name in ["link", "dangling", "chain"] {
            assert!(text.contains(&format!("{name}: errno {}", libc::EACCES)), "{text}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"old");
        assert!(!mine.path().join("missing").exists());
        // A link of the owner, in the same folder, is followed.
        symlink(&victim, path("own")).unwrap();
        save(&path("own"));
        assert_eq!(fs::read(&victim).unwrap(), b"new");
    }
    if protects("protected_regular").trim() == "0" {
        println!("skipped: fs.protected_regular is 0 here");
    } else {
        let error = Pending::create(path("theirs")).unwrap_err();
        assert_eq!(error.errno(), libc::EACCES, "{error:?}");
        assert_eq!(fs::read(path("theirs")).unwrap(), b"old");
    }
}

#[test]
fn the_kernel_s_own_links_are_followed() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    fs::write(&path, b"old").unwrap();
    let open = fs::File::open(&path).unwrap();
    let by_number = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    let pending = Pending::create(&by_number).unwrap();
    assert_eq!(pending.target(), fs::canonicalize(&path).unwrap());
    fill(pending);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    // What it was has no name by now.
    let error = Pending::create(&by_number).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
