//! The engine `placed`: a server in the process writes into the software GPU's memory over a fabric in the process. What it takes,
//! its refusals and their reasons, and transfers that fail on the way. The contract runs over it, too.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault as Slow, Lie, Placing, Server};
use fake_verbs::{Fake, FakeDevice, Fault, Side, What};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{EngineKind, File, Memory, ReadPiece, Receipt, Refusal, Session, Transfer, Way};
use forebay_error::ErrorKind;
use forebay_gpu::{Context, DefaultStream, DeviceRange};
use forebay_nfs::NfsSource;
use forebay_verbs::Kind;

use crate::common::{Scratch, allow_dma_bufs, config, disk, pattern, soon, try_placed, turn};

const KEY: u64 = 9;
const LEN: usize = 9_000_001;
const PATH: &str = "/export/file";

/// A server over a fabric, with a file of known bytes.
struct Place {
    server: Arc<Server>,
    placing: Placing,
    fabric: Fake,
}

impl Place {
    fn new(fabric: Fake, bytes: Vec<u8>) -> Self {
        let server = Arc::new(Server::start());
        server.put(PATH, bytes);
        let placing = Placing::start(&fabric, server.clone());
        Self { server, placing, fabric }
    }

    fn file(&self, version: &str) -> File {
        self.file_at(PATH, version)
    }

    fn file_at(&self, path: &str, version: &str) -> File {
        self.file_with(path, version, &forebay_nfs::NfsOptions::default())
    }

    fn file_with(&self, path: &str, version: &str, options: &forebay_nfs::NfsOptions) -> File {
        let rdma = forebay_nfs::RdmaOptions::by(Arc::new(self.fabric.clone()), Placing::address());
        let options = forebay_nfs::NfsOptions { connections: 2, rdma: Some(rdma), ..options.clone() };
        let url = forebay_nfs::NfsUrl::parse(&self.server.url(path, version)).unwrap();
        let source = NfsSource::new(forebay_nfs::open(&url, &options).unwrap(), (true, true));
        File::from_source(Arc::new(source)).unwrap()
    }
}

fn place() -> Place {
    forebay_nfs::register();
    Place::new(Fake::new(), pattern(KEY, 0, LEN))
}

fn session() -> Session {
    Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap()
}

fn asking_for(engine: &str) -> Session {
    let engine = Some(engine.to_owned());
    Session::with_config(Config { engine, ..config(IoBackend::Auto, CachePolicy::Auto) }).unwrap()
}

/// Reads all of a file and compares it, when the way was tried.
fn read(session: &Session, file: &File, expected: &[u8]) -> Receipt {
    try_placed(session, file, 4096);
    read_now(session, file, expected)
}

fn read_now(session: &Session, file: &File, expected: &[u8]) -> Receipt {
    let mut buffer = session.buffer(0, expected.len()).unwrap();
    buffer.copy_from_slice(&vec![0xA5; expected.len()]).unwrap();
    let receipt = session.read(file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == expected, "wrong bytes: {receipt}");
    assert_eq!(receipt.bytes(), expected.len() as u64);
    receipt
}

fn refused(receipt: &Receipt) -> &Refusal {
    receipt.election.refused.iter().find(|refusal| refusal.engine == EngineKind::Placed).unwrap()
}

#[test]
fn a_server_writes_into_gpu_memory_and_no_byte_crosses_the_host() {
    let turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    for version in ["3", "4.0", "4.1"] {
        let file = place.file(version);
        read(&session, &file, &pattern(KEY, 0, LEN));
        let mut buffer = session.buffer(0, LEN + 100).unwrap();
        buffer.copy_from_slice(&vec![0xA5; LEN + 100]).unwrap();
        let copies = turn.fake.calls("cuMemcpyHtoDAsync_v2");
        let flushes = turn.fake.calls("cuFlushGPUDirectRDMAWrites");
        for (offset, start, len) in [(0, 3, LEN), (1, 50, 1), (4095, 7, 1_500_003), (0, 0, 4096)] {
            let receipt = session.read_into(&file, offset, &mut buffer, start..start + len).unwrap();
            assert_eq!(
                (receipt.engine(), receipt.moved[Way::Server]),
                (EngineKind::Placed, len as u64),
                "{receipt}"
            );
            assert_eq!(receipt.engines().collect::<Vec<_>>(), [(EngineKind::Placed, len as u64)]);
            let text = receipt.to_string();
            let note = format!("NFS v{version}, server 127.0.0.1, NIC fake0; keys: per buffer");
            assert!(text.contains(&note), "{text}");
            assert!(text.contains(&format!("; {len} by RDMA from the server")), "{text}");
            assert!(!receipt.election.refused.iter().any(|refusal| refusal.engine == EngineKind::Placed));
        }
        assert_eq!(turn.fake.calls("cuMemcpyHtoDAsync_v2"), copies);
        // The NIC's writes are flushed before the transfer ends.
        assert_eq!(turn.fake.calls("cuFlushGPUDirectRDMAWrites"), flushes + 4);
        let bytes = buffer.to_vec().unwrap();
        assert!(bytes[..4096] == pattern(KEY, 0, 4096) && bytes[LEN + 3..] == [0xA5; 97]);
        assert!(bytes[4096..1_500_010] == pattern(KEY, 4095 + 4089, 1_500_010 - 4096));
    }
}

