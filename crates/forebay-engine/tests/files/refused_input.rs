//! Input that cannot be served: clear errors before the first byte moves.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{Scratch, Target, config, context, disk, has_hint, pattern, session, turn};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{Batch, Direction, File, Memory, Piece, ReadPiece, Session, Transfer};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{
    AllocationKind, Context, Device, DeviceInfo, DeviceRange, Devices, HostRange, PointerInfo, Stream,
};

const KEY: u64 = 47;

#[track_caller]
fn refused(result: Result<File>, kind: ErrorKind, path: &Path) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(context(&error, "path"), Some(path.to_str().unwrap()), "{error:?}");
    assert!(!error.hints().is_empty(), "{error:?}");
    error
}

#[test]
fn what_is_not_a_file_is_refused_with_a_hint() {
    let missing = disk().join("no such file");
    refused(File::open(&missing), ErrorKind::NotFound, &missing);
    refused(File::options().write(true).open(&missing), ErrorKind::NotFound, &missing);
    let below = disk().join("no such folder/file");
    refused(File::options().write(true).create(true).open(&below), ErrorKind::NotFound, &below);
    refused(File::open(disk()), ErrorKind::IsDirectory, &disk());
    refused(File::options().write(true).open(disk()), ErrorKind::IsDirectory, &disk());
    for device in ["/dev/null", "/dev/zero"] {
        refused(File::open(device), ErrorKind::InvalidInput, Path::new(device));
    }
    let scratch = Scratch::with_pattern(&disk(), KEY, 1);
    let error = File::options().write(true).create_new(true).open(scratch.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    let nul = PathBuf::from(std::ffi::OsStr::from_bytes(b"nul\0inside"));
    assert_eq!(File::open(nul).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// Found by this test: opening a FIFO for reading waited for a writer for good.
#[test]
fn a_fifo_is_refused_at_once() {
    let scratch = Scratch::new(&disk());
    let name = CString::new(scratch.path().as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with NUL and lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for write in [false, true] {
        let path = scratch.path().to_owned();
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(File::options().write(write).open(path)));
        let result = told.recv_timeout(Duration::from_secs(3)).expect("opening a FIFO hangs");
        let error = refused(result, ErrorKind::InvalidInput, scratch.path());
        assert!(has_hint(&error, "pipes"), "{error:?}");
    }
}

#[test]
fn a_range_outside_of_the_buffer_is_refused() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
    let ranges = [0..1001, 1000..1001, 1001..1001, 10..9, 0..usize::MAX, usize::MAX..usize::MAX];
    for target in Target::ALL {
        for range in ranges.clone() {
            let mut buffer = target.buffer(&session, 1000);
            let piece = ReadPiece { offset: 0, range: range.clone() };
            let errors = [
                session.read_into(&file, 0, &mut buffer, range.clone()).unwrap_err(),
                session.write_from(&file, 0, &buffer, range.clone()).unwrap_err(),
                session.read_batch(&file, &[piece], buffer).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{range:?}: {error:?}");
                assert_eq!(context(&error, "buffer"), Some("1000"), "{error:?}");
            }
        }
        let mut buffer = target.buffer(&session, 1000);
        assert_eq!(session.read_into(&file, 0, &mut buffer, 1000..1000).unwrap().bytes(), 0);
        let error = buffer.copy_from_slice(&[0; 1001]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    }
}

#[test]
fn an_offset_that_no_file_has_is_refused() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for target in Target::ALL {
        for len in [10, 2_000_000] {
            for offset in [u64::MAX, u64::MAX - 5, i64::MAX as u64, i64::MAX as u64 - 5] {
                let mut buffer = target.buffer(&session, len);
                let piece = ReadPiece { offset, range: 0..len };
                let errors = [
                    session.read(&file, offset, &mut buffer).unwrap_err(),
                    session.write(&file, offset, &buffer).unwrap_err(),
                    session.read_batch(&file, &[piece], buffer).unwrap_err(),
                ];
                for error in errors {
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
                    assert_eq!(context(&error, "offset"), Some(offset.to_string().as_str()), "{error:?}");
                }
            }
        }
    }
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, 5000));
}

