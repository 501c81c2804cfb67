//! Lanes follow what they measure.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{self, Scratch, disk, in_process, pattern, turn};
use forebay_config::{Config, allowed_cpus};
use forebay_engine::{Batch, Direction, File, Piece, Session};
use forebay_error::ErrorKind;

const KEY: u64 = 71;
const MIB: usize = 1 << 20;
const LEN: usize = 64 * MIB;

fn open(config: Config) -> Session {
    Session::with_config(Config { engine: Some("staged".to_owned()), ..config }).unwrap()
}

/// Threads of lanes of the GPU.
fn lanes() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-0-")).count()
}

/// Reads again and again, several at once, until the width is known. The last receipt, as text.
fn learn(session: &Session, file: &File) -> String {
    let device = session.device(0).unwrap();
    let start = Instant::now();
    loop {
        let submit = |_| session.submit_read(file, 0, session.buffer(0, LEN).unwrap()).unwrap();
        let mut tickets: Vec<_> = (0..4).map(submit).collect();
        let last = tickets.pop().unwrap();
        for ticket in tickets {
            ticket.wait().into_result().unwrap();
        }
        let (receipt, buffer) = last.wait().into_result().unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        if !session.report(&device).unwrap().measured.is_empty() || start.elapsed() > Duration::from_secs(40)
        {
            return receipt.to_string();
        }
    }
}

#[test]
fn a_width_is_found() {
    if allowed_cpus() < 2 {
        println!("skipped: one CPU has one lane");
        return;
    }
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let most = Config::default().most_lanes();
    let session = open(Config { slot_size: MIB, ..Config::default() });
    let receipt = learn(&session, &file);
    let report = session.report(&session.device(0).unwrap()).unwrap();
    let found = report.measured.iter().find(|found| found.source == "page cache").expect(&receipt);
    assert!((1..=most).contains(&found.lanes) && found.most == most, "{found}");
    assert!(found.rate > 1e6, "{found}");
    assert!(lanes() <= most);
}

#[test]
fn a_number_that_the_user_sets_stays() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    let session = open(Config { lanes: 3, ..Config::default() });
    for _ in 0..4 {
        let buffer = session.buffer(0, LEN).unwrap();
        let (receipt, _) = session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap();
        assert!(!receipt.to_string().contains("lanes"), "{receipt}");
    }
    let report = session.report(&session.device(0).unwrap()).unwrap();
    assert_eq!((report.lanes, report.most, report.measured.len()), (3, 3, 0));
}

#[test]
fn one_cpu_has_one_lane() {
    in_process(&["taskset", "-c", "0"], &[], || {
        let _turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        let session = open(Config::default());
        let (_, buffer) = session
            .submit_read(&file, 0, session.buffer(0, LEN).unwrap())
            .unwrap()
            .wait()
            .into_result()
            .unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        let report = session.report(&session.device(0).unwrap()).unwrap();
        assert_eq!((report.lanes, report.most, lanes()), (1, 1, 1));
    });
}

// A lane that ended the last work once ended the lanes, too, itself among them, and the ticket never resolved.
#[test]
fn a_long_read_outlives_its_session() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    for _ in 0..3 {
        let session = open(Config { slot_size: 256 << 10, ..Config::default() });
        let buffer = session.buffer(0, LEN).unwrap();
        let ticket = session.submit_read(&file, 0, buffer).unwrap();
        drop(session);
        let (_, buffer) = ticket.wait().into_result().unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    }
}

// What looks for more behind the end keeps the lanes, and is dropped by one of them.
#[test]
fn a_read_past_the_end_outlives_its_session() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    for _ in 0..3 {
        let session = open(Config { ..Config::default() });
        let buffer = session.buffer(0, LEN).unwrap();
        let pieces = vec![Piece { offset: 0, address: buffer.address(), len: LEN + MIB }];
        let memory = buffer.memory();
        let batch =
            Batch { file: file.clone(), memory, direction: Direction::Read, pieces, allow_short: true };
        // SAFETY: the buffer has room for all of the file, and lives until the ticket is waited for.
        let ticket = unsafe { session.submit_batch(batch) }.unwrap();
        drop(session);
        assert!(ticket.wait_timeout(Duration::from_secs(20)), "the ticket never resolves");
        assert_eq!(*ticket.wait().entries[0].as_ref().unwrap(), LEN as u64);
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    }
}

