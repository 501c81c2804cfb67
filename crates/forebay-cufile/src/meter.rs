//! Live counters and the trace: what every call leaves behind.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_config::cufile::LogLevel;
use forebay_config::env;
use forebay_engine::{Moved, Receipt, Session, Way};
use forebay_error::Error;
use forebay_gpu::{DeviceRange, MemoryKind};
use forebay_stats::{Counters, Io, Op, Snapshot};
use forebay_sys::forks;
use forebay_trace::{Api, CallFlags, EngineCode, MemoryCode, Record, Trace, thread_id};

use crate::handles::RegisteredFile;
use crate::log::{log, logs_calls};
use crate::status::{RefusedCall, reason_of};

/// Where the trace goes.
const TRACE: &str = "FOREBAY_TRACE";

/// Counters, and a trace if one was asked for.
pub(crate) struct CallMeter {
    counters: Option<&'static Counters>,
    trace: Option<&'static Trace>,
    groups: AtomicU32,
}

/// When a call began.
#[derive(Clone, Copy)]
pub(crate) struct CallStart {
    pub(crate) at: Instant,
    traced: u64,
}

/// A transfer that ended, for [`CallMeter::moved`].
pub(crate) struct Transferred<'a> {
    pub(crate) api: Api,
    pub(crate) begun: CallStart,
    pub(crate) file: &'a RegisteredFile,
    pub(crate) kind: MemoryKind,
    pub(crate) gpu: Option<usize>,
    pub(crate) offset: i64,
    pub(crate) size: usize,
    pub(crate) address: u64,
    /// The batch or stream.
    pub(crate) group: u32,
    pub(crate) flags: CallFlags,
    /// Bytes, or an errno.
    pub(crate) result: Result<u64, i32>,
    /// The engine of most bytes.
    pub(crate) engine: EngineCode,
}

/// Entries of a batch that ended together.
pub(crate) struct BatchDone<'a> {
    pub(crate) latency: Duration,
    pub(crate) file: &'a RegisteredFile,
    pub(crate) reads: bool,
    pub(crate) bytes: u64,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
}

/// The counters and the trace of this process.
pub(crate) fn meter() -> &'static CallMeter {
    static METER: OnceLock<CallMeter> = OnceLock::new();
    METER.get_or_init(|| {
        forks::watch();
        let warn = |text: &str| log().line(LogLevel::Warn, "trace", text);
        CallMeter { counters: forebay_engine::counters(), trace: open_trace(warn), groups: AtomicU32::new(0) }
    })
}

impl CallMeter {
    /// The library was opened.
    pub(crate) fn begin(&self, session: &Session, level: u32) {
        let Some(counters) = &self.counters else { return };
        counters.set_level(level);
        for gpu in &session.devices().gpus {
            let info = gpu.info();
            counters.gpu(info.index, info.uuid);
        }
    }

    pub(crate) fn begin_call(&self) -> CallStart {
        CallStart { at: Instant::now(), traced: self.trace.map_or(0, Trace::now) }
    }

    /// Counts a call of a kind that moves no bytes.
    pub(crate) fn count(&self, op: Op, ok: bool) {
        if let Some(counters) = &self.counters {
            counters.count(op, ok);
        }
    }

    pub(crate) fn note(&self, text: &str) {
        if let Some(counters) = &self.counters {
            counters.note(text, None);
        }
    }

    /// Keeps why a call failed, with its hint.
    pub(crate) fn failed(&self, error: &Error) {
        if let Some(counters) = &self.counters {
            counters.failed(error.message(), error.hints().first().map(String::as_str));
        }
    }

    /// Keeps that a call was refused before anything was moved, and why.
    fn note_refused(&self, api: Api, errno: i32) {
        if let Some(counters) = &self.counters {
            counters.failed(&format!("{api}: {}", reason_of(errno)), None);
        }
    }

    pub(crate) fn counters(&self) -> Option<&Counters> {
        self.counters
    }

    pub(crate) fn collected(&self) -> Option<Snapshot> {
        self.counters.map(Counters::collected)
    }

    // ---- calls that move no bytes ------------------------------------------------------------------------------

    pub(crate) fn traced_file(&self, name: &str) -> u32 {
        self.trace.map_or(0, |trace| trace.file(name))
    }

    /// `flags` are those the descriptor was opened with, `size` the file's.
    pub(crate) fn file_registered(
        &self,
        begun: CallStart,
        file: Result<u32, RefusedCall>,
        flags: i32,
        size: u64,
    ) {
        self.count(Op::HandleRegister, file.is_ok());
        let call = self.call(Api::HandleRegister, begun, file.map(drop));
        self.event(Record { file: file.unwrap_or(0), offset: i64::from(flags), size, ..call });
    }

    pub(crate) fn file_deregistered(&self, file: u32) {
        let begun = self.begin_call();
        self.event(Record { file, ..self.call(Api::HandleDeregister, begun, Ok(())) });
    }

