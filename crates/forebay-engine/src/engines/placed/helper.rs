//! A thread for work that must not wait on a caller's thread or a connection's: transfers that come after other work of
//! the device, and registrations that nobody uses any more. It starts when there is something to do, and ends when
//! there is nothing.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_gpu::Device;
use forebay_sys::threads;

use super::flight::Flight;
use super::memory::Registrations;
use crate::request::copy_order::LOOK;
use crate::runtime::lock;

/// Time between two looks for registrations that are not used any more.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The thread, as its users have it. It lives on while it has something to do.
#[derive(Clone)]
pub(super) struct Helper(Arc<Shared>);

struct Shared {
    device: Arc<dyn Device>,
    memory: Arc<Registrations>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Transfers that come after work of the device.
    held: Vec<Arc<Flight>>,
    has_thread: bool,
}

impl Helper {
    pub(super) fn new(device: Arc<dyn Device>, memory: Arc<Registrations>) -> Self {
        Self(Arc::new(Shared { device, memory, state: Mutex::default(), wake: Condvar::new() }))
    }

    /// Starts a transfer when the work that it comes after is done.
    pub(super) fn hold(&self, flight: Arc<Flight>) {
        let mut state = lock(&self.0.state);
        if !self.is_there(&mut state) {
            drop(state);
            // No thread is to be had: this one waits.
            while !flight.may_start() {
                std::thread::sleep(LOOK);
            }
            return flight.begin();
        }
        state.held.push(flight);
        self.0.wake.notify_one();
    }

    /// Registrations were made, or used.
    pub(super) fn watch(&self) {
        // Without a thread they stay until the session ends.
        self.is_there(&mut lock(&self.0.state));
    }

    /// Whether the thread runs; starts it.
    fn is_there(&self, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = self.0.clone();
            state.has_thread = threads::spawn("forebay-placed", move || shared.run()).is_ok();
        }
        state.has_thread
    }
}

impl Shared {
    fn run(&self) {
        self.device.adopt_thread();
        let mut swept = Instant::now();
        loop {
            let ready = {
                let mut state = lock(&self.state);
                let (ready, held) = std::mem::take(&mut state.held)
                    .into_iter()
                    .partition::<Vec<_>, _>(|flight| flight.may_start());
                state.held = held;
                ready
            };
            ready.iter().for_each(Flight::begin);
            drop(ready);
            let mut is_in_use = true;
            if swept.elapsed() >= SWEEP_INTERVAL {
                is_in_use = self.memory.sweep();
                swept = Instant::now();
            }
            let mut state = lock(&self.state);
            // Somebody may have registered memory meanwhile, and found this thread.
            if state.held.is_empty() && !is_in_use && self.memory.is_empty() {
                state.has_thread = false;
                return;
            }
            let pause = if state.held.is_empty() { SWEEP_INTERVAL } else { LOOK };
            state = self.wake.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            drop(state);
        }
    }
}
