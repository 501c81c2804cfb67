//! Calls that follow one another enter their context once, and leave the thread as they found it.

use crate::common::{Pinned, device, tidy};
use forebay_gpu::cuda::CallSeries;
use forebay_gpu::{Context, HostRange, Wait};

const GLOBAL: i32 = 0;
const LEN: usize = 4096;

#[test]
fn one_entry_is_for_all_calls() {
    let (fake, device) = device();
    let memory = device.allocate(LEN).unwrap();
    let bytes = Pinned::new(&device, LEN);
    let stream = device.stream(Context::PRIMARY).unwrap();
    // A program with a context of its own, to which the thread has to return.
    let own = fake.create_context(0).unwrap();
    let count = || {
        let names = ["cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxPushCurrent_v2"];
        names.map(|name| fake.calls(name))
    };
    let copies = || {
        let before = count();
        for _ in 0..3 {
            // SAFETY: both live until the synchronisation.
            unsafe { stream.copy_in(memory, HostRange::new(bytes.pointer(), LEN)) }.unwrap();
        }
        stream.synchronize(Wait::Spin).unwrap();
        device.classify(memory).unwrap();
        let after = count();
        [0, 1, 2].map(|at| after[at] - before[at])
    };
    // The first makes the stream's event.
    copies();
    let alone = copies();
    let as_found = || {
        assert_eq!(fake.current_context(), own);
        assert_eq!(fake.capture_mode(), GLOBAL);
    };
    as_found();

    let before = count();
    let series = CallSeries::begin();
    assert_eq!(count(), before, "nothing is asked before the first call");
    assert_eq!(copies(), [1, 1, 1], "in place of {alone:?}");
    // One within it has nothing to end.
    drop(CallSeries::begin());
    assert_eq!(copies(), [0, 0, 0]);
    drop(series);
    as_found();
    assert_eq!(copies(), alone, "the series is over");

    // Work in another context meanwhile.
    let of_own = fake.allocate(LEN).unwrap();
    let context = device.classify(of_own).unwrap().context;
    let other = device.stream(context).unwrap();
    let series = CallSeries::begin();
    copies();
    // SAFETY: as above.
    unsafe { other.copy_in(of_own, HostRange::new(bytes.pointer(), LEN)) }.unwrap();
    other.synchronize(Wait::Block).unwrap();
    assert_eq!(copies(), [0, 0, 0], "the first context is there again");
    drop(series);
    as_found();

    // On a thread of ours all calls are free anyway.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            device.adopt_thread();
            let series = CallSeries::begin();
            device.classify(memory).unwrap();
            drop(series);
            assert_ne!(fake.capture_mode(), GLOBAL, "it stays as it was adopted");
        });
    });
    fake.free(of_own).unwrap();
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    drop((bytes, stream, other));
    fake.destroy_context(own).unwrap();
    fake.set_current_context(0).unwrap();
    tidy(fake);
}

/// A call that fails before anything was entered leaves nothing to undo.
#[test]
fn a_series_survives_a_call_that_fails() {
    let (fake, device) = device();
    let stream = device.stream(Context::PRIMARY).unwrap();
    let series = CallSeries::begin();
    fake.fail_next("cuCtxGetCurrent", 1, 0, 1);
    stream.synchronize(Wait::Spin).unwrap_err();
    stream.synchronize(Wait::Spin).unwrap();
    drop(series);
    assert_eq!((fake.current_context(), fake.capture_mode()), (0, GLOBAL));
    drop(stream);
    tidy(fake);
}
