//! 4 KiB operations between a file and memory that behaves as a PCI BAR, for counting instructions:
//!
//! `submit_cost ENGINE FORM OPERATIONS FILE`, with the engine `p2p` or `staged` and the form `read`, `write` (synchronous, on
//! the caller's thread) or `batch` (reads, 256 pieces in a batch, by a lane). `bench/instructions.py` runs it.

use std::error::Error;
use std::fs::File;
use std::os::fd::FromRawFd;

use forebay_config::{CachePolicy, Config};
use forebay_engine::{Batch, Buffer, Direction, EngineKind, Memory, Piece, Session, Transfer};
use forebay_gpu::bar::{Mapping, Provider};
use forebay_gpu::{Devices, bar, host};

const PIECE: usize = 4096;
const BATCH: usize = 256;

/// Memory that O_DIRECT takes, as it would that of a BAR.
#[derive(Debug)]
struct Memfd;

impl Provider for Memfd {
    fn name(&self) -> &'static str {
        "p2pmem:memfd"
    }

    fn pci(&self) -> &'static str {
        ""
    }

    fn memory(&self) -> forebay_error::Result<(u64, u64)> {
        Ok((1 << 30, 1 << 30))
    }

    fn map(&self, len: usize) -> forebay_error::Result<Mapping> {
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"bar".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(forebay_error::Error::last_os("cannot make a memory file"));
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64).map_err(|error| forebay_error::Error::from_io(&error, "cannot size it"))?;
        Mapping::of(&file, len)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, engine, form, operations, path] = arguments.as_slice() else {
        return Err("use: submit_cost p2p|staged read|write|batch OPERATIONS FILE".into());
    };
    let operations: usize = operations.parse()?;
    let config =
        Config { lanes: 1, cache: CachePolicy::Bypass, engine: Some(engine.clone()), ..Config::from_env()? };
    let devices =
        Devices { gpus: Vec::new(), bars: vec![bar::device(Memfd, 0)], host: host::device(), missing: None };
    let session = Session::on_devices(config, devices)?;
    let file = forebay_engine::File::options().write(true).open(path)?;
    let pages = file.len()? / PIECE as u64;
    if pages < 2 {
        return Err("the file is too short".into());
    }
    let buffer = Buffer::new(session.devices().bars[0].clone(), PIECE * BATCH)?;
    // No two neighbours, so that each is an operation of its own.
    let offset = |index: usize| index as u64 * 7919 % pages * PIECE as u64;
    let direction = if form == "write" { Direction::Write } else { Direction::Read };
    let wanted: EngineKind = engine.parse()?;
    let mut done = 0;
    while done < operations {
        let receipt = if form == "batch" {
            let piece = |index: usize| Piece {
                offset: offset(done + index),
                address: buffer.address() + (index * PIECE) as u64,
                len: PIECE,
            };
            let pieces = (0..BATCH).map(piece).collect();
            let memory = Memory::new(buffer.device().clone(), buffer.address());
            let batch = Batch { file: file.clone(), memory, direction, pieces, allow_short: false };
            done += BATCH;
            // SAFETY: the buffer outlives the ticket, which is waited for.
            unsafe { session.submit_batch(batch) }?.wait().into_result()?.0
        } else {
            let memory = Memory::new(buffer.device().clone(), buffer.address());
            let transfer = Transfer {
                file: file.clone(),
                offset: offset(done),
                memory,
                len: PIECE,
                direction,
                allow_short: false,
            };
            done += 1;
            // SAFETY: the buffer outlives the call.
            unsafe { session.run(&transfer) }?
        };
        if receipt.engine() != wanted {
            return Err(format!("not by {engine}: {receipt}").into());
        }
    }
    Ok(())
}
