//! Everything that belongs to one device: its engines, elections and totals.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Config, Objective};
use forebay_error::{Error, Result};
use forebay_gpu::Device;

use crate::engines::elect::{self, Choice};
use crate::engines::libcufile::Vendor;
use crate::engines::mapped::{self, Boarding, Mapped, PullJob};
use crate::engines::p2p::{P2p, Ran};
use crate::engines::permission::Permission;
use crate::engines::staged::job::Job;
use crate::engines::staged::sync::{Callers, SMALL};
use crate::engines::staged::workers::Lanes;
use crate::engines::staged::{self, Stage, Staged};
use crate::request::file::File;
use crate::request::metrics::EngineStats;
use crate::request::metrics::Tally;
use crate::request::receipt::{Election, EngineKind, Moved, Note, Receipt, Refusal};
use crate::request::ticket::{CallerPolled, Completion, Outcome, Ticket, Totals, load_moved, short_read};
use crate::request::transfer::{Batch, Transfer};
use crate::runtime::lock::lock;
use crate::runtime::wait;
use crate::source::Fill;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::stream_order::{OperationRoute, StreamEngines, StreamServer};

/// Transfers up to this size are over before it pays to sleep.
const BRIEF: usize = 64 << 20;
/// What the link to a device carries, about.
const BYTES_PER_NS: u64 = 50;

/// A device with all that serves it.
pub(crate) struct Hub {
    pub(crate) device: Arc<dyn Device>,
    /// Before the lanes: it hands them what it does not take.
    pub(crate) mapped: Mapped,
    pub(crate) p2p: P2p,
    pub(crate) stage: Stage,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) callers: Callers,
    /// NVIDIA's library, for those who ask for it.
    pub(crate) vendor: Vendor,
    /// Serves users' streams; made when the first one asks.
    stream_server: OnceLock<Result<StreamServer>>,
    stream_engines: OnceLock<Result<Arc<StreamEngines>>>,
    choice: Result<Choice>,
    /// With what so many lanes noted when they started.
    election: Mutex<Option<(usize, Arc<Election>)>>,
    /// Before they started.
    quick: OnceLock<Result<Arc<Election>>>,
    /// Of transfers that were wholly pulled on the caller's thread, by who may have been writing.
    pulled: [OnceLock<Arc<Election>>; mapped::Writers::ALL.len()],
    /// Of transfers on the caller's thread whose pages are not pinned.
    small: OnceLock<Arc<Election>>,
    pub(crate) totals: Arc<Totals>,
    objective: Objective,
    /// Callers that wait for a synchronous transfer of lanes.
    close_waiters: AtomicUsize,
}

/// A batch on its way to the engine that takes it.
pub(crate) enum Routed {
    Lanes(Staged),
    Pull(Arc<Batch>),
    /// By the drive, and the rest staged.
    Placed(Staged, Option<Staged>),
}

/// Why better engines do not take a batch, and what the best did take.
#[derive(Default)]
pub(crate) struct Why {
    mapped: Option<mapped::Reason>,
    p2p: Option<Arc<Refusal>>,
    /// Bytes that a drive moves by itself, and bytes that it does not.
    placed: (u64, u64),
}

impl Routed {
    pub(crate) fn works(&self) -> usize {
        match self {
            Self::Lanes(staged) => staged.works(),
            Self::Pull(_) => 1,
            Self::Placed(placed, rest) => placed.works() + rest.as_ref().map_or(0, Staged::works),
        }
    }

    fn batch(&self) -> &Arc<Batch> {
        match self {
            Self::Lanes(staged) | Self::Placed(staged, _) => staged.batch(),
            Self::Pull(batch) => batch,
        }
    }

    pub(crate) fn pieces(&self) -> usize {
        self.batch().pieces.len()
    }

