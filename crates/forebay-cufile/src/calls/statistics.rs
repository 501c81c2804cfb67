//! Statistics by the C interface, in one of two layouts. The structures grew in 1.19, and a call tells only where one
//! begins: who needs the longer ones has to say so (`FOREBAY_CUFILE_VERSION`), for more than a program has room for would
//! be written over something else.

use std::ffi::{c_int, c_void};

use forebay_config::cufile::Interface;
use forebay_stats::{CallCounts, Count, DeviceTotals, GpuTotals, IoTotals, Snapshot};

use super::{give, guarded};
use crate::abi::{CUfileError, code};
use crate::library::library;
use crate::meter::meter;
use crate::status::RefusedCall;

/// Words of level 1 in 1.15 to 1.18.
const WORDS: usize = 64;
/// The same since 1.19. The appended fields are for cuFileReadv and cuFileWritev, which count as reads and writes here.
const WORDS_1_19: usize = 78;
/// Classes of sizes, for reads and for writes.
const CLASSES: usize = 32;
/// The most GPUs of level 3.
const GPUS: usize = 16;
/// Words of a GPU after its UUID.
const GPU_WORDS: usize = 29;

/// Level 1: 512 bytes, 624 since 1.19.
type Level1<const N: usize> = [u64; N];

/// Level 2: 1024 bytes, 1136 since 1.19.
#[repr(C)]
#[derive(Clone, Copy)]
struct Level2<const N: usize> {
    basic: Level1<N>,
    read_sizes: [u64; CLASSES],
    write_sizes: [u64; CLASSES],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PerGpu {
    uuid: [u8; 16],
    words: [u64; GPU_WORDS],
}

/// Level 3: 5000 bytes, 5112 since 1.19.
#[repr(C)]
#[derive(Clone, Copy)]
struct Level3<const N: usize> {
    detailed: Level2<N>,
    gpus: u32,
    per_gpu: [PerGpu; GPUS],
}

const _: () = {
    assert!(size_of::<Level1<WORDS>>() == 512 && size_of::<Level1<WORDS_1_19>>() == 624);
    assert!(size_of::<Level2<WORDS>>() == 1024 && size_of::<Level2<WORDS_1_19>>() == 1136);
    assert!(size_of::<Level3<WORDS>>() == 5000 && size_of::<Level3<WORDS_1_19>>() == 5112);
};

/// Fills words one after the other.
struct Filler<'a> {
    words: &'a mut [u64],
    at: usize,
}

impl Filler<'_> {
    fn put(&mut self, values: impl IntoIterator<Item = u64>) {
        for value in values {
            self.words[self.at] = value;
            self.at += 1;
        }
    }

    fn count(&mut self, count: Count) {
        self.put([count.ok, count.err]);
    }
}

fn ops(totals: &IoTotals) -> Count {
    let mut count = Count::default();
    (count.ok, count.err) = (totals.ok, totals.err);
    count
}

fn level1<const N: usize>(seen: &Snapshot) -> Level1<N> {
    let mut words = [0; N];
    let mut filler = Filler { words: &mut words, at: 0 };
    let CallCounts { handle_register, handle_deregister, buf_register, buf_deregister, .. } = &seen.calls;
    for count in [ops(&seen.read), ops(&seen.write), *handle_register, *handle_deregister] {
        filler.count(count);
    }
    filler.count(*buf_register);
    filler.count(*buf_deregister);
    let (read, write) = (&seen.read, &seen.write);
    filler.put([read.bytes, write.bytes]);
    filler.put([read.rate.bytes_per_s as u64, write.rate.bytes_per_s as u64]);
    filler.put([read.rate.latency_us as u64, write.rate.latency_us as u64]);
    filler.put([read.rate.ops_per_s as u64, write.rate.ops_per_s as u64]);
    filler.put([read.latency_ns / 1000, write.latency_ns / 1000]);
    batches(&mut filler, seen);
    debug_assert_eq!(filler.at, WORDS, "every word of 1.15 has its meaning");
    words
}

fn batches(filler: &mut Filler, seen: &Snapshot) {
    let calls = &seen.calls;
    for count in [
        calls.batch_submit,
        calls.batch_complete,
        calls.batch_setup,
        calls.batch_cancel,
        calls.batch_destroy,
        calls.batch_enqueued,
        calls.batch_posix_enqueued,
        calls.batch_processed,
        calls.batch_posix_processed,
        calls.batch_nvfs_submit,
        calls.batch_p2p_submit,
        calls.batch_aio_submit,
        calls.batch_iouring_submit,
        calls.batch_mixed_submit,
        calls.batch_total_submit,
    ] {
        filler.count(count);
    }
    let batch = &seen.batch;
    filler.put([batch.read_bytes, batch.write_bytes]);
    filler.put([batch.read_bytes_per_s as u64, batch.write_bytes_per_s as u64]);
    filler.put([batch.submit.latency_us as u64, batch.complete.latency_us as u64]);
    filler.put([batch.submit.ops_per_s as u64, batch.complete.ops_per_s as u64]);
    filler.put([batch.submit_ns / 1000, batch.complete_ns / 1000]);
    filler.put([batch.last_read_bytes, batch.last_write_bytes]);
}

fn level2<const N: usize>(seen: &Snapshot) -> Level2<N> {
    Level2 { basic: level1(seen), read_sizes: seen.read_sizes, write_sizes: seen.write_sizes }
}

