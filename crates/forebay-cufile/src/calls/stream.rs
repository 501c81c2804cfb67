//! Reads and writes in the order of a stream.
//!
//! Sizes and offsets are pointers: they are read when the stream gets there, unless the stream was registered with a flag
//! that says that they are fixed. Results are written before the stream goes on.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_engine::{Bound, Late, Session};
use forebay_error::{Error, ErrorKind};
use forebay_gpu::DeviceRange;
use forebay_trace::{Api, CallFlags, EngineCode, EngineKind};

use super::driver::has_streams;
use super::guarded;
use super::transfer::{AskedTransfer, direction_of, target, usable};
use crate::abi::{
    CUfileError, CUfileHandle, CUstream, STREAM_ALL, STREAM_FIXED_BUF_OFFSET, STREAM_FIXED_FILE_OFFSET,
    STREAM_FIXED_FILE_SIZE, code,
};
use crate::handles::{RegisteredFile, RegisteredStream};
use crate::library::library;
use crate::lock;
use crate::log::{log_error, logged_errno};
use crate::meter::{CallStart, Transferred, meter};
use crate::status::{RefusedCall, code_of};
use crate::target::PointerTarget;

// ---- registering ----------------------------------------------------------------------------------------------------

/// Waits for all that the stream has, as the interface promises. One that is being captured is left alone.
fn synchronize(session: &Session, stream: CUstream) {
    let Some(gpu) = session.devices().gpus.first() else { return };
    // SAFETY: the interface demands a live stream.
    if let Ok(stream) = unsafe { gpu.foreign_stream(stream as u64) } {
        // An error of the stream's own work shows at its next use.
        let _ = stream.synchronize(forebay_gpu::Wait::Block);
    }
}

fn register(stream: CUstream, flags: c_uint) -> Result<(), RefusedCall> {
    let library = library();
    let session = library.ensure_open()?;
    let begun = meter().begin_call();
    let known = RegisteredStream { flags, group: meter().next_group() };
    let is_new = flags & !STREAM_ALL == 0 && library.streams.insert(stream as u64, known);
    let result = if is_new { Ok(()) } else { Err(RefusedCall(code::INVALID_VALUE)) };
    if result.is_ok() {
        library.prepare(session);
        synchronize(session, stream);
    }
    meter().plain(Api::StreamRegister, begun, known.group, u64::from(flags), result);
    result
}

fn deregister(stream: CUstream) -> Result<(), RefusedCall> {
    let library = library();
    let begun = meter().begin_call();
    let known = library.streams.remove(stream as u64);
    let result = known.map(drop).ok_or(RefusedCall(code::INVALID_VALUE));
    if let (Ok(()), Ok(session)) = (result, library.session()) {
        synchronize(session, stream);
    }
    meter().plain(Api::StreamDeregister, begun, known.map_or(0, |known| known.group), 0, result);
    result
}

/// Registers the fixed parameters of a stream's transfers: offsets in the buffer (1), in the file (2), sizes (4), all
/// multiples of a page (8). Waits for the stream.
///
/// # Safety
/// `stream` is a live stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CUfileError {
    guarded(|| register(stream, flags))
}

/// Drops the registration of a stream. Waits for the stream.
///
/// # Safety
/// `stream` is a live stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileStreamDeregister(stream: CUstream) -> CUfileError {
    guarded(|| deregister(stream))
}

// ---- transfers ------------------------------------------------------------------------------------------------------

/// The program's places for size, offsets and result.
#[derive(Clone, Copy)]
struct StreamPlaces {
    size: *const usize,
    file_offset: *const i64,
    buffer_offset: *const i64,
    done: *mut isize,
}

// SAFETY: the interface demands that the places stay valid, and are not written to, until the stream has passed.
unsafe impl Send for StreamPlaces {}
// SAFETY: as above.
unsafe impl Sync for StreamPlaces {}

/// What a transfer asks for, as far as it is known.
#[derive(Clone, Copy)]
struct WantedTransfer {
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
}

impl StreamPlaces {
    fn are_given(&self) -> bool {
        !(self.size.is_null()
            || self.file_offset.is_null()
            || self.buffer_offset.is_null()
            || self.done.is_null())
    }

