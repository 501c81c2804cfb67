//! The history of a file's contents, and the check of a reader's bytes against it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use forebay_engine::File;
use forebay_gpu::pattern_word;

pub const BLOCK: usize = 4096;

/// The bytes of a block that was written by `step`: its number, then a word of its own over and over. (Cheap to make
/// and to compare even without optimisation.)
pub fn block(step: u64, index: u64) -> Vec<u8> {
    let mut bytes = pattern_word(step, index * BLOCK as u64).to_le_bytes().repeat(BLOCK / 8);
    // Read back by [`writer_of`].
    bytes[..8].copy_from_slice(&step.to_le_bytes());
    bytes
}

/// The bytes of `len` bytes from block `first`, written by `step`.
pub fn blocks(step: u64, first: u64, len: usize) -> Vec<u8> {
    let count = len.div_ceil(BLOCK) as u64;
    let mut bytes = Vec::with_capacity(count as usize * BLOCK);
    (first..first + count).for_each(|index| bytes.extend_from_slice(&block(step, index)));
    bytes.truncate(len);
    bytes
}

/// A block full of zeros is what a hole gives.
pub const HOLE: u64 = 0;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Which step wrote these bytes of block `index`; `None` if they are of no step, or of several.
pub fn writer_of(bytes: &[u8], index: u64) -> Option<u64> {
    if bytes.len() < 8 {
        return None;
    }
    let step = u64::from_le_bytes(bytes[..8].try_into().ok()?);
    let is_whole = match step {
        HOLE => ZEROS[..bytes.len()] == *bytes,
        _ => block(step, index)[..bytes.len()] == *bytes,
    };
    is_whole.then_some(step)
}

/// Which blocks a step wrote. Steps number from 1.
#[derive(Clone, Debug)]
pub struct Step {
    pub number: u64,
    /// Blocks that it wrote, or made a hole of.
    pub blocks: std::ops::Range<u64>,
    pub is_hole: bool,
    /// The file's length after it.
    pub len: u64,
}

/// The steps of one inode.
#[derive(Debug)]
pub struct History {
    steps: Vec<Step>,
    /// Steps up to this one are over; the next may be under way.
    done: u64,
    next: u64,
}

impl History {
    fn new(first: Step) -> Self {
        let number = first.number;
        Self { steps: vec![first], done: number, next: number + 1 }
    }

    /// A step that is about to be made: readers may see it from now on.
    pub fn begin(&mut self, blocks: std::ops::Range<u64>, is_hole: bool, len: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.steps.push(Step { number, blocks, is_hole, len });
        number
    }

    pub fn end(&mut self, number: u64) {
        self.done = number;
    }

    /// The length after the last step.
    pub fn len(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.len)
    }

    /// Steps after which the file can be seen now: the last that is over, and what is under way.
    pub fn visible(&self) -> RangeInclusive<u64> {
        self.done..=self.next - 1
    }

    /// The steps after which block `index` holds what `writer` wrote (as often as that was so).
    fn spans(&self, index: u64, writer: u64) -> Vec<RangeInclusive<u64>> {
        let mut spans = Vec::new();
        let mut since = None;
        for step in &self.steps {
            let is_inside = step.blocks.contains(&index);
            let content = if step.is_hole { HOLE } else { step.number };
            if is_inside && content == writer && since.is_none() {
                since = Some(step.number);
            } else if is_inside
                && content != writer
                && let Some(first) = since.take()
            {
                spans.push(first..=step.number - 1);
            }
        }
        spans.extend(since.map(|first| first..=self.next - 1));
        spans
    }

    /// Whether these blocks are the file's after one step of `during`.
    pub fn is_one_state(&self, found: &[(u64, u64)], during: &RangeInclusive<u64>) -> bool {
        let spans: Vec<_> = found.iter().map(|(index, writer)| self.spans(*index, *writer)).collect();
        during.clone().any(|step| spans.iter().all(|spans| spans.iter().any(|span| span.contains(&step))))
    }

    /// Whether each block for itself is the file's after some step of `during`.
    pub fn are_states(&self, found: &[(u64, u64)], during: &RangeInclusive<u64>) -> bool {
        found.iter().all(|one| during.clone().any(|step| self.is_one_state(&[*one], &(step..=step))))
    }

    /// Whether the file was shorter than `end` after some step of `during`.
    pub fn was_shorter(&self, end: u64, during: &RangeInclusive<u64>) -> bool {
        self.steps.iter().any(|step| during.contains(&step.number) && step.len < end)
    }

    /// Whether so much has happened that looking things up takes long: time for another inode.
    pub fn is_long(&self) -> bool {
        self.steps.len() > 1000
    }

    /// Whether each word of a block was there after some step of `during`: what a plain read(2) may give while the block
    /// is written.
    pub fn is_torn(&self, bytes: &[u8], index: u64, during: &RangeInclusive<u64>) -> bool {
        let touching = self.steps.iter().filter(|step| step.blocks.contains(&index));
        let writers: Vec<_> = touching.map(|step| if step.is_hole { HOLE } else { step.number }).collect();
        let seen = writers.into_iter().filter(|writer| {
            let there =
                |span: &RangeInclusive<u64>| span.start() <= during.end() && during.start() <= span.end();
            self.spans(index, *writer).iter().any(there)
        });
        let seen: Vec<_> =
            seen.map(|writer| if writer == HOLE { ZEROS.to_vec() } else { block(writer, index) }).collect();
        bytes.chunks(8).enumerate().all(|(at, word)| seen.iter().any(|one| one[at * 8..].starts_with(word)))
    }
}

