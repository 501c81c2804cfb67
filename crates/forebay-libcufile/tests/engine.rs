//! The engine `libcufile` over a test double of NVIDIA's library: its receipts, and its failures.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Scratch, Turn, context, disk, has_hint, in_process, pattern, soon, turn};
use fake_cufile::Fake;
use forebay_config::Config;
use forebay_engine::source::MemorySource;
use forebay_engine::{Direction, EngineKind, File, ReadPiece, Receipt, Session, Source, Transfer, Way};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 91;
const LEN: usize = 3_000_000;
const LIMIT: Duration = Duration::from_millis(300);

struct Case {
    turn: Turn,
    fake: &'static Fake,
    session: Session,
    file: File,
    scratch: Scratch,
}

fn config() -> Config {
    Config { engine: Some("libcufile".to_owned()), lanes: 2, libcufile_timeout: LIMIT, ..Config::default() }
}

/// A file, and a session over a library that behaves as the words say.
fn case(words: &str) -> Case {
    let turn = turn();
    let fake = fake_cufile::install().unwrap();
    forebay_libcufile::register();
    fake.set(words);
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    Case { turn, fake, session: Session::with_config(config()).unwrap(), file, scratch }
}

impl Case {
    fn read(&self, offset: u64, len: usize) -> Result<(Vec<u8>, Receipt)> {
        let mut buffer = self.session.buffer(0, len).unwrap();
        let receipt = self.session.read(&self.file, offset, &mut buffer)?;
        Ok((buffer.to_vec()?, receipt))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<Receipt> {
        let mut buffer = self.session.buffer(0, bytes.len()).unwrap();
        buffer.copy_from_slice(bytes).unwrap();
        self.session.write(&self.file, offset, &buffer)
    }
}

#[test]
fn the_receipt_names_engine_mode_and_library() {
    let case = case("");
    let (bytes, receipt) = case.read(5, 1_000_000).unwrap();
    assert!(bytes == pattern(KEY, 5, 1_000_000));
    assert_eq!((receipt.engine(), receipt.moved[Way::Requested]), (EngineKind::Libcufile, 1_000_000));
    assert_eq!(receipt.election.title(), "libcufile (compat)");
    let text = receipt.to_string();
    assert!(text.starts_with("1000000 bytes by libcufile (compat) in "), "{text}");
    assert!(text.contains("note: libcufile 1.15 at /"), "{text}");
    assert!(text.contains("compat mode"), "{text}");
    let election = case.session.elect(&case.session.device(0).unwrap()).unwrap();
    assert_eq!(election.title(), "libcufile (compat)");
    assert_eq!(case.fake.count("without-context"), 0, "a call was made on a thread without a CUDA context");
}

#[test]
fn the_old_name_is_taken_with_a_note() {
    let case = case("");
    let config = Config { engine: Some("vendor".to_owned()), ..config() };
    let session = Session::with_config(config).unwrap();
    let mut buffer = session.buffer(0, 1000).unwrap();
    let text = session.read(&case.file, 0, &mut buffer).unwrap().to_string();
    assert!(text.starts_with("1000 bytes by libcufile (compat)"), "{text}");
    assert!(text.contains("note: the engine `vendor` is called `libcufile` now"), "{text}");
}

#[test]
fn a_closed_file_is_forgotten() {
    let case = case("");
    case.read(0, 100).unwrap();
    assert!(soon(|| case.fake.count("files") == 1), "{}", case.fake.count("files"));
    let Case { turn, fake, session, file, scratch } = case;
    drop(file);
    assert!(soon(|| fake.count("files") == 0), "{}", fake.count("files"));
    drop((turn, session, scratch));
}

#[test]
fn a_library_that_moves_little_at_a_time_moves_all() {
    let case = case("short");
    let (bytes, _) = case.read(1, 100_000).unwrap();
    assert!(bytes == pattern(KEY, 1, 100_000));
    case.write(77, &pattern(5, 0, 50_000)).unwrap();
    assert!(std::fs::read(case.scratch.path()).unwrap()[77..50_077] == pattern(5, 0, 50_000));
    assert_eq!(case.read(LEN as u64 - 10, 2000).unwrap_err().kind(), ErrorKind::ShortRead);
}

#[test]
fn failures_have_their_meaning() {
    let case = case("");
    case.read(0, 100).unwrap();
    for (words, kind, code) in [
        ("fail-read=5", ErrorKind::Io, None),
        ("fail-read=5,negative", ErrorKind::Io, None),
        ("fail-read=5013", ErrorKind::InvalidInput, Some("5013")),
        ("fail-read=5011,negative", ErrorKind::DeviceLost, Some("5011")),
        ("too-much", ErrorKind::Io, None),
    ] {
        case.fake.set(words);
        let error = case.read(0, 10_000).unwrap_err();
        assert_eq!(error.kind(), kind, "{words}: {error}");
        assert_eq!(context(&error, "cufile"), code, "{words}: {error}");
        assert!(error.message().contains("NVIDIA's libcufile"), "{error}");
        assert!(context(&error, "file").is_some() && context(&error, "offset").is_some(), "{error}");
    }
    case.fake.set("fail-write=28");
    assert_eq!(case.write(0, &[1; 5000]).unwrap_err().kind(), ErrorKind::NoSpace);
    // It goes on when the library does.
    case.fake.set("");
    assert!(case.read(0, LEN).unwrap().0 == pattern(KEY, 0, LEN));
}

#[test]
fn a_batch_tells_good_pieces_from_bad_ones() {
    let case = case("");
    let pieces: Vec<_> = (0..50)
        .map(|at| ReadPiece {
            offset: if at == 9 { LEN as u64 - 1 } else { at as u64 * 1111 },
            range: at * 500..(at + 1) * 500,
        })
        .collect();
    let buffer = case.session.buffer(0, 25_000).unwrap();
    let outcome = case.session.read_batch(&case.file, &pieces, buffer).unwrap().wait();
    let bytes = outcome.buffer.to_vec().unwrap();
    for (at, result) in outcome.entries.iter().enumerate() {
        match (at, result) {
            (9, result) => assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::ShortRead),
            (_, result) => {
                assert_eq!(*result.as_ref().unwrap(), 500);
                assert!(bytes[at * 500..][..500] == pattern(KEY, at as u64 * 1111, 500));
            }
        }
    }
}

