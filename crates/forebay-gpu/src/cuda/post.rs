//! Words that a stream writes and waits for, between scatters: what keeps a user's stream in step with the CPU.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_error::{Error, ErrorKind};

use super::error::CudaFailure;
use super::gpu::CudaGpu;
use super::stream::CudaStream;
use super::sys::{OPERATION_WAIT, OPERATION_WRITE, STREAM_WAIT_VALUE_GEQ, WordOperation};
use crate::{Post, RefusedPosts, Stream, Word};

/// The most operations in one call.
const BATCH: usize = 8;

/// How streams of a GPU write words and wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordForm {
    /// Several operations in one call.
    Batch,
    /// One in each call.
    Second,
    /// The same, of older drivers.
    First,
    /// By callbacks: a wait blocks the driver's callback thread.
    Callback,
}

impl CudaGpu {
    /// The best form that works here.
    pub(crate) fn word_form(&self) -> WordForm {
        use super::gpu::WaitValueForm;
        let symbols = &self.driver.symbols;
        let (second, first) = symbols.has_word_writes();
        match self.wait_value_form() {
            _ if symbols.has_word_batches() && self.has_memory_operations() => WordForm::Batch,
            Ok(WaitValueForm::Second) if second => WordForm::Second,
            Ok(WaitValueForm::First) if first => WordForm::First,
            _ => WordForm::Callback,
        }
    }
}

/// As [`Stream::post`], in the stream's own context.
///
/// # Safety
/// As [`Stream::post`].
pub(super) unsafe fn post(stream: &CudaStream, form: WordForm, posts: &[Post]) -> Result<(), RefusedPosts> {
    let mut at = 0;
    while at < posts.len() {
        // SAFETY: passed on.
        let queued = unsafe {
            match posts[at] {
                Post::Scatter { list, count, longest } => scatter(stream, list, count, longest).map(|()| 1),
                _ if form == WordForm::Batch => batch(stream, &posts[at..]).map_err(Error::from),
                word => single(stream, form, word).map(|()| 1),
            }
        };
        at += queued.map_err(|error| RefusedPosts { posted: at, error })?;
    }
    Ok(())
}

/// # Safety
/// As [`Stream::scatter`].
unsafe fn scatter(stream: &CudaStream, list: u64, count: usize, longest: usize) -> Result<(), Error> {
    let count = u32::try_from(count)
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "too many pieces for one kernel"))?;
    let kernels = stream.kernels()?;
    // SAFETY: passed on; the context is current.
    Ok(unsafe { kernels.scatter(stream.gpu.driver, stream.stream, list, count, longest) }?)
}

/// The words at the front of `posts`, by one call; how many.
///
/// # Safety
/// As [`Stream::post`].
unsafe fn batch(stream: &CudaStream, posts: &[Post]) -> Result<usize, CudaFailure> {
    let mut operations = [WordOperation::default(); BATCH];
    let mut count = 0;
    for (operation, post) in operations.iter_mut().zip(posts) {
        let (kind, word, value) = match *post {
            Post::Write(word, value) => (OPERATION_WRITE, word, value),
            Post::Wait(word, value) => (OPERATION_WAIT, word, value),
            Post::Scatter { .. } => break,
        };
        // Both kinds of flags are zero here: at least the value, and with a barrier before a write.
        (operation.operation, operation.address, operation.value) = (kind, word.device, value.into());
        count += 1;
    }
    // SAFETY: the operations are initialised; the words are the caller's promise.
    unsafe {
        stream.gpu.driver.symbols.cuStreamBatchMemOp_v2(
            stream.stream,
            count as c_uint,
            operations.as_mut_ptr(),
            0,
        )
    }?;
    Ok(count)
}

/// # Safety
/// As [`Stream::post`].
unsafe fn single(stream: &CudaStream, form: WordForm, post: Post) -> Result<(), Error> {
    let (symbols, handle) = (&stream.gpu.driver.symbols, stream.stream);
    // SAFETY: the words are the caller's promise.
    let queued = unsafe {
        match (form, post) {
            (WordForm::Second, Post::Write(word, value)) => {
                symbols.cuStreamWriteValue32_v2(handle, word.device, value, 0)
            }
            (WordForm::Second, Post::Wait(word, value)) => {
                symbols.cuStreamWaitValue32_v2(handle, word.device, value, STREAM_WAIT_VALUE_GEQ)
            }
            (WordForm::First, Post::Write(word, value)) => {
                symbols.cuStreamWriteValue32(handle, word.device, value, 0)
            }
            (WordForm::First, Post::Wait(word, value)) => {
                symbols.cuStreamWaitValue32(handle, word.device, value, STREAM_WAIT_VALUE_GEQ)
            }
            (_, Post::Write(word, value)) => {
                return stream.callback(Box::new(move || cell(word).store(value, Ordering::Release)));
            }
            (_, Post::Wait(word, value)) => return stream.callback(Box::new(move || block(word, value))),
            (_, Post::Scatter { .. }) => Ok(()),
        }
    };
    Ok(queued?)
}

fn cell(word: Word) -> &'static AtomicU32 {
    // SAFETY: the code that queued the callback keeps the word until the stream has passed it.
    unsafe { AtomicU32::from_ptr(word.host as *mut u32) }
}

/// Sleeps until the word is at least `value`.
fn block(word: Word, value: u32) {
    let mut nap = Duration::from_micros(10);
    while (cell(word).load(Ordering::Acquire).wrapping_sub(value) as i32) < 0 {
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_micros(200));
    }
}
