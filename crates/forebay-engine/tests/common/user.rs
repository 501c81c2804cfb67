//! A stream of the user's, for tests of what happens in its order.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use fake_cuda::Fake;
use forebay_gpu::{Context, Device, Stream, Wait};

use crate::common::Turn;

/// The primary context, current on this thread, as in a program that uses CUDA.
pub fn make_current(fake: &Fake) -> u64 {
    let primary = fake.retain_primary(0).unwrap();
    fake.set_current_context(primary).unwrap();
    primary
}

/// A stream of the user's, with forebay-gpu's means to queue work on it.
pub struct UserStream {
    fake: &'static Fake,
    pub handle: u64,
    pub stream: Box<dyn Stream>,
}

impl UserStream {
    pub fn new(turn: &Turn, device: &Arc<dyn Device>) -> Self {
        // Loading kernels waits for all streams: a program that holds one of its own would hold this up too.
        device.kernels(Context::PRIMARY).unwrap();
        Self::of(turn, device, turn.fake.create_stream(1).unwrap())
    }

    pub fn of(turn: &Turn, device: &Arc<dyn Device>, handle: u64) -> Self {
        // SAFETY: the stream is destroyed in `drop`, after which the wrapper is not used.
        let stream = unsafe { device.foreign_stream(handle) }.unwrap();
        Self { fake: turn.fake, handle, stream }
    }

    /// Work that lasts until something is sent, or the sender is dropped.
    pub fn hold(&self) -> Sender<()> {
        let (release, released): (Sender<()>, Receiver<()>) = channel();
        let wait = move || {
            let _ = released.recv();
        };
        self.stream.callback(Box::new(wait)).unwrap();
        release
    }
}

impl Drop for UserStream {
    fn drop(&mut self) {
        if self.handle > 2 {
            self.stream.synchronize(Wait::Block).unwrap();
            self.fake.destroy_stream(self.handle).unwrap();
        }
    }
}
