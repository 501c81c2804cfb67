//! The engine `p2p` over memory that behaves as a PCI BAR: transfers that it takes, refusals and their reasons, and the
//! results of transfers whose drive does not reach the memory after all. The contract suite runs over it too.

use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::bar::{Misled, Wrong, counted, fake};
use crate::common::{Scratch, config, disk, has_hint, pattern, turn};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{Buffer, Direction, EngineKind, File, ReadPiece, Receipt, Refusal, Session, Way};
use forebay_error::ErrorKind;
use forebay_gpu::{Device, DeviceName, Devices, host};

const LEN: usize = 3 << 20;
const KEY: u64 = 5;
/// Transfers on the caller's thread, and by lanes.
const LENGTHS: [usize; 2] = [256 << 10, LEN];

/// A machine with a BAR of which nothing is known yet, and no GPU.
fn machine(config: Config) -> Session {
    machine_with(fake(0), config)
}

fn machine_with(device: Arc<dyn Device>, config: Config) -> Session {
    let devices = Devices { gpus: Vec::new(), bars: vec![device], host: host::device(), missing: None };
    Session::on_devices(config, devices).unwrap()
}

fn session() -> Session {
    machine(config(IoBackend::Auto, CachePolicy::Auto))
}

fn only(strict: &[&str]) -> Session {
    let strict = strict.iter().map(|name| (*name).to_owned()).collect();
    machine(Config { strict, ..config(IoBackend::Auto, CachePolicy::Auto) })
}

fn memory(session: &Session, len: usize) -> Buffer {
    Buffer::new(session.devices().bars[0].clone(), len).unwrap()
}

/// A file with known bytes, open for both, with faults; `None` where the file system has no O_DIRECT.
fn file(scratch: &Scratch, calls: Option<Misled>) -> Option<File> {
    let mut options = File::options().write(true);
    if let Some(calls) = calls {
        options = options.calls(Box::new(calls));
    }
    let file = options.open(scratch.path()).unwrap();
    if let Some(reason) = file.direct_refused() {
        println!("skipped: no O_DIRECT in {}: {reason}", scratch.path().display());
        return None;
    }
    Some(file)
}

fn scratch() -> Scratch {
    Scratch::with_pattern(&disk(), KEY, LEN)
}

fn refusal(receipt: &Receipt) -> &Refusal {
    receipt.election.refused.iter().find(|refusal| refusal.engine == EngineKind::P2p).unwrap()
}

