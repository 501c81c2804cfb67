//! One warm file for all GPUs of the machine: each pulls its own part; then all get the whole, by peer copies.
//!
//! `cargo run --release -p forebay-engine --example fan -- FILE [ROUNDS]`. Rounds before and after all pins were
//! released; the first round of each is a first read. Compares the bytes at the end.
#![allow(clippy::print_stdout, reason = "a program")]

#[path = "../../forebay-gpu/examples/common/mod.rs"]
mod common;

use std::time::Instant;

use common::cpu;
use forebay_engine::{Buffer, File, Receipt, Session};
use forebay_error::{Error, ErrorKind, Result};

/// Runs `work`, which delivers `bytes`, and prints how fast.
fn timed(what: &str, round: usize, bytes: usize, work: impl FnOnce() -> Result<Receipt>) -> Result<()> {
    let (started, used) = (Instant::now(), cpu());
    let receipt = work()?;
    let gigabytes = bytes as f64 / 1e9;
    let rate = gigabytes / started.elapsed().as_secs_f64();
    let after = cpu();
    let cost = (after.0 - used.0 + after.1 - used.1) / gigabytes;
    println!("{what} {round}: {rate:.1} GB/s delivered, {cost:.4} CPU s/GB, mostly by {}", receipt.engine());
    Ok(())
}

/// Each GPU reads its own part.
fn parts(session: &Session, file: &File, len: usize, rounds: usize) -> Result<()> {
    let gpus = session.devices().gpus.len();
    let part = len / gpus;
    let mut buffers = (0..gpus).map(|gpu| session.buffer(gpu, part)).collect::<Result<Vec<Buffer>>>()?;
    for round in 0..2 * rounds {
        if round == rounds {
            session.trim();
        }
        timed("own parts", round, part * gpus, || {
            std::thread::scope(|scope| {
                let reads: Vec<_> = buffers
                    .iter_mut()
                    .enumerate()
                    .map(|(gpu, buffer)| scope.spawn(move || session.read(file, (gpu * part) as u64, buffer)))
                    .collect();
                let died = || Error::new(ErrorKind::Internal, "a reader died");
                let results = reads.into_iter().map(|read| read.join().unwrap_or_else(|_| Err(died())));
                results.reduce(Result::and).unwrap_or_else(|| Err(died()))
            })
        })?;
    }
    Ok(())
}

/// All GPUs get the whole.
fn whole(session: &Session, file: &File, len: usize, rounds: usize) -> Result<()> {
    let gpus = session.devices().gpus.len();
    let mut buffers = (0..gpus).map(|gpu| session.buffer(gpu, len)).collect::<Result<Vec<Buffer>>>()?;
    for round in 0..2 * rounds {
        if round == rounds {
            session.trim();
        }
        timed("the whole", round, len * gpus, || session.read_to_all(file, 0, &mut buffers))?;
    }
    let mut wanted = session.host_buffer(len)?;
    session.read(file, 0, &mut wanted)?;
    for (gpu, buffer) in buffers.iter().enumerate() {
        if wanted.as_slice() != Some(&buffer.to_vec()?) {
            return Err(Error::new(ErrorKind::Io, "wrong bytes").with("gpu", gpu));
        }
    }
    println!("bytes compared on {gpus} GPUs");
    Ok(())
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let usage = || Error::new(ErrorKind::InvalidInput, "which file?").hint("fan FILE [ROUNDS]");
    let path = words.next().ok_or_else(usage)?;
    let rounds = words.next().and_then(|word| word.parse().ok()).unwrap_or(5);
    let session = Session::open()?;
    if session.devices().gpus.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "no GPU").hint("forebay check says why"));
    }
    let file = File::open(path)?;
    let len = file.len()? as usize;
    parts(&session, &file, len, rounds)?;
    whole(&session, &file, len, rounds)
}
