//! Words that a stream writes and waits for, and lists that are filled in while it waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Pinned, device, on_device, tidy};
use forebay_gpu::{Context, CopyPiece, ErrorKind, Post, StreamIdentity, Wait, Word, fill_pattern};

fn word(pinned: &Pinned, at: u64) -> Word {
    Word { host: pinned.pointer() as u64 + at, device: pinned.device + at }
}

fn cell(word: Word) -> &'static AtomicU32 {
    // SAFETY: tests keep the memory as long as they use the word.
    unsafe { AtomicU32::from_ptr(word.host as *mut u32) }
}

#[test]
fn a_list_is_read_when_the_stream_may_go_on() {
    let (fake, device) = device();
    let (words, list, source) =
        (Pinned::new(&device, 4096), Pinned::new(&device, 4096), Pinned::new(&device, 4096));
    let (reached, go) = (word(&words, 0), word(&words, 128));
    fill_pattern(source.slice(), 4, 0);
    let memory = device.allocate(4096).unwrap();
    let stream = device.stream(Context::PRIMARY).unwrap();
    device.kernels(Context::PRIMARY).unwrap();
    // Numbers wrap.
    for number in [u32::MAX - 1, u32::MAX, 0, 1] {
        cell(reached).store(number.wrapping_sub(2), Ordering::SeqCst);
        cell(go).store(number.wrapping_sub(1), Ordering::SeqCst);
        list.put(0, CopyPiece { src: 1, dst: 2, len: 3 });
        assert!(fake.write(memory, &[0; 4096]));
        let posts = [
            Post::Write(reached, number),
            Post::Wait(go, number),
            Post::Scatter { list: list.device, count: 1, longest: 4096 },
            Post::Write(reached, number.wrapping_add(1)),
        ];
        // SAFETY: all memory lives until the synchronisation below.
        unsafe { stream.post(&posts) }.unwrap();
        let begun = Instant::now();
        while cell(reached).load(Ordering::SeqCst) != number && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(cell(reached).load(Ordering::SeqCst), number, "it waits");
        list.put(0, CopyPiece { src: source.device, dst: memory, len: 1000 });
        cell(go).store(number, Ordering::SeqCst);
        stream.synchronize(Wait::Block).unwrap();
        assert_eq!(cell(reached).load(Ordering::SeqCst), number.wrapping_add(1));
        let bytes = on_device(fake, memory, 4096);
        assert!(bytes[..1000] == source.slice()[..1000] && bytes[1000..].iter().all(|byte| *byte == 0));
    }
    // A refusal comes with the number of operations accepted before it.
    fake.fail_next("cuLaunchKernel", 2, 0, 1);
    let posts = [
        Post::Write(reached, 50),
        Post::Write(go, 50),
        Post::Scatter { list: list.device, count: 1, longest: 1 },
        Post::Write(reached, 51),
    ];
    // SAFETY: as above.
    let refused = unsafe { stream.post(&posts) }.unwrap_err();
    assert_eq!((refused.posted, refused.error.kind()), (2, ErrorKind::DeviceOutOfMemory));
    stream.synchronize(Wait::Block).unwrap();
    assert_eq!(cell(reached).load(Ordering::SeqCst), 50);
    // SAFETY: nothing uses it any more.
    unsafe { device.free(memory) };
    drop((stream, words, list, source));
    tidy(fake);
}

#[test]
fn streams_have_names_of_their_own() {
    let (fake, device) = device();
    let primary = fake.retain_primary(0).unwrap();
    fake.set_current_context(primary).unwrap();
    let (one, two) = (fake.create_stream(1).unwrap(), fake.create_stream(1).unwrap());
    // SAFETY: both live until they are destroyed below; the default stream lives as long as its context.
    let [first, second, legacy, again] =
        [one, two, 0, one].map(|handle| unsafe { device.identify(handle) }.unwrap());
    assert_eq!(first, again);
    assert!(first != second && legacy != first);
    assert!([first, second, legacy].iter().all(|name: &StreamIdentity| name.context == Context::PRIMARY));
    // SAFETY: as above.
    assert!(unsafe { device.owns_stream(one) && device.owns_stream(0) });
    fake.begin_capture(one, 0).unwrap();
    // SAFETY: as above.
    let error = unsafe { device.identify(one) }.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unsupported, "the stream is being captured"));
    assert_eq!(fake.end_capture(one).unwrap(), 0, "the capture is as it was");
    fake.destroy_stream(one).unwrap();
    fake.destroy_stream(two).unwrap();
    fake.set_current_context(0).unwrap();
    tidy(fake);
}
