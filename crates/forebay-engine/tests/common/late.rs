//! Users' streams, and transfers whose range is known late.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{Bound, Direction, File, Late, Memory, Session};
use forebay_error::Result;
use forebay_gpu::{Context, Stream, Wait};

use super::{Scratch, Turn, disk, session};

pub const KEY: u64 = 71;

/// A user's stream, with forebay-gpu's means to queue other work on it.
pub struct UserStream {
    turn: &'static fake_cuda::Fake,
    pub handle: u64,
    pub stream: Box<dyn Stream>,
}

pub fn make_current(turn: &Turn) {
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
}

impl UserStream {
    pub fn new(turn: &Turn, session: &Session) -> Self {
        make_current(turn);
        Self::of(turn, session, turn.fake.create_stream(1).unwrap())
    }

    pub fn of(turn: &Turn, session: &Session, handle: u64) -> Self {
        let device = session.device(0).unwrap();
        // Loading kernels waits for all streams: a program that holds one of its own would hold this up too.
        device.kernels(Context::PRIMARY).unwrap();
        // SAFETY: the stream is destroyed in `drop`, after which the wrapper is not used.
        let stream = unsafe { device.foreign_stream(handle) }.unwrap();
        Self { turn: turn.fake, handle, stream }
    }

    /// Work that lasts until the sender is dropped.
    pub fn hold(&self) -> Sender<()> {
        let (release, released) = channel();
        let wait = move || {
            let _ = released.recv();
        };
        self.stream.callback(Box::new(wait)).unwrap();
        release
    }

    pub fn finish(&self) {
        self.stream.synchronize(Wait::Block).unwrap();
    }
}

impl Drop for UserStream {
    fn drop(&mut self) {
        if self.handle > 2 && !std::thread::panicking() {
            self.finish();
            self.turn.destroy_stream(self.handle).unwrap();
        }
    }
}

/// The result that `done` got.
pub type Told = Arc<Mutex<Option<Result<u64>>>>;

pub fn told(told: &Told) -> Result<u64> {
    let told = told.lock().unwrap().clone();
    told.unwrap_or_else(|| panic!("the stream went on before `done` was called"))
}

pub fn late(
    file: &File,
    memory: &Memory,
    direction: Direction,
    most: usize,
    bind: impl FnOnce() -> Result<Bound> + Send + 'static,
) -> (Late, Told) {
    let told = Told::default();
    let tell = told.clone();
    let late = Late {
        file: file.clone(),
        memory: memory.clone(),
        direction,
        most,
        bind: Box::new(bind),
        done: Box::new(move |result| *tell.lock().unwrap() = Some(result)),
    };
    (late, told)
}

/// One whose range is known.
pub fn fixed(
    file: &File,
    memory: &Memory,
    direction: Direction,
    (offset, at, len): (u64, u64, usize),
) -> (Late, Told) {
    let bound = Bound { offset, address: memory.address + at, len };
    late(file, memory, direction, len, move || Ok(bound))
}

pub fn enqueue(session: &Session, handle: u64, late: Late) -> Result<()> {
    // SAFETY: tests keep streams and memory until they have waited for the stream.
    unsafe { session.enqueue(handle, late) }
}

pub fn subject(len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(&disk(), KEY, len);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    (scratch, file)
}

pub fn auto() -> Session {
    session(IoBackend::Auto, CachePolicy::Auto)
}