#[test]
fn batches_and_reads_beyond_the_end_come_over() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("4.1");
    try_placed(&session, &file, 4096);
    let pieces: Vec<_> = (0..700usize)
        .map(|index| ReadPiece {
            offset: (index * 12_007) as u64,
            range: index * 5000..index * 5000 + 4999 - index,
        })
        .collect();
    let buffer = session.buffer(0, 700 * 5000).unwrap();
    let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
    assert_eq!(outcome.receipt.moved[Way::Server], outcome.receipt.bytes(), "{}", outcome.receipt);
    let bytes = outcome.buffer.to_vec().unwrap();
    for piece in &pieces {
        assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, piece.range.len()));
    }
    let mut buffer = session.buffer(0, 100_000).unwrap();
    let error = session.read(&file, LEN as u64 - 10, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShortRead);
    assert!(buffer.to_vec().unwrap()[..10] == pattern(KEY, LEN as u64 - 10, 10));
}

#[test]
fn what_cannot_be_placed_is_staged_and_says_why() {
    let turn = turn();
    let place = place();
    let file = place.file("3");
    let expected = pattern(KEY, 0, LEN);
    // The GPU's driver makes no dma-bufs.
    let receipt = read(&session(), &file, &expected);
    assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0));
    assert_eq!(refused(&receipt).reason, "the GPU's driver makes no dma-bufs of its memory");
    assert!(refused(&receipt).hint.as_ref().unwrap().contains("open kernel modules"));

    allow_dma_bufs();
    let session = session();
    // The NIC registers none.
    let address = Ipv4Addr::new(10, 0, 0, 1).into();
    let nic = FakeDevice { dma_bufs: false, ..FakeDevice::new("plain0", address) };
    let plain = Place::new(Fake::with(vec![nic]), expected.clone());
    let receipt = read(&session, &plain.file("3"), &expected);
    assert!(refused(&receipt).reason.starts_with("cannot register a dma-buf"), "{receipt}");
    // The file's bytes go over TCP.
    let receipt = read(&session, &File::open(place.server.url(PATH, "3")).unwrap(), &expected);
    let refusal = refused(&receipt);
    assert_eq!(
        (refusal.reason.as_str(), refusal.hint.as_deref()),
        ("the file's bytes go over TCP", Some("FOREBAY_NFS=rdma"))
    );
    // Memory of a pool has no dma-buf.
    let context = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(context).unwrap();
    let address = turn.fake.allocate_from_pool(LEN).unwrap();
    let memory = Memory::new(session.devices().gpus[0].clone(), address);
    let direction = forebay_engine::Direction::Read;
    let transfer = Transfer { file, offset: 0, memory, len: LEN, direction, allow_short: false };
    // SAFETY: the memory is this test's alone, and the transfer is waited for.
    let outcome = unsafe { session.submit(vec![transfer]) }.unwrap().wait();
    assert!(
        refused(&outcome.receipt).reason.contains("makes no dma-buf of this memory"),
        "{}",
        outcome.receipt
    );
    assert!(turn.fake.read(address, LEN).unwrap() == expected);
    turn.fake.free(address).unwrap();
    turn.fake.set_current_context(0).unwrap();

    // Files that are no server's do not speak of it.
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let receipt = read(&session, &File::open(scratch.path()).unwrap(), &expected);
    assert!(!receipt.to_string().contains("placed"), "{receipt}");
}

