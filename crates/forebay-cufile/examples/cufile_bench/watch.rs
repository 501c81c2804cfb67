//! Ends a run that makes no progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// One thread's sign of life, on a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Beat(AtomicU64);

impl Beat {
    /// Only one thread calls this, so that a plain store is enough.
    pub(crate) fn tick(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The signs of life of all threads, and the state of the run so far.
#[derive(Debug)]
pub(crate) struct Watch {
    beats: Vec<Beat>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: &'static str,
    report: Value,
}

impl Watch {
    /// Starts to watch `threads` threads and the main one.
    pub(crate) fn start(threads: u64, limit: Duration, report: Value) -> Arc<Self> {
        let beats = (0..=threads).map(|_| Beat::default()).collect();
        let watch = Arc::new(Self { beats, state: Mutex::new(State { phase: "start", report }) });
        let watching = watch.clone();
        std::thread::spawn(move || watching.keep(limit));
        watch
    }

    /// The sign of life of worker `thread`.
    pub(crate) fn worker(&self, thread: usize) -> &Beat {
        &self.beats[thread + 1]
    }

    /// The main thread goes on to something else.
    pub(crate) fn phase(&self, phase: &'static str) {
        self.beats[0].tick();
        self.lock().phase = phase;
    }

    /// The main thread is alive.
    pub(crate) fn tick(&self) {
        self.beats[0].tick();
    }

    /// What a report would say if the run ended here.
    pub(crate) fn known(&self, report: Value) {
        self.lock().report = report;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, limit: Duration) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let sum = self.beats.iter().map(|beat| beat.0.load(Ordering::Relaxed)).sum::<u64>();
            if sum != last {
                (last, since) = (sum, Instant::now());
            } else if since.elapsed() > limit {
                self.abort(limit);
            }
        }
    }

    fn abort(&self, limit: Duration) -> ! {
        let state = self.lock();
        let text = format!("hung in phase \"{}\": no progress for {} s", state.phase, limit.as_secs());
        let mut report = state.report.clone();
        report["hung"] = json!(state.phase);
        report["error_count"] = json!(report["error_count"].as_u64().unwrap_or(0) + 1);
        if let Some(errors) = report["errors"].as_array_mut() {
            errors.push(json!(text));
        } else {
            report["errors"] = json!([text]);
        }
        println!("{report}");
        eprintln!("error: {text}");
        // SAFETY: ends the process at once; exit handlers of the hung library would hang as well.
        unsafe { libc::_exit(1) }
    }
}
