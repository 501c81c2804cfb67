//! Whether a server writes into the memory of this machine's GPUs, and how fast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_config::{Config, Nfs};
use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::NfsSource;
use forebay_nfs::probe::{ProbeRate, cpu_time};
use forebay_nfs::{NfsOptions, NfsUrl, open};

/// Bytes that are read at most.
const BYTES: u64 = 256 << 20;
const CONNECTIONS: usize = 4;

/// The result for one GPU.
pub(super) struct Placed {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) pci: String,
    /// The rate, and the way from the receipt; or why there is none.
    pub(super) result: Result<(ProbeRate, String)>,
}

/// A session with the engine `placed` only.
pub(super) fn session() -> Result<Session> {
    Session::with_config(only_rdma(Config::from_env()?))
}

pub(super) fn only_rdma(config: Config) -> Config {
    Config { engine: Some("placed".to_owned()), nfs: Nfs::Rdma, ..config }
}

/// Has the server write the begin of a file into each GPU's memory three times. Every byte is compared with what comes over TCP.
pub(super) fn place(session: &Session, url: &NfsUrl, options: &NfsOptions) -> Result<Vec<Placed>> {
    let gpus = &session.devices().gpus;
    if gpus.is_empty() {
        return Ok(Vec::new());
    }
    let expected = expected(url)?;
    let options = &NfsOptions { connections: CONNECTIONS, ..options.clone() };
    let opened = open(url, options)?;
    let version = opened.client().version();
    let file = File::from_source(Arc::new(NfsSource::new(opened, (true, false))))?;
    let (bytes, none) = (expected.len() as u64, Duration::ZERO);
    let rate = ProbeRate { version, connections: CONNECTIONS, bytes, elapsed: Duration::MAX, cpu: none };
    let placed = gpus.iter().map(|gpu| {
        let info = gpu.info();
        let result = three_times(session, info.index, &file, &expected, rate.clone());
        Placed { index: info.index, name: info.name.clone(), pci: info.pci.clone(), result }
    });
    Ok(placed.collect())
}

fn three_times(
    session: &Session,
    gpu: usize,
    file: &File,
    expected: &[u8],
    mut rate: ProbeRate,
) -> Result<(ProbeRate, String)> {
    let others: Vec<u8> = expected.iter().map(|byte| !byte).collect();
    let mut buffer = session.buffer(gpu, expected.len())?;
    let mut way = String::new();
    for _ in 0..3 {
        buffer.copy_from_slice(&others)?;
        let (began, before) = (Instant::now(), cpu_time());
        let receipt = session.read(file, 0, &mut buffer)?;
        rate.elapsed = rate.elapsed.min(began.elapsed());
        rate.cpu += cpu_time().saturating_sub(before);
        if buffer.to_vec()? != expected {
            return Err(Error::new(ErrorKind::Corrupt, "the bytes in the GPU's memory are not the file's")
                .hint("if nothing writes to the file, please report it: FOREBAY_NFS=tcp reads it by another way"));
        }
        way = receipt.election.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>().join("; ");
    }
    Ok((rate, way))
}

/// The begin of the file, over TCP.
fn expected(url: &NfsUrl) -> Result<Vec<u8>> {
    let file = open(url, &NfsOptions::default())?;
    let mut bytes = vec![0; file.attributes()?.size.min(BYTES) as usize];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(bytes)
}
