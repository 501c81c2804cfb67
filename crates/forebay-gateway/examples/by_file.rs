//! Objects of a gateway on this node against the same bytes as files: opened, moved whole and closed, one behind the other, by the same
//! engine. A row has the median of its rounds, in which file and object alternate; CPU seconds have the gateway's in them. IBM's columns
//! are those of its poster: S3 over RDMA and POSIX of Storage Scale, on machines of its own.
//!
//!     cargo run --release -p forebay-gateway --example by_file -- DIRECTORY [--gpu] [--rounds 5] [--bytes 1G]
//!
//! Written are new files and objects, both durable before the next. `cold`: not in the page cache. It asks for the drive's bytes, where
//! the directory lies on one.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a measurement ends where something fails")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_engine::{Buffer, File, Session};
use forebay_gateway::{AccountEntry, Accounts, Server, ServerOptions, in_directory};
use forebay_models::Pending;

const MIB: usize = 1 << 20;
/// Bytes, and what IBM's poster has of objects of this size: GB/s of reads and writes.
const SIZES: [(usize, f64, f64); 5] = [
    (MIB, 23.5, 4.6),
    (16 * MIB, 272.0, 73.6),
    (64 * MIB, 308.0, 140.0),
    (128 * MIB, 308.0, 149.0),
    (1024 * MIB, 297.0, 153.0),
];
/// Its POSIX reads and writes, of 1 GB.
const IBM_POSIX: (f64, f64) = (320.0, 155.0);

struct Options {
    directory: PathBuf,
    gpu: bool,
    rounds: usize,
    /// Bytes of each size in a round.
    bytes: usize,
}

fn options() -> Options {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| all.iter().position(|one| one == name).map(|at| all[at + 1].clone());
    let directory = all.first().filter(|one| !one.starts_with('-')).expect("name a directory").into();
    let rounds = after("--rounds").map_or(5, |rounds| rounds.parse().unwrap());
    let bytes =
        after("--bytes").map_or(1 << 30, |bytes| forebay_config::parse_size(&bytes).unwrap() as usize);
    Options { directory, gpu: all.iter().any(|one| one == "--gpu"), rounds, bytes }
}

/// Names of files, or URLs of the gateway.
struct Place {
    prefix: String,
}

impl Place {
    fn name(&self, size: usize, number: usize) -> String {
        format!("{}/{}-{number}", self.prefix, size / MIB)
    }
}

/// Seconds and CPU seconds.
#[derive(Clone, Copy)]
struct Taken {
    wall: f64,
    cpu: f64,
}

