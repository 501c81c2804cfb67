//! Large writes, each by one call, beside readers in place: each read in place, and each repeated because of a change,
//! is old or new as a whole. Reads that were staged from the start follow `read(2)`, block by block.

use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::{ErrorKind, File, Receipt, Session, Way};

use crate::block::{self, Kind, SIZE, Seen, State};
use crate::bytes::open;
use crate::random::Random;
use crate::trial::{Outcome, Skip, Trial};

const ID: u64 = 6;
/// How long a file must have been left alone before its pages are pinned: on a disk, on tmpfs.
const SETTLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));

struct Subject {
    path: std::path::PathBuf,
    blocks: u64,
    settle: Duration,
    begun: AtomicU32,
    over: AtomicU32,
    /// When the last write began.
    since: Mutex<Instant>,
}

pub fn run(trial: &'static Trial) -> Outcome {
    fake_cuda::install().map_err(Skip)?;
    let mut random = trial.random("mixes");
    let session = Session::open().expect("a session");
    let places = [Some((trial.disk(), SETTLE.0)), trial.memory().map(|place| (place, SETTLE.1))];
    let subjects: Vec<_> = places
        .into_iter()
        .flatten()
        .map(|(place, settle)| Subject::new(place.join("mixed"), random.between(24, 64) << 8, settle))
        .collect();
    std::thread::scope(|scope| {
        for (number, subject) in subjects.iter().enumerate() {
            let (session, random) = (&session, Random::new(trial.seed, &format!("writer {number}")));
            scope.spawn(move || subject.write(trial, random));
            scope.spawn(move || {
                while !trial.is_over() {
                    subject.read(trial, session);
                }
            });
        }
    });
    Ok(())
}

impl Subject {
    fn new(path: std::path::PathBuf, blocks: u64, settle: Duration) -> Self {
        std::fs::write(&path, content(blocks, 1)).expect("room for a file");
        let (begun, over, since) = (AtomicU32::new(1), AtomicU32::new(1), Mutex::new(Instant::now()));
        Self { path, blocks, settle, begun, over, since }
    }

    fn write(&self, trial: &Trial, mut random: Random) {
        let (buffered, direct) =
            (open(&self.path, 0).expect("a file"), open(&self.path, libc::O_DIRECT).ok());
        let mut room = vec![0; (self.blocks as usize + 1) * SIZE];
        let skip = room.as_ptr().align_offset(SIZE);
        let len = self.blocks as usize * SIZE;
        let mut version = 1;
        while !trial.is_over() {
            version += 1;
            room[skip..skip + len].copy_from_slice(&content(self.blocks, version));
            // Long enough that readers come to read in place.
            std::thread::sleep(self.settle.mul_f64(1.2 + random.below(100) as f64 / 100.0));
            let file = direct.as_ref().filter(|_| random.once_in(3)).unwrap_or(&buffered);
            *self.since.lock().expect("a lock") = Instant::now();
            self.begun.store(version, Ordering::SeqCst);
            let written = file.write_at(&room[skip..skip + len], 0).expect("room for what was there");
            self.over.store(version, Ordering::SeqCst);
            assert_eq!(written, len);
            trial.add("writes", 1);
        }
    }

    fn read(&self, trial: &Trial, session: &Session) {
        let file = File::open(&self.path).expect("a file");
        let mut buffer = session.buffer(0, self.blocks as usize * SIZE).expect("memory of the GPU");
        let began = Instant::now();
        let low = self.over.load(Ordering::SeqCst);
        let read = trial.call(|| "a read beside a writer".to_owned(), || session.read(&file, 0, &mut buffer));
        let high = self.begun.load(Ordering::SeqCst);
        let since = *self.since.lock().expect("a lock");
        match read {
            Ok(receipt) => {
                // A write that had begun so long ago is taken for over: documented, as read(2).
                let is_long = low != high && since + self.settle <= began;
                self.compare(trial, &buffer.to_vec().expect("memory"), (low, high), &receipt, !is_long);
            }
            Err(error) => {
                trial.add("busy", 1);
                let is_right =
                    error.kind() == ErrorKind::Busy && (low != high || since.elapsed() < 5 * self.settle);
                trial.check(is_right, || format!("a read: {error:?}"));
            }
        }
    }

    fn compare(
        &self,
        trial: &Trial,
        bytes: &[u8],
        (low, high): (u32, u32),
        receipt: &Receipt,
        one_call: bool,
    ) {
        let again = receipt.election.refused.iter().any(|refusal| refusal.reason.contains("read again"));
        let in_place = receipt.moved[Way::Mapped] == receipt.moved.total();
        trial.add(
            if again {
                "reads again"
            } else if in_place {
                "reads in place"
            } else {
                "staged reads"
            },
            1,
        );
        trial.add("bytes compared", bytes.len() as u64);
        let state = |version| State { version, kind: Kind::Data };
        let mut versions = Vec::new();
        for (index, found) in bytes.chunks(SIZE).enumerate() {
            if let Err(seen) = block::is_good(found, (ID, index as u64), (state(low), state(high))) {
                return trial.fail(format!("versions {low} to {high}: block {index} is {seen:?}: {receipt}"));
            }
            match block::look(found) {
                Seen::Data { version, .. } => versions.push(version),
                _ => versions.push(0),
            }
        }
        versions.sort_unstable();
        versions.dedup();
        if (again || in_place) && one_call && versions.len() > 1 {
            let path = self.path.display();
            trial.fail(format!(
                "{path}: a mix of the versions {versions:?} (0: torn) was called good: {receipt}"
            ));
        }
    }
}

fn content(blocks: u64, version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blocks as usize * SIZE);
    (0..blocks).for_each(|index| block::append(&mut bytes, ID, index, version));
    bytes
}
