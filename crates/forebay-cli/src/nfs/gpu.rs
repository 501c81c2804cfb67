//! Whether a server writes into the memory of this machine's GPUs, and how fast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_config::{Config, Nfs};
use forebay_engine::source::NfsSource;
use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;
use forebay_nfs::probe::{Rate, cpu_time};
use forebay_nfs::{Options, Rdma, Url, open};

/// Bytes that are read at most.
const BYTES: u64 = 256 << 20;
const CONNECTIONS: usize = 4;

/// What was found for a GPU: the rate, and what the receipt says of the way; or why there is none.
pub(super) type Placed = (usize, Result<(Rate, String)>);

/// Has the server write the begin of a file into each GPU's memory three times. Every byte is compared with what comes over TCP.
pub(super) fn probe(url: &Url) -> Result<Vec<Placed>> {
    let rdma = Rdma::of_machine()?;
    let config = Config::from_env()?;
    let further = config.nfs_servers.of(&[&url.server]);
    let options = Options { rdma: Some(rdma), connections: CONNECTIONS, further, ..Options::default() };
    place(&Session::with_config(only_rdma(config))?, url, &options)
}

fn only_rdma(config: Config) -> Config {
    Config { engine: Some("rdma".to_owned()), nfs: Nfs::Rdma, ..config }
}

fn place(session: &Session, url: &Url, options: &Options) -> Result<Vec<Placed>> {
    let gpus = &session.devices().gpus;
    if gpus.is_empty() {
        return Ok(Vec::new());
    }
    let expected = expected(url)?;
    let opened = open(url, options)?;
    let version = opened.client().version();
    let file = File::from_source(Arc::new(NfsSource::new(opened, (true, false))));
    let (bytes, none) = (expected.len() as u64, Duration::ZERO);
    let rate = Rate { version, connections: CONNECTIONS, bytes, elapsed: Duration::MAX, cpu: none };
    let index = |device: &Arc<dyn Device>| device.info().index;
    Ok(gpus
        .iter()
        .map(|gpu| (index(gpu), three_times(session, index(gpu), &file, &expected, rate.clone())))
        .collect())
}

fn three_times(
    session: &Session,
    gpu: usize,
    file: &File,
    expected: &[u8],
    mut rate: Rate,
) -> Result<(Rate, String)> {
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
fn expected(url: &Url) -> Result<Vec<u8>> {
    let file = open(url, &Options::default())?;
    let mut bytes = vec![0; file.attributes()?.size.min(BYTES) as usize];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use fake_nfs::{Placing, Server};
    use fake_verbs::Fake;
    use forebay_config::Config;
    use forebay_engine::Session;
    use forebay_nfs::{Options, Rdma, Url};

    use super::{CONNECTIONS, only_rdma, place};

    const DMA_BUF_SUPPORTED: i32 = 124;

    #[test]
    fn every_gpu_is_told_with_its_rate_or_why_there_is_none() {
        let gpu = fake_cuda::install().unwrap();
        let server = Arc::new(Server::start());
        let bytes: Vec<u8> = (0..5_000_011u64).map(|at| ((at * at) >> 7) as u8).collect();
        server.put("/export/file", bytes.clone());
        let fabric = Fake::new();
        let _placing = Placing::start(&fabric, server.clone());
        let url = Url::parse(&server.url("/export/file", "4.1")).unwrap();
        let tell = || {
            let rdma = Rdma::by(Arc::new(fabric.clone()), Placing::address());
            let session = Session::with_config(only_rdma(Config::default())).unwrap();
            let options = Options { rdma: Some(rdma), connections: CONNECTIONS, ..Options::default() };
            place(&session, &url, &options).unwrap().pop().unwrap()
        };
        let (index, refused) = tell();
        assert!(index == 0 && refused.unwrap_err().to_string().contains("makes no dma-bufs"));
        gpu.set_attribute(DMA_BUF_SUPPORTED, 1);
        let (rate, way) = tell().1.unwrap();
        assert_eq!(rate.bytes, bytes.len() as u64);
        assert!(way.contains("NFS v4.1, server 127.0.0.1, NIC fake0; keys: per buffer"), "{way}");
    }
}
