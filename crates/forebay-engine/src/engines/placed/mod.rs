//! The engine `placed`: a server writes a file's bytes into device memory by RDMA. No byte crosses this host's memory, and no
//! instruction of this process is spent on one.
//!
//! The memory is registered with the NIC as a dma-buf ([`memory`]), for as long as it is in use. Whether bytes really arrive is tried
//! first ([`trial`]); what a server or a NIC cannot move after all is staged ([`flight`]). Reads alone: writes are staged.
//!
//! What places the bytes is the source's ([`Place`](forebay_source::Place)), or lies behind a mounted file of the kernel's
//! ([`BesideFile`](forebay_source::BesideFile)).

mod flight;
mod helper;
mod memory;
mod nics;
mod refusals;
mod server_file;
mod trial;

use std::sync::{Arc, LazyLock};

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;
use forebay_source::{Place, Source};
use forebay_verbs::RegisteredMemory;

use self::flight::{Flight, FlightParts, Range};
use self::helper::Helper;
use self::memory::Registrations;
use self::nics::NearestFirst;
use self::refusals::{error_refusal, refusal};
use self::server_file::ServerFile;
use self::trial::Tester;
use crate::engines::mount_read::MIN_TRANSFER;
use crate::engines::task_thread::{ServerThreads, TaskThread, answer};
use crate::engines::{
    AskedBatch, Claim, DeviceOptions, Engine, EngineCandidate, EngineParts, Known, Onward, Permission, Ran,
    Taken, Work,
};
use crate::request::receipt::{EngineKind, ReceiptPart, Refusal};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::{Batch, Transfer};
use crate::source::piece::Direction;
use crate::source::residency::Warmth;

/// The engine for one device.
pub(crate) struct Placed {
    device: Arc<dyn Device>,
    permission: Permission,
    memory: Arc<Registrations>,
    helper: Helper,
    /// A separate thread checks servers by a NIC.
    looks: TaskThread,
    /// It also runs trials.
    tester: Arc<Tester>,
    /// The questions to each before and after a transfer.
    checks: ServerThreads,
    config: Config,
    nics: NearestFirst,
}

/// Most checks by NICs that wait: each keeps its file. Chosen.
const MAX_LOOKS: usize = 16;

static CACHED: LazyLock<Refusal> = LazyLock::new(|| Refusal {
    engine: EngineKind::Placed,
    reason: "the bytes are in this host's page cache".to_owned(),
    hint: None,
});

static WRITES: LazyLock<Refusal> = LazyLock::new(|| Refusal {
    engine: EngineKind::Placed,
    reason: "writes go through host memory".to_owned(),
    hint: None,
});

/// How the engine comes into the lists of devices.
pub(crate) struct PlacedCandidate;

impl EngineCandidate for PlacedCandidate {
    fn kind(&self) -> EngineKind {
        EngineKind::Placed
    }

    fn permission(&self, options: &DeviceOptions<'_>) -> Permission {
        if options.device.info().is_host {
            return Permission::never(EngineKind::Placed, "the memory is host memory", None);
        }
        match options.device.can_export() {
            Ok(()) => options.permit(EngineKind::Placed),
            Err(error) => Permission::refused_by(EngineKind::Placed, &error),
        }
    }

    fn make(&self, parts: &EngineParts<'_>, permission: Permission) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(Placed::new(parts.device.clone(), permission, parts.config)))
    }

    /// Of files on servers alone.
    fn tells_refusal(&self) -> bool {
        true
    }
}

impl Placed {
    pub(crate) fn new(device: Arc<dyn Device>, permission: Permission, config: &Config) -> Self {
        let memory = Arc::new(Registrations::new(device.clone()));
        let helper = Helper::new(device.clone(), memory.clone());
        let (looks, checks) = (TaskThread::new("forebay-look"), ServerThreads::new("forebay-check"));
        let tester = Tester::new(device.clone(), looks.clone());
        let (config, nics) = (config.clone(), NearestFirst::new(device.info()));
        Self { device, permission, memory, helper, looks, tester, checks, config, nics }
    }

    fn is_all(&self) -> bool {
        self.permission == Permission::Only
    }