/// As another descriptor sees it.
fn outside(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn aligned_bytes_use_no_slot_and_the_receipt_says_so() {
    let _turn = turn();
    let (session, scratch) = (session(), scratch());
    let Some(file) = file(&scratch, None) else { return };
    for len in LENGTHS {
        let mut buffer = memory(&session, len);
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        assert_eq!(receipt.engines().collect::<Vec<_>>(), [(EngineKind::P2p, len as u64)], "{receipt}");
        assert_eq!((receipt.engine(), receipt.moved[Way::Drive]), (EngineKind::P2p, len as u64));
        assert!(receipt.election.refused.iter().all(|refusal| refusal.engine != EngineKind::P2p));
        assert!(receipt.to_string().contains("by the drive itself"), "{receipt}");
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
        let bytes = pattern(9, 0, len);
        buffer.copy_from_slice(&bytes).unwrap();
        let receipt = session.write(&file, 0, &buffer).unwrap();
        assert_eq!(receipt.engines().collect::<Vec<_>>(), [(EngineKind::P2p, len as u64)], "{receipt}");
        assert!(outside(scratch.path())[..len] == bytes);
        buffer.copy_from_slice(&pattern(KEY, 0, len)).unwrap();
        session.write(&file, 0, &buffer).unwrap();
    }
}

#[test]
fn heads_and_tails_are_staged_and_the_receipt_says_so() {
    let _turn = turn();
    let (session, scratch) = (session(), scratch());
    let Some(file) = file(&scratch, None) else { return };
    for len in [100_000, LEN - 5000] {
        // Memory and file are out of step by nothing: the middle suits.
        let mut buffer = memory(&session, 8192 + len);
        let receipt = session.read_into(&file, 1000, &mut buffer, 1000..1000 + len).unwrap();
        let middle = ((1000 + len) / 4096 * 4096 - 4096) as u64;
        assert_eq!(receipt.moved[Way::Drive], middle, "{receipt}");
        assert_eq!(receipt.bytes(), len as u64);
        assert!(refusal(&receipt).reason.contains("heads and tails"), "{receipt}");
        assert!(buffer.to_vec().unwrap()[1000..1000 + len] == pattern(KEY, 1000, len));
        let bytes = pattern(70, 0, 8192 + len);
        buffer.copy_from_slice(&bytes).unwrap();
        let receipt = session.write_from(&file, 1000, &buffer, 1000..1000 + len).unwrap();
        assert_eq!(receipt.moved[Way::Drive], middle, "{receipt}");
        let there = outside(scratch.path());
        assert!(there[1000..1000 + len] == bytes[1000..1000 + len]);
        assert!(
            there[..1000] == pattern(KEY, 0, 1000)
                && there[1000 + len..] == pattern(KEY, 0, LEN)[1000 + len..]
        );
        std::fs::write(scratch.path(), pattern(KEY, 0, LEN)).unwrap();
    }
}

#[test]
fn memory_out_of_step_with_the_file_is_staged() {
    let _turn = turn();
    let (session, scratch) = (session(), scratch());
    let Some(file) = file(&scratch, None) else { return };
    for len in LENGTHS {
        let mut buffer = memory(&session, len + 1);
        let receipt = session.read_into(&file, 0, &mut buffer, 1..len + 1).unwrap();
        assert_eq!((receipt.engine(), receipt.moved[Way::Drive]), (EngineKind::Staged, 0));
        assert!(refusal(&receipt).reason.contains("aligned"), "{receipt}");
        assert!(buffer.to_vec().unwrap()[1..] == pattern(KEY, 0, len));
    }
}

#[test]
fn a_batch_mixes_both_ways() {
    let _turn = turn();
    let (session, scratch) = (session(), scratch());
    let Some(file) = file(&scratch, None) else { return };
    let pieces: Vec<_> = (0..300usize)
        .map(|index| {
            let (at, len) = (index * 8192, if index % 7 == 3 { 5000 } else { 8192 });
            ReadPiece { offset: ((index * 37) % 380 * 8192) as u64, range: at..at + len }
        })
        .collect();
    let buffer = memory(&session, 300 * 8192);
    let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
    let bytes = outcome.buffer.to_vec().unwrap();
    for (piece, result) in pieces.iter().zip(&outcome.entries) {
        assert_eq!(*result.as_ref().unwrap(), piece.range.len() as u64);
        assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, piece.range.len()));
    }
    let odd = pieces.iter().filter(|piece| piece.range.len() == 5000).count() as u64;
    assert_eq!(outcome.receipt.moved[Way::Drive], (300 - odd) * 8192 + odd * 4096, "{}", outcome.receipt);
    assert_eq!(outcome.receipt.bytes(), outcome.receipt.moved[Way::Drive] + odd * 904);
}

#[test]
fn a_file_that_ends_within_a_block_is_read_to_its_end() {
    let _turn = turn();
    let (session, scratch) = (session(), Scratch::with_pattern(&disk(), KEY, 1_000_001));
    let Some(file) = file(&scratch, None) else { return };
    for len in [1 << 20, 2 << 20] {
        let mut buffer = memory(&session, len);
        let error = session.read(&file, 0, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShortRead);
        assert!(buffer.to_vec().unwrap()[..1_000_001] == pattern(KEY, 0, 1_000_001));
    }
}

// ---- refusals, and their reasons ------------------------------------------------------------------------------------

