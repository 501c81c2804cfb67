//! Writes to a file system that has no room for all of them: the bytes written are a good prefix, the count is its
//! length, and the file ends there.

use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Scratch, Target, Watch, disk, in_process, pattern, session, turn};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::{Calls, HostRange, Kernel};
use forebay_engine::{Bound, Buffer, Direction, File, Late, ReadPiece, Receipt, Session, Transfer};
use forebay_error::{ErrorKind, Result};

const ROOM: usize = 5 << 20;
const LEN: usize = 12 << 20;

/// A tmpfs of [`ROOM`] at the folder, in a namespace of this process's own.
fn mount_memory(folder: &Path) -> bool {
    let (target, options) = (CString::new(folder.to_str().unwrap()).unwrap(), format!("size={ROOM}"));
    let options = CString::new(options).unwrap();
    // SAFETY: names that end with NUL.
    let rc = unsafe {
        libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    true
}

/// The same on ext4, in a file beside the folder. False where that cannot be mounted.
fn mount_disk(folder: &Path) -> bool {
    let image = folder.with_extension("image");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let ran = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let made = ran(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-O", "^has_journal"]).arg(&image))
        && ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(folder));
    // The mount keeps it.
    std::fs::remove_file(image).unwrap();
    if !made {
        println!("skipped: no file of ext4 can be mounted here");
        return false;
    }
    let rest = std::fs::File::create(folder.join("rest")).unwrap();
    // SAFETY: a zeroed statvfs is a valid value for the kernel to overwrite; the descriptor is open.
    unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::fstatvfs(rest.as_raw_fd(), &mut about), 0);
        let free = (about.f_bavail * about.f_bsize) as usize;
        assert_eq!(libc::fallocate(rest.as_raw_fd(), 0, 0, (free - ROOM) as libc::off_t), 0);
    }
    rest.sync_all().unwrap();
    true
}

type Way = fn(&Session, &Transfer) -> Result<u64>;

fn run(session: &Session, asked: &Transfer) -> Result<u64> {
    // SAFETY: the caller's buffer lives until this returns.
    unsafe { session.run(asked) }.map(|receipt: Receipt| receipt.bytes())
}

fn submit(session: &Session, asked: &Transfer) -> Result<u64> {
    // SAFETY: as above.
    unsafe { session.submit(vec![asked.clone()]) }?.wait().entries.swap_remove(0)
}

fn submit_on(session: &Session, asked: &Transfer) -> Result<u64> {
    // SAFETY: as above; the default stream lives.
    unsafe { session.submit_on(0, vec![asked.clone()]) }?.wait().entries.swap_remove(0)
}

fn enqueue(session: &Session, asked: &Transfer) -> Result<u64> {
    let Transfer { file, offset, memory, len, direction, .. } = asked.clone();
    let bound = Bound { offset, address: memory.address, len };
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    let late = Late { file, memory, direction, most: len, bind: Box::new(move || Ok(bound)), done };
    // SAFETY: as above.
    unsafe { session.enqueue(0, late) }?;
    told.recv_timeout(Duration::from_secs(20)).unwrap()
}

fn transfer(file: &File, offset: u64, buffer: &Buffer, len: usize) -> Transfer {
    let (file, memory, direction) = (file.clone(), buffer.memory(), Direction::Write);
    Transfer { file, offset, memory, len, direction, allow_short: true }
}

