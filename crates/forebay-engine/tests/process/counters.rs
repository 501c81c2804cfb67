//! Live counters: what transfers of the process's session leave behind, seen as another process would.

use std::time::Instant;

use crate::common::late::{UserStream, fixed};
use crate::common::{Scratch, disk, in_process, pattern, turn};
use crate::pages::{self, MIB};
use forebay_engine::{Direction, File, ReadPiece, Session};
use forebay_stats::{Reader, Snapshot};

const KEY: u64 = 3;
const LEN: usize = 2 * MIB + 100;

fn seen() -> Snapshot {
    Reader::attach(std::process::id()).unwrap().snapshot().unwrap()
}

fn engine(snapshot: &Snapshot, name: &str) -> (u64, u64) {
    let engine = snapshot.engines.iter().find(|engine| engine.name == name);
    engine.map_or((0, 0), |engine| (engine.requests, engine.bytes))
}

#[test]
fn transfers_of_the_process_session_are_counted_once() {
    in_process(&[], &[], || {
        let turn = turn();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::options().write(true).open(scratch.path()).unwrap();
        // A session of one's own is for benchmarks and tests, and is not counted.
        let own = Session::with_config(pages::config()).unwrap();
        own.read(&file, 0, &mut own.host_buffer(LEN).unwrap()).unwrap();
        assert!(Reader::attach(std::process::id()).is_err(), "nobody counts yet");

        let session = Session::open().unwrap();
        let mut host = session.host_buffer(LEN).unwrap();
        let mut gpu = session.buffer(0, LEN).unwrap();
        session.read(&file, 0, &mut host).unwrap();
        session.read_into(&file, 0, &mut gpu, 0..4096).unwrap();
        session.read(&file, 0, &mut gpu).unwrap();
        let after = seen();
        assert_eq!((after.read.ok, after.read.err, after.write.ok), (3, 0, 0));
        assert_eq!(after.read.bytes, 2 * LEN as u64 + 4096);
        assert_eq!((after.host.read.ok, after.host.read.bytes), (1, LEN as u64));
        assert_eq!((after.gpus[0].device.read.ok, after.gpus[0].device.read.bytes), (2, LEN as u64 + 4096));
        assert_eq!(after.gpus[0].device.read.unaligned, 1, "the one that is a page");
        assert_eq!(engine(&after, "host"), (1, LEN as u64));
        assert_eq!(engine(&after, "staged"), (2, LEN as u64 + 4096));
        assert!(after.refusals.iter().any(|refusal| refusal.engine == "mapped"), "{:?}", after.refusals);

        // Tickets, batches and streams.
        session.submit_write(&file, 0, host).unwrap().wait().into_result().unwrap();
        let pieces: Vec<_> = (0..10)
            .map(|at| ReadPiece { offset: at * 5000, range: at as usize * 4096..(at as usize + 1) * 4096 })
            .collect();
        session.read_batch(&file, &pieces, gpu).unwrap().wait().into_result().unwrap();
        let user = UserStream::new(&turn, &session);
        let buffer = session.buffer(0, 60_000).unwrap();
        let (late, _) = fixed(&file, &buffer.memory(), Direction::Read, (0, 0, 60_000));
        // SAFETY: the stream and the buffer live until it is through.
        unsafe { session.enqueue(user.handle, late) }.unwrap();
        user.finish();
        let after = seen();
        assert_eq!((after.read.ok, after.write.ok), (5, 1));
        assert_eq!(after.write.bytes, LEN as u64);
        assert_eq!(after.read.bytes, 2 * LEN as u64 + 4096 + 40_960 + 60_000);

        // What fails, and what a front counts for itself.
        let mut long = session.host_buffer(LEN + 1).unwrap();
        session.read(&file, 0, &mut long).unwrap_err();
        assert_eq!((seen().read.ok, seen().read.err), (5, 1));
        let said: Vec<_> = seen().notes.into_iter().map(|note| note.text).collect();
        let why = "a call failed: the file ended before the requested number of bytes";
        assert_eq!(said.iter().filter(|text| *text == why).count(), 1, "{said:?}");
        session.uncounted().read_into(&file, 0, &mut long, 0..100).unwrap();
        assert_eq!(seen().read.ok, 5);
        assert!(std::ptr::eq(forebay_engine::counters().unwrap(), forebay_engine::counters().unwrap()));
        assert_eq!(forebay_engine::counters().unwrap().snapshot().read.ok, 5);
        let watched = Session::with_counters(pages::config()).unwrap();
        watched.read_into(&file, 0, &mut long, 0..100).unwrap();
        assert_eq!(seen().read.ok, 6);
        assert_eq!(long.as_slice().unwrap()[..100], pattern(KEY, 0, 100));
    });
}

#[test]
#[ignore = "a measurement: cargo test --release -p forebay-engine --test process -- --ignored --nocapture counters::"]
fn counting_is_cheap() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&pages::memory(), KEY, 4096);
    let file = File::open(scratch.path()).unwrap();
    let session = Session::open().unwrap();
    let mut buffer = session.host_buffer(64).unwrap();
    for round in 0..6 {
        let session = if round % 2 == 0 { session.uncounted() } else { session.clone() };
        let begun = Instant::now();
        (0..500_000).for_each(|_| drop(session.read(&file, 0, &mut buffer).unwrap()));
        println!("{}: {} ns", ["uncounted", "counted"][round % 2], begun.elapsed().as_nanos() / 500_000);
    }
}