    pub(crate) fn buffer_registered(
        &self,
        memory: DeviceRange,
        gpu: Option<usize>,
        result: Result<(), RefusedCall>,
    ) {
        if let Some(counters) = &self.counters {
            counters.buffer_registered(gpu, memory.len as u64, result.is_ok());
        }
        let call = self.call(Api::BufRegister, self.begin_call(), result);
        self.event(Record { address: memory.start, size: memory.len as u64, gpu: small(gpu), ..call });
    }

    pub(crate) fn buffer_deregistered(
        &self,
        memory: DeviceRange,
        gpu: Option<usize>,
        result: Result<(), RefusedCall>,
    ) {
        if let Some(counters) = &self.counters {
            counters.buffer_deregistered(gpu, memory.len as u64, result.is_ok());
        }
        let call = self.call(Api::BufDeregister, self.begin_call(), result);
        self.event(Record { address: memory.start, gpu: small(gpu), ..call });
    }

    /// Traces a call that moves no bytes; `group` and `size` as [`Api`] says.
    pub(crate) fn plain(
        &self,
        api: Api,
        begun: CallStart,
        group: u32,
        size: u64,
        result: Result<(), RefusedCall>,
    ) {
        if self.is_tracing() || result.is_err() {
            self.event(Record { group, size, ..self.call(api, begun, result) });
        }
    }

    /// A number for a batch or a stream.
    pub(crate) fn next_group(&self) -> u32 {
        self.groups.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn batch_submitted(
        &self,
        begun: CallStart,
        group: u32,
        entries: u64,
        result: Result<(), RefusedCall>,
    ) {
        if let Some(counters) = &self.counters {
            counters.batch_submitted(begun.at.elapsed(), result.is_ok());
            counters.count_many(Op::BatchEnqueued, entries, result.is_ok());
        }
        self.plain(Api::BatchSubmit, begun, group, entries, result);
    }

    fn call(&self, api: Api, begun: CallStart, result: Result<(), RefusedCall>) -> Record {
        if let Err(refused) = result {
            self.note_refused(api, refused.0);
        }
        Record {
            api,
            thread: if self.is_tracing() { thread_id() } else { 0 },
            start: begun.traced,
            latency: begun.at.elapsed().as_nanos() as u64,
            result: result.map_or_else(|refused| -i64::from(refused.0), |()| 0),
            ..Record::default()
        }
    }

    fn event(&self, record: Record) {
        self.record(&record, "");
    }

    fn record(&self, record: &Record, file: &str) {
        if let Some(trace) = self.trace {
            trace.record(record);
        }
        if logs_calls() {
            log().line(LogLevel::Trace, "call", &line_of(record, file));
        }
    }

    // ---- transfers ---------------------------------------------------------------------------------------------

    /// Counts and traces a transfer that ended.
    pub(crate) fn moved(&self, done: &Transferred) {
        self.moved_in(done, done.begun.at.elapsed());
    }

    /// The same where it is known how long it took.
    pub(crate) fn moved_in(&self, done: &Transferred, latency: Duration) {
        if let Some(counters) = &self.counters {
            let io = io_of(done, latency);
            count_io(counters, done.api, io);
            counters.file(&done.file.counter, io.bytes, latency);
        }
        if self.is_tracing() {
            self.traced(done, latency);
        }
    }

    /// Counts a read or write that was refused before anything was looked at.
    pub(crate) fn refused(&self, api: Api, begun: CallStart, size: usize, errno: i32) {
        let latency = begun.at.elapsed();
        self.note_refused(api, errno);
        if let Some(counters) = &self.counters {
            let io = Io { bytes: 0, latency, gpu: None, unaligned: false, posix: false, ok: false };
            count_io(counters, api, io);
        }
        if self.is_tracing() {
            let call = self.call(api, begun, Ok(()));
            self.event(Record { size: size as u64, result: -i64::from(errno), ..call });
        }
    }

    /// Counts the end of a submission of batch entries; gives a recorder for them if there is a trace.
    pub(crate) fn batch_done(&self, done: &BatchDone) {
        let Some(counters) = &self.counters else { return };
        let latency = done.latency;
        let total = done.ok + done.failed;
        for op in [Op::BatchProcessed, Op::BatchPosixProcessed] {
            counters.count_many(op, done.ok, true);
            counters.count_many(op, done.failed, false);
        }
        let (read, written) = if done.reads { (done.bytes, 0) } else { (0, done.bytes) };
        counters.batch_completed(read, written, latency, done.failed == 0);
        if total > 0 {
            counters.file(&done.file.counter, done.bytes, latency);
        }
    }

    /// An operation was queued on a stream.
    pub(crate) fn stream_started(&self) {
        if let Some(counters) = &self.counters {
            counters.async_started(1);
        }
    }

    /// It could not be queued after all.
    pub(crate) fn stream_refused(&self) {
        if let Some(counters) = &self.counters {
            counters.async_done(1);
        }
    }

    /// An operation on a stream was carried out.
    pub(crate) fn stream_done(&self, engine: EngineCode, bytes: u64) {
        if let Some(counters) = &self.counters {
            counters.async_done(1);
            counters.engine(engine.name(), Moved::of(Way::Cached, bytes));
        }
    }

    /// Whether calls are traced or logged, one by one.
    pub(crate) fn is_tracing(&self) -> bool {
        self.trace.is_some() || logs_calls()
    }

    /// Traces and logs a transfer.
    pub(crate) fn traced(&self, done: &Transferred, latency: Duration) {
        self.record(&record_of(done, latency), done.file.counter.name());
    }

    /// Counts the engines of a transfer, and what kept better ones away.
    pub(crate) fn receipt(&self, receipt: &Receipt) {
        let Some(counters) = self.counters else { return };
        let (moved, election) = (&receipt.moved, &receipt.election);
        let refused = moved.total() - moved.by_own_ways();
        let rest = election.engine.for_the_rest();
        let is_plain = refused > 0 && refused == moved.total();
        if let Some(places) = is_plain.then(|| election.places(counters)).flatten() {
            counters.explained(places, *moved, refused);
            return;
        }
        for (engine, moved) in moved.by_engine(rest) {
            counters.engine(&election.title_of(engine), moved);
        }
        for refusal in election.refused.iter().filter(|_| refused > 0) {
            counters.refused(refusal.engine.name(), &refusal.reason, refusal.hint.as_deref(), refused);
        }
        for note in &election.notes {
            counters.note(&note.text, note.hint.as_deref());
        }
    }
}

fn open_trace(warn: impl Fn(&str)) -> Option<&'static Trace> {
    static OPEN: OnceLock<Option<Trace>> = OnceLock::new();
    extern "C" fn at_exit() {
        if let Some(Some(trace)) = OPEN.get() {
            trace.finish();
        }
    }
    let make = || {
        let path = env::filled(TRACE)?;
        let trace = Trace::create(path).map_err(|error| warn(&error.to_string())).ok()?;
        // SAFETY: the function lives as long as this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Some(trace)
    };
    OPEN.get_or_init(make).as_ref()
}

