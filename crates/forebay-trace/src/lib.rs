//! The trace file of cuFile calls.
//!
//! A [`Trace`] writes one record of 64 bytes for each call, straight into a shared mapping of its file: an atomic
//! addition reserves the slot, so callers do not wait for each other, and records survive the death of the
//! process. A [`TraceReader`] goes through such a file and never trusts it; a [`TraceSummary`] says what a program did.
//!
//! The format is in `docs/reference/trace.md`. All that a replay needs is in it: names and sizes of files, every
//! call's time, thread, range, memory and place in its batch or stream.
//!
//! ```
//! use forebay_trace::{Api, EngineCode, EngineKind, MemoryCode, TraceReader, Record, Trace};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("calls.trace");
//! let trace = Trace::create(&path)?;
//! let file = trace.file("/data/model.safetensors");
//! let start = trace.now();
//! trace.record(&Record {
//!     api: Api::Read,
//!     memory: MemoryCode::Device,
//!     engine: EngineCode::One(EngineKind::Mapped),
//!     gpu: Some(0),
//!     thread: forebay_trace::thread_id(),
//!     start,
//!     latency: trace.now() - start,
//!     file,
//!     size: 1 << 20,
//!     result: 1 << 20,
//!     ..Record::default()
//! });
//! drop(trace);
//!
//! let mut reader = TraceReader::open(&path)?;
//! let record = reader.next().unwrap()?;
//! assert_eq!((record.api, record.result), (Api::Read, 1 << 20));
//! assert_eq!(reader.name(record.file).unwrap().to_str(), Some("/data/model.safetensors"));
//! # Ok::<(), forebay_error::Error>(())
//! ```

mod export;
mod growth;
mod header;
mod place;
mod read;
mod record;
mod render;
mod slots;
mod summary;
mod time;
mod write;

pub use export::{CSV_HEADER, csv_line, json_line};
pub use forebay_ways::EngineKind;
pub use header::{TraceHeader, is_trace};
pub use read::TraceReader;
pub use record::{Api, CallFlags, EngineCode, MemoryCode, Record};
pub use render::{bytes, text};
pub use summary::{ApiRow, EngineRow, FileRow, SizeRow, SlowCall, TimeBucket, TraceSummary};
pub use time::thread_id;
pub use write::Trace;