#[test]
fn bytes_that_go_astray_are_found_by_the_trial() {
    let _turn = turn();
    for direction in [Direction::Read, Direction::Write] {
        let (session, scratch) = (session(), scratch());
        let Some(file) = file(&scratch, Some(Misled::new(direction, Wrong::Astray))) else { return };
        for len in LENGTHS {
            let mut buffer = memory(&session, len);
            let bytes = pattern(KEY, 0, len);
            buffer.copy_from_slice(&bytes).unwrap();
            let receipt = match direction {
                Direction::Read => session.read(&file, 0, &mut buffer),
                Direction::Write => session.write(&file, 0, &buffer),
            }
            .unwrap();
            assert_eq!((receipt.engine(), receipt.moved[Way::Drive]), (EngineKind::Staged, 0), "{receipt}");
            let refusal = refusal(&receipt);
            assert!(refusal.reason.contains("succeed"), "{receipt}");
            assert!(refusal.hint.as_ref().unwrap().contains("iommu"), "{receipt}");
            assert!(buffer.to_vec().unwrap() == bytes && outside(scratch.path())[..len] == bytes);
        }
    }
}

#[test]
fn trials_share_their_memory() {
    let _turn = turn();
    let (device, allocations) = counted(0);
    let (session, scratch) = (machine_with(device, config(IoBackend::Auto, CachePolicy::Auto)), scratch());
    let Some(file) = file(&scratch, None) else { return };
    let mut buffer = memory(&session, LEN);
    assert_eq!(session.read(&file, 0, &mut buffer).unwrap().engine(), EngineKind::P2p);
    assert_eq!(session.write(&file, 0, &buffer).unwrap().engine(), EngineKind::P2p);
    assert_eq!(allocations.load(Ordering::Relaxed), 2, "the buffer's, and one for both trials");
}

#[test]
fn the_kernels_refusals_become_reasons() {
    let _turn = turn();
    let words = [
        (libc::EREMOTEIO, "no way between"),
        (libc::EFAULT, "does not take this memory"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EIO, "reports an error"),
    ];
    for (errno, word) in words {
        for direction in [Direction::Read, Direction::Write] {
            let scratch = scratch();
            let wrong = || Some(Misled::new(direction, Wrong::Errno(errno)));
            let Some(faulty) = file(&scratch, wrong()) else { return };
            let session = session();
            let mut buffer = memory(&session, LEN);
            buffer.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
            let receipt = match direction {
                Direction::Read => session.read(&faulty, 0, &mut buffer),
                Direction::Write => session.write(&faulty, 0, &buffer),
            }
            .unwrap();
            assert_eq!(receipt.moved[Way::Drive], 0, "{receipt}");
            assert!(refusal(&receipt).reason.contains(word), "{receipt}");
            assert!(refusal(&receipt).hint.is_some(), "{receipt}");
            // With nothing else allowed it is an error with the same reason, before the first byte.
            let session = only(&["p2p"]);
            let mut buffer = memory(&session, LEN);
            let error = match direction {
                Direction::Read => session.read(&faulty, 0, &mut buffer),
                Direction::Write => session.write(&faulty, 0, &buffer),
            }
            .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(word) && !error.hints().is_empty(), "{error:?}");
            assert!(outside(scratch.path()) == pattern(KEY, 0, LEN), "the failed write changed the file");
        }
    }
}

#[test]
fn a_trial_that_ends_early_is_a_refusal() {
    let _turn = turn();
    let (session, scratch) = (session(), scratch());
    let Some(file) = file(&scratch, Some(Misled::new(Direction::Read, Wrong::Short(8192)))) else { return };
    let mut buffer = memory(&session, LEN);
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert!(refusal(&receipt).reason.contains("ended after 8192"), "{receipt}");
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
}