/// An inode with its history. Readers hold on to it with the file that they have open.
#[derive(Debug)]
pub struct Inode {
    pub file: File,
    history: Mutex<History>,
    /// Held for reading by threads that need the file unchanged, for writing by threads that change it.
    pub still: RwLock<()>,
}

impl Inode {
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name, and the inode that it has at the moment.
#[derive(Debug)]
pub struct Subject {
    pub path: PathBuf,
    pub size: u64,
    now: RwLock<std::sync::Arc<Inode>>,
    /// One change of the name at a time.
    pub naming: Mutex<u64>,
}

impl Subject {
    /// Makes the file with its first version.
    pub fn create(path: PathBuf, size: u64) -> Self {
        let inode = std::sync::Arc::new(make(&path, 1, size));
        Self { path, size, now: RwLock::new(inode), naming: Mutex::new(1) }
    }

    pub fn now(&self) -> std::sync::Arc<Inode> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name has another inode from now on.
    pub fn is_now(&self, inode: Inode) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = std::sync::Arc::new(inode);
    }
}

/// A new file whose blocks are all of step `number`.
pub fn make(path: &std::path::Path, number: u64, len: u64) -> Inode {
    std::fs::write(path, blocks(number, 0, len as usize)).expect("room for a file");
    let file = File::options().write(true).open(path).expect("the file that was just made");
    let first = Step { number, blocks: 0..len.div_ceil(BLOCK as u64), is_hole: false, len };
    Inode { file, history: Mutex::new(History::new(first)), still: RwLock::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history =
            History::new(Step { number: 1, blocks: 0..4, is_hole: false, len: 4 * BLOCK as u64 });
        for blocks in [1..2, 2..3, 1..2] {
            let number = history.begin(blocks, false, 4 * BLOCK as u64);
            history.end(number);
        }
        history
    }

    #[test]
    fn mixtures_of_two_states_are_found() {
        let history = history();
        let all = 1..=4;
        // Block 0 never changed; block 1 is of steps 1, 2, 4; block 2 of steps 1, 3.
        for good in [[1, 1, 1], [1, 2, 1], [1, 2, 3], [1, 4, 3]] {
            assert!(history.is_one_state(&[(0, good[0]), (1, good[1]), (2, good[2])], &all), "{good:?}");
        }
        for bad in [[1, 1, 3], [1, 4, 1]] {
            let found = [(0, bad[0]), (1, bad[1]), (2, bad[2])];
            assert!(!history.is_one_state(&found, &all), "{bad:?}");
            assert!(history.are_states(&found, &all), "as read(2) may give it: {bad:?}");
        }
        assert!(!history.is_one_state(&[(1, 1)], &(3..=4)), "a state that was over before the read began");
        assert!(!history.are_states(&[(1, 1)], &(3..=4)));
    }

    #[test]
    fn blocks_tell_who_wrote_them() {
        let bytes = blocks(7, 3, 2 * BLOCK + 100);
        assert_eq!(writer_of(&bytes[..BLOCK], 3), Some(7));
        assert_eq!(writer_of(&bytes[2 * BLOCK..], 5), Some(7));
        assert_eq!(writer_of(&bytes[..BLOCK], 4), None, "a block of another place");
        let mut torn = bytes[..BLOCK].to_vec();
        torn[2000..].copy_from_slice(&block(8, 3)[2000..]);
        assert_eq!(writer_of(&torn, 3), None);
        assert_eq!(writer_of(&[0; BLOCK], 9), Some(HOLE));
    }
}
