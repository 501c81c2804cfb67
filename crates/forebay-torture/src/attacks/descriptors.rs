//! Descriptors closed, or replaced by an unrelated file, under registered handles, in the middle of calls.
//!
//! Bytes moved afterwards are of the registered file or of none: a call that began before may succeed or fail, one that
//! began after fails with 5027, and the unrelated file stays as it is.

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bytes::{close, difference, file_difference, make, open, pattern};
use crate::cufile::{Handle, INVALID_HANDLE, Params, cufile};
use crate::gpu::{Memory, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const KEY: u64 = 1;
const WRITTEN: u64 = 2;
const STRANGER: u64 = 3;
/// What calls would write that begin when the descriptor is another file's: it must come nowhere.
const LATE: u64 = 4;
const MIB: u64 = 1 << 20;

/// How the number comes to be another file's.
const WAYS: &[&str] = &["close", "dup2", "close and open", "dup2 of a read-only file"];

struct Game {
    trial: &'static Trial,
    handle: Handle,
    /// The first half is only read; into the second one goes what belongs there by its key.
    len: u64,
    most: u64,
    swapped: AtomicBool,
    stop: AtomicBool,
    way: &'static str,
}

pub fn run(trial: &'static Trial) -> Outcome {
    let mut random = trial.random("descriptors");
    while !trial.is_over() {
        play(trial, &mut random);
    }
    Ok(())
}

fn play(trial: &'static Trial, random: &mut Random) {
    let folder = trial.place(random).to_owned();
    let (path, other) = (folder.join("registered"), folder.join("unrelated"));
    let len = random.one_of(&[4, 16, 64, 64]) * MIB;
    make(&path, KEY, len);
    make(&other, STRANGER, len);
    let flags = random.one_of(&[0, libc::O_DIRECT]);
    let fd = open(&path, flags).or_else(|_| open(&path, 0)).expect("a new file").into_raw_fd();
    let handle = cufile().register(fd).unwrap_or_else(|code| panic!("cuFileHandleRegister: {code}"));
    let (way, most) = (random.one_of(WAYS), random.one_of(&[64 << 10, MIB, 32 * MIB]).min(len / 2));
    let (swapped, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let game = Game { trial, handle, len, most, swapped, stop, way };
    let now = std::thread::scope(|scope| {
        for number in 0..3 {
            let (game, seed) = (&game, random.next());
            scope.spawn(move || game.play(Random::new(seed, "player"), number));
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let now = swap(way, fd, &other);
        game.swapped.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(random.between(1, 40)));
        game.stop.store(true, Ordering::SeqCst);
        now
    });
    cufile().deregister(handle);
    if let Some(fd) = now {
        close(fd);
    }
    trial.add("descriptors taken away", 1);
    if let Some(text) = file_difference(&other, STRANGER, len) {
        trial.fail(format!("{way}: the unrelated file was written: {text}"));
    }
    game.look_at(&path);
}

/// Takes the descriptor away; the number that is open afterwards.
fn swap(way: &str, fd: RawFd, other: &PathBuf) -> Option<RawFd> {
    let other = if way.contains("read-only") { File::open(other) } else { open(other, 0) };
    let other = other.expect("the other file");
    match way {
        "close" => {
            close(fd);
            None
        }
        "close and open" => {
            close(fd);
            // Somebody else's file may be quicker to get the number; it is used for nothing then.
            Some(other.try_clone().expect("another descriptor").into_raw_fd())
        }
        _ => {
            // SAFETY: both are numbers.
            unsafe { libc::dup2(other.as_raw_fd(), fd) };
            Some(fd)
        }
    }
}

impl Game {
    fn play(&self, mut random: Random, number: u64) {
        let gpu = gpu();
        let room = self.most as usize;
        let [target, source, late] = [room, room, room].map(|len| gpu.memory(len));
        while !self.stop.load(Ordering::SeqCst) {
            let len = if random.once_in(3) { self.most } else { random.len(self.most) };
            let half = self.len / 2;
            let offset = random.below(half - len + 1);
            let was_swapped = self.swapped.load(Ordering::SeqCst);
            if number == 0 {
                let at = if was_swapped { offset } else { half + offset };
                let (memory, key) = if was_swapped { (&late, LATE) } else { (&source, WRITTEN) };
                memory.put(0, &pattern(key, at, len as usize));
                let found = self.trial.call(
                    || format!("cuFileWrite of {len}"),
                    || cufile().write(self.handle, memory.address, len as usize, at),
                );
                self.judge("cuFileWrite", found, len, was_swapped);
            } else if random.once_in(3) {
                self.batch(&target, offset, len, was_swapped);
            } else {
                let found = self.trial.call(
                    || format!("cuFileRead of {len}"),
                    || cufile().read(self.handle, target.address, len as usize, offset),
                );
                if self.judge("cuFileRead", found, len, was_swapped) {
                    self.compare("cuFileRead", &target, offset, len);
                }
            }
        }
    }

    fn batch(&self, target: &Memory, offset: u64, len: u64, was_swapped: bool) {
        let entry = Params::new(self.handle, true, target.address, len as usize, offset, 0);
        match self.trial.call(|| format!("a batch of {len}"), || cufile().run_batch(&mut [entry])) {
            Ok(results) => {
                if self.judge("a batch", results[0], len, was_swapped) {
                    self.compare("a batch", target, offset, len);
                }
            }
            // The submission refuses the handle.
            Err(_) => self.trial.add("calls that failed", 1),
        }
    }

    /// Whether the bytes are to be looked at.
    fn judge(&self, what: &str, found: isize, len: u64, was_swapped: bool) -> bool {
        self.trial.add("calls", 1);
        let way = self.way;
        if was_swapped {
            self.trial.add("calls afterwards", 1);
            let text =
                || format!("{way}: {what} of {len} bytes that began afterwards gave {found}, not -5027");
            let is_refused = found == -(INVALID_HANDLE as isize) || (found < 0 && what == "a batch");
            self.trial.check(is_refused, text);
            return false;
        }
        if found < 0 {
            self.trial.add("calls that failed", 1);
        }
        self.trial.check(found < 0 || found == len as isize, || {
            format!("{way}: {what} of {len} bytes gave {found}")
        });
        found == len as isize
    }

    fn compare(&self, what: &str, target: &Memory, offset: u64, len: u64) {
        self.trial.add("bytes compared", len);
        if let Some(at) = difference(&target.get(0, len as usize), KEY, offset) {
            let way = self.way;
            self.trial.fail(format!(
                "{way}: {what} of {len} bytes at {offset}: byte {at} is not the registered file's"
            ));
        }
    }

    /// The registered file has only its old bytes, and those written before.
    fn look_at(&self, path: &PathBuf) {
        let found = std::fs::read(path).unwrap_or_default();
        let half = (self.len / 2) as usize;
        let fits = found.len() as u64 == self.len && difference(&found[..half], KEY, 0).is_none();
        let (old, new) = (pattern(KEY, half as u64, half), pattern(WRITTEN, half as u64, half));
        let rest = found.iter().skip(half).zip(old.iter().zip(&new));
        let wrong = rest.enumerate().find(|(_, (byte, (old, new)))| byte != old && byte != new);
        self.trial.add("bytes compared", self.len);
        self.trial.check(fits && wrong.is_none(), || format!("{}: the registered file is wrong", self.way));
    }
}