#[test]
fn what_the_library_cannot_do_is_refused_before_a_byte_moves() {
    let case = case("");
    let error = case.session.elect(&case.session.devices().host).unwrap_err();
    assert!(error.message().contains("host memory"), "{error}");
    let source = Arc::new(MemorySource::new(pattern(1, 0, 1000), Duration::ZERO));
    let file = File::from_source(source as Arc<dyn Source>).unwrap();
    let mut buffer = case.session.buffer(0, 1000).unwrap();
    let error = case.session.read(&file, 0, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("not a file"), "{error}");
}

#[test]
fn a_file_without_a_udev_entry_is_refused_with_what_to_type() {
    let case = case("no-udev");
    let error = case.read(0, 1000).unwrap_err();
    assert_eq!((error.kind(), context(&error, "cufile")), (ErrorKind::Unsupported, Some("5027")), "{error}");
    if !std::path::Path::new("/run/udev/data").exists() {
        assert!(error.message().contains("udev"), "{error}");
        assert!(has_hint(&error, "/run/udev") || has_hint(&error, "1.17"), "{error:?}");
    }
    assert_eq!(case.fake.count("cuFileRead"), 0);
}

#[test]
fn it_is_never_elected_by_itself() {
    let case = case("");
    let strict = |words: &[&str]| Config {
        engine: None,
        strict: words.iter().map(|word| (*word).to_owned()).collect(),
        ..config()
    };
    let session = Session::with_config(strict(&["libcufile"])).unwrap();
    let mut buffer = session.buffer(0, 1000).unwrap();
    let error = session.read(&case.file, 0, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Strict);
    assert!(has_hint(&error, "FOREBAY_ENGINE=libcufile"), "{error:?}");
    let both = Config { engine: Some("libcufile".to_owned()), ..strict(&["libcufile"]) };
    let session = Session::with_config(both).unwrap();
    assert_eq!(session.read(&case.file, 0, &mut buffer).unwrap().engine(), EngineKind::Libcufile);
}