#[test]
fn a_drive_that_refuses_after_the_trial_has_the_range_staged() {
    let _turn = turn();
    for io in [IoBackend::Auto, IoBackend::Threads] {
        for direction in [Direction::Read, Direction::Write] {
            for (len, well) in [(LENGTHS[0], 2), (LENGTHS[1], 4)] {
                let (session, scratch) = (machine(config(io, CachePolicy::Auto)), scratch());
                let calls = Misled::after(well, direction, Wrong::Errno(libc::EREMOTEIO));
                let Some(file) = file(&scratch, Some(calls)) else { return };
                let mut buffer = memory(&session, len);
                let bytes = pattern(KEY + 1, 0, len);
                let receipt = match direction {
                    Direction::Read => session.read(&file, 0, &mut buffer),
                    Direction::Write => {
                        buffer.copy_from_slice(&bytes).unwrap();
                        session.write(&file, 0, &buffer)
                    }
                };
                let receipt = receipt.unwrap();
                assert_eq!(receipt.bytes(), len as u64, "{receipt}");
                assert!(refusal(&receipt).reason.contains("EREMOTEIO"), "{io} {direction:?} {receipt}");
                let expected = if direction == Direction::Read { pattern(KEY, 0, len) } else { bytes };
                assert!(buffer.to_vec().unwrap() == expected);
                assert!(outside(scratch.path())[..len] == expected);
                // The next one does not try again.
                let receipt = session.read(&file, 0, &mut buffer).unwrap();
                let placed = if direction == Direction::Read { 0 } else { len as u64 };
                assert_eq!(receipt.moved[Way::Drive], placed, "{receipt}");
            }
        }
    }
}

#[test]
fn strict_fails_where_bytes_would_be_staged() {
    let _turn = turn();
    let scratch = scratch();
    let Some(file) = file(&scratch, None) else { return };
    for len in [100_000usize, 2_000_000] {
        // Heads and tails do not count unless all is to count.
        let session = only(&["p2p"]);
        let mut buffer = memory(&session, len);
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        assert_eq!(
            (receipt.engine(), receipt.moved[Way::Drive]),
            (EngineKind::P2p, len as u64 / 4096 * 4096)
        );
        let error = session.read_into(&file, 1, &mut buffer, 0..len - 1).unwrap_err();
        assert!(error.message().contains("aligned"), "{error:?}");
        let session = only(&["p2p", "all"]);
        let mut buffer = memory(&session, len);
        let error = session.read(&file, 0, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("would be staged") && has_hint(&error, "4096"), "{error:?}");
        assert!(session.read_into(&file, 0, &mut buffer, 0..len / 4096 * 4096).is_ok());
    }
}

#[test]
fn what_no_drive_can_move_is_refused_by_rule() {
    let _turn = turn();
    let session = session();
    let shm = Scratch::with_pattern(Path::new("/dev/shm"), KEY, LEN);
    let file = File::open(shm.path()).unwrap();
    let mut buffer = memory(&session, LEN);
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert!(refusal(&receipt).reason.contains("the file is memory"), "{receipt}");
    let scratch = scratch();
    let keep = File::options().cache(CachePolicy::Keep).open(scratch.path()).unwrap();
    let receipt = session.read(&keep, 0, &mut buffer).unwrap();
    if keep.direct_refused().is_none() {
        assert!(refusal(&receipt).reason.contains("page cache"), "{receipt}");
    }
    let config = Config { engine: Some("staged".to_owned()), ..config(IoBackend::Auto, CachePolicy::Auto) };
    let session = machine(config);
    let mut buffer = memory(&session, LEN);
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert!(refusal(&receipt).reason.contains("staged was asked for"), "{receipt}");
}

#[test]
fn a_file_without_telling_bytes_is_no_proof() {
    let _turn = turn();
    let scratch = Scratch::new(&disk());
    std::fs::write(scratch.path(), vec![0; LEN]).unwrap();
    // A nameless file of the same mount proves it.
    let Some(file) = file(&scratch, None) else { return };
    let session = session();
    let mut buffer = memory(&session, LEN);
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(receipt.engine(), EngineKind::P2p, "{receipt}");
    assert!(buffer.to_vec().unwrap() == vec![0; LEN]);
}

/// A file whose folder is gone: like a block device, it has no place for a nameless file beside it.
fn orphan() -> Option<std::fs::File> {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, pattern(KEY, 0, LEN)).unwrap();
    let open = std::fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    if let Err(error) = &open {
        println!("skipped: no O_DIRECT in {}: {error}", folder.path().display());
    }
    open.ok()
}