fn cpu() -> f64 {
    // SAFETY: all zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn timed(act: impl FnOnce()) -> Taken {
    let (before, begin) = (cpu(), Instant::now());
    act();
    Taken { wall: begin.elapsed().as_secs_f64(), cpu: cpu() - before }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn read(session: &Session, place: &Place, (size, count): (usize, usize), buffer: &mut Buffer) -> Taken {
    timed(|| {
        for number in 0..count {
            let file = File::open(place.name(size, number)).unwrap();
            session.read(&file, 0, buffer).unwrap();
        }
    })
}

fn write(session: &Session, place: &Place, (size, count): (usize, usize), buffer: &Buffer) -> Taken {
    timed(|| {
        for number in 0..count {
            let pending = Pending::create(place.name(size, number)).unwrap();
            pending.file().preallocate(size as u64).unwrap();
            session.write(pending.file(), 0, buffer).unwrap();
            pending.commit(true).unwrap();
        }
    })
}

fn main() {
    let options = options();
    let served = options.directory.join("by-file");
    std::fs::create_dir_all(served.join("bucket")).unwrap();
    let places = [
        Place { prefix: served.join("bucket").display().to_string() },
        Place { prefix: "s3://bucket".to_owned() },
    ];
    serve(&served);
    let session = Session::open().unwrap();
    let to = if options.gpu { "GPU memory" } else { "host memory" };
    println!("{to}, {} rounds, {} MiB of each size in a round\n", options.rounds, options.bytes / MIB);
    println!(
        "| object | | page cache | file GB/s | op/s | CPU s/GB | object GB/s | op/s | CPU s/GB | object/file | IBM GB/s | IBM of POSIX |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (size, ibm_read, ibm_write) in SIZES {
        let count = (options.bytes / size).clamp(1, 64);
        let mut buffer =
            if options.gpu { session.buffer(0, size).unwrap() } else { session.host_buffer(size).unwrap() };
        let work = (size, count);
        row(&options, ("write", "–", ibm_write, IBM_POSIX.1), work, |way| {
            write(&session, &places[way], work, &buffer)
        });
        row(&options, ("read", "warm", ibm_read, IBM_POSIX.0), work, |way| {
            read(&session, &places[way], work, &mut buffer)
        });
        row(&options, ("read", "cold", ibm_read, IBM_POSIX.0), work, |way| {
            for number in 0..count {
                File::open(places[0].name(size, number)).unwrap().drop_cache().unwrap();
            }
            read(&session, &places[way], work, &mut buffer)
        });
        for number in 0..count {
            std::fs::remove_file(places[0].name(size, number)).unwrap();
        }
    }
    std::fs::remove_dir_all(served).unwrap();
}

/// Has file and object take turns, behind a round that does not count.
fn row(
    options: &Options,
    (what, state, ibm, ibm_posix): (&str, &str, f64, f64),
    (size, count): (usize, usize),
    mut run: impl FnMut(usize) -> Taken,
) {
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..=options.rounds {
        for turn in 0..2 {
            let way = (round + turn) % 2;
            let one = run(way);
            if round > 0 {
                taken[way].push(one);
            }
        }
    }
    let gigabytes = (size * count) as f64 / 1e9;
    let figures = taken.map(|all| {
        let wall = median(all.iter().map(|one| one.wall).collect());
        (gigabytes / wall, count as f64 / wall, median(all.iter().map(|one| one.cpu).collect()) / gigabytes)
    });
    let [(file, file_ops, file_cpu), (object, object_ops, object_cpu)] = figures;
    println!(
        "| {} MiB | {what} | {state} | {file:.2} | {file_ops:.0} | {file_cpu:.2} | {object:.2} | {object_ops:.0} | {object_cpu:.2} | {:.2} | {ibm:.1} | {:.2} |",
        size / MIB,
        object / file,
        ibm / ibm_posix,
    );
}

/// A gateway in this process, and the environment that leads to it.
fn serve(directory: &Path) {
    let accounts =
        Accounts::new(vec![AccountEntry::new("key", "secret")], in_directory(directory, true)).unwrap();
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    let sockets = std::env::temp_dir().join(format!("by-file-{}", std::process::id()));
    options.local = Some(sockets);
    let server = Server::bind(options, &accounts.into()).unwrap();
    let endpoint = format!("http://{}", server.address());
    for (name, value) in [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
        ("FOREBAY_S3_LOCAL", "auto"),
    ] {
        // SAFETY: no other thread is there yet.
        unsafe { std::env::set_var(name, value) };
    }
    std::thread::spawn(move || server.run(|| {}).unwrap());
    forebay_objects::register();
    // The first reply says where the socket is; from now on it must be used.
    assert!(File::open("s3://bucket/none").is_err());
    let probe = "s3://bucket/probe";
    forebay_objects::Bucket::of("bucket").unwrap().put("probe", b"probe").unwrap();
    assert!(File::open(probe).unwrap().raw_fd().is_some(), "the object does not come by its file");
    forebay_objects::Bucket::of("bucket").unwrap().delete("probe").unwrap();
    // SAFETY: the threads of the client read no variables while an object is opened.
    unsafe { std::env::set_var("FOREBAY_S3_LOCAL", "require") };
}
