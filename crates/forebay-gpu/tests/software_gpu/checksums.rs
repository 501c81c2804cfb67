//! Checksums of device memory over the fake driver and of host memory, against those of the same bytes on the CPU.

use std::sync::Arc;

use crate::common::{Pinned, Random, device, tidy};
use forebay_gpu::{Checksum, ChecksumPiece, Context, Device, Stream, Wait, fill_pattern, host};

const LEN: usize = 1 << 20;

/// The checksums of ranges, which are offsets and lengths from `base` on.
fn checksums(
    device: &Arc<dyn Device>,
    stream: &dyn Stream,
    base: u64,
    ranges: &[(usize, usize)],
) -> Vec<Checksum> {
    let list = Pinned::new(device, ranges.len() * size_of::<ChecksumPiece>());
    let results = Pinned::new(device, 4 * ranges.len());
    results.slice().fill(0xEE);
    for ((at, len), place) in ranges.iter().zip(list.slice().as_chunks_mut::<16>().0) {
        place[..8].copy_from_slice(&(base + *at as u64).to_le_bytes());
        place[8..].copy_from_slice(&(*len as u64).to_le_bytes());
    }
    // SAFETY: all that is named lives until the synchronisation.
    unsafe { stream.checksums(list.device, ranges.len(), results.device) }.unwrap();
    stream.synchronize(Wait::Block).unwrap();
    let crcs = results.slice().as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc));
    crcs.zip(ranges).map(|(crc, range)| Checksum::new(crc, range.1 as u64)).collect()
}

fn any_ranges(device: &Arc<dyn Device>, base: u64, bytes: &[u8]) {
    let stream = device.stream(Context::PRIMARY).unwrap();
    let mut random = Random(17);
    let mut ranges: Vec<_> = (0..40).map(|len| (random.below(LEN - len), len)).collect();
    ranges.extend([(0, LEN), (LEN, 0), (3, LEN - 7)]);
    for most in [30, 600, 20_000, 200_000] {
        for _ in 0..50 {
            let len = random.below(most);
            ranges.push((random.below(LEN - len), len));
        }
    }
    for (found, (at, len)) in checksums(device, &*stream, base, &ranges).into_iter().zip(&ranges) {
        assert_eq!(found, Checksum::of(&bytes[*at..*at + *len]), "from {at}");
    }
    assert!(checksums(device, &*stream, base, &[]).is_empty());

    // Parts, wherever they are cut, join to the whole.
    let whole = Checksum::of(bytes);
    for round in 0..20 {
        let mut cuts: Vec<_> = (0..round).map(|_| random.below(LEN + 1)).chain([0, LEN]).collect();
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1] - cut[0])).collect();
        let found = checksums(device, &*stream, base, &parts);
        assert_eq!(found.into_iter().fold(Checksum::EMPTY, Checksum::then), whole, "{parts:?}");
    }
}

#[test]
fn device_memory_has_the_checksums_of_its_bytes() {
    let (fake, device) = device();
    fake.set_delay_us(0);
    let mut bytes = vec![0; LEN];
    fill_pattern(&mut bytes, 23, 0);
    let memory = device.allocate(LEN).unwrap();
    assert!(fake.write(memory, &bytes));
    any_ranges(&device, memory, &bytes);
    bytes[LEN / 2] ^= 4;
    assert!(fake.write(memory, &bytes));
    any_ranges(&device, memory, &bytes);
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    tidy(fake);
}

#[test]
fn host_memory_has_the_same() {
    let mut bytes = vec![0; LEN];
    fill_pattern(&mut bytes, 24, 0);
    any_ranges(&host::device(), bytes.as_ptr() as u64, &bytes);
}

#[test]
fn memory_that_is_not_there_breaks_the_device() {
    let (fake, device) = device();
    let stream = device.stream(Context::PRIMARY).unwrap();
    let memory = device.allocate(4096).unwrap();
    let (list, results) = (Pinned::new(&device, 16), Pinned::new(&device, 4));
    list.slice()[..8].copy_from_slice(&memory.to_le_bytes());
    list.slice()[8..].copy_from_slice(&4097u64.to_le_bytes());
    // SAFETY: the fake finds out by itself.
    unsafe { stream.checksums(list.device, 1, results.device) }.unwrap();
    let error = stream.synchronize(Wait::Block).unwrap_err();
    assert_eq!(error.kind(), forebay_gpu::ErrorKind::DeviceLost, "{error}");
    fake.reset();
    drop(stream);
    // SAFETY: nothing runs any more.
    unsafe { device.free(memory) };
}
