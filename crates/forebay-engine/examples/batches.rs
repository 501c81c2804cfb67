//! One batch for a whole file, as saving or loading a model asks for it: equal pieces, one beside the other.
//!
//! `cargo run --release -p forebay-engine --example batches -- save|load FILE PIECES BYTES [ROUNDS]`
//!
//! `save` gives a new file its length and writes it, in each round again; `load` makes the file if it is not there and
//! reads it, in each round from the start, in one session: the first round registers what is worth it. BYTES is the length of a
//! piece; with a minus sign before it pieces are of all lengths from a 50th of it up to it. Memory is that of GPU 0, or
//! the host's where there is none. Compares the bytes at the end.
#![allow(clippy::print_stdout, reason = "a program")]

#[path = "../../forebay-gpu/examples/common/mod.rs"]
mod common;

use std::time::Instant;

use common::cpu;
use forebay_engine::{Batch, Buffer, Direction, File, Piece, Receipt, Session};
use forebay_error::{Error, ErrorKind, Result};

/// Lengths of the pieces.
fn lengths(count: usize, bytes: i64) -> Vec<usize> {
    let most = bytes.unsigned_abs() as usize;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count).map(|_| if bytes < 0 { most / 50 + next() % (most - most / 50) } else { most } & !7).collect()
}

/// The pieces, each at a multiple of 512 in memory, where a framework would put its tensors, and packed in the file after
/// a header.
fn layout(lengths: &[usize]) -> (Vec<Piece>, usize) {
    let (mut offset, mut address, mut pieces) = (10_008_u64, 0_usize, Vec::new());
    for len in lengths {
        pieces.push(Piece { offset, address: address as u64, len: *len });
        offset += *len as u64;
        address += len.next_multiple_of(512);
    }
    (pieces, address)
}

struct Work {
    session: Session,
    buffer: Buffer,
    pieces: Vec<Piece>,
    end: u64,
}

impl Work {
    fn run(&self, file: &File, direction: Direction) -> Result<Receipt> {
        let base = self.buffer.address();
        let moved = |piece: &Piece| Piece { address: base + piece.address, ..*piece };
        let pieces = self.pieces.iter().map(moved).collect();
        let memory = self.buffer.memory();
        let batch = Batch { file: file.clone(), memory, direction, pieces, allow_short: false };
        // SAFETY: the buffer outlives the ticket, which is waited for.
        unsafe { self.session.submit_batch(batch) }?.wait().into_result().map(|(receipt, ())| receipt)
    }

    fn timed(&self, what: &str, work: impl FnOnce() -> Result<Receipt>) -> Result<()> {
        let (started, used) = (Instant::now(), cpu());
        let receipt = work()?;
        let (seconds, after) = (started.elapsed().as_secs_f64(), cpu());
        let gigabytes = self.pieces.iter().map(|piece| piece.len).sum::<usize>() as f64 / 1e9;
        println!(
            "{what}: {:.1} ms, {:.2} GB/s, {:.4} CPU s/GB user, {:.4} system; {}",
            seconds * 1e3,
            gigabytes / seconds,
            (after.0 - used.0) / gigabytes,
            (after.1 - used.1) / gigabytes,
            receipt
        );
        Ok(())
    }

    fn save(&self, path: &str) -> Result<()> {
        self.timed("save", || {
            let file = File::options().write(true).create(true).truncate(true).open(path)?;
            file.set_len(self.end)?;
            let receipt = self.run(&file, Direction::Write)?;
            file.sync()?;
            Ok(receipt)
        })
    }

    fn check(&self, path: &str) -> Result<()> {
        let (there, here) = (std::fs::File::open(path), self.buffer.to_vec()?);
        let there = there.map_err(|error| Error::from_io(&error, "cannot open the file"))?;
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            bytes.resize(piece.len, 0);
            std::os::unix::fs::FileExt::read_exact_at(&there, &mut bytes, piece.offset)
                .map_err(|error| Error::from_io(&error, "cannot read the file"))?;
            let start = piece.address as usize;
            if bytes != here[start..start + piece.len] {
                return Err(Error::new(ErrorKind::Io, "wrong bytes").with("offset", piece.offset));
            }
        }
        println!("bytes compared");
        Ok(())
    }
}

fn main() -> Result<()> {
    let usage = || {
        Error::new(ErrorKind::InvalidInput, "no action is named")
            .hint("batches save|load FILE PIECES BYTES [ROUNDS]")
    };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, path, count, bytes, rest @ ..] = words.as_slice() else { return Err(usage()) };
    let (count, bytes) = (count.parse().map_err(|_| usage())?, bytes.parse().map_err(|_| usage())?);
    let rounds = rest.first().and_then(|word| word.parse().ok()).unwrap_or(5);
    let session = Session::open()?;
    let (pieces, room) = layout(&lengths(count, bytes));
    let mut buffer =
        if session.devices().gpus.is_empty() { session.host_buffer(room) } else { session.buffer(0, room) }?;
    let mut contents = vec![0; room];
    forebay_gpu::fill_pattern(&mut contents, 7, 0);
    buffer.copy_from_slice(&contents)?;
    drop(contents);
    let end = pieces.last().map_or(0, |piece| piece.offset + piece.len as u64);
    let mut work = Work { session, buffer, pieces, end };
    match what.as_str() {
        "save" => (0..rounds).try_for_each(|_| work.save(path))?,
        "load" => {
            if std::fs::metadata(path).is_ok_and(|about| about.len() == work.end) {
                println!("the file is there: it must hold what `save` wrote");
            } else {
                work.save(path)?;
            }
            work.buffer.copy_from_slice(&vec![0; room])?;
            let file = File::open(path)?;
            // Pages changed a moment ago are not read in place.
            std::thread::sleep(std::time::Duration::from_millis(1200));
            (0..rounds).try_for_each(|round| {
                work.timed(&format!("load {round}"), || work.run(&file, Direction::Read))
            })?;
        }
        _ => return Err(usage()),
    }
    work.check(path)
}