#[test]
fn pieces_that_overlap_are_refused() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let piece = |range| ReadPiece { offset: 0, range };
    for target in Target::ALL {
        for pieces in [
            vec![piece(0..100), piece(99..200)],
            vec![piece(500..600), piece(0..1000)],
            vec![piece(0..10), piece(20..30), piece(5..6)],
            vec![piece(7..9), piece(7..9)],
        ] {
            let error = session.read_batch(&file, &pieces, target.buffer(&session, 1000)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            assert!(has_hint(&error, "range of the buffer"), "{error:?}");
        }
        // Neighbours in any order, and the same place of the file twice, are fine.
        let pieces = [piece(100..200), piece(0..100), piece(200..200), piece(200..1000)];
        let outcome = session.read_batch(&file, &pieces, target.buffer(&session, 1000)).unwrap().wait();
        outcome.result().unwrap();
        assert!(outcome.buffer.to_vec().unwrap()[100..200] == pattern(KEY, 0, 100));
    }
    // Nothing covers no byte, wherever it lies.
    let pieces = [piece(0..1000), piece(500..500)];
    session
        .read_batch(&file, &pieces, session.host_buffer(1000).unwrap())
        .unwrap()
        .wait()
        .into_result()
        .unwrap();
}

#[test]
fn an_empty_batch_is_refused() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for target in Target::ALL {
        // A batch without pieces is done at once; no transfers at all are a mistake.
        let outcome = session.read_batch(&file, &[], target.buffer(&session, 10)).unwrap().wait();
        assert!(outcome.entries.is_empty() && outcome.receipt.bytes() == 0);
    }
    // SAFETY: nothing is transferred.
    let error = unsafe { session.submit(Vec::new()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
}

/// Found by this test: the first transfer's wish held for all of a submission.
#[test]
fn each_transfer_of_a_submission_has_its_own_wish_about_short_reads() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    for target in Target::ALL {
        for first in [false, true] {
            let buffers = [target.buffer(&session, 1000), target.buffer(&session, 1000)];
            let wishes = [first, !first];
            let transfers = buffers.iter().zip(wishes).map(|(buffer, allow_short)| Transfer {
                file: file.clone(),
                offset: 4500,
                memory: buffer.memory(),
                len: 1000,
                direction: Direction::Read,
                allow_short,
            });
            // SAFETY: the buffers live until the ticket is waited for.
            let outcome = unsafe { session.submit(transfers.collect()) }.unwrap().wait();
            for (entry, allow_short) in outcome.entries.iter().zip(wishes) {
                match entry {
                    Ok(bytes) => assert!(allow_short && *bytes == 500, "{entry:?}, allowed: {allow_short}"),
                    Err(error) => assert!(!allow_short && error.kind() == ErrorKind::ShortRead, "{error:?}"),
                }
            }
        }
    }
}