fn per_gpu(gpu: &GpuTotals) -> PerGpu {
    let mut words = [0; GPU_WORDS];
    let mut filler = Filler { words: &mut words, at: 0 };
    let DeviceTotals { read, write, .. } = &gpu.device;
    // Peer-to-peer and nvidia-fs: none. Dynamic routing, sparse and inline regions: none.
    filler.put([read.bytes, read.rate.bytes_per_s as u64, read.rate.utilization_percent as u64]);
    filler.put([read.latency_ns / 1000, read.ok, 0, 0, read.posix, read.unaligned, 0, 0, 0, read.err]);
    filler.put([write.bytes, write.rate.bytes_per_s as u64, write.rate.utilization_percent as u64]);
    filler.put([write.latency_ns / 1000, write.ok, 0, 0, write.posix, write.unaligned, 0, write.err]);
    let device = &gpu.device;
    filler.put([device.registered_ok + device.registered_err, device.registered_ok, device.registered_err]);
    filler.put([device.freed, device.registered_bytes]);
    debug_assert!(filler.at <= GPU_WORDS);
    PerGpu { uuid: gpu.uuid, words }
}

fn level3<const N: usize>(seen: &Snapshot) -> Level3<N> {
    let mut filled = Level3 {
        detailed: level2(seen),
        gpus: seen.gpus.len().min(GPUS) as u32,
        per_gpu: [PerGpu { uuid: [0; 16], words: [0; GPU_WORDS] }; GPUS],
    };
    for (place, gpu) in filled.per_gpu.iter_mut().zip(&seen.gpus) {
        *place = per_gpu(gpu);
    }
    filled
}

fn needs_open() -> Result<(), RefusedCall> {
    if library().users() == 0 { Err(RefusedCall(code::DRIVER_NOT_INITIALIZED)) } else { Ok(()) }
}

/// # Safety
/// `place` is null or valid.
unsafe fn give_level<T>(
    place: *mut T,
    level: u32,
    fill: impl FnOnce(&Snapshot) -> T,
) -> Result<(), RefusedCall> {
    needs_open()?;
    let meter = meter();
    let current = meter.counters().map_or(0, forebay_stats::Counters::level);
    if place.is_null() || current < level {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    let seen = meter.collected().ok_or(RefusedCall(code::INTERNAL_ERROR))?;
    // SAFETY: passed on.
    unsafe { give(place, fill(&seen)) }
}

fn with_counters(call: impl FnOnce(&forebay_stats::Counters)) -> CUfileError {
    guarded(|| {
        needs_open()?;
        meter().counters().map(call).ok_or(RefusedCall(code::INTERNAL_ERROR))
    })
}

/// Sets the level of statistics: 0 none, 1 totals, 2 sizes, 3 GPUs.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileSetStatsLevel(level: c_int) -> CUfileError {
    guarded(|| {
        let level =
            u32::try_from(level).ok().filter(|level| *level <= 3).ok_or(RefusedCall(code::INVALID_VALUE))?;
        if let Some(counters) = meter().counters() {
            counters.set_level(level);
        }
        Ok(())
    })
}

/// Tells the level of statistics.
///
/// # Safety
/// `level` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetStatsLevel(level: *mut c_int) -> CUfileError {
    let current = || meter().counters().map_or(0, forebay_stats::Counters::level);
    // SAFETY: passed on.
    guarded(|| unsafe { give(level, current() as c_int) })
}

/// Goes on collecting.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileStatsStart() -> CUfileError {
    with_counters(forebay_stats::Counters::start)
}

/// Stops collecting. The live counters go on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileStatsStop() -> CUfileError {
    with_counters(forebay_stats::Counters::stop)
}

/// Begins at zero. The live counters go on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cuFileStatsReset() -> CUfileError {
    with_counters(forebay_stats::Counters::reset)
}

/// Tells the totals.
///
/// # Safety
/// `stats` is null, which is an error, or has room for 512 bytes; for 624 with `FOREBAY_CUFILE_VERSION=1.19`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetStatsL1(stats: *mut c_void) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe {
        match library().interface() {
            Interface::V1_15 => give_level(stats.cast(), 1, level1::<WORDS>),
            Interface::V1_19 => give_level(stats.cast(), 1, level1::<WORDS_1_19>),
        }
    })
}

/// Tells totals and sizes.
///
/// # Safety
/// `stats` is null, which is an error, or has room for 1024 bytes; for 1136 with `FOREBAY_CUFILE_VERSION=1.19`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetStatsL2(stats: *mut c_void) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe {
        match library().interface() {
            Interface::V1_15 => give_level(stats.cast(), 2, level2::<WORDS>),
            Interface::V1_19 => give_level(stats.cast(), 2, level2::<WORDS_1_19>),
        }
    })
}

/// Tells totals, sizes and GPUs.
///
/// # Safety
/// `stats` is null, which is an error, or has room for 5000 bytes; for 5112 with `FOREBAY_CUFILE_VERSION=1.19`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileGetStatsL3(stats: *mut c_void) -> CUfileError {
    // SAFETY: passed on.
    guarded(|| unsafe {
        match library().interface() {
            Interface::V1_15 => give_level(stats.cast(), 3, level3::<WORDS>),
            Interface::V1_19 => give_level(stats.cast(), 3, level3::<WORDS_1_19>),
        }
    })
}
