//! `--gather`: many pieces of a mapped file by one kernel, and the same without the engine.

use std::sync::Arc;
use std::time::Instant;

use forebay_engine::{Buffer, Map, Offsets, RawGather, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{
    Context, Device, Event, Gather, GatherReport, HostRange, Stream, Wait, first_mismatch, pattern_word,
};

use crate::files::open::ReadyJob;
use crate::memory::PinnedMemory;
use crate::plan::PassLength;
use crate::raw::RawMap;
use crate::verify::{Verifier, corrupt};
use crate::workers;
use crate::workers::measure::WorkerMeter;
use crate::workload::{MOST_GATHERED, OffsetsIn, Workload};

/// Pieces per call by default.
const PIECES: usize = 1 << 20;
/// Lists of offsets that a worker takes in turn.
const LISTS: u64 = 8;
/// Calls of at most this many bytes are checked whole.
const WHOLE: usize = 16 << 20;
/// Pieces of a longer call that `-V` checks.
const SAMPLE: usize = 4096;

/// Pieces that one call gathers.
pub(crate) fn pieces_per_call(work: &Workload, ready: &ReadyJob<'_>) -> usize {
    let wanted = work.batch.unwrap_or(PIECES);
    let fits = (MOST_GATHERED / ready.job.io.min).max(1) as usize;
    let mut count = wanted.min(fits);
    if is_once(work) {
        count = count.min(pieces_of_worker(ready) as usize);
    }
    count.max(1)
}

/// The note where the buffer holds fewer pieces than were asked for.
pub(crate) fn cap(work: &Workload, piece: u64) -> Option<String> {
    let fits = (MOST_GATHERED / piece).max(1) as usize;
    let wanted = work.batch.unwrap_or(PIECES);
    (wanted > fits)
        .then(|| format!("{fits} pieces per call, not {wanted}: a call's buffer has at most 4 GiB"))
}

/// Without a time, checked gathers go once over as many pieces as the file has.
pub(crate) fn is_once(work: &Workload) -> bool {
    work.runtime.is_none() && work.verify
}

fn pieces_of_worker(ready: &ReadyJob<'_>) -> u64 {
    let all = (ready.range.end - ready.range.start) / ready.job.io.min;
    all.div_ceil(ready.job.workers as u64).max(1)
}

/// A mapped file.
pub(crate) enum GatherSource {
    Engine(Map),
    Raw(Arc<RawMap>),
}

impl GatherSource {
    /// Maps the job's file, or takes the raw mapping that it has.
    pub(crate) fn of(session: &Session, ready: &ReadyJob<'_>) -> Result<Self> {
        if ready.range.end - ready.range.start < ready.job.io.min {
            return Err(Error::new(ErrorKind::InvalidInput, "the file is shorter than one piece")
                .with("piece", ready.job.io.min)
                .hint("use a smaller -i"));
        }
        let Some(open) = ready.files.first() else {
            return Err(Error::new(ErrorKind::Internal, "a gather without a file"));
        };
        match &open.map {
            Some(map) => Ok(Self::Raw(map.clone())),
            None => session.map(&open.file, &ready.device).map(Self::Engine),
        }
    }
}

/// A worker that gathers.
pub(crate) struct GatherWorker<'a> {
    pub(crate) work: &'a Workload,
    pub(crate) ready: &'a ReadyJob<'a>,
    pub(crate) pieces: &'a GatherSource,
    pub(crate) offsets: OffsetsIn,
    pub(crate) length: &'a PassLength,
    pub(crate) place: (usize, usize),
}

/// A worker's state.
pub(crate) struct GatherState {
    // Dropped before the memory that its kernels use.
    raw: Option<RawGatherStream>,
    out: Buffer,
    lists: Vec<OffsetList>,
    verifier: Option<Verifier>,
}

/// Offsets of one call; on the device too, if they are to be there.
struct OffsetList {
    host: Vec<u64>,
    device: Option<Buffer>,
}