#[test]
fn where_a_fork_would_take_memory_away_that_bytes_are_copied_is_told() {
    let place = place();
    for (copies, is_told) in [(true, false), (false, true)] {
        place.fabric.copy_at_fork(copies);
        let way = place.file("3").facts().way.unwrap();
        assert_eq!(way.contains("; bytes are copied once more, because a fork"), is_told, "{way}");
    }
}

/// Placed by the server, and over TCP: the receipt of the transfer that waited says it, and no later one.
#[test]
fn a_silence_of_the_server_is_in_the_receipt_of_what_it_held_up() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let silence = Duration::from_millis(10_400);
    let options = forebay_nfs::NfsOptions { silence, ..forebay_nfs::NfsOptions::default() };
    let placed = place.file_with(PATH, "3", &options);
    read(&session, &placed, &pattern(KEY, 0, LEN));
    let url = forebay_nfs::NfsUrl::parse(&place.server.url(PATH, "4.0")).unwrap();
    let options = forebay_nfs::NfsOptions { connections: 1, ..forebay_nfs::NfsOptions::default() };
    let source = NfsSource::new(forebay_nfs::open(&url, &options).unwrap(), (true, true));
    let requested = File::from_source(Arc::new(source)).unwrap();
    // One call.
    let held = |file: &File, engine| {
        let mut buffer = session.buffer(0, 1 << 20).unwrap();
        let receipt = session.read(file, 0, &mut buffer).unwrap();
        assert_eq!(receipt.engine(), engine, "{receipt}");
        receipt.to_string()
    };
    let soon = Instant::now() + Duration::from_secs(1);
    place.fabric.inject(Fault::on(Side::Server, Kind::Send, What::Lose));
    place.server.faults(move |seen| {
        (seen.asked == Asked::Read && Instant::now() < soon).then_some(Slow::Late(silence))
    });
    std::thread::scope(|scope| {
        let files = [(&placed, EngineKind::Placed), (&requested, EngineKind::Staged)];
        let readers = files.map(|(file, engine)| {
            scope.spawn({
                let held = &held;
                move || [held(file, engine), held(file, engine)]
            })
        });
        for reader in readers {
            let [first, second] = reader.join().unwrap();
            // A busy machine makes it longer.
            let told: Vec<_> = first.split("held up: server 127.0.0.1 was silent for ").skip(1).collect();
            let seconds = told.iter().filter_map(|text| text.split_once(" s in all")?.0.parse::<u64>().ok());
            assert!(told.len() == 1 && seconds.min() >= Some(10), "{first}");
            assert!(!second.contains("held up"), "{second}");
        }
    });
}

#[test]
fn writes_are_staged_and_say_so() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("3");
    for len in [4096, LEN] {
        let mut buffer = session.buffer(0, len).unwrap();
        buffer.copy_from_slice(&pattern(77, 0, len)).unwrap();
        let receipt = session.write(&file, 0, &buffer).unwrap();
        assert_eq!((receipt.engine(), receipt.moved[Way::Requested]), (EngineKind::Staged, len as u64));
        assert_eq!(refused(&receipt).reason, "writes go through host memory");
    }
    assert!(place.server.durable(PATH) == pattern(77, 0, LEN));
}

#[test]
fn bytes_that_do_not_arrive_refuse_the_way_for_good() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("3");
    // The first write is into host memory, to compare with; the second is the trial's.
    place.fabric.inject(Fault::on(Side::Server, Kind::Write, What::Lose).after(1));
    // A transfer without an alternative waits for the trial, and none of its bytes move meanwhile.
    let mut buffer = session.buffer(0, LEN).unwrap();
    let error = asking_for("placed").read(&file, 0, &mut buffer).unwrap_err().to_string();
    assert!(error.contains("its bytes did not arrive (first wrong byte at 0)"), "{error}");
    for _ in 0..2 {
        let receipt = read(&session, &file, &pattern(KEY, 0, LEN));
        assert_eq!((receipt.engine(), receipt.moved[Way::Server]), (EngineKind::Staged, 0));
        assert!(refused(&receipt).reason.contains("its bytes did not arrive (first wrong byte at 0)"));
    }
    // Another GPU, server or NIC would be another way: that of another client is.
    let receipt = read(&session, &place.file("4.0"), &pattern(KEY, 0, LEN));
    assert_eq!(receipt.engine(), EngineKind::Placed, "{receipt}");
}