// Lanes that start together once pinned their memory together or not at all.
#[test]
fn as_many_lanes_start_as_can_be_pinned() {
    const SLOT: usize = 2 * MIB;
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    for fit in 0..=4 {
        let before = turn.fake.leaks().registrations;
        let session = open(Config { lanes: 4, slot_size: SLOT, ..Config::default() });
        let buffer = session.buffer(0, LEN).unwrap();
        // Lists need a little beside each slot; what a lane has later on takes more than is left.
        turn.fake.limit_pins(fit * SLOT + MIB / 4);
        let ticket = session.submit_read(&file, 0, buffer);
        if fit == 0 {
            let error = ticket.and_then(|ticket| ticket.wait().into_result()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeviceOutOfMemory, "{error}");
        } else {
            let (_, buffer) = ticket.unwrap().wait().into_result().unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
            assert!(common::soon(|| lanes() == fit), "{} lanes, {fit} fit", lanes());
            let report = session.report(&session.device(0).unwrap()).unwrap();
            let tells = report.notes.iter().any(|note| note.text.contains("a lane did not start"));
            assert_eq!(tells, fit < 4, "{:?}", report.notes);
        }
        drop(session);
        turn.fake.reset();
        let tidy = || lanes() == 0 && turn.fake.leaks().registrations <= before;
        assert!(common::soon(tidy), "{:?}", turn.fake.leaks());
    }
}

// A fresh process once made its tensors first, and then its lanes.
#[test]
fn lanes_get_ready_for_a_read_that_is_announced() {
    const LANES: u64 = 4;
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    // Another engine would register the file's pages beside the copies.
    let config = Config { lanes: LANES as usize, slot_size: MIB, ..Config::default() };
    let session = open(Config { engine: Some("staged".to_owned()), ..config });
    let (device, buffer) = (session.device(0).unwrap(), session.buffer(0, LEN).unwrap());
    let before = turn.fake.leaks().registrations;
    let pinned = || turn.fake.leaks().registrations - before;

    session.expect_read(&file, &device, (0, LEN as u64 - 1)).unwrap();
    session.expect_read(&file, &session.devices().host, (0, LEN as u64)).unwrap();
    assert_eq!((lanes(), pinned()), (0, 0), "too little; no lanes of the GPU");
    session.expect_read(&file, &device, (0, LEN as u64)).unwrap();
    // One pin for the first slots of all, and one for the further slots of each.
    assert!(common::soon(|| pinned() == 1 + LANES), "{} pins", pinned());
    // A thread that another one starts has its name for a moment.
    assert!(common::soon(|| lanes() == LANES as usize), "{} lanes", lanes());

    let (_, buffer) = session.submit_read(&file, 0, buffer).unwrap().wait().into_result().unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    assert_eq!(pinned(), 1 + LANES, "nothing is left to be pinned");
}

/// Has all threads run on the first CPUs of those that this process may use: on one, or on all.
fn use_cpus(all: &libc::cpu_set_t, is_one: bool) {
    // SAFETY: a CPU set is plain numbers; the calls are given its size.
    unsafe {
        let mut chosen = *all;
        if is_one {
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, all)).unwrap();
            chosen = std::mem::zeroed();
            libc::CPU_SET(first, &mut chosen);
        }
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap().file_name().into_string().unwrap().parse().unwrap();
            libc::sched_setaffinity(task, size_of::<libc::cpu_set_t>(), &raw const chosen);
        }
    }
}

/// A second, and what a machine that is busy with other tests adds.
const SOON: Duration = Duration::from_secs(15);

