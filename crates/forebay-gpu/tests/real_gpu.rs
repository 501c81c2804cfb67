//! The same code over a real driver, where there is one: kernels against the host's pattern, odd alignments, kinds of
//! memory, and what single calls cost. Elsewhere it says why it is skipped. One test, so that timings are undisturbed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

mod common;

use common::{Mapped, Pinned, Random, resident};
use forebay_gpu::{
    Access, AllocationKind, Checksum, Context, CopyPiece, Device, DeviceRange, ErrorKind, Gather,
    GatherReport, HostRange, MemoryKind, Stream, Wait, cuda, fill_pattern, first_mismatch,
};

const LEN: usize = 8 << 20;

fn per_call(what: &str, mut call: impl FnMut()) {
    const CALLS: u32 = 2000;
    (0..100).for_each(|_| call());
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / f64::from(CALLS));
}

fn scatter_any_alignment(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64) {
    let (source, back) = (Pinned::new(device, LEN), Pinned::new(device, LEN));
    fill_pattern(source.slice(), 9, 0);
    let mut random = Random(1);
    for round in 0..60 {
        let list = Pinned::new(device, 1000 * size_of::<CopyPiece>());
        let (mut pieces, mut at, mut longest) = (Vec::new(), 0_usize, 0);
        while pieces.len() < 1000 {
            let len = random.below([40, 600, 5000, 1 << 20][round % 4]);
            // Every fourth round of each size keeps both ends congruent, so that the widest vectors are used too.
            let src = random.below(LEN - len);
            at = if round % 16 < 4 { at.next_multiple_of(16) + src % 16 } else { at + random.below(40) };
            if at + len > LEN {
                break;
            }
            pieces.push((src, at, len));
            (at, longest) = (at + len, longest.max(len));
        }
        for (index, &(src, dst, len)) in pieces.iter().enumerate() {
            let piece =
                CopyPiece { src: source.device + src as u64, dst: memory + dst as u64, len: len as u64 };
            list.put(index, piece);
        }
        back.slice().fill(0xEE);
        // SAFETY: all ranges live until the synchronisation.
        unsafe {
            stream.copy_in(memory, HostRange::new(back.pointer(), LEN)).unwrap();
            stream.scatter(list.device, pieces.len(), longest).unwrap();
            stream.copy_out(HostRange::new(back.pointer(), LEN), memory).unwrap();
        }
        stream.synchronize(Wait::Block).unwrap();
        let mut wanted = vec![0xEE; LEN];
        for &(src, dst, len) in &pieces {
            wanted[dst..dst + len].copy_from_slice(&source.slice()[src..src + len]);
        }
        assert!(back.slice() == wanted, "round {round}");
        // The other way: from the device to pinned memory, back to where the pieces came from.
        let slot = Pinned::new(device, LEN);
        for (index, &(_, dst, len)) in pieces.iter().enumerate() {
            let piece =
                CopyPiece { src: memory + dst as u64, dst: slot.device + dst as u64, len: len as u64 };
            list.put(index, piece);
        }
        // SAFETY: all ranges live until the synchronisation.
        unsafe { stream.scatter(list.device, pieces.len(), longest).unwrap() };
        stream.synchronize(Wait::Spin).unwrap();
        let same =
            |&(_, dst, len): &(usize, usize, usize)| slot.slice()[dst..dst + len] == wanted[dst..dst + len];
        assert!(pieces.iter().all(same), "round {round} back");
    }
}