/// The transfer that asks first goes another way at once, however long the trial takes; memory for trials is allocated once.
#[test]
fn a_way_is_tried_beside_the_transfer_that_asks() {
    let turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let expected = pattern(KEY, 0, LEN);
    for version in ["3", "4.0", "4.1"] {
        let file = place.file(version);
        let mut buffer = session.buffer(0, LEN).unwrap();
        let allocations = turn.fake.calls("cuMemAlloc_v2");
        // The trial asks the server what the file is; the transfer does not.
        let mut is_first = true;
        place.server.faults(move |seen| {
            let is_it = seen.asked == Asked::Other && std::mem::take(&mut is_first);
            is_it.then_some(Slow::Late(Duration::from_secs(2)))
        });
        for _ in 0..3 {
            let receipt = session.read(&file, 0, &mut buffer).unwrap();
            assert_eq!((receipt.moved[Way::Server], receipt.bytes()), (0, LEN as u64), "{receipt}");
            assert_eq!(
                refused(&receipt).reason,
                "a trial whether the server reaches this memory is in progress"
            );
        }
        assert!(buffer.to_vec().unwrap() == expected);
        assert_eq!(read(&session, &file, &expected).engine(), EngineKind::Placed);
        // `read` allocates two buffers.
        let for_trials = turn.fake.calls("cuMemAlloc_v2") - allocations - 2;
        assert_eq!(for_trials, u64::from(version == "3"), "allocations for the trials of version {version}");
    }
}

#[test]
fn bytes_that_are_all_the_same_prove_nothing() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    place.server.put("/export/zeros", vec![0; LEN]);
    let receipt = read(&session, &place.file_at("/export/zeros", "3"), &vec![0; LEN]);
    assert_eq!(receipt.engine(), EngineKind::Staged);
    assert!(refused(&receipt).reason.contains("the same byte all over"), "{receipt}");
}

#[test]
fn memory_at_a_reused_address_is_registered_anew() {
    let turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("3");
    try_placed(&session, &file, 4096);
    let before = turn.fake.calls("cuMemGetHandleForAddressRange");
    let mut reused = 0;
    let mut last = 0;
    for _ in 0..20 {
        let mut buffer = session.buffer(0, LEN).unwrap();
        reused += u32::from(std::mem::replace(&mut last, buffer.address()) == buffer.address());
        buffer.copy_from_slice(&vec![0xA5; LEN]).unwrap();
        let receipt = session.read(&file, 0, &mut buffer).unwrap();
        assert_eq!(receipt.moved[Way::Server], LEN as u64, "{receipt}");
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "written through an old registration");
    }
    assert!(reused > 0, "no address came twice: this run proves nothing");
    // One for each buffer.
    assert_eq!(turn.fake.calls("cuMemGetHandleForAddressRange"), before + 20);
    let mut buffer = session.buffer(0, LEN).unwrap();
    for _ in 0..5 {
        session.read(&file, 0, &mut buffer).unwrap();
    }
    assert_eq!(turn.fake.calls("cuMemGetHandleForAddressRange"), before + 21);
}

/// Mappings of device memory in this process: the software GPU's own, and those of registrations.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:fake-cuda")).count()
}

#[test]
fn freed_memory_is_given_back_soon() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("3");
    // What other tests have left is given back, too.
    let wait = |most| {
        let until = Instant::now() + Duration::from_secs(20);
        while mappings() > most {
            assert!(Instant::now() < until, "a registration keeps memory that was freed");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(0);
    try_placed(&session, &file, 4096);
    // The memory that trials keep.
    wait(1);
    let mut buffer = session.buffer(0, LEN).unwrap();
    session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(mappings(), 3, "the GPU's, and the registration's");
    drop(buffer);
    wait(1);
    // It works as before.
    read(&session, &file, &pattern(KEY, 0, LEN));
}

#[test]
fn a_server_that_lies_costs_its_connection_and_no_byte() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("4.1");
    let expected = pattern(KEY, 0, LEN);
    read(&session, &file, &expected);
    for lie in
        [Lie::Placed, Lie::Inline, Lie::TwoNumbers, Lie::Noise, Lie::Twice, Lie::NoCredits, Lie::ManyCredits]
    {
        place.placing.lie(lie);
        let receipt = read_now(&session, &file, &expected);
        assert_eq!(receipt.moved[Way::Server], LEN as u64, "{lie:?}: {receipt}");
    }
}