#[test]
fn the_first_write_proves_itself_where_no_other_file_may() {
    let _turn = turn();
    for (wrong, engine) in [(None, EngineKind::P2p), (Some(Wrong::Astray), EngineKind::Staged)] {
        let session = session();
        let Some(open) = orphan() else { return };
        let mut options = File::options();
        if let Some(wrong) = wrong {
            options = options.calls(Box::new(Misled::new(Direction::Write, wrong)));
        }
        // SAFETY: `open` outlives the file and its transfers.
        let file = unsafe { options.adopt(open.as_raw_fd()) }.unwrap();
        let mut buffer = memory(&session, LEN);
        let bytes = pattern(33, 0, LEN);
        buffer.copy_from_slice(&bytes).unwrap();
        let receipt = session.write(&file, 0, &buffer).unwrap();
        assert_eq!(receipt.engine(), engine, "{receipt}");
        let mut back = session.host_buffer(LEN).unwrap();
        session.read(&file, 0, &mut back).unwrap();
        assert!(back.as_slice().unwrap() == bytes);
    }
}

#[test]
fn a_trial_that_wrote_wrong_bytes_puts_them_right() {
    let _turn = turn();
    let session = only(&["p2p"]);
    let Some(open) = orphan() else { return };
    let misled = Misled::new(Direction::Write, Wrong::Astray);
    // SAFETY: `open` outlives the file and its transfers.
    let file = unsafe { File::options().calls(Box::new(misled)).adopt(open.as_raw_fd()) }.unwrap();
    let mut buffer = memory(&session, LEN);
    let bytes = pattern(33, 0, LEN);
    buffer.copy_from_slice(&bytes).unwrap();
    let error = session.write(&file, 0, &buffer).unwrap_err();
    assert!(error.message().contains("other bytes were written"), "{error:?}");
    let back = outside(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())));
    // The trial's part is as it was to be, the rest as it was.
    assert!(back[..65536] == bytes[..65536] && back[65536..] == pattern(KEY, 0, LEN)[65536..]);
}

#[test]
fn devices_are_named() {
    let _turn = turn();
    let session = session();
    let name = session.devices().bars[0].info().name.clone();
    assert_eq!(session.device_named(&name.parse().unwrap()).unwrap().info().name, name);
    assert!(session.device_named(&0.into()).unwrap().info().is_host);
    let error = session.device_named(&"p2pmem:ffff:00:00.0".parse().unwrap()).unwrap_err();
    assert!(has_hint(&error, &name), "{error:?}");
    let error = "nvme0".parse::<DeviceName>().unwrap_err();
    assert!(has_hint(&error, "p2pmem:"), "{error:?}");
}

#[test]
fn raw_addresses_are_found_again() {
    let _turn = turn();
    let session = session();
    let buffer = memory(&session, 8192);
    let found = session.locate(buffer.address() + 5000).unwrap();
    assert_eq!(found.device.info().name, buffer.device().info().name);
    let host = session.host_buffer(10).unwrap();
    assert!(session.locate(host.address()).unwrap().device.info().is_host);
}

#[test]
fn bytes_that_are_all_alike_prove_no_write() {
    let _turn = turn();
    let session = session();
    let Some(open) = orphan() else { return };
    // SAFETY: `open` outlives the file and its transfers.
    let file = unsafe { File::adopt(open.as_raw_fd()) }.unwrap();
    let mut buffer = memory(&session, LEN);
    buffer.copy_from_slice(&vec![0; LEN]).unwrap();
    let receipt = session.write(&file, 0, &buffer).unwrap();
    assert!(refusal(&receipt).reason.contains("are all the same"), "{receipt}");
    // Others do, and nothing is held against the drive; nor does it matter that they are there already.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let mut bytes = vec![0; LEN];
    bytes[LEN / 2..].copy_from_slice(&pattern(3, 0, LEN / 2));
    let mut host = session.host_buffer(LEN).unwrap();
    host.copy_from_slice(&bytes).unwrap();
    session.write(&file, 0, &host).unwrap();
    buffer.copy_from_slice(&bytes).unwrap();
    let receipt = session.write(&file, 0, &buffer).unwrap();
    assert_eq!(receipt.engine(), EngineKind::P2p, "{receipt}");
}