    fn read(&self) -> WantedTransfer {
        // SAFETY: checked not to be null at submission; valid as the interface demands.
        unsafe {
            WantedTransfer {
                size: self.size.read_volatile(),
                file_offset: self.file_offset.read_volatile(),
                buffer_offset: self.buffer_offset.read_volatile(),
            }
        }
    }
}

/// A transfer on its way.
struct StreamOperation {
    api: Api,
    begun: CallStart,
    file: Arc<RegisteredFile>,
    places: StreamPlaces,
    flags: c_uint,
    group: u32,
    base: u64,
    /// As it was at submission.
    first: WantedTransfer,
    target: PointerTarget,
    /// What it came to when the stream got there.
    bound: Mutex<Option<(WantedTransfer, u64)>>,
    /// The descriptor was not the file's any more by then.
    is_gone: AtomicBool,
    /// Its result was delivered.
    is_told: AtomicBool,
}

impl StreamOperation {
    /// Size and offsets: as they are now, or as they were where the program said that they are fixed.
    fn wanted(&self) -> WantedTransfer {
        let now = self.places.read();
        let fixed = |flag| self.flags & flag != 0;
        WantedTransfer {
            size: if fixed(STREAM_FIXED_FILE_SIZE) { self.first.size } else { now.size },
            file_offset: if fixed(STREAM_FIXED_FILE_OFFSET) {
                self.first.file_offset
            } else {
                now.file_offset
            },
            buffer_offset: if fixed(STREAM_FIXED_BUF_OFFSET) {
                self.first.buffer_offset
            } else {
                now.buffer_offset
            },
        }
    }

    fn bind(&self) -> Result<Bound, Error> {
        let bad = |what: &str| Error::new(ErrorKind::InvalidInput, what);
        if !self.file.is_itself() {
            self.is_gone.store(true, Ordering::Relaxed);
            return Err(Error::from_errno(
                libc::EBADF,
                "the descriptor was closed before the stream got here",
            ));
        }
        let wanted = self.wanted();
        if wanted.file_offset < 0 || wanted.buffer_offset < 0 {
            return Err(bad("an offset is negative"));
        }
        if wanted.size > self.first.size {
            return Err(bad("the size is greater than at submission").with("submitted", self.first.size));
        }
        let address = self.base + wanted.buffer_offset as u64;
        let is_same = wanted.buffer_offset == self.first.buffer_offset;
        if !is_same
            && self.target.gpu.is_some()
            && self.target.moved_to(DeviceRange::new(address, wanted.size)).is_none()
        {
            return Err(bad("the offset leads out of the buffer").with("offset", wanted.buffer_offset));
        }
        *lock(&self.bound) = Some((wanted, address));
        Ok(Bound { offset: wanted.file_offset as u64, address, len: wanted.size })
    }

    fn done(&self, result: Result<u64, Error>) {
        let is_gone = self.is_gone.load(Ordering::Relaxed);
        let told = match &result {
            Ok(bytes) => *bytes as isize,
            Err(_) if is_gone => -(code::HANDLE_NOT_REGISTERED as isize),
            Err(error) if error.kind() == ErrorKind::InvalidInput => -(code::INVALID_VALUE as isize),
            Err(_) => -1,
        };
        // SAFETY: checked not to be null at submission; valid as the interface demands.
        unsafe { self.places.done.write_volatile(told) };
        self.is_told.store(true, Ordering::SeqCst);
        library().queued.fetch_sub(1, Ordering::SeqCst);
        let result = result.map_err(|error| {
            let errno = logged_errno(&error);
            if is_gone { code::HANDLE_NOT_REGISTERED } else { errno }
        });
        let bound = *lock(&self.bound);
        let (wanted, address) = bound.unwrap_or((self.first, self.base));
        let engine = if self.target.gpu.is_some() {
            EngineCode::One(EngineKind::Staged)
        } else {
            EngineCode::One(EngineKind::Host)
        };
        let meter = meter();
        meter.moved(&Transferred {
            api: self.api,
            begun: self.begun,
            file: &self.file,
            kind: self.target.kind,
            gpu: self.target.gpu,
            offset: wanted.file_offset,
            size: wanted.size,
            address,
            group: self.group,
            flags: if self.flags & STREAM_ALL == 0 { CallFlags::LATE } else { CallFlags::default() },
            result,
            engine,
        });
        meter.stream_done(engine, result.unwrap_or(0));
    }
}