/// Gathers from device memory and from pinned memory, all sizes of pieces and alignments, and what is not inside.
fn gathers(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64) {
    let (source, back) = (Pinned::new(device, LEN), Pinned::new(device, LEN));
    fill_pattern(source.slice(), 21, 0);
    let half = LEN / 2;
    let report = device.allocate(size_of::<GatherReport>()).unwrap();
    let list = Pinned::new(device, 8 * 4096);
    let mut random = Random(5);
    for round in 0..120 {
        let most = [40, 600, 5000, 40_000, 1 << 20][round % 5];
        let piece = if round % 3 == 0 { most / 8 * 8 } else { 1 + random.below(most) };
        let count = (1 + random.below(4096)).min((half - 16) / piece).max(1);
        let step = if round % 2 == 0 { 16 } else { 1 };
        let skip = if round % 2 == 0 { 0 } else { random.below(16) };
        let (mut wanted, mut refused) = (vec![0xEE; half], (0u64, u64::MAX));
        wanted[skip..skip + count * piece].fill(0);
        for index in 0..count {
            let at = random.below(half - piece) / step * step;
            let bad = [u64::MAX, half as u64, (half - piece + 1) as u64][random.below(3)];
            let inside = random.below(40) > 0;
            let offset = if inside { at as u64 } else { bad };
            list.slice()[8 * index..8 * index + 8].copy_from_slice(&offset.to_le_bytes());
            if inside {
                let place = skip + index * piece;
                wanted[place..place + piece].copy_from_slice(&source.slice()[at..at + piece]);
            } else {
                refused = (refused.0 + 1, refused.1.min(index as u64));
            }
        }
        let from_device = round % 4 < 2;
        let (base, out) = if from_device { (memory, memory + half as u64) } else { (source.device, memory) };
        back.slice()[..half].fill(0xEE);
        back.slice()[half..half + 16].copy_from_slice(&[[0; 8], [0xFF; 8]].concat());
        let asked = Gather {
            base,
            len: half as u64,
            offsets: list.device,
            count: count as u64,
            piece: piece as u64,
            out: out + skip as u64,
            report,
        };
        // SAFETY: all that is named lives until the synchronisation.
        unsafe {
            stream.copy_in(memory, HostRange::new(source.pointer(), half)).unwrap();
            stream.copy_in(out, HostRange::new(back.pointer(), half)).unwrap();
            stream.copy_in(report, HostRange::new(back.pointer().add(half), 16)).unwrap();
            stream.gather(&asked).unwrap();
            stream.copy_out(HostRange::new(back.pointer(), half), out).unwrap();
            stream.copy_out(HostRange::new(back.pointer().add(half), 16), report).unwrap();
        }
        stream.synchronize(Wait::Block).unwrap();
        assert!(back.slice()[..half] == wanted, "round {round}: {count} pieces of {piece}, off by {skip}");
        let found = [refused.0.to_le_bytes(), refused.1.to_le_bytes()].concat();
        assert_eq!(back.slice()[half..half + 16], found, "round {round}");
    }
    // SAFETY: the ranges live until the synchronisation.
    unsafe {
        stream.copy_across(memory + half as u64, DeviceRange::new(memory, half)).unwrap();
        stream.zero(DeviceRange::new(memory, 4096)).unwrap();
        stream.copy_out(HostRange::new(back.pointer(), LEN), memory).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        device.free(report);
    }
    assert!(back.slice()[..4096].iter().all(|byte| *byte == 0));
    let whole = back.slice()[half..].to_vec();
    assert!(whole[4096..] == back.slice()[4096..half], "copied within the device");
}

/// Ranges of all alignments and lengths, in device memory and in pinned memory.
fn checksums(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64) {
    let source = Pinned::new(device, LEN);
    fill_pattern(source.slice(), 29, 0);
    let mut random = Random(8);
    let mut ranges: Vec<_> = (0..100).flat_map(|len| (0..17).map(move |skip| (512 + skip, len))).collect();
    for most in [600, 20_000, 300_000] {
        ranges.extend((0..100).map(|_| (random.below(LEN - most), random.below(most))));
    }
    ranges.push((0, LEN));
    let list = Pinned::new(device, 16 * ranges.len());
    let results = Pinned::new(device, 4 * ranges.len());
    // SAFETY: the ranges live until the synchronisation.
    unsafe { stream.copy_in(memory, HostRange::new(source.pointer(), LEN)) }.unwrap();
    for base in [memory, source.device] {
        for ((at, len), place) in ranges.iter().zip(list.slice().as_chunks_mut::<16>().0) {
            place[..8].copy_from_slice(&(base + *at as u64).to_le_bytes());
            place[8..].copy_from_slice(&(*len as u64).to_le_bytes());
        }
        // SAFETY: all that is named lives until the synchronisation.
        unsafe { stream.checksums(list.device, ranges.len(), results.device) }.unwrap();
        stream.synchronize(Wait::Block).unwrap();
        for ((at, len), crc) in ranges.iter().zip(results.slice().as_chunks::<4>().0) {
            let wanted = Checksum::of(&source.slice()[*at..*at + *len]);
            assert_eq!(*crc, wanted.crc().to_le_bytes(), "{len} bytes from {at}");
        }
    }
}