#[test]
fn transfers_in_the_order_of_a_stream_come_after_what_it_has() {
    let case = case("");
    let primary = case.turn.fake.retain_primary(0).unwrap();
    case.turn.fake.set_current_context(primary).unwrap();
    let stream = case.turn.fake.create_stream(1).unwrap();
    let buffer = case.session.buffer(0, 4096).unwrap();
    let transfer = |offset| Transfer {
        file: case.file.clone(),
        offset,
        memory: buffer.memory(),
        len: 4096,
        direction: Direction::Read,
        allow_short: false,
    };
    case.turn.fake.set_delay_us(2000);
    for offset in [8192, 0] {
        // SAFETY: the buffer outlives the wait, and nobody else uses it.
        let ticket = unsafe { case.session.submit_on(stream, vec![transfer(offset)]) }.unwrap();
        let outcome = ticket.wait();
        assert_eq!(outcome.result().unwrap().engine(), EngineKind::Libcufile);
        assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, 4096));
    }
    case.turn.fake.begin_capture(stream, 2).unwrap();
    // SAFETY: as above.
    let error = unsafe { case.session.submit_on(stream, vec![transfer(0)]) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    case.turn.fake.end_capture(stream).unwrap();
    case.turn.fake.destroy_stream(stream).unwrap();
}

#[test]
fn a_cancelled_batch_leaves_out_what_has_not_begun() {
    in_process(&[], &[], || {
        let case = case("");
        let case = Case {
            session: Session::with_config(Config { libcufile_timeout: Duration::from_mins(1), ..config() })
                .unwrap(),
            ..case
        };
        case.read(0, 100).unwrap();
        case.fake.set("hang-large");
        let len = 2 << 20;
        let pieces: Vec<_> =
            (0..6).map(|at| ReadPiece { offset: at as u64, range: at * len..(at + 1) * len }).collect();
        let buffer = case.session.buffer(0, 6 * len).unwrap();
        let ticket = case.session.read_batch(&case.file, &pieces, buffer).unwrap();
        assert!(soon(|| case.fake.count("hanging") == 2));
        ticket.cancel();
        case.fake.set("");
        case.fake.release();
        let outcome = ticket.wait();
        let cancelled =
            |result: &Result<u64>| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Cancelled);
        assert_eq!(
            outcome.entries.iter().filter(|result| cancelled(result)).count(),
            4,
            "{:?}",
            outcome.entries
        );
        assert_eq!(
            outcome.entries.iter().filter(|result| result.is_ok()).count(),
            2,
            "{:?}",
            outcome.entries
        );
    });
}

// ---- what can happen once in a process -------------------------------------------------------------------------------

#[test]
fn modes_are_told_by_what_the_library_counts() {
    for (words, title) in [
        ("nvidia-fs", "libcufile (nvidia-fs)"),
        ("p2pdma,version=1200", "libcufile (p2pdma)"),
        ("nvidia-fs,version=1190", "libcufile (nvidia-fs)"),
        ("nvidia-fs,version=1140", "libcufile (mode unknown)"),
    ] {
        in_process(&[], &[("WORDS", words), ("TITLE", title)], || {
            let (words, title) = (std::env::var("WORDS").unwrap(), std::env::var("TITLE").unwrap());
            let case = case(&words);
            let (_, receipt) = case.read(0, 100_000).unwrap();
            assert_eq!(receipt.election.title(), title, "{words}");
        });
        if std::env::var("FOREBAY_TEST_CHILD").is_ok() {
            return;
        }
    }
}