    pub(crate) fn order(self, base: u32, completion: Arc<Completion>) -> Order {
        match self {
            Self::Lanes(staged) => Order::Lanes(staged.job(base, completion)),
            Self::Pull(batch) => Order::Pull(PullJob { batch, base, completion }),
            Self::Placed(placed, rest) => {
                let rest = rest.map(|rest| rest.job(base, completion.clone()));
                Order::Both(placed.job(base, completion), rest)
            }
        }
    }
}

/// The same, ready to go.
#[derive(Clone)]
pub(crate) enum Order {
    Lanes(Arc<Job>),
    Pull(PullJob),
    Both(Arc<Job>, Option<Arc<Job>>),
}

impl Hub {
    pub(crate) fn new(device: &Arc<dyn Device>, config: &Config) -> Self {
        let choice = elect::elect(device.as_ref(), config);
        let lanes = Arc::new(Lanes::new(device.clone(), config.clone()));
        let stage = Stage::new(lanes.clone(), config);
        let mode = match &choice {
            Ok(choice) => choice.mapped.clone(),
            Err(error) => never(EngineKind::Mapped, error),
        };
        let p2p = match &choice {
            Ok(choice) => choice.p2p.clone(),
            Err(error) => never(EngineKind::P2p, error),
        };
        Self {
            device: device.clone(),
            mapped: Mapped::new(device.clone(), config, mode, stage.clone()),
            p2p: P2p::new(device.clone(), p2p, config),
            stage,
            lanes,
            callers: Callers::new(device.clone(), config.objective),
            vendor: Vendor::new(device.clone(), config),
            stream_server: OnceLock::new(),
            stream_engines: OnceLock::new(),
            choice,
            election: Mutex::default(),
            quick: OnceLock::new(),
            pulled: Default::default(),
            small: OnceLock::new(),
            totals: Arc::default(),
            objective: config.objective,
            close_waiters: AtomicUsize::new(0),
        }
    }

    pub(crate) fn engine(&self) -> Result<EngineKind> {
        self.choice.as_ref().map(|choice| choice.engine).map_err(Error::clone)
    }

    /// Which engine takes a batch; `refused` is told why not a better one.
    pub(crate) fn route(&self, batch: Batch, why: &mut Why) -> Result<Routed> {
        let batch = Arc::new(batch);
        if let Some(routed) = self.route_placed(&batch, why)? {
            return Ok(routed);
        }
        let warmth = self.stage.warmth(&batch);
        match self.mapped.takes(&batch, warmth) {
            Ok(()) => Ok(Routed::Pull(batch)),
            Err(reason) if *self.mapped.mode() == Permission::Only => {
                Err(reason.error().with("file", batch.file.name()))
            }
            Err(reason) => {
                why.mapped.get_or_insert(reason);
                Ok(Routed::Lanes(self.stage.plan(&batch, warmth, None)))
            }
        }
    }

    /// The same for the engine `p2p`; none if it does not take the batch.
    fn route_placed(&self, batch: &Arc<Batch>, why: &mut Why) -> Result<Option<Routed>> {
        if !self.p2p.is_possible() {
            return Ok(None);
        }
        let bytes: u64 = batch.pieces.iter().map(|piece| piece.len as u64).sum();
        if bytes == 0 {
            return Ok(None);
        }
        match self.p2p.takes(batch, self.stage.policy(&batch.file)) {
            Ok(taken) => {
                why.placed = (why.placed.0 + bytes - taken.left, why.placed.1 + taken.left);
                let placed = self.stage.plan_placed(batch, taken.placed.as_deref(), taken.placing);
                let rest = (taken.left > 0).then(|| {
                    let warmth = self.stage.warmth(batch);
                    self.stage.plan(batch, warmth, Some(&taken.rest))
                });
                Ok(Some(Routed::Placed(placed, rest)))
            }
            Err(refusal) if self.p2p.is_all() => Err(self.p2p.error(&refusal, &batch.file)),
            Err(refusal) => {
                why.placed.1 += bytes;
                why.p2p.get_or_insert(refusal);
                Ok(None)
            }
        }
    }