/// A file's pages, registered in place, where the driver does that.
fn registered(device: &dyn Device, stream: &dyn Stream, memory: u64) {
    if let Err(error) = device.can_register(Access::ReadOnly) {
        return println!("no registration: {error}");
    }
    let mapped = Mapped::on_disk(1 << 20, 31);
    let pages = HostRange::new(mapped.address, mapped.len);
    // SAFETY: mapped until it is unregistered below.
    if let Err(error) = unsafe { device.register(pages, Access::ReadOnly) } {
        return println!("no registration: {error}");
    }
    // SAFETY: the ranges live until the synchronisation, which `check_pattern` is.
    unsafe {
        stream.copy_in(memory, HostRange::new(mapped.address, mapped.len)).unwrap();
        assert_eq!(stream.check_pattern(DeviceRange::new(memory, mapped.len), 31, 0).unwrap().wrong_bytes, 0);
        assert_eq!(
            stream
                .check_pattern(DeviceRange::new(mapped.address as u64, mapped.len), 31, 0)
                .unwrap()
                .wrong_bytes,
            0
        );
        device.unregister(mapped.address).unwrap();
    }
    println!("a registered file reads as written");
}

fn patterns(stream: &dyn Stream, memory: u64, back: &Pinned) {
    for (skip, len, offset) in
        [(0, 1 << 20, 0), (1, 8, 8), (3, 7, 1 << 40), (8, 65_536, 800), (5, 1, 16), (13, 99_999, 8)]
    {
        // SAFETY: all ranges are inside allocations that live until the synchronisation.
        let check = unsafe {
            stream.fill_pattern(DeviceRange::new(memory + skip, len), 42, offset).unwrap();
            stream.copy_out(HostRange::new(back.pointer(), len), memory + skip).unwrap();
            stream.check_pattern(DeviceRange::new(memory + skip, len), 42, offset).unwrap()
        };
        assert_eq!(check.wrong_bytes, 0);
        assert_eq!(first_mismatch(&back.slice()[..len], 42, offset), None);
    }
    fill_pattern(&mut back.slice()[..1000], 1, 4096);
    for (at, bits) in [(100, 1), (101, 0x80), (999, 0xFF)] {
        back.slice()[at] ^= bits;
    }
    // SAFETY: as above.
    let check = unsafe {
        stream.copy_in(memory + 3, HostRange::new(back.pointer(), 1000)).unwrap();
        stream.check_pattern(DeviceRange::new(memory + 3, 1000), 1, 4096).unwrap()
    };
    assert_eq!((check.wrong_bytes, check.first_wrong), (3, 4096 + 96));
}

fn kinds(device: &dyn Device) {
    use AllocationKind as A;
    for (kind, wanted) in [
        (A::Device, MemoryKind::Device),
        (A::Virtual, MemoryKind::Device),
        (A::PinnedHost, MemoryKind::Pinned),
        (A::Managed, MemoryKind::Managed),
        (A::HostHeap, MemoryKind::Host),
        (A::HostMap, MemoryKind::Host),
    ] {
        let address = device.allocate_kind(kind, LEN).unwrap();
        let info = device.classify(address + 100).unwrap();
        println!("{kind:?}: {info:?}");
        assert_eq!((info.kind, info.context), (wanted, Context::PRIMARY));
        // SAFETY: allocated above, unused.
        unsafe { device.free_kind(kind, DeviceRange::new(address, LEN)) };
    }
    for garbage in [0, 1, u64::MAX, 0xDEAD_BEEF_0000] {
        assert_eq!(device.classify(garbage).unwrap().kind, MemoryKind::Host);
    }
    let error = device.allocate(1 << 50).unwrap_err();
    println!("{error:?}");
    assert_eq!(error.kind(), ErrorKind::DeviceOutOfMemory);
}

