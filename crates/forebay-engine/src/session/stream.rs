//! Transfers in the order of a user's stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Wait;

use super::Session;
use super::request::{batches, nothing};
use crate::device::DeviceEngines;
use crate::engines::explain::Walk;
use crate::request::completion::Completion;
use crate::request::copy_order::CopyOrder;
use crate::request::receipt::{EngineKind, Moved, Way};
use crate::request::ticket::Ticket;
use crate::request::transfer::{Batch, Memory, Transfer};
use crate::stream_order::{self, Bound, Late, OperationEnd, ResultTarget, StreamRequest};

/// The most bytes of a transfer whose range is not known yet: its steps are queued for all of them.
const MAX_LATE_BYTES: usize = 1 << 40;

impl Session {
    /// # Safety
    /// As [`Session::submit_on`].
    pub(super) unsafe fn submit_in_order(&self, stream: u64, transfers: Vec<Transfer>) -> Result<Ticket> {
        let Some(first) = transfers.first() else { return Err(nothing()) };
        let counter = self.counter(&transfers);
        let engines = self.engines_of(&first.memory.device)?;
        // SAFETY: the caller vouches for the stream.
        let by_itself = unsafe { reached_by(engines, stream) }?;
        // SAFETY: as above.
        let server = unsafe { self.server_of(engines, stream) };
        let Some(server) =
            server.filter(|_| !by_itself && engines.engine().is_ok_and(|engine| engine != EngineKind::Noop))
        else {
            // SAFETY: passed on.
            let ticket = unsafe { self.launch(batches(transfers), counter, CopyOrder::Free) }?;
            while !ticket.wait_timeout(Duration::from_hours(1)) {}
            return Ok(ticket);
        };
        let all: Vec<_> = transfers.iter().map(Batch::of).collect();
        let (wanted, allow_short) = self.entries(engines, &all)?;
        if engines.is_mapped_only() {
            for batch in all {
                engines.claim(&Arc::new(batch), false, &mut Walk::default())?;
            }
        }
        let election = engines.stream_election(&first.file)?;
        let works = transfers.len();
        let completion =
            Completion::new(wanted.into(), works, allow_short, election, engines.totals.clone(), None);
        completion.count_with(counter);
        completion.keep_late_note(&first.file);
        let mut ends = Vec::with_capacity(works);
        let mut refused: Option<Error> = None;
        for (entry, transfer) in transfers.into_iter().enumerate() {
            let end = OperationEnd::new(completion.clone(), entry as u32);
            let queued = match &refused {
                // SAFETY: passed on.
                None => unsafe { self.queue(stream, server, engines, transfer, &end) },
                Some(error) => Err(error.clone()),
            };
            match queued {
                Err(error) if entry == 0 => return Err(error),
                Err(error) => {
                    end.refuse(error.clone());
                    refused = Some(error);
                }
                Ok(()) => ends.push(end),
            }
        }
        let look = move || ends.iter().for_each(|end| end.check());
        Ok(Ticket::new(completion, (), false).watched(Box::new(look)))
    }

    /// # Safety
    /// As [`Session::submit_on`].
    unsafe fn queue(
        &self,
        stream: u64,
        server: &DeviceEngines,
        engines: &DeviceEngines,
        transfer: Transfer,
        end: &Arc<OperationEnd>,
    ) -> Result<()> {
        let Transfer { file, offset, memory, len, direction, .. } = transfer;
        self.before_write(direction, &file);
        let route = engines.stream_route(&file, direction)?;
        let bound = Bound { offset, address: memory.address, len };
        let request = StreamRequest {
            file,
            memory,
            direction,
            most: len,
            bind: Box::new(move || Ok(bound)),
            target: ResultTarget::Ticket(end.clone()),
            engines: engines.stream_engines(self.host_engines())?,
        };
        // SAFETY: passed on.
        unsafe { server.stream_server()?.enqueue(stream, request, route) }
    }

