//! What no client can do without: an object is received into memory of its size by as many sockets, each with a blocking thread, through
//! rustls where the URL is `https`. Prints bytes, seconds and CPU seconds as JSON. `bench/objects.py` runs it.
//!
//! `bare_receive URL BYTES SOCKETS RANGE [CA_FILE]`: a signed URL of a GET, bytes of the object and of a range.
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The longest head of a reply.
const HEAD: usize = 16 << 10;
const PAGE: usize = 4096;

fn cpu() -> Duration {
    // SAFETY: all-zero bytes are a valid timespec, and the call writes only that.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now);
        now
    };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Where the object is.
struct Place {
    host: String,
    target: String,
    tls: Option<Arc<ClientConfig>>,
}

trait Both: Read + Write {}
impl<T: Read + Write> Both for T {}

impl Place {
    fn of(url: &str, ca_file: Option<&str>) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| Error::other("no URL"))?;
        let (host, target) = rest.split_once('/').ok_or_else(|| Error::other("no path"))?;
        let tls = (scheme == "https").then(|| config(ca_file)).transpose()?;
        Ok(Self { host: host.to_owned(), target: format!("/{target}"), tls })
    }

    fn connect(&self) -> Result<Box<dyn Both>> {
        let socket = TcpStream::connect(&self.host)?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = self.host.rsplit_once(':').map_or(self.host.as_str(), |(name, _)| name).to_owned();
        let name = ServerName::try_from(name).map_err(Error::other)?;
        let connection = ClientConnection::new(tls.clone(), name).map_err(Error::other)?;
        Ok(Box::new(StreamOwned::new(connection, socket)))
    }
}

fn config(ca_file: Option<&str>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let file = ca_file.ok_or_else(|| Error::other("https needs a file with certificates"))?;
    for certificate in CertificateDer::pem_file_iter(file).map_err(Error::other)? {
        roots.add(certificate.map_err(Error::other)?).map_err(Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(Arc::new(builder.map_err(Error::other)?.with_root_certificates(roots).with_no_client_auth()))
}

/// One range into its memory.
fn receive(connection: &mut dyn Both, place: &Place, start: usize, into: &mut [u8]) -> Result<()> {
    let (target, host, last) = (&place.target, &place.host, start + into.len() - 1);
    let ask = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nrange: bytes={start}-{last}\r\n\r\n");
    connection.write_all(ask.as_bytes())?;
    connection.flush()?;
    let mut head = [0; HEAD];
    let mut len = 0;
    let end = loop {
        let got = connection.read(&mut head[len..])?;
        if got == 0 {
            return Err(Error::other("the head of a reply ends early"));
        }
        len += got;
        if let Some(at) = head[..len].windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    if !head.starts_with(b"HTTP/1.1 206") {
        return Err(Error::other(String::from_utf8_lossy(&head[..end]).into_owned()));
    }
    into[..len - end].copy_from_slice(&head[end..len]);
    connection.read_exact(&mut into[len - end..])
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let usage = || Error::other("use: bare_receive URL BYTES SOCKETS RANGE [CA_FILE]");
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<usize>().ok()).ok_or_else(usage);
    let (bytes, sockets, range) = (number(2)?, number(3)?, number(4)?);
    let place = Place::of(&arguments[1], arguments.get(5).map(String::as_str))?;
    // Written once: page faults are not measured.
    let mut room = vec![0xA5u8; bytes + PAGE];
    // As buffers of engines do: the kernel copies slower to memory that begins some bytes behind a page.
    let first = room.as_ptr().align_offset(PAGE);
    let pieces: Vec<_> =
        room[first..first + bytes].chunks_mut(range).map(|piece| Mutex::new(Some(piece))).collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut connection = place.connect()?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else { return Ok(()) };
            let taken = piece.lock().map_err(|_| Error::other("another thread failed"))?.take();
            let Some(piece) = taken else { return Ok(()) };
            receive(&mut *connection, &place, index * range, piece)?;
        }
    };
    let (began, spent) = (Instant::now(), cpu());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..sockets).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|one| one.join().map_err(|_| Error::other("a thread failed"))?)
    })?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu().saturating_sub(spent).as_secs_f64());
    println!("{{\"bytes\": {bytes}, \"seconds\": {seconds:.6}, \"cpu_s\": {cpu:.6}}}");
    Ok(())
}
