//! Gathers over the fake driver and over host memory, against a plain model.

use std::sync::Arc;

use crate::common::{Mapped, Pinned, Random, device, on_device, tidy};
use forebay_gpu::{
    Access, Context, Device, DeviceRange, Gather, GatherReport, HostRange, Stream, Wait, fill_pattern, host,
};

const LEN: usize = 256 << 10;

/// What a gather gives: the output and the report.
fn model(source: &[u8], offsets: &[u64], piece: usize) -> (Vec<u8>, GatherReport) {
    let (mut out, mut report) = (Vec::new(), GatherReport::START);
    for (index, &offset) in offsets.iter().enumerate() {
        let bytes = usize::try_from(offset).ok().and_then(|at| source.get(at..at.checked_add(piece)?));
        if let Some(bytes) = bytes {
            out.extend_from_slice(bytes);
        } else {
            out.extend(std::iter::repeat_n(0, piece));
            report = GatherReport { refused: report.refused + 1, first: report.first.min(index as u64) };
        }
    }
    (out, report)
}

/// Offsets of all alignments; now and then one that does not lie inside.
fn offsets(random: &mut Random, count: usize, len: usize, piece: usize) -> Vec<u64> {
    let bad = [u64::MAX, u64::MAX - piece as u64 + 1, len as u64, (len + 1 - piece) as u64];
    let one = |_| match random.below(30) {
        0 => bad[random.below(bad.len())],
        1 => (len - piece) as u64,
        _ => random.below(len - piece + 1) as u64,
    };
    (0..count).map(one).collect()
}

/// Memory that a gather writes to.
struct Output {
    device: Arc<dyn Device>,
    out: u64,
    report: u64,
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: allocated in `compare`, which waited for all work.
        unsafe {
            self.device.free(self.out);
            self.device.free(self.report);
        }
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Gathers from `base`, where `source` lies, and compares with the model.
fn compare(
    device: &Arc<dyn Device>,
    stream: &dyn Stream,
    (base, source): (u64, &[u8]),
    (piece, skip): (usize, u64),
    list: &[u64],
) {
    let room = list.len() * piece;
    let output = Output {
        device: device.clone(),
        out: device.allocate(room + 16).unwrap(),
        report: device.allocate(size_of::<GatherReport>()).unwrap(),
    };
    let start = GatherReport::START;
    let (offsets, back) = (Pinned::new(device, 8 * list.len()), Pinned::new(device, room + 16));
    offsets.slice().copy_from_slice(&bytes_of(list));
    back.slice()[..16].copy_from_slice(&bytes_of(&[start.refused, start.first]));
    let asked = Gather {
        base,
        len: source.len() as u64,
        offsets: offsets.device,
        count: list.len() as u64,
        piece: piece as u64,
        out: output.out + skip,
        report: output.report,
    };
    let mut found = vec![0; 16];
    // SAFETY: all that is named lives until the synchronisations.
    unsafe {
        stream.copy_in(output.report, HostRange::new(back.pointer(), 16)).unwrap();
        stream.zero(DeviceRange::new(output.out, room + 16)).unwrap();
        stream.gather(&asked).unwrap();
        stream.copy_out(HostRange::new(back.pointer(), 16), output.report).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        found.copy_from_slice(&back.slice()[..16]);
        stream.copy_out(HostRange::new(back.pointer(), room + 16), output.out).unwrap();
        stream.synchronize(Wait::Block).unwrap();
    }
    let (wanted, report) = model(source, list, piece);
    let skip = skip as usize;
    assert!(back.slice()[skip..skip + room] == wanted, "pieces of {piece}, off by {skip}");
    assert!(back.slice()[..skip].iter().chain(&back.slice()[skip + room..]).all(|byte| *byte == 0));
    assert_eq!(found, bytes_of(&[report.refused, report.first]), "pieces of {piece}");
}

fn any_pieces(device: &Arc<dyn Device>, base: u64, source: &[u8]) {
    let stream = device.stream(Context::PRIMARY).unwrap();
    let mut random = Random(11);
    for round in 0..60 {
        let piece = match round % 4 {
            0 => 1 + random.below(40),
            1 => [8, 16, 512, 4096][random.below(4)],
            2 => 1 + random.below(6000),
            _ => 1 + random.below(70_000),
        };
        let count = 1 + random.below((1 << 20) / piece).min(300);
        let list = offsets(&mut random, count, source.len(), piece);
        compare(device, &*stream, (base, source), (piece, random.below(16) as u64), &list);
    }
    for list in [vec![], vec![0, 1, u64::MAX, source.len() as u64]] {
        compare(device, &*stream, (base, source), (0, 0), &list);
        compare(device, &*stream, (base, source), (1, 3), &list);
    }
    let longer = source.len() + 1;
    compare(device, &*stream, (base, source), (longer, 0), &[0, 5, u64::MAX]);
}

#[test]
fn registered_files_and_device_memory_are_gathered_from() {
    let (fake, device) = device();
    fake.set_delay_us(0);
    let mut bytes = vec![0; LEN];
    fill_pattern(&mut bytes, 13, 0);
    let mapped = Mapped::on_disk(LEN, 13);
    // SAFETY: mapped until it is unregistered below.
    unsafe { device.register(HostRange::new(mapped.address, LEN), Access::ReadOnly) }.unwrap();
    any_pieces(&device, mapped.address as u64, &bytes);
    // SAFETY: registered above; all work was waited for.
    unsafe { device.unregister(mapped.address) }.unwrap();
    let memory = device.allocate(LEN).unwrap();
    assert!(fake.write(memory, &bytes));
    any_pieces(&device, memory, &bytes);
    assert!(on_device(fake, memory, LEN) == bytes);
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    drop(mapped);
    tidy(fake);
}

#[test]
fn host_memory_gathers_the_same() {
    let mut bytes = vec![0; LEN];
    fill_pattern(&mut bytes, 14, 0);
    any_pieces(&host::device(), bytes.as_ptr() as u64, &bytes);
}
