//! Order behind the default streams of a context.
//!
//! Programs queue work on a default stream and call a transfer at once: `cudaMemset`, then `cuFileRead`. A session whose
//! front asks for it ([`Session::behind_default_streams`](crate::Session::behind_default_streams)) lets the device copies
//! of its transfers come after what stood on the context's legacy default stream, and on the calling thread's own, when the
//! call began. Reading the file does not wait.
//!
//! - Copies of at most 1 MiB on the caller's thread go on that thread's default stream, which is ordered by nature: no
//!   driver call is needed. Larger ones never do, because the user's work would wait for them.
//! - Copies of many callers by the resident kernel: one of them asks the legacy stream for all, and for captures too.
//! - All else asks once when the call begins. If something stands there an event is recorded on the legacy stream, and no
//!   copy is started before it. The CPU waits, not a stream of ours: streams share hardware connections, and one that
//!   waits would hold up streams that have nothing to do with it.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_config::Objective;
use forebay_error::Result;
use forebay_gpu::{Context, DefaultStream, DefaultWork, Device, Event, Wait};

use crate::request::receipt::{Election, Note};
use crate::runtime::lock;

/// Interval between two looks at the work that copies come after, for every thread that looks.
pub(crate) const LOOK: Duration = Duration::from_micros(20);
/// The same where CPU time counts most.
const RARE_LOOK: Duration = Duration::from_micros(500);

/// How long a thread sleeps between looks.
pub(crate) fn nap(objective: Objective) -> Duration {
    if objective == Objective::Cpu { RARE_LOOK } else { LOOK }
}

/// How a transfer stands to the default streams of its memory's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOrder {
    /// It is not ordered behind them.
    Free,
    /// Its copies come after what stood there when the call began.
    Behind,
    /// The same was asked for, but a capture under way forbids to ask.
    Captured,
}

/// The order of one call's copies, found out when it is first needed: the question is a driver call.
pub(crate) struct CallOrder<'a> {
    device: &'a dyn Device,
    context: Context,
    /// When the call began.
    began: Instant,
    found: OnceCell<CopyOrder>,
}

impl<'a> CallOrder<'a> {
    /// Of a call whose copies are to come after the default streams.
    pub(crate) fn behind(device: &'a dyn Device, context: Context, began: Instant) -> Self {
        Self { device, context, began, found: OnceCell::new() }
    }

    /// When the call began: work queued earlier comes first.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The order. Asks the driver the first time.
    pub(crate) fn get(&self) -> CopyOrder {
        *self.found.get_or_init(|| CopyOrder::behind(self.device, self.context))
    }

    /// Somebody else's question met a capture.
    pub(crate) fn met_capture(&self) {
        let _ = self.found.set(CopyOrder::Captured);
    }

    /// As [`CopyOrder::add_note`], without a question.
    #[inline]
    pub(crate) fn add_note(&self, election: &mut Arc<Election>) {
        if let Some(order) = self.found.get() {
            order.add_note(election);
        }
    }
}

impl CopyOrder {
    /// The order of a transfer that is to come after the default streams.
    pub(crate) fn behind(device: &dyn Device, context: Context) -> Self {
        // A driver that cannot tell will say so when it is asked what stands there.
        if device.is_legacy_captured(context).unwrap_or(false) { Self::Captured } else { Self::Behind }
    }

    /// The work that must be done before the first copy.
    pub(crate) fn prior_work(self, device: &dyn Device, context: Context) -> Result<Option<PriorWork>> {
        match self {
            Self::Behind => PriorWork::of(device, context),
            Self::Free | Self::Captured => Ok(None),
        }
    }

    /// Adds to the election of a transfer what there is to say about its order.
    #[inline]
    pub(crate) fn add_note(self, election: &mut Arc<Election>) {
        if self == Self::Captured {
            add_captured_note(election);
        }
    }
}

#[cold]
fn add_captured_note(election: &mut Arc<Election>) {
    let note = Note {
        text: "a stream is being captured that the default stream would have to wait for: \
               the copy was not ordered behind the default streams"
            .to_owned(),
        hint: Some("synchronize what the transfer depends on before the call".to_owned()),
    };
    if !election.notes.contains(&note) {
        Arc::make_mut(election).notes.push(note);
    }
}

/// Work on default streams that copies come after.
pub(crate) struct PriorWork {
    event: Box<dyn Event>,
    is_done: AtomicBool,
    /// The time of the last query: one thread asks the driver, not all.
    looked: Mutex<Instant>,
}

impl PriorWork {
    /// What stands on the default streams of a context now; `None` if nothing does.
    pub(crate) fn of(device: &dyn Device, context: Context) -> Result<Option<Self>> {
        match device.default_work(context)? {
            DefaultWork::Pending => Self::recorded(device, context),
            _ => Ok(None),
        }
    }

    /// What stands there now, after the driver said that there is something.
    pub(crate) fn recorded(device: &dyn Device, context: Context) -> Result<Option<Self>> {
        let legacy = device.default_stream(context, DefaultStream::Legacy)?;
        let event = legacy.event()?;
        if let Err(error) = legacy.record(event.as_ref()) {
            // A capture may have begun since.
            return if device.is_legacy_captured(context)? { Ok(None) } else { Err(error) };
        }
        Ok(Some(Self::after(event)))
    }

    /// The work before this event.
    pub(crate) fn after(event: Box<dyn Event>) -> Self {
        Self { event, is_done: AtomicBool::new(false), looked: Mutex::new(Instant::now()) }
    }

    /// Whether it is done. Asks the driver from time to time.
    pub(crate) fn is_done(&self) -> bool {
        if self.is_done.load(Ordering::Acquire) {
            return true;
        }
        let mut looked = lock(&self.looked);
        if looked.elapsed() < LOOK {
            return false;
        }
        *looked = Instant::now();
        // If the work failed, so will the copy, and say why.
        let is_done = self.event.is_done().unwrap_or(true);
        self.is_done.store(is_done, Ordering::Release);
        is_done
    }

    /// Waits until it is done.
    pub(crate) fn wait(&self, wait: Wait) -> Result<()> {
        self.event.wait(wait)
    }
}
