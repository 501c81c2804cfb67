//! Work on streams: what goes before it, what it does to its GPU, and who waits for it.

use std::sync::{Arc, Weak};

use crate::entry::strike;
use crate::result::Answer;
use crate::state::state;
use crate::stream::{FakeEvent, FakeStream, StreamOrder};

impl FakeStream {
    /// Queues work; an error breaks the GPU for good. `name` is what a fault of it is called (`async:copy`, …).
    pub(crate) fn push(&self, name: &'static str, work: impl FnOnce() -> Answer + Send + 'static) {
        let before = self.ordered_before();
        let (gpu, life) = (self.gpu, state().gpus[self.gpu].life);
        let ordered = move || {
            for (stream, mark) in before {
                stream.wait_for(mark);
            }
            work()
        };
        self.enqueue(Box::new(move || run(gpu, life, name, ordered)));
    }

    /// The work of other streams that the legacy stream's rules put before new work of this one.
    fn ordered_before(&self) -> Vec<(Arc<Self>, u64)> {
        if self.order == StreamOrder::NonBlocking {
            return Vec::new();
        }
        let waits_for = |other: &&Arc<Self>| {
            other.context == self.context
                && if self.order == StreamOrder::Legacy {
                    other.order.is_blocking()
                } else {
                    other.order == StreamOrder::Legacy
                }
        };
        let state = state();
        state.streams.values().filter(waits_for).map(|other| (other.clone(), other.mark())).collect()
    }

    /// Whether nothing is left to do: for the legacy stream on blocking streams neither, as a query of the real one says.
    pub(crate) fn is_idle(&self) -> bool {
        let others = if self.order == StreamOrder::Legacy { self.ordered_before() } else { Vec::new() };
        self.is_done(self.mark()) && others.iter().all(|(stream, mark)| stream.is_done(*mark))
    }
}

impl FakeEvent {
    /// Marks all that is queued on `stream` so far.
    pub(crate) fn record(&self, stream: &Arc<FakeStream>) {
        // The mark is a piece of work of its own, so that it is late as well.
        stream.push("async:event", || Ok(()));
        self.set(stream, stream.mark());
    }
}

/// Runs one piece, unless the GPU is broken, or was since the piece was queued.
fn run(gpu: usize, life: u64, name: &'static str, work: impl FnOnce() -> Answer) {
    let moves = ["async:copy", "async:kernel", "async:resident", "async:set"].contains(&name);
    {
        let mut state = state();
        let gpu = &mut state.gpus[gpu];
        if gpu.error.is_some() || gpu.life != life {
            return;
        }
        gpu.moving += usize::from(moves);
    }
    let result = strike(name).and_then(|()| work());
    let mut state = state();
    let gpu = &mut state.gpus[gpu];
    gpu.moving -= usize::from(moves);
    if let Err(code) = result {
        gpu.error.get_or_insert(code);
    }
}

/// Waits for everything on one GPU, destroyed streams with work left included.
pub(crate) fn drain_gpu(gpu: usize) {
    let streams: Vec<_> = {
        let mut state = state();
        state.closing.retain(|stream| stream.strong_count() > 0);
        let closing = state.closing.iter().filter_map(Weak::upgrade);
        closing.chain(state.streams.values().cloned()).filter(|stream| stream.gpu == gpu).collect()
    };
    for stream in streams {
        stream.drain();
    }
}

/// The fault of a GPU's earlier work, if any. Once it is reported nothing touches memory any more, as on the real
/// thing: what other streams are moving is waited for.
pub(crate) fn broken(gpu: usize) -> Answer {
    loop {
        let found = {
            let state = state();
            let gpu = &state.gpus[gpu];
            (gpu.error, gpu.moving)
        };
        match found {
            (None, _) => return Ok(()),
            (Some(code), 0) => return Err(code),
            (Some(_), _) => std::thread::yield_now(),
        }
    }
}