#[test]
fn a_library_that_reads_wrong_bytes_is_not_used() {
    in_process(&[], &[], || {
        let case = case("wrong");
        for _ in 0..2 {
            assert_eq!(case.read(0, 1000).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(case.fake.count("cuFileRead"), 1, "it was called again");
    });
}

#[test]
fn a_library_that_moves_nothing_is_not_used_for_zeros_either() {
    in_process(&[], &[], || {
        let case = case("nothing");
        std::fs::write(case.scratch.path(), vec![0; LEN]).unwrap();
        assert_eq!(case.read(0, 1000).unwrap_err().kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn a_library_that_cannot_open_says_why() {
    in_process(&[], &[], || {
        let case = case("no-module");
        let error = case.read(0, 1000).unwrap_err();
        assert_eq!(
            (error.kind(), context(&error, "cufile")),
            (ErrorKind::Unsupported, Some("5001")),
            "{error}"
        );
        assert!(has_hint(&error, "CUFILE_ALLOW_COMPAT_MODE"), "{error:?}");
        assert!(case.session.elect(&case.session.device(0).unwrap()).is_err());
    });
}

#[test]
fn standard_input_stays() {
    in_process(&[], &[], || {
        let case = case("closes-stdin");
        let of = |fd: &str| std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let before = of("0").unwrap();
        case.read(0, 1000).unwrap();
        assert_eq!(of("0").unwrap(), before);
    });
}

fn fails_in_time(case: &Case, len: usize, call: &str) {
    let started = Instant::now();
    let error = case.read(0, len).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains(call), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let started = Instant::now();
    let error = case.read(0, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(started.elapsed() < LIMIT, "it was called again: {:?}", started.elapsed());
}

#[test]
fn opening_that_hangs_does_not_hang_the_caller() {
    in_process(&[], &[], || {
        let case = case("hang-open");
        fails_in_time(&case, 1000, "cuFileDriverOpen");
        // The rest of forebay goes on.
        let staged = Session::with_config(Config { engine: None, ..config() }).unwrap();
        let mut buffer = staged.buffer(0, 1000).unwrap();
        staged.read(&case.file, 0, &mut buffer).unwrap();
    });
}

#[test]
fn registering_that_hangs_does_not_hang_the_caller() {
    in_process(&[], &[], || {
        fails_in_time(&case("hang-register"), 1000, "cuFileHandleRegister");
    });
}

#[test]
fn a_trial_that_hangs_does_not_touch_the_caller_s_memory() {
    in_process(&[], &[], || {
        fails_in_time(&case("hang-read"), 1000, "cuFileRead");
    });
}

#[test]
fn a_read_that_hangs_fails_and_its_memory_is_kept() {
    in_process(&[], &[], || {
        let case = case("");
        case.read(0, 1000).unwrap();
        let allocated = case.turn.fake.leaks().device_allocations;
        case.fake.set("hang-large");
        let buffer = case.session.buffer(0, 2 << 20).unwrap();
        let address = buffer.address();
        let ticket = case.session.submit_read(&case.file, 0, buffer).unwrap();
        let outcome = ticket.wait();
        let error = outcome.entries[0].as_ref().unwrap_err().clone();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(has_hint(&error, "end the process"), "{error:?}");
        drop(outcome);
        assert_eq!(case.turn.fake.leaks().device_allocations, allocated + 1, "memory in use was freed");
        fails_in_time_again(&case);
        // Should it come back after all, it writes to memory that is still there, and nothing else happens.
        case.fake.release();
        assert!(soon(|| case.turn.fake.read(address, 1000) == Some(pattern(KEY, 0, 1000))));
    });
}

fn fails_in_time_again(case: &Case) {
    let error = case.read(0, 100).unwrap_err();
    assert!(error.message().contains("not called any more"), "{error}");
}

#[test]
fn queued_transfers_fail_with_the_one_that_hangs() {
    in_process(&[], &[], || {
        let case = case("");
        case.read(0, 1000).unwrap();
        case.fake.set("hang-large");
        let len = 1 << 20;
        let pieces: Vec<_> =
            (0..40).map(|at| ReadPiece { offset: 0, range: at * len..(at + 1) * len }).collect();
        let buffer = case.session.buffer(0, 40 * len).unwrap();
        let started = Instant::now();
        let outcome = case.session.read_batch(&case.file, &pieces, buffer).unwrap().wait();
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        for result in &outcome.entries {
            assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        }
    });
}

#[test]
fn a_library_that_is_not_there_says_where_it_was_looked_for() {
    in_process(&[], &[], || {
        let case = case("");
        // SAFETY: this process has no other thread that reads the environment.
        unsafe { std::env::set_var("FOREBAY_VENDOR_LIBCUFILE", "/nowhere/libcufile.so.0") };
        let error = case.read(0, 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("/nowhere/libcufile.so.0"), "{error}");
    });
}
