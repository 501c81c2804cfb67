//! Probes a server: reads a file by 1, 4 and 8 connections, and compares every byte each time.

use std::fmt;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;
use forebay_verbs::Device;

use crate::client::file::NfsFile;
use crate::client::open::{UrlTarget, find, is_unreached, open};
use crate::client::probe_small::{PIECE, keep_in_flight, small_reads};
pub use crate::client::probe_small::{ProbeLatency, SMALL, SmallReads, WriteCost, probe_writes};
use crate::client::url::NfsUrl;
use crate::network::addresses::LeftOutAddress;
use crate::network::job::Direction;
use crate::network::options::{NfsOptions, RdmaOptions};
use crate::protocol::handle::{CallLimits, FileAttributes, FileKind, NfsVersion};

/// The result.
#[derive(Clone, Debug)]
pub struct ServerProbe {
    /// Each version that was asked for, with what the server says to it.
    pub versions: Vec<(NfsVersion, Result<(CallLimits, FileAttributes)>)>,
    /// How many of its addresses are used, in that version, and which are not.
    pub addresses: (usize, Vec<LeftOutAddress>),
    /// Rates, in the first version that is spoken; none for a directory.
    pub rates: Vec<ProbeRate>,
    /// The same by RDMA and 4 connections, or why not; none for a directory.
    pub rdma: Option<Result<ProbeRate>>,
    /// Reads of 4 KiB over TCP; none where the file has no 4 KiB.
    pub small: Option<SmallReads>,
    /// The RDMA device that this went by, as it describes itself.
    pub nic: Option<Device>,
    /// What the path is.
    pub attributes: FileAttributes,
}

/// A read of the file's begin.
#[derive(Clone, Debug)]
pub struct ProbeRate {
    /// The version.
    pub version: NfsVersion,
    /// Connections that were used at most.
    pub connections: usize,
    /// Bytes.
    pub bytes: u64,
    /// The best of three.
    pub elapsed: Duration,
    /// CPU time of this process in all three, without comparing.
    pub cpu: Duration,
}

impl ProbeRate {
    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU seconds for 10^9 bytes.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 * 3.0 / 1e9)
    }
}

impl fmt::Display for ProbeRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, connections, bytes) = (self.version, self.connections, self.bytes);
        let s = if connections == 1 { "" } else { "s" };
        write!(
            f,
            "{version}, {connections} connection{s}: {:.3} GB/s at {:.3} CPU s/GB ({bytes} bytes, the best of 3, the same bytes \
             each time)",
            self.gb_per_s(),
            self.cpu_per_gb()
        )
    }
}

/// CPU time of this process so far.
pub fn cpu_time() -> Duration {
    // SAFETY: all-zero bytes are a valid timespec, and the call writes only that.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now);
        now
    };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How long a server that has never answered is waited for, at most: who probes wants to know.
const FIRST_ANSWER: Duration = Duration::from_secs(8);

/// Bytes that are read at most.
const BYTES: u64 = 256 << 20;

/// Asks a server about a path, in all versions of the URL, and reads it if it is a file. RDMA uses the fabric of the
/// options, else by this machine's.
pub fn probe(url: &NfsUrl, options: &NfsOptions) -> Result<ServerProbe> {
    let options = &NfsOptions { first_answer: options.first_answer.min(FIRST_ANSWER), ..options.clone() };
    let (mut versions, mut addresses) = (Vec::new(), None);
    for version in &url.versions {
        let only = NfsUrl { versions: vec![*version], ..url.clone() };
        let found = find(&only, &NfsOptions { rdma: None, ..options.clone() });
        let found = found.map(|UrlTarget { client, attributes, .. }| {
            addresses.get_or_insert_with(|| (client.addresses_in_use(), client.left_out()));
            (client.limits(), attributes)
        });
        if let Err(error) = &found
            && versions.is_empty()
            && is_unreached(error)
        {
            // It would not answer in other versions either.
            return Err(error.clone());
        }
        versions.push((*version, found));
    }
    let spoken =
        versions.iter().find_map(|(version, found)| found.as_ref().ok().map(|found| (*version, found.1)));
    let Some((version, attributes)) = spoken else {
        let error = versions.iter().find_map(|(_, found)| found.as_ref().err().cloned());
        return Err(error.unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "no version to try")));
    };
    let (mut rates, mut rdma, mut nic, mut small) = (Vec::new(), None, None, None);
    if attributes.kind == FileKind::Regular && attributes.size > 0 {
        let url = NfsUrl { versions: vec![version], ..url.clone() };
        let mut first = vec![0; attributes.size.min(BYTES) as usize];
        for connections in [1, 4, 8] {
            let options = NfsOptions { connections, rdma: None, ..options.clone() };
            rates.push(rate(&url, &options, &mut first, rates.is_empty())?);
        }
        let by_rdma = options.rdma.clone().map_or_else(RdmaOptions::of_machine, Ok).and_then(|by| {
            let options = NfsOptions { connections: 4, rdma: Some(by), ..options.clone() };
            let file = open(&url, &options)?;
            nic = Some(file.client().domain()?.device().clone());
            rate(&url, &options, &mut first, false)
        });
        rdma = Some(by_rdma);
        small = small_reads(&url, options, &first)?;
    }
    let addresses = addresses.unwrap_or_default();
    Ok(ServerProbe { versions, addresses, rates, rdma, small, nic, attributes })
}

/// Reads three times. The bytes are those of the first read of all, or they are an error.
fn rate(url: &NfsUrl, options: &NfsOptions, first: &mut Vec<u8>, is_first: bool) -> Result<ProbeRate> {
    let file = open(url, options)?;
    let mut place = vec![0; first.len()];
    let (mut best, mut spent) = (Duration::MAX, Duration::ZERO);
    for round in 0..3 {
        // Other bytes than the file's, so that what does not come is seen.
        place.fill(0xA5);
        let before = cpu_time();
        best = best.min(read(&file, &mut place)?);
        spent += cpu_time().saturating_sub(before);
        if is_first && round == 0 {
            first.clone_from(&place);
        } else if *first != place {
            let at = first.iter().zip(&place).take_while(|(one, other)| one == other).count();
            return Err(Error::new(ErrorKind::Corrupt, "the file is not the same when it is read again")
                .with("url", url)
                .with("offset", at)
                .hint("if nothing writes to it, please report it"));
        }
    }
    let (version, connections) = (file.client().version(), options.connections);
    Ok(ProbeRate { version, connections, bytes: first.len() as u64, elapsed: best, cpu: spent })
}

/// Reads the begin of a file: pieces of 4 MiB, as many as there are connections twice over.
fn read(file: &NfsFile, place: &mut [u8]) -> Result<Duration> {
    let depth = file.client().connections() * 2;
    keep_in_flight(depth, place.chunks_mut(PIECE).enumerate(), |(index, piece), tell| {
        let len = piece.len();
        let answer = Box::new(move |result: Result<usize>| {
            let short = || Error::new(ErrorKind::ShortRead, "the file became shorter");
            let result = result.and_then(|got| if got == len { Ok(()) } else { Err(short()) });
            // The receiver waits for all.
            let _ = tell.send(result);
        });
        let memory = HostRange::of_mut(piece);
        // SAFETY: the pieces lie apart; this function returns when all are answered.
        unsafe { file.start(Direction::Read, (index * PIECE) as u64, memory, answer) };
    })
}