    /// The file's server, if it has one that could place its bytes.
    fn server_file(&self, known: &Known<'_>) -> Result<Option<ServerFile>, Arc<Refusal>> {
        let permitted = || match &self.permission {
            Permission::Never(refusal) => Err(Arc::new(refusal.clone())),
            _ => Ok(()),
        };
        let opened = known.file.opened();
        let place = if let Some(opened) = opened {
            let Some(beside) = opened.descriptors.beside() else { return Ok(None) };
            permitted()?;
            let mounted: Arc<dyn Source> = opened.clone();
            beside.place(&mounted, &self.config, self.is_all())
        } else {
            let Some(place) = known.file.source().place() else { return Ok(None) };
            permitted()?;
            place
        };
        let (place, is_mounted) = (place.map_err(|error| error_refusal(&error))?, opened.is_some());
        Ok(Some(ServerFile { place, file: known.file.clone(), is_mounted }))
    }

    /// The work for the server; `None` for transfers that this engine does not take.
    fn takes(&self, asked: &AskedBatch<'_>) -> Result<Option<Placing>, ReceiptPart<Refusal>> {
        if self.is_short(asked.known, asked.bytes()) {
            return Ok(None);
        }
        let Some(server) = self.server_file(asked.known).map_err(ReceiptPart::Now)? else { return Ok(None) };
        let batch = asked.batch;
        if batch.direction == Direction::Write {
            return Err(ReceiptPart::Always(&WRITES));
        }
        if !server_allows(asked.known) {
            return Err(ReceiptPart::Now(refusal("the file is not open for reading", None)));
        }
        if server.is_mounted && !self.is_all() && asked.warmth() == Warmth::Warm {
            return Err(ReceiptPart::Always(&CACHED));
        }
        let placing = self.register_nearest(batch, server).map_err(ReceiptPart::Now)?;
        let key =
            trial::Key::new(placing.server.place.as_ref(), self.device.as_ref(), placing.memory[0].device());
        self.tester.verdict(&key, &placing.server, self.is_all()).map_err(ReceiptPart::Now)?;
        Ok(Some(Placing { key: Some(key), ..placing }))
    }

    /// Whether it is a transfer of a mounted file for which the kernel's way is as good: the server is asked before and after it.
    fn is_short(&self, known: &Known<'_>, bytes: u64) -> bool {
        bytes < MIN_TRANSFER && !self.is_all() && known.descriptors.is_some()
    }

    /// The same by the nearest NIC that registers the memory, where several lead to the server: by connections over that one alone.
    fn register_nearest(&self, batch: &Batch, server: ServerFile) -> Result<Placing, Arc<Refusal>> {
        let nics = server.place.nics();
        if nics.is_empty() {
            return self.register(batch, server);
        }
        let mut refused = None;
        for nic in self.nics.of(&nics) {
            let name = &nics[nic].name;
            // One that is farther would be tried, and left again.
            let Some(by_nic) = self.by_nic(&server.place, name) else {
                return Err(refusal(format!("the server is being checked by NIC {name}"), None));
            };
            let placing = by_nic
                .map_err(|error| error_refusal(&error))
                .and_then(|place| self.register(batch, ServerFile { place, ..server.clone() }));
            match placing {
                Ok(placing) => return Ok(placing),
                // The nearest NIC's reason is the most useful.
                Err(why) => _ = refused.get_or_insert(why),
            }
        }
        Err(refused.unwrap_or_else(|| refusal("no NIC leads to the server", None)))
    }

    /// The file by a NIC, once that is known: the server is asked beside the first transfers, which go another way. They wait where they
    /// may go no other.
    fn by_nic(&self, place: &Arc<dyn Place>, nic: &str) -> Option<Result<Arc<dyn Place>>> {
        let found = place.by_nic(nic, self.is_all());
        if found.is_some() {
            return found;
        }
        let (asked, name) = (place.clone(), nic.to_owned());
        // Those behind the first find it known. Without a thread the next transfer asks again.
        let ask = Box::new(move || drop(answer(|| Ok(asked.by_nic(&name, true)))));
        let _ = self.looks.offer(ask, MAX_LOOKS);
        None
    }