impl workers::PassWorker for GatherWorker<'_> {
    type Kept = GatherState;

    fn place(&self) -> (usize, usize) {
        self.place
    }

    fn set_up(&self) -> Result<GatherState> {
        if let Some(node) = self.ready.job.numa {
            crate::workers::numa::pin_thread(node)?;
        }
        let device = &self.ready.device;
        let count = pieces_per_call(self.work, self.ready);
        let piece = self.ready.job.io.min as usize;
        let out = Buffer::new(device.clone(), count * piece).map_err(|error| {
            error.hint("use fewer pieces per call (-B), smaller ones (-i) or fewer threads (-w)")
        })?;
        let calls = match self.length {
            PassLength::For(_) => LISTS,
            _ => pieces_of_worker(self.ready).div_ceil(count as u64).min(LISTS),
        };
        let lists = (0..calls).map(|call| self.list(call, count)).collect::<Result<Vec<_>>>()?;
        let raw = match self.pieces {
            GatherSource::Raw(_) => Some(RawGatherStream::new(device, count)?),
            GatherSource::Engine(_) => None,
        };
        let verifier = self.work.verify.then(|| Verifier::new(device, device.info().is_host)).transpose()?;
        Ok(GatherState { raw, out, lists, verifier })
    }

    fn work(&self, kept: &mut GatherState, meter: &mut WorkerMeter) -> Result<Vec<u64>> {
        let deadline =
            if let PassLength::For(time) = self.length { Some(time.end(Instant::now())) } else { None };
        let mut left = deadline.is_none().then(|| pieces_of_worker(self.ready));
        let mut call = 0;
        while !meter.stopped() && left != Some(0) && deadline.is_none_or(|end| Instant::now() < end) {
            let index = call % kept.lists.len();
            let most = kept.lists[index].host.len();
            let count = left.map_or(most, |left| left.min(most as u64) as usize);
            let started = Instant::now();
            let receipt = self.gather(kept, index, count)?;
            meter.done(started, count as u64, count as u64 * self.ready.job.io.min);
            if let Some(receipt) = receipt {
                meter.receipt(&receipt);
            }
            self.check(kept, index, count)?;
            left = left.map(|left| left - count as u64);
            call += 1;
        }
        Ok(vec![call as u64])
    }
}

impl GatherWorker<'_> {
    fn list(&self, call: u64, count: usize) -> Result<OffsetList> {
        let (range, piece) = (&self.ready.range, self.ready.job.io.min);
        let align = self.work.align.unwrap_or(if self.work.unaligned { 1 } else { piece });
        let slots = (range.end - range.start - piece) / align + 1;
        let (job, worker) = self.place;
        let seed =
            self.work.seed.wrapping_mul(0x0100_0193) ^ (job as u64) << 40 ^ (worker as u64) << 20 ^ call;
        let draw = |index: u64| range.start + pattern_word(seed, index << 3) % slots * align;
        let host: Vec<u64> = (0..count as u64).map(draw).collect();
        let device = match self.offsets {
            OffsetsIn::Host => None,
            OffsetsIn::Gpu => {
                let bytes: Vec<u8> = host.iter().flat_map(|offset| offset.to_le_bytes()).collect();
                let mut buffer = Buffer::new(self.ready.device.clone(), bytes.len())?;
                buffer.copy_from_slice(&bytes)?;
                Some(buffer)
            }
        };
        Ok(OffsetList { host, device })
    }

    /// One call. A receipt comes from the engine only.
    fn gather(
        &self,
        kept: &mut GatherState,
        index: usize,
        count: usize,
    ) -> Result<Option<forebay_engine::Receipt>> {
        let length = self.ready.job.io.min as usize;
        let list = &kept.lists[index];
        match (self.pieces, &list.device) {
            (GatherSource::Engine(map), Some(offsets)) => {
                let request =
                    RawGather { offsets: offsets.address(), count, length, out: kept.out.address() };
                // SAFETY: offsets and buffer are this worker's alone and live until the wait in this line; `count`
                // pieces fit, as `out` was made for the longest list.
                unsafe { map.gather_raw(None, request)?.wait().map(Some) }
            }
            (GatherSource::Engine(map), None) => {
                map.gather(Offsets::Host(&list.host[..count]), length, &mut kept.out).map(Some)
            }
            (GatherSource::Raw(map), device) => {
                let Some(raw) = &kept.raw else {
                    return Err(Error::new(ErrorKind::Internal, "a raw gather without a stream"));
                };
                let there = device.as_ref().map(Buffer::address);
                // SAFETY: list and buffer are this worker's alone and live until the call returns, which waits; the
                // map's pages stay registered longer than that.
                unsafe { raw.gather(map, &list.host[..count], there, length, kept.out.address())? };
                Ok(None)
            }
        }
    }

    /// Compares the pieces with the pattern: all of them, or a sample where they are many bytes.
    fn check(&self, kept: &mut GatherState, index: usize, count: usize) -> Result<()> {
        let (Some(verifier), Some(file)) = (&mut kept.verifier, self.ready.files.first()) else {
            return Ok(());
        };
        let length = self.ready.job.io.min as usize;
        if count * length <= WHOLE {
            let bytes = kept.out.to_vec()?;
            let offsets = &kept.lists[index].host[..count];
            let wrong = bytes.chunks_exact(length).zip(offsets);
            let wrong =
                wrong.map(|(piece, offset)| first_mismatch(piece, file.key, *offset)).find_map(|at| at);
            return wrong.map_or(Ok(()), |at| Err(corrupt(at).with("file", file.file.name())));
        }
        for at in (0..count).step_by(count.div_ceil(SAMPLE)) {
            let (address, offset) = (kept.out.address() + (at * length) as u64, kept.lists[index].host[at]);
            // SAFETY: the piece lies within the buffer, and its gather is over.
            let checked = unsafe { verifier.check(file.key, address, length, offset) };
            checked.map_err(|error| error.with("file", file.file.name()))?;
        }
        Ok(())
    }
}