    /// # Safety
    /// As [`Session::enqueue`].
    pub(super) unsafe fn enqueue_late(&self, stream: u64, late: Late) -> Result<()> {
        if late.most > MAX_LATE_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a transfer in the order of a stream is too large",
            )
            .with("bytes", late.most)
            .with("most", MAX_LATE_BYTES)
            .hint("queue it in parts"));
        }
        let engines = self.engines_of(&late.memory.device)?;
        self.before_write(late.direction, &late.file);
        // SAFETY: the caller vouches for the stream.
        if unsafe { reached_by(engines, stream) }? {
            // SAFETY: passed on.
            unsafe { self.run_late(late) };
            return Ok(());
        }
        let route = engines.stream_route(&late.file, late.direction)?;
        // SAFETY: the caller vouches for the stream.
        let Some(server) = (unsafe { self.server_of(engines, stream) }) else {
            // SAFETY: passed on.
            unsafe { self.run_late(late) };
            return Ok(());
        };
        let late = self.counted(late, engines)?;
        let request = StreamRequest::of(late, engines.stream_engines(self.host_engines())?);
        // SAFETY: passed on.
        unsafe { server.stream_server()?.enqueue(stream, request, route) }
    }

    /// Counts it when it gets its result.
    fn counted(&self, late: Late, engines: &DeviceEngines) -> Result<Late> {
        let Some(counter) = self.counter_of(late.direction, late.memory.device.as_ref(), std::iter::empty())
        else {
            return Ok(late);
        };
        let (election, queued, tell) = (engines.stream_election(&late.file)?, Instant::now(), late.done);
        let done = Box::new(move |result: Result<u64>| {
            let bytes = result.as_ref().map_or(0, |bytes| *bytes);
            // Which way the bytes took is not told.
            let moved = Moved::of(Way::Buffered, bytes);
            counter.count(moved, queued.elapsed(), result.is_ok(), Some(&election));
            result.as_ref().err().inspect(|error| counter.failed(error));
            tell(result);
        });
        Ok(Late { done, ..late })
    }

    /// A "stream" of the host has no work left.
    ///
    /// # Safety
    /// As [`Session::enqueue`].
    unsafe fn run_late(&self, late: Late) {
        let Late { file, memory, direction, most, bind, done } = late;
        done(stream_order::bind(bind, most).and_then(|Bound { offset, address, len }| {
            let memory = Memory { address, ..memory };
            let transfer = Transfer { file, offset, memory, len, direction, allow_short: true };
            // SAFETY: passed on.
            unsafe { self.run(&transfer) }.map(|receipt| receipt.bytes())
        }));
    }

    fn host_engines(&self) -> &DeviceEngines {
        self.here().per_device.of_host()
    }

    /// Whose server serves a stream, for memory of `engines`. None where there are no streams.
    ///
    /// # Safety
    /// `stream` is live.
    unsafe fn server_of<'a>(&'a self, engines: &'a DeviceEngines, stream: u64) -> Option<&'a DeviceEngines> {
        if !engines.device.info().is_host {
            return Some(engines);
        }
        let here = self.here();
        let gpus = &here.devices.gpus;
        if gpus.is_empty() {
            return None;
        }
        // SAFETY: passed on.
        let owner = gpus.iter().position(|gpu| gpus.len() > 1 && unsafe { gpu.owns_stream(stream) });
        here.per_device.of(owner.unwrap_or(0))
    }
}

/// A program's own engine may wait for all streams, as NVIDIA's library does, and so for one that waits for it: it is
/// called when the stream is through what it has. Whether that is so.
///
/// # Safety
/// `stream` is live.
unsafe fn reached_by(engines: &DeviceEngines, stream: u64) -> Result<bool> {
    if !matches!(engines.engine()?, EngineKind::Libcufile | EngineKind::Registered(_)) {
        return Ok(false);
    }
    // SAFETY: passed on. This refuses a stream that is being captured, and leaves the capture as it is.
    unsafe { engines.device.identify(stream) }?;
    // SAFETY: as above.
    unsafe { engines.device.foreign_stream(stream) }?.synchronize(Wait::Block)?;
    Ok(true)
}