fn count_io(counters: &Counters, api: Api, io: Io) {
    match api {
        Api::Readv => counters.readv(io),
        Api::Writev => counters.writev(io),
        api if api.reads() => counters.read(io),
        _ => counters.write(io),
    }
}

fn io_of(done: &Transferred, latency: Duration) -> Io {
    const PAGE: u64 = 4095;
    let unaligned = (done.offset as u64 | done.size as u64 | done.address) & PAGE != 0;
    Io {
        bytes: done.result.unwrap_or(0),
        latency,
        gpu: done.gpu,
        unaligned,
        posix: matches!(done.engine, EngineCode::One(engine) if engine.is_forebays() && !engine.is_direct()),
        ok: done.result.is_ok(),
    }
}

fn record_of(done: &Transferred, latency: Duration) -> Record {
    let direct = if done.file.is_direct { CallFlags::DIRECT } else { CallFlags::default() };
    Record {
        api: done.api,
        memory: match done.kind {
            MemoryKind::Device | MemoryKind::Bar => MemoryCode::Device,
            MemoryKind::Managed => MemoryCode::Managed,
            MemoryKind::Pinned => MemoryCode::PinnedHost,
            MemoryKind::Host => MemoryCode::Host,
        },
        engine: done.engine,
        gpu: small(done.gpu),
        flags: done.flags.with(direct),
        thread: thread_id(),
        start: done.begun.traced,
        latency: latency.as_nanos() as u64,
        file: done.file.traced,
        group: done.group,
        offset: done.offset,
        size: done.size as u64,
        result: match done.result {
            Ok(bytes) => bytes as i64,
            Err(errno) => -i64::from(errno),
        },
        address: done.address,
    }
}

/// A call as a line of the log: what is not 0.
fn line_of(record: &Record, file: &str) -> String {
    let mut line = format!("{} result={} us={:.1}", record.api, record.result, record.latency as f64 / 1e3);
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        let _ = write!(line, " {name}={value}");
    };
    if record.failed() {
        add("error", &format!("{:?}", reason_of(-record.result as i32)));
    }
    if record.api.moves() {
        add("offset", &record.offset);
        add("size", &record.size);
        add("memory", &record.memory);
        add("engine", &record.engine);
    } else if record.size > 0 {
        add("size", &record.size);
    }
    if record.address > 0 {
        add("address", &format!("{:#x}", record.address));
    }
    if let Some(gpu) = record.gpu {
        add("gpu", &gpu);
    }
    if record.group > 0 {
        add("group", &record.group);
    }
    if !file.is_empty() {
        add("file", &file);
    }
    line
}

/// The engine of a transfer, for a record.
pub(crate) fn engine_of(receipt: &Receipt) -> EngineCode {
    let moved = receipt.moved;
    if moved.total() > 0 && moved.direct() == 0 {
        return EngineCode::of(receipt.election.engine.for_the_rest());
    }
    let mut engines = receipt.engines();
    match (engines.next(), engines.next()) {
        (None, _) => EngineCode::None,
        (Some((engine, _)), None) => EngineCode::of(engine),
        _ => EngineCode::Mixed,
    }
}

fn small(gpu: Option<usize>) -> Option<u8> {
    gpu.and_then(|gpu| u8::try_from(gpu).ok())
}