/// Writes more than there is room for; whatever counts is in the file, and nothing else.
fn one(session: &Session, target: Target, path: &Path, way: Way, (offset, len): (usize, usize)) {
    let file = File::options().write(true).create(true).open(path).unwrap();
    let bytes = pattern(3, 0, LEN);
    let mut buffer = target.buffer(session, LEN);
    buffer.copy_from_slice(&bytes).unwrap();
    let asked = transfer(&file, offset as u64, &buffer, len);
    let count = way(session, &asked).unwrap() as usize;
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len(), offset + count, "the file ends with what counts");
    assert!(found[offset..] == bytes[..count] && found[..offset].iter().all(|byte| *byte == 0));
    // All room was used, but for what the unaligned ends of pages and the file system take.
    assert!(count < len && count + (64 << 10) > ROOM - offset % 4096, "{count}");
    assert!(path.metadata().unwrap().blocks() * 512 >= count as u64, "no holes");
    let rest = Transfer { offset: asked.offset + count as u64, ..asked.clone() };
    for asked in [&rest, &Transfer { len: 4096, offset: 1 << 30, ..asked.clone() }] {
        assert_eq!(way(session, asked).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(path.metadata().unwrap().len() as usize, offset + count, "it is no longer than before");
    }
    let error = way(session, &Transfer { allow_short: false, ..rest }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    std::fs::remove_file(path).unwrap();
}

/// `folder` is on the full file system.
fn leaves_prefixes(folder: &Path) {
    let path = folder.join("file");
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for target in Target::ALL {
        let ways: [(&str, Way); 4] =
            [("run", run), ("submit", submit), ("submit_on", submit_on), ("enqueue", enqueue)];
        for (name, way) in ways {
            for range in [(0, LEN), (0, ROOM + 1), (70_001, LEN - 5)] {
                println!("{target:?} {name} {range:?}");
                one(&session, target, &path, way, range);
            }
        }
        entries_end_each(&session, target, &path);
    }
}

/// By the caller's thread: less than a MiB is left. (Of a direct write to a disk the kernel takes all or nothing.)
fn a_call_leaves_a_prefix(folder: &Path) {
    let path = folder.join("file");
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    std::fs::write(folder.join("other"), vec![1; ROOM - (600 << 10)]).unwrap();
    for target in Target::ALL {
        let file = File::options().write(true).create(true).open(&path).unwrap();
        let mut buffer = target.buffer(&session, 1 << 20);
        buffer.copy_from_slice(&pattern(3, 0, 1 << 20)).unwrap();
        let count = run(&session, &transfer(&file, 0, &buffer, 1 << 20)).unwrap() as usize;
        assert!(std::fs::read(&path).unwrap() == pattern(3, 0, count) && count > 500 << 10, "{count}");
        std::fs::remove_file(&path).unwrap();
    }
}

fn body(mount: fn(&Path) -> bool, ways: &[fn(&Path)]) {
    let _watch = Watch::new(Duration::from_mins(1));
    let folder = Scratch::new(&disk());
    std::fs::create_dir(folder.path()).unwrap();
    if mount(folder.path()) {
        for way in ways {
            way(folder.path());
        }
        let name = CString::new(folder.path().to_str().unwrap()).unwrap();
        // SAFETY: a name that ends with NUL.
        unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
    }
    std::fs::remove_dir(folder.path()).unwrap();
}

/// Of a batch, the entries before the full one are whole, and each counts its own.
fn entries_end_each(session: &Session, target: Target, path: &Path) {
    let file = File::options().write(true).create(true).open(path).unwrap();
    let mut buffer = target.buffer(session, LEN);
    buffer.copy_from_slice(&pattern(3, 0, LEN)).unwrap();
    let piece =
        |at: usize| ReadPiece { offset: (at * LEN / 8) as u64, range: at * LEN / 8..(at + 1) * LEN / 8 };
    let outcome = session.write_batch(&file, &[0, 1, 2, 3, 4, 5, 6, 7].map(piece), buffer).unwrap().wait();
    let whole = outcome.entries.iter().take_while(|entry| entry.is_ok()).count();
    assert_eq!(whole, ROOM * 8 / LEN);
    assert!(
        outcome.entries[whole..]
            .iter()
            .all(|entry| { entry.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) })
    );
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len() as u64, outcome.receipt.bytes());
    assert!(found.len() + (64 << 10) > ROOM && found == pattern(3, 0, found.len()));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_write_without_room_for_all_of_it_leaves_a_prefix() {
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount"];
    in_process(&wrapper, &[], || {
        body(mount_memory, &[leaves_prefixes, a_call_leaves_a_prefix]);
    });
}

#[test]
fn a_write_to_a_full_disk_leaves_a_prefix() {
    let wrapper = ["unshare", "--mount"];
    in_process(&wrapper, &[], || {
        body(mount_disk, &[leaves_prefixes]);
    });
}

/// A disk with room up to an offset, and some behind it, as where other files end meanwhile.
#[derive(Debug)]
struct Gapped;

impl Calls for Gapped {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        // SAFETY: passed on.
        unsafe { Kernel.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        let left = (ROOM as u64).saturating_sub(offset);
        let memory = if offset > ROOM as u64 { memory } else { memory.first(left as usize) };
        if memory.len == 0 {
            return -(libc::ENOSPC as isize);
        }
        // SAFETY: at most the promised length.
        unsafe { Kernel.write(fd, memory, offset) }
    }

    fn reserve(&self, fd: RawFd, start: u64, len: u64) -> std::result::Result<(), i32> {
        if start + len > ROOM as u64 { Err(libc::ENOSPC) } else { Kernel.reserve(fd, start, len) }
    }
}

/// Whether space is reserved there: on ext4 and xfs.
fn reserves(folder: &Path) -> bool {
    let name = CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: a zeroed statfs is a valid value for the kernel to overwrite; the name ends with NUL.
    let magic = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        assert_eq!(libc::statfs(name.as_ptr(), &mut about), 0);
        about.f_type
    };
    [0xEF53, 0x5846_5342].contains(&magic)
}

#[test]
fn nothing_is_written_behind_a_part_without_room() {
    let _turn = turn();
    // By calls alone: a ring would ask the real disk.
    let session = session(IoBackend::Threads, CachePolicy::Auto);
    let scratch = Scratch::new(&disk());
    if !reserves(&disk()) {
        return println!("skipped: not on ext4 or xfs");
    }
    for target in Target::ALL {
        for old in [0, 70_001, ROOM + (1 << 20), 2 * LEN] {
            let _ = std::fs::remove_file(scratch.path());
            let file = File::options()
                .write(true)
                .create(true)
                .calls(Box::new(Gapped))
                .open(scratch.path())
                .unwrap();
            file.set_len(old as u64).unwrap();
            let mut buffer = target.buffer(&session, LEN);
            buffer.copy_from_slice(&pattern(3, 0, LEN)).unwrap();
            for way in [run, submit] {
                let count = way(&session, &transfer(&file, 0, &buffer, LEN)).unwrap() as usize;
                assert_eq!(count, ROOM, "{target:?} {old}");
                assert_eq!(
                    file.len().unwrap() as usize,
                    old.max(count),
                    "{target:?} {old}: no longer than that"
                );
            }
        }
    }
}
