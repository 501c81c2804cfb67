//! Copies, kernels and events of the real CUDA code over the fake driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Pinned, Random, device, on_device, tidy};
use forebay_gpu::{
    Context, CopyPiece, Device, DeviceRange, ErrorKind, HostRange, Stream, Wait, fill_pattern, first_mismatch,
};

const WAITS: [Wait; 3] = [Wait::Block, Wait::Spin, Wait::SpinThenBlock(Duration::from_micros(5))];

fn stream(device: &dyn Device) -> Box<dyn Stream> {
    device.stream(Context::PRIMARY).unwrap()
}

#[test]
fn bytes_come_back_as_they_went() {
    let (fake, device) = device();
    let bytes = Pinned::new(&device, 1 << 20);
    let back = Pinned::new(&device, 1 << 20);
    fill_pattern(bytes.slice(), 5, 0);
    let memory = device.allocate(1 << 20).unwrap();
    let stream = stream(&*device);
    for wait in WAITS {
        back.slice().fill(0);
        // SAFETY: all ranges live until the synchronisation below.
        unsafe {
            stream.copy_in(memory, HostRange::new(bytes.pointer(), 1 << 20)).unwrap();
            stream.copy_out(HostRange::new(back.pointer(), 1 << 20), memory).unwrap();
        }
        stream.synchronize(wait).unwrap();
        assert_eq!(first_mismatch(back.slice(), 5, 0), None);
    }
    assert_eq!(fake.unpinned_copies(), 0);
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop((stream, bytes, back));
    tidy(fake);
}

#[test]
fn an_event_is_done_when_its_work_is_and_not_before() {
    let (fake, device) = device();
    fake.set_delay_us(20_000);
    let (first, second) = (stream(&*device), stream(&*device));
    let flag = Pinned::new(&device, 4);
    let event = first.event().unwrap();
    assert!(event.is_done().unwrap(), "never recorded");
    // SAFETY: the word lives until both streams are done.
    unsafe { first.wait_value(flag.device, 3).unwrap() };
    first.record(&*event).unwrap();
    second.wait_event(&*event).unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let mark = called.clone();
    second.callback(Box::new(move || mark.store(true, Ordering::SeqCst))).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    assert!(!event.is_done().unwrap() && !called.load(Ordering::SeqCst));
    // SAFETY: the word is aligned and alive.
    unsafe { AtomicU32::from_ptr(flag.pointer().cast()) }.store(3, Ordering::SeqCst);
    event.wait(Wait::Block).unwrap();
    second.synchronize(Wait::Spin).unwrap();
    assert!(event.is_done().unwrap() && called.load(Ordering::SeqCst));
    drop((first, second, event, flag));
    tidy(fake);
}

#[test]
fn scatter_takes_any_alignment() {
    let (fake, device) = device();
    const LEN: usize = 256 << 10;
    let source = Pinned::new(&device, LEN);
    fill_pattern(source.slice(), 9, 0);
    let memory = device.allocate(LEN).unwrap();
    let stream = stream(&*device);
    let mut random = Random(7);
    for round in 0..50 {
        let count = 1 + random.below(64);
        let list = Pinned::new(&device, count * size_of::<CopyPiece>());
        let (mut pieces, mut at, mut longest) = (Vec::new(), 0_usize, 0);
        for _ in 0..count {
            let len = random.below([16, 600, 5000][round % 3]);
            let src = random.below(LEN - len);
            at += random.below(32);
            if at + len > LEN {
                break;
            }
            pieces.push((src, at, len));
            at += len;
            longest = longest.max(len);
        }
        fake.write(memory, &vec![0xEE; LEN]);
        for (index, &(src, dst, len)) in pieces.iter().enumerate() {
            let (src, dst) = (source.device + src as u64, memory + dst as u64);
            let piece = CopyPiece { src, dst, len: len as u64 };
            list.put(index, piece);
        }
        // SAFETY: the list and all that it names live until the synchronisation below.
        unsafe { stream.scatter(list.device, pieces.len(), longest).unwrap() };
        stream.synchronize(Wait::Block).unwrap();
        let mut wanted = vec![0xEE; LEN];
        for (src, dst, len) in pieces {
            wanted[dst..dst + len].copy_from_slice(&source.slice()[src..src + len]);
        }
        assert!(on_device(fake, memory, LEN) == wanted, "round {round}");
    }
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop((source, stream));
    tidy(fake);
}