/// A raw gather's memory, apart from the pages.
struct RawGatherStream {
    event: Box<dyn Event>,
    stream: Box<dyn Stream>,
    /// On the device: the report, then room for offsets.
    scratch: Buffer,
    /// The report as it came back, then one that is blank.
    mirror: PinnedMemory,
}

/// Where the offsets begin in the scratch memory.
const LIST_AT: u64 = 256;

impl RawGatherStream {
    fn new(device: &Arc<dyn Device>, count: usize) -> Result<Self> {
        device.kernels(Context::PRIMARY)?;
        let stream = device.stream(Context::PRIMARY)?;
        let event = stream.event()?;
        let scratch = Buffer::new(device.clone(), LIST_AT as usize + count * 8)?;
        let mirror = PinnedMemory::new(device, 2 * size_of::<GatherReport>())?;
        let raw = Self { event, stream, scratch, mirror };
        // SAFETY: the mirror has room for two reports.
        unsafe { raw.mirrored(1).write_unaligned(GatherReport::START) };
        Ok(raw)
    }

    #[allow(clippy::cast_ptr_alignment, reason = "the mirror is page-aligned")]
    fn mirrored(&self, index: usize) -> *mut GatherReport {
        self.mirror.pointer().cast::<GatherReport>().wrapping_add(index)
    }

    /// # Safety
    /// The device reads `list` or what is at `there`, and writes a piece for each to `out`, until this returns; the
    /// map's range is registered.
    unsafe fn gather(
        &self,
        map: &RawMap,
        list: &[u64],
        there: Option<u64>,
        length: usize,
        out: u64,
    ) -> Result<()> {
        let (report, size) = (self.scratch.address(), size_of::<GatherReport>());
        let offsets = there.unwrap_or(report + LIST_AT);
        let gather = Gather {
            base: map.address(0),
            len: map.len(),
            offsets,
            count: list.len() as u64,
            piece: length as u64,
            out,
            report,
        };
        // SAFETY: scratch and mirror are ours and outlive the wait; the caller vouches for the rest.
        unsafe {
            if there.is_none() {
                self.stream.copy_in(offsets, HostRange::new(list.as_ptr().cast(), size_of_val(list)))?;
            }
            self.stream.copy_in(report, HostRange::new(self.mirrored(1).cast(), size))?;
            self.stream.gather(&gather)?;
            self.stream.copy_out(HostRange::new(self.mirrored(0).cast(), size), report)?;
        }
        self.stream.record(&*self.event)?;
        self.event.wait(Wait::Block)?;
        // SAFETY: the copy into the mirror is done.
        let GatherReport { refused, .. } = unsafe { self.mirrored(0).read_unaligned() };
        if refused > 0 {
            return Err(
                Error::new(ErrorKind::Internal, "a raw gather refused pieces").with("refused", refused)
            );
        }
        Ok(())
    }
}

impl Drop for RawGatherStream {
    fn drop(&mut self) {
        // After an error kernels may still be running: free nothing that they use.
        let _ = self.stream.synchronize(Wait::Block);
    }
}
