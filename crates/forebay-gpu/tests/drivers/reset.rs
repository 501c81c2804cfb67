//! A context that goes while something of ours is in it. The primary one does not come back here: a process of its own.

use forebay_gpu::{Context, Wait};

use crate::common::alone::is_alone;
use crate::common::device;

type End<'a> = &'a (dyn Fn() -> Result<(), String> + Sync);

/// `cudaDeviceReset` at the end of a program's `main` comes before what the program drops later, on a thread that still has the
/// context current.
#[test]
fn what_went_with_its_context_is_not_destroyed_again() {
    if !is_alone() {
        return;
    }
    let (fake, device) = device();
    let second = fake.create_context(0).unwrap();
    let theirs = fake.allocate(4096).unwrap();
    let other = device.classify(theirs).unwrap().context;
    fake.free(theirs).unwrap();
    let primary = fake.retain_primary(0).unwrap();
    let destroy = || fake.destroy_context(second);
    let reset = || fake.reset_primary(0);
    let ends: [(Context, u64, End<'_>); 2] = [(other, second, &destroy), (Context::PRIMARY, primary, &reset)];
    for (context, current, end) in ends {
        fake.set_current_context(current).unwrap();
        let stream = device.stream(context).unwrap();
        let event = stream.event().unwrap();
        stream.record(event.as_ref()).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        std::thread::scope(|scope| scope.spawn(end).join()).unwrap().unwrap();
        assert_eq!(fake.current_context(), current);
        drop((event, stream));
        assert_eq!(fake.hazards(), 0);
    }
}
