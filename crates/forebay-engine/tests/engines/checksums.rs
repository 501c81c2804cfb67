//! Checksums of host and device memory, in any mix and any parts.

use crate::common::{install_gpu, pattern, turn};
use fake_cuda::Fake;
use forebay_engine::{Buffer, Checksum, Memory, Session};
use forebay_gpu::Context;
use proptest::prelude::*;

const LEN: usize = 3 << 20;

fn fake() -> &'static Fake {
    install_gpu();
    fake_cuda::install().unwrap()
}

fn session() -> Session {
    fake().set_delay_us(0);
    Session::with_config(forebay_config::Config::default()).unwrap()
}

/// Memory of the GPU with the pattern of `key`, and the same bytes here.
fn filled(session: &Session, key: u64, len: usize) -> (Buffer, Vec<u8>) {
    let (buffer, bytes) = (session.buffer(0, len).unwrap(), pattern(key, 0, len));
    assert!(fake().write(buffer.address(), &bytes));
    (buffer, bytes)
}

fn at(memory: &Memory, skip: usize) -> Memory {
    Memory { address: memory.address + skip as u64, ..memory.clone() }
}

fn sums(session: &Session, ranges: &[(Memory, usize)]) -> Vec<u32> {
    // SAFETY: the tests' buffers live through the call, and nobody writes them.
    unsafe { session.checksums(ranges) }.unwrap()
}

#[test]
fn ranges_on_host_and_device_come_back_in_order() {
    let _turn = turn();
    let session = session();
    let (device, bytes) = filled(&session, 5, LEN);
    let host = Memory::new(session.devices().host.clone(), bytes.as_ptr() as u64);
    let cuts = [(0, LEN), (1, 0), (3, 9), (LEN, 0), (4097, 1 << 20), (LEN - 5, 5)];
    let mut ranges = Vec::new();
    let mut wanted = Vec::new();
    for (skip, len) in cuts {
        for memory in [device.memory(), host.clone()] {
            ranges.push((at(&memory, skip), len));
            wanted.push(Checksum::of(&bytes[skip..skip + len]).crc());
        }
    }
    assert_eq!(sums(&session, &ranges), wanted);
    assert!(sums(&session, &[]).is_empty());
    assert!(session.notes().iter().all(|note| !note.text.contains("checksum")), "nothing was slow");
}

#[test]
fn one_launch_takes_thousands_of_ranges_and_memory_stays_bounded() {
    let _turn = turn();
    let session = session();
    let (device, bytes) = filled(&session, 6, LEN);
    let ranges: Vec<_> = (0..5000).map(|index| (at(&device.memory(), 600 * index), 590)).collect();
    let wanted: Vec<_> = (0..5000).map(|index| Checksum::of(&bytes[600 * index..][..590]).crc()).collect();
    // Setup that happens once.
    sums(&session, &ranges[..1]);
    let before = (fake().calls("cuLaunchKernel"), fake().leaks());
    assert_eq!(sums(&session, &ranges), wanted);
    assert_eq!(fake().calls("cuLaunchKernel") - before.0, 1);
    // Several rounds: 40 000 ranges.
    let many: Vec<_> = ranges.iter().cycle().take(40_000).cloned().collect();
    let found = sums(&session, &many);
    assert!(found.chunks(5000).all(|part| part == wanted));
    assert_eq!(fake().leaks(), before.1, "nothing more is allocated or pinned");
}

#[test]
fn other_contexts_have_streams_of_their_own() {
    let _turn = turn();
    let (fake, session) = (fake(), session());
    let bytes = pattern(8, 0, 100_000);
    let (device, same) = filled(&session, 8, 100_000);
    let context = fake.create_context(0).unwrap();
    let address = fake.allocate(bytes.len()).unwrap();
    assert!(fake.write(address, &bytes));
    let memory = session.locate(address).unwrap();
    assert_ne!(memory.context, Context::PRIMARY);
    let wanted = Checksum::of(&bytes).crc();
    assert_eq!(bytes, same);
    for _ in 0..2 {
        let ranges = [(memory.clone(), bytes.len()), (device.memory(), same.len())];
        assert_eq!(sums(&session, &ranges), [wanted, wanted]);
    }
    assert_eq!(fake.current_context(), context, "the caller's context stays");
    fake.free(address).unwrap();
    fake.destroy_context(context).unwrap();
}

#[test]
fn a_capture_in_the_same_thread_survives() {
    let _turn = turn();
    let (fake, session) = (fake(), session());
    let (device, bytes) = filled(&session, 9, 50_000);
    let primary = fake.retain_primary(0).unwrap();
    fake.set_current_context(primary).unwrap();
    let stream = fake.create_stream(1).unwrap();
    fake.begin_capture(stream, 0).unwrap();
    let found = sums(&session, &[(device.memory(), bytes.len())]);
    assert_eq!(fake.end_capture(stream).unwrap(), 0, "nothing of it was caught");
    assert_eq!(found, [Checksum::of(&bytes).crc()]);
    fake.destroy_stream(stream).unwrap();
    fake.set_current_context(0).unwrap();
}

#[test]
fn a_fault_is_told_and_the_session_recovers() {
    let _turn = turn();
    let (fake, session) = (fake(), session());
    let (device, bytes) = filled(&session, 10, LEN);
    let ranges = [(device.memory(), LEN)];
    let wanted = [Checksum::of(&bytes).crc()];
    assert_eq!(sums(&session, &ranges), wanted);
    fake.fail_next("cuLaunchKernel", 2, 0, 1);
    // SAFETY: as in `sums`.
    let error = unsafe { session.checksums(&ranges) }.unwrap_err();
    assert_eq!(error.kind(), forebay_error::ErrorKind::DeviceOutOfMemory, "{error}");
    assert_eq!(sums(&session, &ranges), wanted);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn parts_join_to_the_checksum_of_the_whole(
        skip in 0usize..5000,
        len in 0usize..(2 << 20),
        cuts in proptest::collection::vec(0.0f64..1.0, 0..12),
    ) {
        let _turn = turn();
        let session = session();
        let (device, bytes) = filled(&session, 7, LEN);
        let mut cuts: Vec<_> = cuts.iter().map(|share| (share * len as f64) as usize).chain([0, len]).collect();
        cuts.sort_unstable();
        let ranges: Vec<_> = cuts
            .windows(2)
            .map(|cut| (at(&device.memory(), skip + cut[0]), cut[1] - cut[0]))
            .collect();
        let parts = sums(&session, &ranges);
        let whole = parts
            .iter()
            .zip(&ranges)
            .fold(Checksum::EMPTY, |whole, (crc, range)| whole.then(Checksum::new(*crc, range.1 as u64)));
        prop_assert_eq!(whole, Checksum::of(&bytes[skip..skip + len]));
        prop_assert_eq!(sums(&session, &[(at(&device.memory(), skip), len)]), [whole.crc()]);
    }
}