/// The registration ends with the allocation. Within it the key is the buffer's, and the receipt says so.
#[test]
fn what_a_server_writes_behind_the_allocation_is_refused() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("4.1");
    let expected = pattern(KEY, 0, 64 << 10);
    read(&session, &file, &expected);
    place.placing.lie(Lie::Beyond);
    let receipt = read_now(&session, &file, &expected);
    assert_eq!(place.fabric.counts().refused, 1, "{receipt}");
    assert!(receipt.to_string().contains("keys: per buffer"), "{receipt}");
}

#[test]
fn what_the_server_refuses_is_staged() {
    let _turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session());
    let file = place.file("3");
    let expected = pattern(KEY, 0, LEN);
    read(&session, &file, &expected);
    place.placing.lie(Lie::WrongChunks);
    let receipt = read_now(&session, &file, &expected);
    assert_eq!((receipt.moved[Way::Requested], receipt.moved[Way::Server]), (LEN as u64, 0), "{receipt}");
    assert_eq!(receipt.engine(), EngineKind::Staged, "{receipt}");
    assert!(refused(&receipt).reason.ends_with(&format!("({LEN} bytes were staged)")), "{receipt}");
    // It is left alone for a moment, and then used again.
    let until = Instant::now() + Duration::from_secs(20);
    while read(&session, &file, &expected).engine() != EngineKind::Placed {
        assert!(Instant::now() < until, "it is never tried again");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_nic_that_is_replaced_costs_a_transfer_its_way_and_not_its_bytes() {
    let _turn = turn();
    allow_dma_bufs();
    let address = |last| Ipv4Addr::new(10, 0, 0, last).into();
    let devices = vec![FakeDevice::new("nic0", address(2)), FakeDevice::new("nic1", address(1))];
    let (place, session) = (Place::new(Fake::with(devices), pattern(KEY, 0, LEN)), session());
    let file = place.file("3");
    let expected = pattern(KEY, 0, LEN);
    assert!(read(&session, &file, &expected).to_string().contains("NIC nic0"));
    // The third call goes when the device does.
    place.fabric.inject(Fault::on(Side::Client, Kind::Send, What::RemoveDevice).after(2));
    read_now(&session, &file, &expected);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let receipt = read(&session, &file, &expected);
        if receipt.engine() == EngineKind::Placed {
            assert!(receipt.to_string().contains("NIC nic1"), "{receipt}");
            break;
        }
        assert!(Instant::now() < until, "the other NIC is never used: {receipt}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn bytes_arrive_after_what_stands_on_the_default_stream() {
    let turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), session().behind_default_streams());
    let file = place.file("3");
    read(&session, &file, &pattern(KEY, 0, LEN));
    let mut buffer = session.buffer(0, LEN).unwrap();
    turn.fake.set_default_stream_delay_us(300_000);
    let legacy = session.devices().gpus[0].default_stream(Context::PRIMARY, DefaultStream::Legacy).unwrap();
    // SAFETY: the buffer outlives the work: the read below comes behind it.
    unsafe { legacy.zero(DeviceRange::new(buffer.address(), LEN)) }.unwrap();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(receipt.moved[Way::Server], LEN as u64, "{receipt}");
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "written before the program's own work");
}

#[test]
fn asked_for_by_name_it_does_this_or_nothing() {
    let _turn = turn();
    let place = place();
    let message = |session: &Session, file: &File| {
        let mut buffer = session.buffer(0, 5000).unwrap();
        session.read(file, 0, &mut buffer).unwrap_err().to_string()
    };
    let file = place.file("3");
    let without = message(&asking_for("placed"), &file);
    assert!(
        without.contains("engine placed cannot do this: the GPU's driver makes no dma-bufs"),
        "{without}"
    );
    allow_dma_bufs();
    let session = asking_for("placed");
    assert_eq!(read(&session, &file, &pattern(KEY, 0, LEN)).engine(), EngineKind::Placed);
    let over_tcp = message(&session, &File::open(place.server.url(PATH, "3")).unwrap());
    assert!(over_tcp.contains("engine placed cannot do this: the file's bytes go over TCP"), "{over_tcp}");
    let receipt = read(&asking_for("rdma"), &file, &pattern(KEY, 0, LEN));
    assert!(receipt.to_string().contains("the engine `rdma` is called `placed` now"), "{receipt}");
    let scratch = Scratch::with_pattern(&disk(), KEY, 5000);
    let local = message(&session, &File::open(scratch.path()).unwrap());
    assert!(local.contains("the file is not one of a server's"), "{local}");
    let buffer = session.buffer(0, 5000).unwrap();
    let error = session.write(&file, 0, &buffer).unwrap_err().to_string();
    assert!(error.contains("engine placed cannot do this: writes go through host memory"), "{error}");
}

