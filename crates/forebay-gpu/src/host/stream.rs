//! A "stream" over host memory: every operation is done when its call returns.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use crate::{
    Checksum, ChecksumPiece, CopyPiece, DeviceRange, Event, Gather, GatherReport, HostRange, PatternCheck,
    Post, RefusedPosts, Stream, Wait, fill_pattern, pattern_word,
};

/// Runs everything at once on the calling thread.
#[derive(Debug)]
pub(crate) struct HostStream;

/// A mark in a stream that never has work left.
#[derive(Debug)]
struct HostEvent;

impl Event for HostEvent {
    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _wait: Wait) -> Result<()> {
        Ok(())
    }

    fn handle(&self) -> u64 {
        0
    }
}

impl Stream for HostStream {
    fn handle(&self) -> u64 {
        0
    }

    unsafe fn copy_in(&self, dst: u64, src: HostRange) -> Result<()> {
        // SAFETY: the caller promises both ranges. They may overlap when both are the caller's own memory.
        unsafe { std::ptr::copy(src.start, dst as *mut u8, src.len) };
        Ok(())
    }

    unsafe fn copy_out(&self, dst: HostRange, src: u64) -> Result<()> {
        // SAFETY: the caller promises both ranges.
        unsafe { std::ptr::copy(src as *const u8, dst.start, dst.len) };
        Ok(())
    }

    unsafe fn copy_across(&self, dst: u64, src: DeviceRange) -> Result<()> {
        // SAFETY: the caller promises both ranges.
        unsafe { std::ptr::copy(src.start as *const u8, dst as *mut u8, src.len) };
        Ok(())
    }

    unsafe fn gather(&self, gather: &Gather) -> Result<()> {
        let report = gather.report as *mut GatherReport;
        for index in 0..gather.count {
            // SAFETY: the caller promises the offsets, the output and the report; neither need be aligned here.
            unsafe {
                let offset = (gather.offsets as *const u64).add(index as usize).read_unaligned();
                if !gather_piece(gather, index, offset) {
                    let found = report.read_unaligned();
                    let first = found.first.min(index);
                    report.write_unaligned(GatherReport { refused: found.refused + 1, first });
                }
            }
        }
        Ok(())
    }

    unsafe fn checksums(&self, list: u64, count: usize, results: u64) -> Result<()> {
        let (list, results) = (list as *const ChecksumPiece, results as *mut u32);
        for index in 0..count {
            // SAFETY: the caller promises the list, all that it names and the results; none need be aligned here.
            unsafe {
                let piece = list.add(index).read_unaligned();
                let crc = match piece.len {
                    0 => 0,
                    len => Checksum::of(std::slice::from_raw_parts(piece.address as *const u8, len as usize))
                        .crc(),
                };
                results.add(index).write_unaligned(crc);
            }
        }
        Ok(())
    }

    unsafe fn zero(&self, dst: DeviceRange) -> Result<()> {
        // SAFETY: the caller promises the range.
        unsafe { std::ptr::write_bytes(dst.as_host().start, 0, dst.len) };
        Ok(())
    }

    unsafe fn scatter(&self, list: u64, count: usize, _longest: usize) -> Result<()> {
        let list = list as *const CopyPiece;
        for index in 0..count {
            // SAFETY: the caller promises the list and all that it names; the list need not be aligned.
            unsafe {
                let piece = list.add(index).read_unaligned();
                std::ptr::copy(piece.src as *const u8, piece.dst as *mut u8, piece.len as usize);
            }
        }
        Ok(())
    }

    unsafe fn fill_pattern(&self, dst: DeviceRange, key: u64, offset: u64) -> Result<()> {
        check_offset(offset)?;
        if dst.len > 0 {
            // SAFETY: the caller promises the range and that nothing else uses it meanwhile.
            fill_pattern(unsafe { dst.as_host().bytes_mut() }, key, offset);
        }
        Ok(())
    }

    unsafe fn check_pattern(&self, src: DeviceRange, key: u64, offset: u64) -> Result<PatternCheck> {
        check_offset(offset)?;
        if src.len == 0 {
            return Ok(PatternCheck::default());
        }
        // SAFETY: the caller promises the range and that nothing writes it meanwhile.
        let bytes = unsafe { src.as_host().bytes() };
        Ok(check(bytes, key, offset))
    }

    fn event(&self) -> Result<Box<dyn Event>> {
        Ok(Box::new(HostEvent))
    }

    fn record(&self, _event: &dyn Event) -> Result<()> {
        Ok(())
    }

    fn wait_event(&self, event: &dyn Event) -> Result<()> {
        // An event of a GPU may still be pending.
        event.wait(Wait::Block)
    }

    unsafe fn wait_value(&self, flag: u64, value: u32) -> Result<()> {
        // SAFETY: the caller promises that the word stays valid.
        let word = unsafe { AtomicU32::from_ptr(flag as *mut u32) };
        // As the GPU compares: the difference as a signed number, so that counters may wrap.
        while (word.load(Ordering::Acquire).wrapping_sub(value) as i32) < 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    unsafe fn post(&self, posts: &[Post]) -> Result<(), RefusedPosts> {
        for (posted, post) in posts.iter().enumerate() {
            // SAFETY: the caller promises words and lists.
            let done = unsafe {
                match *post {
                    Post::Write(word, value) => {
                        AtomicU32::from_ptr(word.host as *mut u32).store(value, Ordering::Release);
                        Ok(())
                    }
                    Post::Wait(word, value) => self.wait_value(word.host, value),
                    Post::Scatter { list, count, longest } => self.scatter(list, count, longest),
                }
            };
            done.map_err(|error| RefusedPosts { posted, error })?;
        }
        Ok(())
    }

    unsafe fn write_value(&self, flag: u64, value: u32) -> Result<()> {
        // SAFETY: the caller promises that the word stays valid.
        unsafe { AtomicU32::from_ptr(flag as *mut u32) }.store(value, Ordering::Release);
        Ok(())
    }

    fn callback(&self, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        call();
        Ok(())
    }

    fn synchronize(&self, _wait: Wait) -> Result<()> {
        Ok(())
    }
}

/// Copies one piece, or fills its place with zeros and answers false if it is not within the range.
///
/// # Safety
/// As [`Stream::gather`].
unsafe fn gather_piece(gather: &Gather, index: u64, offset: u64) -> bool {
    let inside = offset.checked_add(gather.piece).is_some_and(|end| end <= gather.len);
    let (to, len) = ((gather.out + index * gather.piece) as *mut u8, gather.piece as usize);
    // SAFETY: the caller promises the output, and all of the range that the piece was found to lie in.
    unsafe {
        if inside {
            std::ptr::copy((gather.base + offset) as *const u8, to, len);
        } else {
            std::ptr::write_bytes(to, 0, len);
        }
    }
    inside
}

/// Pattern kernels and their host twins work on whole words of the file.
pub(crate) fn check_offset(offset: u64) -> Result<()> {
    if offset.is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "a pattern's offset must be a multiple of 8")
        .with("offset", offset))
}

/// Counts the bytes that differ from the pattern.
fn check(bytes: &[u8], key: u64, offset: u64) -> PatternCheck {
    let mut found = PatternCheck::default();
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let at = offset + 8 * index as u64;
        let word = pattern_word(key, at).to_le_bytes();
        if *chunk == word[..chunk.len()] {
            continue;
        }
        if found.wrong_bytes == 0 {
            found.first_wrong = at;
        }
        found.wrong_bytes += chunk.iter().zip(word).filter(|(here, wanted)| **here != *wanted).count() as u64;
    }
    found
}
