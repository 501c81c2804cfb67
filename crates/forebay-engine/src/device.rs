//! A session's state for each device: engines, lanes, elections and totals.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Config, Objective};
use forebay_error::{Error, Result};
use forebay_gpu::{Context, Device};
use forebay_sys::Striped;

use crate::engines::elect::{self, Choice};
use crate::engines::explain::{self, ElectionCache, Walk};
use crate::engines::mapped::{self, Mapped};
use crate::engines::permission::Permission;
use crate::engines::staged::sync::Callers;
use crate::engines::staged::workers::Lanes;
use crate::engines::staged::{ByLanes, Stage};
use crate::engines::{self, AskedBatch, Claimed, Done, Engine, EngineFacts, EngineParts, Known, Onward, Ran};
use crate::request::completion::{Completion, short_read};
use crate::request::copy_order::{CallOrder, CopyOrder};
use crate::request::file::File;
use crate::request::metrics::EngineStats;
use crate::request::receipt::{CountedPlaces, Election, EngineKind, Moved, Note, Way};
use crate::request::ticket::{Outcome, Ticket};
use crate::request::totals::Totals;
use crate::request::transfer::{Batch, Transfer};
use crate::runtime::lock;
use crate::runtime::wait;
use crate::source::piece::Direction;
use crate::stream_order::{OperationRoute, PullStart, StreamEngines, StreamServer};
use crate::tuning::machine::LINK_BYTES_PER_NS;
use crate::tuning::mapped::COPY_BYTES;

/// A device with all that serves it.
pub(crate) struct DeviceEngines {
    pub(crate) device: Arc<dyn Device>,
    choice: Result<Choice>,
    /// Best first.
    list: Result<Arc<[Arc<dyn Engine>]>>,
    /// The engine `mapped`, also for maps, pins and probes.
    pub(crate) mapped: Arc<Mapped>,
    pub(crate) stage: Stage,
    pub(crate) lanes: Arc<Lanes>,
    /// The session's cache policy.
    policy: CachePolicy,
    /// Serves users' streams; made at the first use.
    stream_server: OnceLock<Result<StreamServer>>,
    stream_engines: OnceLock<Result<Arc<StreamEngines>>>,
    /// The election after the engines started, with the number of notes in it. A note that is added later has it made again.
    election: Mutex<Option<(usize, Arc<Election>)>>,
    /// The election before the engines started. Receipts count their uses, so threads do not share one.
    quick: Striped<OnceLock<Result<Arc<Election>>>>,
    /// Elections of requests that other engines than the device's own had a part in.
    elections: Box<Striped<ElectionCache>>,
    pub(crate) totals: Arc<Totals>,
    objective: Objective,
    callers: Arc<Callers>,
}

impl DeviceEngines {
    pub(crate) fn new(device: &Arc<dyn Device>, config: &Config) -> Self {
        let choice = elect::elect(device.as_ref(), config);
        let lanes = Arc::new(Lanes::new(device.clone(), config.clone()));
        let stage = Stage::new(lanes.clone(), config);
        let callers = Arc::new(Callers::new(device.clone(), config));
        let permission = match &choice {
            Ok(choice) => choice.permission(EngineKind::Mapped).cloned().unwrap_or(Permission::Auto),
            Err(error) => Permission::refused_by(EngineKind::Mapped, error),
        };
        let mapped =
            Arc::new(Mapped::new(device.clone(), config, permission, stage.clone(), callers.clone()));
        let kind = if device.info().is_host { EngineKind::Host } else { EngineKind::Staged };
        let by_lanes = ByLanes { kind, stage: stage.clone(), callers: callers.clone() };
        let as_engine: Arc<dyn Engine> = Arc::new(mapped.clone());
        let parts = EngineParts { device, config, stage: &stage, callers: &callers, mapped: &as_engine };
        let list =
            choice.as_ref().map_err(Error::clone).and_then(|choice| elect::list(choice, &parts, by_lanes));
        Self {
            device: device.clone(),
            choice,
            list,
            mapped,
            stage,
            lanes,
            policy: config.cache,
            stream_server: OnceLock::new(),
            stream_engines: OnceLock::new(),
            election: Mutex::default(),
            quick: Striped::default(),
            elections: Box::default(),
            totals: Arc::default(),
            objective: config.objective,
            callers,
        }
    }

    /// The engine that serves what no better one takes, or the only one.
    pub(crate) fn engine(&self) -> Result<EngineKind> {
        self.list.as_ref().map_err(Error::clone)?;
        self.choice.as_ref().map(|choice| choice.engine).map_err(Error::clone)
    }

    /// Whether `mapped` is the only engine that may be used.
    pub(crate) fn is_mapped_only(&self) -> bool {
        *self.mapped.mode() == Permission::Only
    }

    /// See [`Session::expect_read`](crate::Session::expect_read).
    pub(crate) fn expect_read(&self, file: &File, range: (u64, u64)) {
        // What a drive or a server places, or a device reads in place, needs no lanes.
        let is_for_lanes = matches!(self.engine(), Ok(EngineKind::Staged | EngineKind::Mapped));
        if is_for_lanes && !self.is_mapped_only() {
            self.stage.expect(&self.known(file), range);
        }
    }