#[test]
fn transfers_of_several_devices_need_several_submissions() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::open(scratch.path()).unwrap();
    let session = session(IoBackend::Auto, CachePolicy::Auto);
    let buffers = Target::ALL.map(|target| target.buffer(&session, 1000));
    let transfers = buffers.iter().map(|buffer| Transfer {
        file: file.clone(),
        offset: 0,
        memory: buffer.memory(),
        len: 1000,
        direction: Direction::Read,
        allow_short: false,
    });
    // SAFETY: the buffers live on.
    let error = unsafe { session.submit(transfers.collect()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    assert!(has_hint(&error, "once for each device"), "{error:?}");
}

/// A device that no session has found.
#[derive(Debug)]
struct Stranger(DeviceInfo);

impl Device for Stranger {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn allocate(&self, _len: usize) -> Result<u64> {
        unreachable!()
    }
    fn allocate_kind(&self, _kind: AllocationKind, _len: usize) -> Result<u64> {
        unreachable!()
    }
    unsafe fn free(&self, _address: u64) {}
    unsafe fn free_kind(&self, _kind: AllocationKind, _memory: DeviceRange) {}
    fn memory_info(&self) -> Result<(u64, u64)> {
        unreachable!()
    }
    fn classify(&self, _address: u64) -> Result<PointerInfo> {
        unreachable!()
    }
    unsafe fn pin(&self, _memory: HostRange) -> Result<u64> {
        unreachable!()
    }
    unsafe fn unpin(&self, _address: *mut u8) {}
    fn stream(&self, _context: Context) -> Result<Box<dyn Stream>> {
        unreachable!()
    }
    unsafe fn foreign_stream(&self, _handle: u64) -> Result<Box<dyn Stream>> {
        unreachable!()
    }
    fn kernels(&self, _context: Context) -> Result<()> {
        unreachable!()
    }
}

#[test]
fn memory_of_an_unknown_device_is_refused() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let file = File::open(scratch.path()).unwrap();
    let known = session(IoBackend::Auto, CachePolicy::Auto);
    let host_only =
        Devices { gpus: Vec::new(), bars: Vec::new(), host: forebay_gpu::host::device(), missing: None };
    let host_only = Session::on_devices(config(IoBackend::Auto, CachePolicy::Auto), host_only).unwrap();
    let gpu = known.device(0).unwrap();
    let stranger = |index| {
        let info = DeviceInfo { index, name: "stranger".to_owned(), uuid: [7; 16], ..gpu.info().clone() };
        Arc::new(Stranger(info)) as Arc<dyn Device>
    };
    for (session, device) in [(&known, stranger(1)), (&known, stranger(99)), (&host_only, gpu.clone())] {
        let memory = Memory::new(device, 0x1000);
        let (direction, allow_short) = (Direction::Read, false);
        for len in [10, 2_000_000] {
            let transfer = Transfer {
                file: file.clone(),
                offset: 0,
                memory: memory.clone(),
                len,
                direction,
                allow_short,
            };
            let pieces = vec![Piece { offset: 0, address: 0x1000, len }];
            let batch = Batch { file: file.clone(), memory: memory.clone(), direction, pieces, allow_short };
            // SAFETY: refused before the memory is touched.
            let errors = unsafe {
                [
                    session.run(&transfer).unwrap_err(),
                    session.submit(vec![transfer]).unwrap_err(),
                    session.submit_batch(batch).unwrap_err(),
                ]
            };
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
                assert!(error.message().contains("does not know"), "{error:?}");
            }
        }
        let error = session.report(&memory.device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    }
}

#[test]
fn strict_fails_before_the_first_byte() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 2_000_000);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    let strict = vec!["p2p".to_owned(), "libcufile".to_owned()];
    let session =
        Session::with_config(Config { strict, ..config(IoBackend::Auto, CachePolicy::Auto) }).unwrap();
    for target in Target::ALL {
        for len in [10, 2_000_000] {
            let mut buffer = target.buffer(&session, len);
            let blank = vec![0xA5; len];
            buffer.copy_from_slice(&blank).unwrap();
            let error = session.read(&file, 0, &mut buffer).unwrap_err();
            assert!(error.kind() == ErrorKind::Strict && !error.hints().is_empty(), "{error:?}");
            let error = session.write(&file, 0, &buffer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Strict, "{error:?}");
            assert!(buffer.to_vec().unwrap() == blank);
            assert_eq!(session.submit_read(&file, 0, buffer).unwrap_err().kind(), ErrorKind::Strict);
        }
    }
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, 2_000_000));
    assert!(session.stats().iter().all(|stats| stats.moved.total() == 0));
}

#[test]
fn an_engine_cannot_be_registered_by_the_name_of_a_built_in_one() {
    for name in ["p2p", "mapped", "staged", "host", "noop", "vendor"] {
        let error = forebay_engine::register(name, |_, _| unreachable!("it has no name")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        assert_eq!(context(&error, "name"), Some(name), "{error:?}");
        assert!(has_hint(&error, "another name"), "{error:?}");
    }
}

#[test]
fn names_that_cannot_be_meant_are_told_with_what_to_write() {
    let told = |path: &str| forebay_engine::File::open(path).unwrap_err().hints().join("\n");
    assert_eq!(told("a\0b"), "the path has a zero byte: leave it out");
    assert_eq!(told("/no/such:/file"), "check the path (ls -l) and the spelling");
}

#[test]
fn what_lies_elsewhere_is_not_looked_for_here() {
    for (name, command) in [
        ("gs://bucket/key", "gcloud storage cp"),
        ("hf://org/model", "hf download"),
        ("https:/host/x", "curl"),
    ] {
        let error = File::open(name).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && has_hint(&error, command), "{error:?}");
        let error = File::options().write(true).create(true).open(name).unwrap_err();
        assert!(error.message().starts_with("cannot create file: forebay has no client for"), "{error:?}");
    }
    assert!(has_hint(&File::open("org/model-7b").unwrap_err(), "hf download org/model-7b"));
}
