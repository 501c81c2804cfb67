//! Transfers in the order of a user's stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Wait;

use super::Session;
use super::request::{batches, nothing};
use crate::device::Hub;
use crate::engines::explain::Walk;
use crate::request::copy_order::CopyOrder;
use crate::request::receipt::{EngineKind, Moved};
use crate::request::ticket::{Completion, Ticket};
use crate::request::transfer::{Batch, Memory, Transfer};
use crate::stream_order::{self, Asked, Bound, Landing, Late, Told};

/// The most bytes of a transfer whose range is not known yet: its steps are queued for all of them.
const MOST: usize = 1 << 40;

impl Session {
    /// # Safety
    /// As [`Session::submit_on`].
    pub(super) unsafe fn submit_in_order(&self, stream: u64, transfers: Vec<Transfer>) -> Result<Ticket> {
        let Some(first) = transfers.first() else { return Err(nothing()) };
        let tally = self.tally(&transfers);
        let hub = self.hub(&first.memory.device)?;
        // SAFETY: the caller vouches for the stream.
        let by_itself = unsafe { reached_by(hub, stream) }?;
        // SAFETY: as above.
        let server = unsafe { self.server_of(hub, stream) };
        let Some(server) =
            server.filter(|_| !by_itself && hub.engine().is_ok_and(|engine| engine != EngineKind::Noop))
        else {
            // SAFETY: passed on.
            let ticket = unsafe { self.launch(batches(transfers), tally, CopyOrder::Free) }?;
            while !ticket.wait_timeout(Duration::from_hours(1)) {}
            return Ok(ticket);
        };
        let all: Vec<_> = transfers.iter().map(Batch::of).collect();
        let (wanted, allow_short) = self.entries(hub, &all)?;
        if hub.is_mapped_only() {
            for batch in all {
                hub.claim(&Arc::new(batch), false, &mut Walk::default())?;
            }
        }
        let election = hub.stream_election(&first.file)?;
        let works = transfers.len();
        let completion =
            Completion::new(wanted.into(), works, allow_short, election, hub.totals.clone(), None);
        completion.count_in(tally);
        let mut landings = Vec::with_capacity(works);
        let mut refused: Option<Error> = None;
        for (entry, transfer) in transfers.into_iter().enumerate() {
            let landing = Landing::new(completion.clone(), entry as u32);
            let queued = match &refused {
                // SAFETY: passed on.
                None => unsafe { self.queue(stream, server, hub, transfer, &landing) },
                Some(error) => Err(error.clone()),
            };
            match queued {
                Err(error) if entry == 0 => return Err(error),
                Err(error) => {
                    landing.refuse(error.clone());
                    refused = Some(error);
                }
                Ok(()) => landings.push(landing),
            }
        }
        let look = move || landings.iter().for_each(|landing| landing.look());
        Ok(Ticket::new(completion, (), false).watched(Box::new(look)))
    }

    /// # Safety
    /// As [`Session::submit_on`].
    unsafe fn queue(
        &self,
        stream: u64,
        server: &Hub,
        hub: &Hub,
        transfer: Transfer,
        landing: &Arc<Landing>,
    ) -> Result<()> {
        let Transfer { file, offset, memory, len, direction, .. } = transfer;
        self.before_write(direction, &file);
        let route = hub.stream_route(&file, direction)?;
        let bound = Bound { offset, address: memory.address, len };
        let asked = Asked {
            file,
            memory,
            direction,
            most: len,
            bind: Box::new(move || Ok(bound)),
            told: Told::Ticket(landing.clone()),
            office: hub.office(self.host_hub())?,
        };
        // SAFETY: passed on.
        unsafe { server.courier()?.enqueue(stream, asked, route) }
    }

    /// # Safety
    /// As [`Session::enqueue`].
    pub(super) unsafe fn enqueue_late(&self, stream: u64, late: Late) -> Result<()> {
        if late.most > MOST {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a transfer in the order of a stream is too large",
            )
            .with("bytes", late.most)
            .with("most", MOST)
            .hint("queue it in parts"));
        }
        let hub = self.hub(&late.memory.device)?;
        self.before_write(late.direction, &late.file);
        // SAFETY: the caller vouches for the stream.
        if unsafe { reached_by(hub, stream) }? {
            // SAFETY: passed on.
            unsafe { self.run_late(late) };
            return Ok(());
        }
        let route = hub.stream_route(&late.file, late.direction)?;
        // SAFETY: the caller vouches for the stream.
        let Some(server) = (unsafe { self.server_of(hub, stream) }) else {
            // SAFETY: passed on.
            unsafe { self.run_late(late) };
            return Ok(());
        };
        let late = self.counted(late, hub)?;
        let asked = Asked::of(late, hub.office(self.host_hub())?);
        // SAFETY: passed on.
        unsafe { server.courier()?.enqueue(stream, asked, route) }
    }

    /// Counts it when it is told its result.
    fn counted(&self, late: Late, hub: &Hub) -> Result<Late> {
        let Some(tally) = self.tally_of(late.direction, late.memory.device.as_ref(), std::iter::empty())
        else {
            return Ok(late);
        };
        let (election, queued, tell) = (hub.stream_election(&late.file)?, Instant::now(), late.done);
        let done = Box::new(move |result: Result<u64>| {
            let bytes = result.as_ref().map_or(0, |bytes| *bytes);
            // Which way the bytes took is not told.
            let moved = Moved { buffered: bytes, ..Moved::default() };
            tally.count(moved, queued.elapsed(), result.is_ok(), Some(&election));
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

    fn host_hub(&self) -> &Hub {
        let hubs = &self.here().hubs;
        &hubs[hubs.len() - 1]
    }

    /// Whose courier serves a stream, for memory of `hub`. None where there are no streams.
    ///
    /// # Safety
    /// `stream` is live.
    unsafe fn server_of<'a>(&'a self, hub: &'a Hub, stream: u64) -> Option<&'a Hub> {
        if !hub.device.info().is_host {
            return Some(hub);
        }
        let here = self.here();
        let gpus = &here.hubs[..here.devices.gpus.len()];
        let [_, _, ..] = gpus else { return gpus.first() };
        // SAFETY: passed on.
        let owner = gpus.iter().find(|hub| unsafe { hub.device.owns_stream(stream) });
        owner.or(gpus.first())
    }
}

/// An engine of somebody else may wait for all streams, as NVIDIA's library does, and so for one that waits for it: it is
/// called when the stream is through what it has. Whether that is so.
///
/// # Safety
/// `stream` is live.
unsafe fn reached_by(hub: &Hub, stream: u64) -> Result<bool> {
    if !matches!(hub.engine()?, EngineKind::Libcufile | EngineKind::Registered(_)) {
        return Ok(false);
    }
    // SAFETY: passed on. This refuses a stream that is being captured, and leaves the capture as it is.
    unsafe { hub.device.identify(stream) }?;
    // SAFETY: as above.
    unsafe { hub.device.foreign_stream(stream) }?.synchronize(Wait::Block)?;
    Ok(true)
}