    /// A small synchronous transfer by the drive alone. None if other engines are to do it; `why` says why.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn place(
        &self,
        transfer: &Transfer,
        started: Instant,
        why: &mut Why,
    ) -> Option<Result<Receipt>> {
        if !self.p2p.is_possible() || !(1..=SMALL).contains(&transfer.len) {
            return None;
        }
        let policy = self.stage.policy(&transfer.file);
        // SAFETY: passed on.
        match unsafe { self.p2p.run(transfer, policy, &self.callers) } {
            Ok(Ran::Done(good, moved)) => {
                let made = || {
                    let rest = moved.total() - moved.placed;
                    Ok(self.p2p.election(&self.election(None)?, (moved.placed, rest), None))
                };
                Some(self.receipt_of(transfer, (good, moved), made, started))
            }
            Ok(Ran::Busy) => None,
            Ok(Ran::Refused(refusal)) if self.p2p.is_all() => {
                self.totals.add(Moved::default(), true);
                Some(Err(self.p2p.error(&refusal, &transfer.file)))
            }
            Ok(Ran::Refused(refusal)) => {
                why.p2p = Some(refusal);
                None
            }
            Err(error) => {
                self.totals.add(Moved::default(), true);
                Some(Err(error.with("file", transfer.file.name())))
            }
        }
    }

    /// The election at submission. Lanes are started for it only if they are about to move something.
    pub(crate) fn launch_election(&self, routed: &[Routed], file: &File, why: Why) -> Result<Arc<Election>> {
        if routed.iter().all(|routed| matches!(routed, Routed::Pull(_))) {
            return self.election(None);
        }
        let election = self.election(Some(file))?;
        if self.p2p.is_possible() && why.placed != (0, 0) {
            return Ok(self.p2p.election(&election, why.placed, why.p2p.as_ref()));
        }
        if matches!(self.mapped.mode(), Permission::Never(_)) {
            return Ok(election);
        }
        Ok(mapped::in_place(&election, 0, 1, why.mapped, Vec::new()))
    }

    /// Waits for a synchronous transfer of so many bytes; a few callers at a time poll for its end.
    pub(crate) fn wait(&self, ticket: Ticket, len: usize) -> Outcome {
        let others = self.close_waiters.fetch_add(1, Ordering::Relaxed);
        let affordable = wait::may_poll(self.objective, self.lanes.count() + others + 1);
        let outcome = if len <= BRIEF && affordable {
            ticket.wait_closely(Duration::from_nanos(len as u64 / BYTES_PER_NS))
        } else {
            ticket.wait()
        };
        self.close_waiters.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Starts an order. One that cannot start fails in its ticket: others may be moving the caller's memory already.
    pub(crate) fn start(&self, order: Order) {
        match order {
            Order::Lanes(job) => self.stage.submit(&job),
            Order::Pull(job) => self.mapped.submit(job),
            Order::Both(placed, rest) => {
                self.stage.submit(&placed);
                if let Some(rest) = rest {
                    self.stage.submit(&rest);
                }
            }
        }
    }

    /// Starts a batch on this thread, for which all is ready.
    pub(crate) fn depart(
        &self,
        boarding: Boarding,
        batch: Batch,
        (wanted, allow_short): (Vec<u64>, Vec<bool>),
        election: Arc<Election>,
        tally: Option<Tally>,
    ) -> Ticket {
        let totals = self.totals.clone();
        let completion = Completion::new(wanted.into(), 1, allow_short, election, totals, None);
        completion.count_in(tally);
        let job = PullJob { batch: Arc::new(batch), base: 0, completion: completion.clone() };
        let driven = self.mapped.depart(boarding, job);
        Ticket::new(completion, (), false).driving(driven.map(|driven| driven as Arc<dyn CallerPolled>))
    }

    /// Serves the streams of this device.
    pub(crate) fn stream_server(&self) -> Result<&StreamServer> {
        self.stream_server
            .get_or_init(|| StreamServer::new(self.device.clone()))
            .as_ref()
            .map_err(Error::clone)
    }

    /// The engines that operations on this device's memory use. `host` is the host's hub.
    pub(crate) fn stream_engines(&self, host: &Self) -> Result<Arc<StreamEngines>> {
        let make = || {
            let puller: Option<Box<dyn Fn(PullJob) + Send + Sync>> = match self.mapped.mode() {
                Permission::Only => Some(Box::new(self.mapped.submitter()?)),
                _ => None,
            };
            Ok(Arc::new(StreamEngines {
                stage: host.stage.clone(),
                host: host.device.clone(),
                straight: self.stage.clone(),
                puller,
                election: self.election(None)?,
                totals: self.totals.clone(),
            }))
        };
        self.stream_engines.get_or_init(make).clone()
    }

    /// How transfers of this device's memory travel in the order of a stream; `None`: staged, where the stream can copy.
    /// What would wait for all streams is done before one of them waits for us: a page of the file system is tried.
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
        if let Fill::Descriptor(file) = file.source().fill() {
            self.mapped.try_out(file, direction);
        }
        Ok(Some(OperationRoute::Straight))
    }

    /// The election of transfers in the order of a stream.
    pub(crate) fn stream_election(&self, file: &File) -> Result<Arc<Election>> {
        let election = with_file(&self.election(None)?, Some(file));
        let staged = "transfers in the order of a stream are staged";
        Ok(match self.mapped.mode() {
            Permission::Never(_) => election,
            Permission::Only => mapped::in_place(&election, 1, 0, None, Vec::new()),
            Permission::Auto => {
                mapped::in_place(&election, 0, 1, Some(mapped::Reason::new(staged)), Vec::new())
            }
        })
    }

    pub(crate) fn pulled_receipt(&self, done: Result<mapped::Pulling>, started: Instant) -> Result<Receipt> {
        let mapped::Pulling { moved, writers, reason } =
            done.inspect_err(|_| self.totals.add(Moved::default(), true))?;
        self.totals.add(moved, false);
        let base = self.election(None)?;
        let notes = || writers.note().into_iter().collect();
        let election = match moved.mapped {
            0 => mapped::in_place(&base, 0, moved.total(), reason, Vec::new()),
            _ => self.pulled[writers as usize]
                .get_or_init(|| mapped::in_place(&base, 1, 0, None, notes()))
                .clone(),
        };
        Ok(Receipt { election, moved, elapsed: started.elapsed() })
    }

    /// The election with what held the lanes back. Lanes that do not run yet are not started for it, unless a file
    /// is given that they are about to move.
    pub(crate) fn election(&self, file: Option<&File>) -> Result<Arc<Election>> {
        if file.is_none() {
            return self.quick.get_or_init(|| self.make_election(Vec::new())).clone();
        }
        let (notes, lanes) = match self.engine()? {
            EngineKind::Noop | EngineKind::Vendor => (Vec::new(), 0),
            _ => self.stage.notes()?,
        };
        let mut kept = lock(&self.election);
        let election = match &*kept {
            Some((heard, made)) if *heard == lanes => made.clone(),
            _ => kept.insert((lanes, self.make_election(notes)?)).1.clone(),
        };
        drop(kept);
        Ok(with_file(&election, file))
    }

    /// A large warm read into host memory where there is one lane: the caller's own thread is as fast.
    pub(crate) fn gains_nothing_by_lanes(&self, transfer: &Transfer) -> Result<bool> {
        let is_alone = self.device.info().is_host && self.lanes.count() == 1;
        // Memory beyond what the file can fill may not be there.
        Ok(is_alone
            && transfer.direction == Direction::Read
            && transfer.offset + transfer.len as u64 <= transfer.file.len()?
            && staged::warmth_of(&Batch::of(transfer), CachePolicy::Auto) == Warmth::Warm)
    }

    fn make_election(&self, notes: Vec<Note>) -> Result<Arc<Election>> {
        let Choice { engine, refused, .. } = self.choice.as_ref().map_err(Error::clone)?;
        if *engine == EngineKind::Vendor {
            return self.vendor.election().map(Arc::new);
        }
        Ok(Arc::new(Election { engine: *engine, refused: refused.clone(), notes, mode: None }))
    }

    /// The election for a transfer on the caller's thread: no lanes were needed, so none are started for it.
    fn small_election(&self, file: &File, moved: Moved) -> Result<Arc<Election>> {
        if moved.buffered > 0 {
            return Ok(with_file(&self.election(None)?, Some(file)));
        }
        if let Some(election) = self.small.get() {
            return Ok(election.clone());
        }
        let election = self.election(None)?;
        if *self.mapped.mode() != Permission::Auto {
            return Ok(election);
        }
        let reason =
            mapped::Reason::new("its pages are not pinned, and a small read alone does not pin them");
        let made = mapped::in_place(&election, 0, 1, Some(reason), Vec::new());
        Ok(self.small.get_or_init(|| made).clone())
    }

    pub(crate) fn small_receipt(
        &self,
        transfer: &Transfer,
        good: usize,
        moved: Moved,
        started: Instant,
        why: &Why,
    ) -> Result<Receipt> {
        let election = || {
            let election = self.small_election(&transfer.file, moved)?;
            Ok(match &why.p2p {
                Some(refusal) => self.p2p.election(&election, (0, moved.total()), Some(refusal)),
                None => election,
            })
        };
        self.receipt_of(transfer, (good, moved), election, started)
    }

    fn receipt_of(
        &self,
        transfer: &Transfer,
        (good, moved): (usize, Moved),
        election: impl FnOnce() -> Result<Arc<Election>>,
        started: Instant,
    ) -> Result<Receipt> {
        let is_short = good < transfer.len && !transfer.allow_short;
        self.totals.add(moved, is_short);
        if is_short {
            return Err(short_read(good as u64, transfer.len as u64).with("file", transfer.file.name()));
        }
        Ok(Receipt { election: election()?, moved, elapsed: started.elapsed() })
    }

    pub(crate) fn noop_receipt(&self, bytes: u64, started: Instant) -> Receipt {
        let moved = Moved { cached: bytes, ..Moved::default() };
        self.totals.add(moved, false);
        let bare = || {
            Arc::new(Election {
                engine: EngineKind::Noop,
                refused: Vec::new(),
                notes: Vec::new(),
                mode: None,
            })
        };
        let election = self.election(None).unwrap_or_else(|_| bare());
        Receipt { election, moved, elapsed: started.elapsed() }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        use std::sync::atomic::Ordering::Relaxed;
        EngineStats {
            engine: self.engine().unwrap_or(EngineKind::Staged),
            device: self.device.info().name.clone(),
            requests: self.totals.requests.load(Relaxed),
            errors: self.totals.errors.load(Relaxed),
            moved: load_moved(&self.totals.moved),
        }
    }
}

/// An engine that is not there, because nothing could be elected.
fn never(engine: EngineKind, error: &Error) -> Permission {
    Permission::Never(Refusal { engine, reason: error.message().to_owned(), hint: None })
}

/// The election with what is particular to a file: why it has no O_DIRECT.
fn with_file(election: &Arc<Election>, file: Option<&File>) -> Arc<Election> {
    let Some(reason) = file.and_then(|file| {
        let is_memory = matches!(file.source().fill(), Fill::Descriptor(file) if file.is_memory);
        file.direct_refused().filter(|_| !is_memory)
    }) else {
        return election.clone();
    };
    let mut with = Election::clone(election);
    with.notes.push(Note {
        text: format!("cold bytes go through the page cache: {reason}"),
        hint: Some("keep the file on a local ext4 or xfs file system".to_owned()),
    });
    Arc::new(with)
}