/// The errors of submission that the interface has codes for.
fn refused(errno: c_int) -> RefusedCall {
    match errno {
        code::INVALID_VALUE..=code::INVALID_CONTEXT_ERROR => RefusedCall(errno),
        libc::EIO => RefusedCall(code::INVALID_FILE_OPEN_FLAG),
        _ => RefusedCall(code::INVALID_VALUE),
    }
}

/// As [`enqueue`], counted if it is refused.
fn submit(
    api: Api,
    handle: CUfileHandle,
    base: *const c_void,
    places: StreamPlaces,
    stream: CUstream,
) -> Result<(), RefusedCall> {
    let begun = meter().begin_call();
    enqueue(begun, api, handle, base, places, stream).inspect_err(|refused| {
        meter().refused(api, begun, 0, refused.0);
    })
}

fn enqueue(
    begun: CallStart,
    api: Api,
    handle: CUfileHandle,
    base: *const c_void,
    places: StreamPlaces,
    stream: CUstream,
) -> Result<(), RefusedCall> {
    let library = library();
    let direction = direction_of(api);
    let file = library.files.get(handle)?;
    let session = library.session()?;
    if !library.with_settings(has_streams) {
        return Err(RefusedCall(code::ASYNC_NOT_SUPPORTED));
    }
    if !places.are_given() {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    let source = match usable(&file, direction) {
        Ok(source) => source.clone(),
        Err(gone @ (code::DRIVER_CLOSING | code::HANDLE_NOT_REGISTERED)) => return Err(RefusedCall(gone)),
        Err(_) => return Err(RefusedCall(code::INVALID_FILE_OPEN_FLAG)),
    };
    let first = places.read();
    let asked = AskedTransfer {
        direction,
        base,
        size: first.size,
        file_offset: first.file_offset.max(0),
        buffer_offset: first.buffer_offset.max(0),
    };
    let target = target(session, &asked).map_err(refused)?;
    let memory = target.memory();
    let known = library.streams.get(stream as u64).unwrap_or_default();
    let operation = Arc::new(StreamOperation {
        api,
        begun,
        file,
        places,
        flags: known.flags,
        group: known.group,
        base: base as u64,
        first,
        target,
        bound: Mutex::default(),
        is_gone: AtomicBool::new(false),
        is_told: AtomicBool::new(false),
    });
    let (binds, ends) = (operation.clone(), operation.clone());
    let late = Late {
        file: source,
        memory,
        direction,
        most: first.size,
        bind: Box::new(move || binds.bind()),
        done: Box::new(move |result| ends.done(result)),
    };
    meter().stream_started();
    library.queued.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the interface demands a live stream, and memory and places that stay valid until it has passed.
    unsafe { session.enqueue(stream as u64, late) }.map_err(|error| {
        // Where the stream refused a part of it late, its success was delivered and counted before.
        if !operation.is_told.load(Ordering::SeqCst) {
            meter().stream_refused();
            library.queued.fetch_sub(1, Ordering::SeqCst);
        }
        log_error("stream", &error);
        match error.kind() {
            ErrorKind::Unsupported => RefusedCall(code::ASYNC_NOT_SUPPORTED),
            _ => RefusedCall(code_of(&error)),
        }
    })
}

/// The two functions differ in their names and in what they record.
macro_rules! stream_call {
    ($(#[$about:meta])* $name:ident $api:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// All places, and the memory, stay valid and unused until the stream has passed; `stream` is a live stream.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            handle: CUfileHandle,
            base: *mut c_void,
            size: *mut usize,
            file_offset: *mut i64,
            buffer_offset: *mut i64,
            done: *mut isize,
            stream: CUstream,
        ) -> CUfileError {
            let places = StreamPlaces { size, file_offset, buffer_offset, done };
            guarded(|| submit(Api::$api, handle, base, places, stream))
        }
    };
}

stream_call! {
    /// Reads when the stream gets there. `done` then has the bytes, −1, or a negative code.
    cuFileReadAsync ReadAsync
}
stream_call! {
    /// Writes when the stream gets there. `done` then has the bytes, −1, or a negative code.
    cuFileWriteAsync WriteAsync
}
