//! Savers killed in the middle: `forebay cp`, and a program with a pending file. The target is the old file or a whole
//! new one, and what the dead leave is gone after the next save.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use forebay::{File, Session};
use forebay_models::Pending;

use crate::bytes::{file_difference, make};
use crate::cufile::beside;
use crate::gpu::gpu;
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const MIB: u64 = 1 << 20;

pub fn run(trial: &'static Trial) -> Outcome {
    // Names the software GPU for the children.
    gpu();
    let mut random = trial.random("savers");
    let mut places: Vec<_> = [Some(trial.disk()), trial.memory()]
        .into_iter()
        .flatten()
        .map(|path| Place::new(path, &mut random))
        .collect();
    while !trial.is_over() {
        for place in &mut places {
            place.round(trial, &mut random);
        }
    }
    for place in &mut places {
        place.end(trial);
    }
    Ok(())
}

/// A folder with sources of several contents, and one target.
struct Place {
    folder: PathBuf,
    /// Key and length of each content. The target starts as the first one.
    contents: Vec<(u64, u64)>,
    /// How long a save takes that is left alone.
    usual: Duration,
}

impl Place {
    fn new(parent: &Path, random: &mut Random) -> Self {
        let contents: Vec<_> =
            (0..4).map(|key| (key, random.between(1, 24) * MIB + random.below(5000))).collect();
        let folder = parent.join("saved");
        std::fs::create_dir_all(&folder).expect("a folder");
        let place = Self { folder, contents, usual: Duration::from_millis(100) };
        for (key, len) in &place.contents {
            make(&place.source(*key), *key, *len);
        }
        make(&place.target(), place.contents[0].0, place.contents[0].1);
        place
    }

    fn source(&self, key: u64) -> PathBuf {
        self.folder.with_file_name(format!("source-{key}"))
    }

    fn target(&self) -> PathBuf {
        self.folder.join("target")
    }

    fn start(&self, key: u64, by_command: bool) -> Child {
        let mut command = if by_command {
            let mut command = Command::new(beside("forebay"));
            command.arg("cp");
            command
        } else {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command.args(["--step", "save"]);
            command
        };
        command.arg(self.source(key)).arg(self.target());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("a saver can be started")
    }

    /// One to four savers at once, each killed at some moment, or in time to end by itself.
    fn round(&mut self, trial: &Trial, random: &mut Random) {
        let count = random.one_of(&[1, 1, 2, 4]);
        let begun = Instant::now();
        let mut savers: Vec<_> = (0..count)
            .map(|_| {
                let limit = self.usual.mul_f64(random.below(1500) as f64 / 1000.0);
                (self.start(random.below(4), random.once_in(2)), limit)
            })
            .collect();
        let mut is_whole = true;
        while !savers.is_empty() {
            savers.retain_mut(|(child, limit)| {
                if let Ok(Some(status)) = child.try_wait() {
                    trial.add("saves that ended", 1);
                    trial.check(status.success(), || format!("a saver ended with {status}"));
                    self.usual = (self.usual * 3 + begun.elapsed()) / 4;
                    return false;
                }
                if begun.elapsed() < *limit {
                    return true;
                }
                let _ = child.kill();
                let _ = child.wait();
                trial.add("savers killed", 1);
                false
            });
            is_whole &= self.is_whole(trial);
            std::thread::sleep(Duration::from_millis(2));
        }
        if is_whole {
            self.is_whole(trial);
        }
        trial.add("hidden files left", self.others().len() as u64);
    }

    /// A program that opens the target gets one whole content.
    fn is_whole(&self, trial: &Trial) -> bool {
        let path = self.target();
        let Ok(len) = std::fs::metadata(&path).map(|found| found.len()) else {
            trial.fail("the target is gone");
            return false;
        };
        // One open for length and bytes: the name may change in between.
        let Ok(found) = std::fs::read(&path) else {
            trial.fail("the target cannot be read");
            return false;
        };
        trial.add("bytes compared", found.len() as u64);
        let is_one = |(key, len): &(u64, u64)| {
            found.len() as u64 == *len && crate::bytes::difference(&found, *key, 0).is_none()
        };
        let is_whole = self.contents.iter().any(is_one);
        trial.check(is_whole, || format!("the target ({len} bytes) is no whole content: {:?}", self.contents))
    }

    /// What is in the folder beside the target.
    fn others(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != "target").collect()
    }

    /// A save that nobody disturbs leaves its file and no other.
    fn end(&mut self, trial: &Trial) {
        let (key, len) = self.contents[1];
        let ended = self.start(key, true).wait();
        trial.check(ended.as_ref().is_ok_and(std::process::ExitStatus::success), || {
            format!("the last save: {ended:?}")
        });
        let wrong = file_difference(&self.target(), key, len);
        trial.check(wrong.is_none(), || format!("the last save: {wrong:?}"));
        let others = self.others();
        trial.check(others.is_empty(), || format!("left behind: {others:?}"));
    }
}

/// The program with a pending file: reads a source through the GPU and saves it in pieces.
pub fn save(source: &str, target: &str) -> ExitCode {
    let save = || -> forebay::Result<()> {
        let session = Session::open()?;
        let from = File::open(source)?;
        let pending = Pending::create(target)?;
        let len = from.len()?;
        for at in (0..len).step_by(4 * MIB as usize) {
            let mut buffer = session.buffer(0, (4 * MIB).min(len - at) as usize)?;
            session.read(&from, at, &mut buffer)?;
            session.write(pending.file(), at, &buffer)?;
        }
        pending.commit(true).map(drop)
    };
    match save() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