/// Trials of other ways may come before: not for longer than calls of the file would wait.
#[test]
fn asked_for_by_name_it_waits_for_a_trial_as_long_as_for_the_server() {
    let _turn = turn();
    allow_dma_bufs();
    let (slow, hasty, session) = (place(), place(), asking_for("placed"));
    let deadline = Duration::from_millis(300);
    let options = forebay_nfs::NfsOptions { deadline, ..Default::default() };
    let files = [slow.file_at(PATH, "3"), hasty.file_with(PATH, "3", &options)];
    let mut is_first = true;
    slow.server.faults(move |seen| {
        let is_it = seen.asked == Asked::Other && std::mem::take(&mut is_first);
        is_it.then_some(Slow::Late(Duration::from_secs(4)))
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut buffer = session.buffer(0, 4096).unwrap();
            session.read(&files[0], 0, &mut buffer).unwrap().engine()
        });
        std::thread::sleep(Duration::from_millis(500));
        let (mut buffer, began) = (session.buffer(0, 4096).unwrap(), Instant::now());
        let error = session.read(&files[1], 0, &mut buffer).unwrap_err();
        assert!(error.message().contains("is in progress"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(first.join().unwrap(), EngineKind::Placed);
        let mut found = session.read(&files[1], 0, &mut buffer);
        while found.is_err() && began.elapsed() < Duration::from_secs(20) {
            found = session.read(&files[1], 0, &mut buffer);
        }
        assert_eq!(found.unwrap().engine(), EngineKind::Placed);
    });
}

/// Where the software GPU's allocation of this length begins: nobody may touch it there.
fn start_of(fake: &fake_cuda::Fake, len: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let mut pages = maps.lines().filter(|line| line.contains(" ---p ")).flat_map(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (number(start)..number(end)).step_by(4096)
    });
    let is_it = |start: &u64| fake.read(*start, len).is_some() && fake.read(*start, len + 1).is_none();
    pages.find(is_it).unwrap()
}

/// After a reset of the device the memory of trials may be the program's.
#[test]
fn memory_of_trials_is_not_used_once_it_belongs_to_others() {
    /// As much as trials take.
    const TAKEN: usize = (64 << 10) + 2 * 4099;
    let turn = turn();
    allow_dma_bufs();
    let (place, session) = (place(), asking_for("placed"));
    let files = ["3", "4.1"].map(|version| place.file(version));
    let mut buffer = session.buffer(0, 4096).unwrap();
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    session.read(&files[0], 0, &mut buffer).unwrap();
    let start = start_of(turn.fake, TAKEN);
    // As a reset does, and what the program may do then: the address is the same in most runs.
    turn.fake.free(start).unwrap();
    let own = turn.fake.allocate(TAKEN).unwrap();
    assert!(turn.fake.write(own, &vec![7; TAKEN]));
    session.read(&files[1], 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 4096));
    assert!(turn.fake.read(own, TAKEN).unwrap() == vec![7; TAKEN], "a trial wrote into the program's memory");
    drop(buffer);
    drop(session);
    turn.fake.free(own).unwrap();
    turn.fake.set_current_context(0).unwrap();
}

/// The owner of a trial's memory can be checked later only if the driver gave it at first.
#[test]
fn a_driver_that_does_not_tell_of_memory_costs_none() {
    let turn = turn();
    allow_dma_bufs();
    for after in 0..8 {
        let before = turn.fake.leaks().device_allocations;
        let (place, session) = (place(), session());
        let file = place.file("3");
        let mut buffer = session.buffer(0, 4096).unwrap();
        turn.fake.fail_next("cuPointerGetAttributes", 1, after, 1);
        try_placed(&session, &file, 4096);
        turn.fake.reset();
        allow_dma_bufs();
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 4096));
        drop((buffer, file, session));
        // Fewer: what an earlier test's session still had.
        assert!(soon(|| turn.fake.leaks().device_allocations <= before), "call {after}");
    }
}