fn costs(device: &Arc<dyn Device>, stream: &dyn Stream, memory: u64, whose: &str) {
    let slot = Pinned::new(device, LEN);
    let event = stream.event().unwrap();
    stream.record(&*event).unwrap();
    event.wait(Wait::Block).unwrap();
    per_call(&format!("{whose} is_done"), || assert!(event.is_done().unwrap()));
    per_call(&format!("{whose} record"), || stream.record(&*event).unwrap());
    per_call(&format!("{whose} classify"), || {
        assert_eq!(device.classify(memory).unwrap().kind, MemoryKind::Device);
    });
    for wait in [Wait::Spin, Wait::Block] {
        per_call(&format!("{whose} 4 KiB copy in, {wait:?}"), || {
            // SAFETY: all ranges live until the synchronisation.
            unsafe { stream.copy_in(memory, HostRange::new(slot.pointer(), 4096)).unwrap() };
            stream.synchronize(wait).unwrap();
        });
    }
    let count = 4096;
    let list = Pinned::new(device, count * size_of::<CopyPiece>());
    for (len, skip) in [(512, 0), (2048, 0), (2048, 8), (2048, 1)] {
        for index in 0..count as u64 {
            let dst = memory + index * len as u64;
            let piece = CopyPiece {
                src: slot.device + (index * len as u64 + skip) % (LEN as u64 / 2),
                dst,
                len: len as u64,
            };
            list.put(index as usize, piece);
        }
        let start = Instant::now();
        for _ in 0..20 {
            // SAFETY: all ranges live until the synchronisation.
            unsafe { stream.scatter(list.device, count, len).unwrap() };
        }
        stream.synchronize(Wait::Spin).unwrap();
        let rate = (20 * count * len) as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{whose} scatter of {count} × {len} B, source off by {skip}: {rate:.1} GB/s");
    }
}

#[test]
fn a_real_gpu_agrees() {
    let device = match cuda::devices() {
        Ok(devices) if !devices.is_empty() => devices[0].clone(),
        Ok(_) => return println!("skipped: the driver reports no device"),
        Err(error) => return println!("skipped: {error}"),
    };
    println!("{:?}\nmissing symbols: {:?}", device.info(), cuda::symbols_missing().unwrap());
    let address = Box::new(1u64);
    let host = device.classify(&raw const *address as u64).unwrap();
    assert_eq!(host.kind, MemoryKind::Host, "before there is a context");
    let start = Instant::now();
    let stream = device.stream(Context::PRIMARY).unwrap();
    println!("context and stream: {:?}", start.elapsed());
    let start = Instant::now();
    device.kernels(Context::PRIMARY).unwrap();
    println!("loading the kernels: {:?}", start.elapsed());
    let memory = device.allocate(LEN).unwrap();
    let back = Pinned::new(&device, LEN);
    kinds(&*device);
    patterns(&*stream, memory, &back);
    scatter_any_alignment(&device, &*stream, memory);
    resident::memory_of_kernels(&device, memory, LEN);
    resident::copies(&device, &*stream, memory);
    resident::new_bytes_in_one_life(&device, &*stream, memory, 20_000);
    resident::withdrawals(&device, &*stream, memory);
    gathers(&device, &*stream, memory);
    checksums(&device, &*stream, memory);
    registered(&*device, &*stream, memory);

    back.slice()[..4].fill(0);
    // SAFETY: the word lives until the stream has passed.
    unsafe { stream.wait_value(back.device, 7).unwrap() };
    let passed = stream.event().unwrap();
    stream.record(&*passed).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!passed.is_done().unwrap(), "held back by the flag");
    // SAFETY: the word is aligned and alive.
    unsafe { AtomicU32::from_ptr((back.pointer() as u64) as *mut u32) }.store(7, Ordering::SeqCst);
    passed.wait(Wait::SpinThenBlock(Duration::from_micros(50))).unwrap();
    let called = Arc::new(AtomicU32::new(0));
    let mark = called.clone();
    stream.callback(Box::new(move || mark.store(1, Ordering::SeqCst))).unwrap();
    stream.synchronize(Wait::Block).unwrap();
    assert_eq!(called.load(Ordering::SeqCst), 1);

    costs(&device, &*stream, memory, "foreign thread");
    let (device, stream) = std::thread::scope(|scope| {
        let own = scope.spawn(move || {
            device.adopt_thread();
            costs(&device, &*stream, memory, "own thread");
            (device, stream)
        });
        own.join().unwrap()
    });
    drop(stream);
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
}