/// Reads until it is enough, judged by the time, the lanes of those that may be, and the receipt; the last bytes are compared.
/// How long it took.
fn read_until(
    session: &Session,
    file: &File,
    is_enough: impl Fn(Duration, (usize, usize), &str) -> bool,
) -> Duration {
    let (device, begun) = (session.device(0).unwrap(), Instant::now());
    loop {
        let ticket = session.submit_read(file, 0, session.buffer(0, LEN).unwrap()).unwrap();
        let (receipt, buffer) = ticket.wait().into_result().unwrap();
        let (report, receipt) = (session.report(&device).unwrap(), receipt.to_string());
        let took = begun.elapsed();
        if is_enough(took, (report.lanes, report.most), &receipt) {
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
            return took;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{report:?}; {receipt}");
    }
}

#[test]
fn lanes_follow_cpus_that_go_and_come() {
    if allowed_cpus() < 2 {
        println!("skipped: one CPU has one lane");
        return;
    }
    in_process(&[], &[], || {
        let _turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        // SAFETY: a zeroed CPU set is the empty set; the call is given its size.
        let all = unsafe {
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut all), 0);
            all
        };
        let session = open(Config { slot_size: MIB, ..Config::default() });
        read_until(&session, &file, |took, _, _| took > Duration::from_millis(700));
        for is_one in [true, false, true] {
            use_cpus(&all, is_one);
            let most = if is_one { 1 } else { Config::default().most_lanes() };
            let took = read_until(&session, &file, |_, (lanes, found), _| found == most && lanes <= most);
            println!("{most} lanes at most after {took:?}");
            assert!(took < SOON, "{took:?}");
        }
    });
}

/// A cgroup with this process in it, below those of the machine; goes when it is dropped.
struct Group {
    folder: PathBuf,
    /// The file of the quota, what stands in it behind the number, and what stands for none.
    quota: (&'static str, &'static str, &'static str),
}

impl Group {
    /// `None`, with the reason printed, where none with a CPU quota can be made.
    fn new() -> Option<Self> {
        let name = format!("forebay-test-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup", ("cpu.max", " 100000", "max 100000")),
            ("/sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "", "-1")),
        ];
        for (mount, quota) in kinds {
            let group = Self { folder: Path::new(mount).join(&name), quota };
            if std::fs::create_dir(&group.folder).is_ok()
                && group.folder.join(quota.0).exists()
                && Self::enter(&group.folder)
            {
                return Some(group);
            }
        }
        println!("skipped: no cgroup with a CPU quota can be made here");
        None
    }

    fn enter(group: &Path) -> bool {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).is_ok()
    }

    /// Allows this number of CPUs, or all.
    fn allow(&self, cpus: Option<usize>) {
        let (file, behind, all) = self.quota;
        let text = cpus.map_or_else(|| all.to_owned(), |cpus| format!("{}{behind}", cpus * 100_000));
        std::fs::write(self.folder.join(file), text).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        Self::enter(self.folder.parent().unwrap());
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// A quota that is there from the beginning, goes, and comes back; bytes are the file's, and receipts say how many lanes there may be.
#[test]
fn lanes_follow_a_cpu_quota() {
    if allowed_cpus() < 2 {
        println!("skipped: one CPU has one lane");
        return;
    }
    in_process(&[], &[], || {
        let Some(group) = Group::new() else { return };
        let _turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        let all = allowed_cpus();
        group.allow(Some(1));
        // Slots that are large enough to be counted, and so small that a read has enough of them to be reported.
        let session = open(Config { slot_size: MIB / 2, ..Config::default() });
        for allowed in [Some(1), None, Some(1)] {
            group.allow(allowed);
            let most = allowed.unwrap_or(all).min(Config::default().lanes_limit());
            let took = read_until(&session, &file, |_, (lanes, found), _| found == most && lanes <= most);
            println!("{most} lanes at most after {took:?}");
            assert!(took < SOON, "{took:?}");
            read_until(&session, &file, |_, _, receipt| receipt.contains(&format!(" of {most} lanes (")));
        }
    });
}
