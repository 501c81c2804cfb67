//! A disk so slow that one O_DIRECT write takes seconds: a writer in a throttled cgroup, readers outside of it.
//!
//! The file's times change when the write begins; its pages are others when it ends. A read that begins afterwards must
//! see the new bytes.

use std::fs::{File as Plain, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::{ErrorKind, File, Session, Way};

use crate::block::{self, Kind, SIZE, State};
use crate::trial::{Outcome, Skip, Trial};

const LEN: usize = 24 << 20;
/// So that a write takes three seconds.
const RATE: usize = LEN / 3;
const ID: u64 = 4;
/// Writes, and how long readers go on after each.
const WRITES: u32 = 2;
const AFTER: Duration = Duration::from_secs(4);

pub fn run(trial: &'static Trial) -> Outcome {
    let group = Group::new(trial.disk())?;
    let path = trial.disk().join("slow");
    let state_path = trial.disk().join("state");
    std::fs::write(&path, content(1)).expect("room on the disk");
    Plain::open(&path).and_then(|file| file.sync_all()).expect("a file on the disk");
    std::fs::write(&state_path, [0; SIZE]).expect("room on the disk");
    let state = Shared::map(&state_path);
    let (begun, over) = state.words();
    begun.store(1, Ordering::SeqCst);
    over.store(1, Ordering::SeqCst);
    fake_cuda::install().map_err(Skip)?;
    let session = Session::open().expect("a session");
    // The file is old enough to be pinned when the write begins.
    let mut writer = group.start(&path, &state_path)?;
    let mut took = Duration::ZERO;
    let mut began = Instant::now();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Another program reads the file too: its pages are in the page cache.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::read(&path);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while writer.try_wait().expect("a child can be waited for").is_none() {
            let (low, high) = (over.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
            if low == high {
                took = took.max(began.elapsed());
                began = Instant::now();
            }
            one(trial, &session, &path, (begun, over));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let status = writer.wait().expect("a child can be waited for");
    trial.check(status.success(), || format!("the slow writer: {status}"));
    if took < Duration::from_secs(2) {
        return Err(Skip(format!("the cgroup's limit had no effect: a write took {took:?}")));
    }
    Ok(())
}

fn one(trial: &Trial, session: &Session, path: &Path, (begun, over): (&AtomicU32, &AtomicU32)) {
    let file = File::open(path).expect("the file is there");
    let mut buffer = session.buffer(0, LEN).expect("memory of the GPU");
    let low = over.load(Ordering::SeqCst);
    let read =
        trial.call(|| "a read beside a slow writer".to_owned(), || session.read(&file, 0, &mut buffer));
    let high = begun.load(Ordering::SeqCst);
    let receipt = match read {
        Ok(receipt) => receipt,
        Err(error) => {
            trial.add("busy", 1);
            trial.check(error.kind() == ErrorKind::Busy && low != high, || format!("a read: {error:?}"));
            return;
        }
    };
    trial.add(if receipt.moved[Way::Mapped] > 0 { "reads in place" } else { "staged reads" }, 1);
    trial.add("bytes compared", LEN as u64);
    let state = |version| State { version, kind: Kind::Data };
    let bytes = buffer.to_vec().expect("memory of the GPU");
    for (index, found) in bytes.chunks(SIZE).enumerate() {
        if let Err(seen) = block::is_good(found, (ID, index as u64), (state(low), state(high))) {
            return trial.fail(format!(
                "version {low} was written when a read began, {high} had begun when it ended, block {index} is {seen:?}: {receipt}"
            ));
        }
    }
}

fn content(version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN);
    (0..(LEN / SIZE) as u64).for_each(|index| block::append(&mut bytes, ID, index, version));
    bytes
}

/// The writer, in the throttled group: each write is one call.
pub fn slow_write(path: &str, state: &str) -> ExitCode {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).expect("O_DIRECT");
    let state = Shared::map(Path::new(state));
    let (begun, over) = state.words();
    for version in 2..2 + WRITES {
        std::thread::sleep(Duration::from_millis(1500));
        let bytes = content(version);
        let mut room = vec![0; LEN + SIZE];
        let skip = room.as_ptr().align_offset(SIZE);
        room[skip..skip + LEN].copy_from_slice(&bytes);
        begun.store(version, Ordering::SeqCst);
        let written = file.write_at(&room[skip..skip + LEN], 0).expect("a write");
        over.store(version, Ordering::SeqCst);
        assert_eq!(written, LEN);
        std::thread::sleep(AFTER);
    }
    ExitCode::SUCCESS
}

/// A page that two processes share: the version whose write has begun, and the one whose write is over.
struct Shared(*mut AtomicU32);

impl Shared {
    fn map(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the page's file");
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap");
        Self(at.cast())
    }

    fn words(&self) -> (&AtomicU32, &AtomicU32) {
        // SAFETY: the page stays mapped as long as the process lives.
        unsafe { (&*self.0, &*self.0.add(1)) }
    }
}

/// A cgroup whose writes to one disk are limited; removed when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new(place: &Path) -> Result<Self, Skip> {
        let device = disk_of(place)?;
        let name = format!("forebay-torture-{}", std::process::id());
        let put = |path: &Path, text: &str| {
            let written = OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| Skip(format!("{}: {error}", path.display())))
        };
        let make = |parent: &str| {
            let group = Path::new(parent).join(&name);
            std::fs::create_dir(&group).map_err(|error| Skip(format!("no cgroup in {parent}: {error}")))?;
            Ok::<_, Skip>(Self(group))
        };
        let has_io = |parent: &str| {
            let text = std::fs::read_to_string(format!("{parent}/cgroup.controllers")).unwrap_or_default();
            text.split_whitespace().any(|word| word == "io")
        };
        if Path::new("/sys/fs/cgroup/blkio").exists() {
            let group = make("/sys/fs/cgroup/blkio")?;
            put(&group.0.join("blkio.throttle.write_bps_device"), &format!("{device} {RATE}"))?;
            return Ok(group);
        }
        let parent = "/sys/fs/cgroup";
        if !has_io(parent) {
            return Err(Skip("no cgroup here limits writes (neither blkio nor io)".to_owned()));
        }
        put(&Path::new(parent).join("cgroup.subtree_control"), "+io")?;
        let group = make(parent)?;
        put(&group.0.join("io.max"), &format!("{device} wbps={RATE}"))?;
        Ok(group)
    }

    fn start(&self, path: &Path, state: &Path) -> Result<std::process::Child, Skip> {
        let members = self.0.join("cgroup.procs");
        let members = OpenOptions::new().write(true).open(&members);
        let members =
            members.map_err(|error| Skip(format!("cannot put a process into a cgroup: {error}")))?;
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command
            .arg("--step")
            .arg("slow-write")
            .arg(path)
            .arg(state)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // SAFETY: a system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                (&members).write_all(b"0")
            });
        }
        command.spawn().map_err(|error| Skip(format!("cannot start a process in a cgroup: {error}")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The numbers of the whole disk that a folder lies on.
fn disk_of(place: &Path) -> Result<String, Skip> {
    let device = std::fs::metadata(place).map_err(|error| Skip(error.to_string()))?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !node.exists() {
        return Err(Skip(format!("{} lies on no disk of its own ({major}:{minor})", place.display())));
    }
    let whole = if node.join("partition").exists() { node.join("../dev") } else { node.join("dev") };
    let text = std::fs::read_to_string(whole).map_err(|error| Skip(error.to_string()))?;
    Ok(text.trim().to_owned())
}