#[test]
fn patterns_agree_with_the_host_s() {
    let (fake, device) = device();
    let memory = device.allocate(100_000).unwrap();
    let stream = stream(&*device);
    for (skip, len, offset) in
        [(0, 99_999, 0), (1, 8, 8), (3, 7, 1 << 40), (8, 65_536, 800), (5, 1, 16), (0, 0, 0)]
    {
        let at = memory + skip;
        // SAFETY: the range is inside the allocation, which lives on.
        let check = unsafe {
            stream.fill_pattern(DeviceRange::new(at, len), 42, offset).unwrap();
            stream.check_pattern(DeviceRange::new(at, len), 42, offset).unwrap()
        };
        assert_eq!(check.wrong_bytes, 0);
        assert_eq!(first_mismatch(&on_device(fake, at, len), 42, offset), None);
    }
    let mut bytes = vec![0; 1000];
    fill_pattern(&mut bytes, 1, 4096);
    bytes[100] ^= 1;
    bytes[101] ^= 0x80;
    bytes[999] ^= 0xFF;
    fake.write(memory + 3, &bytes);
    // SAFETY: as above.
    let check = unsafe { stream.check_pattern(DeviceRange::new(memory + 3, 1000), 1, 4096).unwrap() };
    assert_eq!((check.wrong_bytes, check.first_wrong), (3, 4096 + 96));
    // SAFETY: as above; refused before anything is queued.
    let odd = unsafe { stream.fill_pattern(DeviceRange::new(memory, 8), 0, 4) }.unwrap_err();
    assert_eq!(odd.kind(), ErrorKind::InvalidInput);
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop(stream);
    tidy(fake);
}

#[test]
fn a_fault_of_queued_work_surfaces_at_the_event() {
    let (fake, device) = device();
    let stream = stream(&*device);
    let (bytes, others) = (Pinned::new(&device, 64), Pinned::new(&device, 64));
    let memory = device.allocate(64).unwrap();
    fake.fail_next("async:copy", 700, 0, 1);
    // SAFETY: both ranges live until the synchronisation.
    unsafe { stream.copy_in(memory, HostRange::new(bytes.pointer(), 64)).unwrap() };
    let error = stream.synchronize(Wait::Block).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
    assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    // Where the GPU is broken, the fake drops unpinned pages all the same.
    drop(others);
    fake.reset();
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop((stream, bytes));
    tidy(fake);
}

#[test]
fn an_adopted_thread_works_in_two_contexts() {
    let (fake, device) = device();
    std::thread::spawn(move || {
        device.adopt_thread();
        let other = fake.create_context(0).unwrap();
        let theirs = fake.allocate(4096).unwrap();
        let info = device.classify(theirs).unwrap();
        let (ours, other_stream) = (stream(&*device), device.stream(info.context).unwrap());
        let bytes = Pinned::new(&device, 4096);
        fill_pattern(bytes.slice(), 3, 0);
        for _ in 0..3 {
            // SAFETY: all ranges live until the synchronisation.
            unsafe { other_stream.copy_in(theirs, HostRange::new(bytes.pointer(), 4096)).unwrap() };
            ours.synchronize(Wait::Block).unwrap();
            other_stream.synchronize(Wait::Block).unwrap();
        }
        assert_eq!(first_mismatch(&on_device(fake, theirs, 4096), 3, 0), None);
        drop((ours, other_stream, bytes));
        fake.set_current_context(other).unwrap();
        fake.free(theirs).unwrap();
        fake.destroy_context(other).unwrap();
        tidy(fake);
    })
    .join()
    .unwrap();
}