    /// Registers the memory of all pieces, and cuts them into single requests to the server.
    fn register(&self, batch: &Batch, server: ServerFile) -> Result<Placing, Arc<Refusal>> {
        let domain = server.place.domain().map_err(|error| error_refusal(&error))?;
        let mut memory: Vec<(forebay_gpu::Allocation, Arc<RegisteredMemory>)> = Vec::new();
        let mut ranges = Vec::with_capacity(batch.pieces.len());
        for (entry, piece) in (0..).zip(&batch.pieces).filter(|(_, piece)| piece.len > 0) {
            let wanted = piece.memory();
            let holds = |known: &(forebay_gpu::Allocation, _)| known.0.range.holds(wanted);
            let index = if let Some(index) = memory.iter().rposition(holds) {
                index
            } else {
                memory.push(self.memory.get(&domain, wanted)?);
                memory.len() - 1
            };
            flight::cut(&mut ranges, entry, piece, index);
        }
        self.helper.watch();
        let memory = memory.into_iter().map(|(_, registered)| registered).collect();
        Ok(Placing { server, ranges, memory, key: None })
    }

    fn error(&self, refusal: &Refusal, known: &Known<'_>) -> Error {
        let text = format!("engine placed cannot do this: {}", refusal.reason);
        let error = Error::new(ErrorKind::Unsupported, text);
        let error = error.with("file", known.file.name()).with("device", &self.device.info().name);
        match &refusal.hint {
            Some(hint) => error.hint(hint.clone()),
            None => error,
        }
    }
}

fn server_allows(known: &Known<'_>) -> bool {
    known.file.access().0
}

/// The server's work: bytes and their memory.
struct Placing {
    server: ServerFile,
    ranges: Vec<Range>,
    memory: Vec<Arc<RegisteredMemory>>,
    key: Option<trial::Key>,
}

impl Engine for Placed {
    fn kind(&self) -> EngineKind {
        EngineKind::Placed
    }

    /// Nothing is gained by the caller's thread: it would wait for the server.
    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        if self.is_short(known, transfer.len as u64) {
            return Ok(Ran::Passed(None));
        }
        let is_candidate = transfer.direction == Direction::Read && transfer.len > 0;
        Ok(match self.server_file(known) {
            Ok(Some(_)) if is_candidate => Ran::Later,
            _ if self.is_all() && transfer.len > 0 => Ran::Later,
            Ok(Some(_)) if transfer.len > 0 => Ran::Passed(Some(ReceiptPart::Always(&WRITES))),
            Ok(_) => Ran::Passed(None),
            Err(refusal) => Ran::Passed(Some(ReceiptPart::Now(refusal))),
        })
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let bytes = asked.bytes();
        if bytes == 0 || asked.parts.is_some() {
            return Ok(Claim::Passed(None));
        }
        match self.takes(asked) {
            Ok(Some(placing)) => {
                let work = PlacedWork {
                    batch: asked.batch.clone(),
                    device: self.device.clone(),
                    helper: self.helper.clone(),
                    checks: self.checks.of(&placing.server.place.scope().server),
                    placing,
                    is_all: self.is_all(),
                };
                Ok(Claim::Taken(Taken { work: Box::new(work), bytes, left: Vec::new(), refusal: None }))
            }
            Ok(None) if self.is_all() => {
                Err(self.error(&refusal("the file is not one of a server's", None), asked.known))
            }
            Err(refusal) if self.is_all() => Err(self.error(&refusal, asked.known)),
            Ok(None) => Ok(Claim::Passed(None)),
            Err(refusal) => Ok(Claim::Passed(Some(refusal))),
        }
    }
}

/// A batch that a server is to place.
struct PlacedWork {
    placing: Placing,
    batch: Arc<Batch>,
    device: Arc<dyn Device>,
    helper: Helper,
    checks: TaskThread,
    is_all: bool,
}

impl Work for PlacedWork {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { placing, batch, device, helper, checks, is_all } = *self;
        let Placing { server, ranges, memory, key } = placing;
        let parts = FlightParts { batch, server, ranges, memory, key, device, is_all };
        let flight = Flight::new(parts, onward.clone(), checks);
        if onward.completion.may_copy() {
            flight.begin();
        } else {
            helper.hold(flight);
        }
        None
    }
}