    fn list(&self) -> Result<&Arc<[Arc<dyn Engine>]>> {
        self.list.as_ref().map_err(Error::clone)
    }

    /// Facts about a transfer's file.
    pub(crate) fn known<'a>(&self, file: &'a File) -> Known<'a> {
        Known::of(file, self.policy)
    }

    /// Tells the engines before this session writes to the file.
    pub(crate) fn before_write(&self, file: &File) {
        if let Ok(list) = &self.list {
            list.iter().for_each(|engine| engine.before_write(file));
        }
    }

    /// Moves a transfer on this thread. `None`: no engine runs it here; submit it by [`DeviceEngines::claim`].
    ///
    /// # Safety
    /// The transfer's memory is valid, and nobody else uses it, until this returns.
    pub(crate) unsafe fn run(
        &self,
        transfer: &Transfer,
        (began, order): (Instant, Option<&CallOrder<'_>>),
    ) -> Result<Option<(Moved, Arc<Election>)>> {
        let known = Known { order, began: Some(began), ..self.known(&transfer.file) };
        let mut walk = None;
        for engine in self.list()?.iter().map(Arc::as_ref) {
            // SAFETY: passed on.
            let ran = unsafe { engine.run(transfer, &known) };
            match ran {
                Ok(Ran::Done(done)) => {
                    return self.explain(transfer, engine.kind(), done, &mut walk).map(Some);
                }
                Ok(Ran::Passed(None)) => {}
                Ok(Ran::Passed(refusal)) => {
                    walk.get_or_insert_default().record(engine.kind(), 0, refusal);
                }
                Ok(Ran::Later) => return Ok(None),
                Err(error) => {
                    self.totals.add(Moved::default(), true);
                    return Err(error.with("file", transfer.file.name()));
                }
            }
        }
        Ok(None)
    }

    /// Counts a transfer that one engine moved on the caller's thread, and says how. `walk` says why better engines did
    /// not.
    fn explain(
        &self,
        transfer: &Transfer,
        kind: EngineKind,
        done: Done,
        walk: &mut Option<Walk>,
    ) -> Result<(Moved, Arc<Election>)> {
        let Done { good, moved, refusal, note } = done;
        let moved = moved.up_to(good as u64);
        let is_short = good < transfer.len && !transfer.allow_short;
        self.totals.add(moved, is_short);
        if is_short {
            return Err(short_read(good as u64, transfer.len as u64).with("file", transfer.file.name()));
        }
        let base = self.quick_election()?;
        let is_plain = walk.is_none() && refusal.is_none() && note.is_none() && kind == base.engine;
        let mut election = if is_plain {
            base.clone()
        } else {
            let own = kind.way().map_or(moved.total(), |way| moved[way]);
            let walk = walk.get_or_insert_default();
            walk.record(kind, own, refusal);
            walk.record(kind.for_the_rest(), moved.total() - own, None);
            walk.note(note);
            self.elections.own().elect(base, walk)
        };
        if moved[Way::Buffered] > 0 {
            election = explain::with_file(&election, &transfer.file);
        }
        Ok((moved, election))
    }

    /// See [`Callers::shared_order`].
    pub(crate) fn shared_order(&self, context: Context) -> Result<Option<CopyOrder>> {
        self.callers.shared_order(context)
    }

    /// Offers a batch to the engines of the list, best first.
    pub(crate) fn claim(&self, batch: &Arc<Batch>, is_alone: bool, walk: &mut Walk) -> Result<Vec<Claimed>> {
        let known = self.known(&batch.file);
        engines::claim_along(self.list()?, 0, AskedBatch::new(batch, &known, is_alone), walk)
    }

    /// What works of this device need to end: the completion, whose entry `base` is their first, and the list.
    pub(crate) fn onward(&self, completion: Arc<Completion>, base: u32) -> Result<Onward> {
        Ok(Onward { completion, base, list: self.list()?.clone(), next: 0, policy: self.policy })
    }

    /// The election at submission. Starts engines only if the walk says that they have a part in it.
    pub(crate) fn launch_election<'a>(
        &self,
        mut claimed: impl Iterator<Item = &'a Claimed>,
        file: &File,
        walk: &Walk,
    ) -> Result<Arc<Election>> {
        if let Some(about) = claimed.find_map(|claimed| claimed.taken.work.about()) {
            return self.make_election_of(Vec::new(), [about]);
        }
        // Nothing to explain yet. Engines correct the election at the end by `Completion::elected`.
        if walk.is_empty() || !self.engine()?.is_forebays() {
            return self.election(None);
        }
        Ok(self.elections.own().elect(&self.election(Some(file))?, walk))
    }

    /// Waits for a synchronous transfer of `len` bytes. Never polls for a long one, or while too many threads for this
    /// machine's CPUs wait.
    pub(crate) fn wait(&self, ticket: Ticket, len: usize) -> Outcome {
        let others = self.callers.waiting.fetch_add(1, Ordering::Relaxed);
        let affordable = wait::may_poll(self.objective, self.lanes.count() + others + 1);
        let outcome = if len <= COPY_BYTES as usize && affordable {
            ticket.wait_closely(Duration::from_nanos(len as u64 / LINK_BYTES_PER_NS))
        } else {
            ticket.wait()
        };
        self.callers.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// The server of this device's streams. Starts it at the first call.
    pub(crate) fn stream_server(&self) -> Result<&StreamServer> {
        self.stream_server
            .get_or_init(|| StreamServer::new(self.device.clone()))
            .as_ref()
            .map_err(Error::clone)
    }

    /// The engines that operations on this device's memory use. `host` is the host's engines.
    pub(crate) fn stream_engines(&self, host: &Self) -> Result<Arc<StreamEngines>> {
        let make = || {
            let start_pull: Option<PullStart> = match self.mapped.mode() {
                Permission::Only => Some(Box::new(self.mapped.submitter()?)),
                _ => None,
            };
            Ok(Arc::new(StreamEngines {
                stage: host.stage.clone(),
                host: host.device.clone(),
                straight: self.stage.clone(),
                start_pull,
                election: self.election(None)?,
                totals: self.totals.clone(),
            }))
        };
        self.stream_engines.get_or_init(make).clone()
    }

    /// How transfers of this device's memory travel in the order of a stream. `None`: staged, and the stream itself
    /// copies.
    ///
    /// Tries out the file's file system here, before a stream waits for forebay: the trial registers and unregisters a
    /// page, and the driver may hold that up until all streams are idle.
    pub(crate) fn stream_route(&self, file: &File, direction: Direction) -> Result<Option<OperationRoute>> {
        if self.engine()? == EngineKind::Noop {
            return Ok(Some(OperationRoute::Nothing));
        }
        if self.device.info().is_host {
            return Ok(Some(OperationRoute::Straight));
        }
        if *self.mapped.mode() != Permission::Only {
            return Ok(None);
        }
        if let Some(file) = file.descriptors() {
            self.mapped.try_out(file, direction);
        }
        Ok(Some(OperationRoute::Straight))
    }

    /// The election of transfers in the order of a stream.
    pub(crate) fn stream_election(&self, file: &File) -> Result<Arc<Election>> {
        let election = explain::with_file(&self.election(None)?, file);
        let staged = "transfers in the order of a stream are staged";
        Ok(match self.mapped.mode() {
            Permission::Never(_) => election,
            Permission::Only => mapped::in_place(&election, 1, 0, None, Vec::new()),
            Permission::Auto => {
                mapped::in_place(&election, 0, 1, Some(mapped::Reason::new(staged)), Vec::new())
            }
        })
    }

    /// The device's election. With a file, which is about to be moved, the engines are started first and their notes
    /// are part of it; without one, nothing is started.
    pub(crate) fn election(&self, file: Option<&File>) -> Result<Arc<Election>> {
        let Some(file) = file else {
            return self.quick_election().cloned();
        };
        let mut notes = Vec::new();
        for engine in self.list()?.iter() {
            notes.extend(engine.prepare()?);
        }
        let mut kept = lock(&self.election);
        let election = match &*kept {
            Some((count, made)) if *count == notes.len() => made.clone(),
            _ => kept.insert((notes.len(), self.make_election(notes)?)).1.clone(),
        };
        drop(kept);
        Ok(explain::with_file(&election, file))
    }

    /// The election before any engine started.
    fn quick_election(&self) -> Result<&Arc<Election>> {
        let make = || self.make_election(Vec::new());
        self.quick.own().get_or_init(make).as_ref().map_err(Error::clone)
    }

    fn make_election(&self, notes: Vec<Note>) -> Result<Arc<Election>> {
        let all: Vec<_> = self.list()?.iter().map(|engine| engine.about()).collect::<Result<_>>()?;
        self.make_election_of(notes, all)
    }

    fn make_election_of(
        &self,
        mut notes: Vec<Note>,
        all: impl IntoIterator<Item = EngineFacts>,
    ) -> Result<Arc<Election>> {
        let Choice { engine, refused, notes: of_options, .. } = self.choice.as_ref().map_err(Error::clone)?;
        notes.extend(of_options.iter().cloned());
        let mut mode = None;
        for about in all {
            mode = mode.or(about.mode);
            notes.extend(about.notes);
        }
        // A program's own engine runs because it was requested, not because others refused.
        let is_asked = matches!(engine, EngineKind::Libcufile | EngineKind::Registered(_));
        let refused = if is_asked { Vec::new() } else { refused.clone() };
        Ok(Arc::new(Election { engine: *engine, refused, notes, mode, places: CountedPlaces::default() }))
    }

    pub(crate) fn stats(&self) -> EngineStats {
        EngineStats {
            engine: self.engine().unwrap_or(EngineKind::Staged),
            device: self.device.info().name.clone(),
            requests: self.totals.requests(),
            errors: self.totals.errors(),
            moved: self.totals.moved(),
        }
    }
}
