//! Moves bytes of a file on an NFS server, and compares each: what the lab's guests run against Linux's own server.
//!
//! ```text
//! nfs_loop tcp|rdma ranges URL FILE     reads odd ranges to odd addresses between guard bytes; FILE has the same bytes
//! nfs_loop tcp|rdma writes URL FILE     writes odd ranges, of which the last is behind the end, and reads all again;
//!                                       FILE is written alike, and has the same bytes at the end
//! nfs_loop tcp|rdma rounds URL FILE END reads the whole file, round after round, until there is a file END
//! nfs_loop tcp|rdma rewrites URL END    writes the whole file, each round another byte, and reads it, until there is a file END
//! nfs_loop tcp|rdma mount FILE          finds the server of a file on a mount of the kernel's by what the kernel tells of it, reads the
//!                                       same odd ranges there, and compares them with the mount's own bytes
//! nfs_loop tcp|rdma talk URL            does what lines of stdin say: read OFFSET LEN, write OFFSET LEN CHARACTER, size
//! ```
//! `NFS_LOOP_DEADLINE` (seconds): how long lost calls are sent again; `NFS_LOOP_SILENCE`: after how long a silent connection is
//! given up. The exit code is 1 where anything fails.

use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::of_mount;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, RdmaOptions, mount, open};

/// Guard bytes around the read range, and their value.
const GUARD: usize = 67;
const GUARD_BYTE: u8 = 0xA5;

/// Where reads and writes begin, and how long they are: within a page, over its end, over what a call takes, to the end.
const RANGES: [(u64, usize); 9] = [
    (0, 1),
    (1, 3),
    (4095, 2),
    (4097, 8191),
    (65535, 65537),
    (262_143, 262_147),
    (1, (1 << 20) + 1),
    (524_289, 1_500_003),
    (0, usize::MAX),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Err(error) = run(&words) {
        println!("{:?}: {error}", error.kind());
        if let Some(source) = std::error::Error::source(&error) {
            println!("because: {source}");
        }
        for hint in error.hints() {
            println!("hint: {hint}");
        }
        std::process::exit(1);
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        [by, "ranges", url, local] => ranges(&file(by, url)?, &load(local)?),
        [by, "writes", url, local] => writes(&file(by, url)?, local),
        [by, "rounds", url, local, end] => rounds(&file(by, url)?, &load(local)?, end),
        [by, "rewrites", url, end] => rewrites(&file(by, url)?, end),
        [by, "mount", path] => mounted(by, path),
        [by, "talk", url] => talk(&file(by, url)?),
        _ => Err(Error::new(ErrorKind::InvalidInput, "usage: see the first lines of nfs_loop.rs")),
    }
}

fn file(by: &str, url: &str) -> Result<NfsFile> {
    open(&NfsUrl::parse(url)?, &options(by)?)
}

fn mounted(by: &str, path: &str) -> Result<()> {
    let local = load(path)?;
    let opened = std::fs::File::open(path).map_err(|error| Error::from_io(&error, "cannot open the file"))?;
    let found = mount::of_file(opened.as_fd(), false)?;
    println!("mounted: {:?}, file system {:x?}", found.named, found.file_system);
    ranges(&of_mount(&found, &options(by)?)?, &local)
}

fn options(by: &str) -> Result<NfsOptions> {
    let rdma = if by == "rdma" { Some(RdmaOptions::of_machine()?) } else { None };
    let seconds = |name: &str| {
        let text = std::env::var(name).ok();
        Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(60))
    };
    let (silence, deadline) = (seconds("NFS_LOOP_SILENCE"), seconds("NFS_LOOP_DEADLINE"));
    Ok(NfsOptions { rdma, connections: 4, silence, deadline, ..NfsOptions::default() })
}

fn load(path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::from_io(&error, "cannot read the file").with("path", path))
}

fn differ(what: &str, offset: u64, at: usize) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what} differs")).with("offset", offset).with("at", at)
}

/// Reads a range to an address that is `shift` behind one of a page. Bytes around it must stay as they are.
fn read_guarded(file: &NfsFile, offset: u64, len: usize, shift: usize) -> Result<Vec<u8>> {
    let mut place = vec![GUARD_BYTE; 4096 + GUARD + len + GUARD];
    let start = place.as_ptr().align_offset(4096).min(4096) + shift % GUARD;
    let got = file.read_at(&mut place[start..start + len], offset)?;
    let touched = |byte: &u8| *byte != GUARD_BYTE;
    let outside = place[..start].iter().chain(&place[start + got..]);
    if let Some(at) = outside.clone().position(touched) {
        return Err(differ("what lies around a read", offset, at));
    }
    Ok(place[start..start + got].to_vec())
}

/// The range within `size` bytes.
fn within((offset, len): (u64, usize), size: usize) -> (u64, usize) {
    let offset = offset.min(size as u64);
    (offset, len.min(size - offset as usize))
}

fn ranges(file: &NfsFile, local: &[u8]) -> Result<()> {
    let size = local.len();
    let mut bytes = 0;
    for (shift, range) in RANGES.into_iter().enumerate() {
        let (offset, len) = within(range, size);
        let got = read_guarded(file, offset, len, 2 * shift + 1)?;
        let wanted = &local[offset as usize..offset as usize + len];
        if got != wanted {
            let at = got.iter().zip(wanted).take_while(|(one, other)| one == other).count();
            return Err(differ("a read", offset, at));
        }
        bytes += got.len();
    }
    for (offset, len, left) in [(size as u64 - 5, 100, 5), (size as u64, 10, 0), (size as u64 + 4097, 10, 0)]
    {
        let got = read_guarded(file, offset, len, 1)?;
        if got != local[size - left..] {
            return Err(differ("a read at the end", offset, got.len()));
        }
    }
    println!("ranges: {} of {bytes} bytes read between guard bytes, compared", RANGES.len());
    tell(file);
    Ok(())
}

fn writes(file: &NfsFile, local: &str) -> Result<()> {
    let mut shadow = load(local)?;
    let size = shadow.len();
    let last = (size as u64 + 4099, 70_001);
    let mut bytes = 0;
    for (index, range) in
        RANGES[..RANGES.len() - 1].iter().map(|range| within(*range, size)).chain([last]).enumerate()
    {
        let (offset, len) = range;
        let end = offset as usize + len;
        shadow.resize(shadow.len().max(end), 0);
        // Other bytes at each place and in each write.
        let shift = index + 1;
        let mut from = vec![0; len + shift];
        from.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 251 + index * 31) as u8);
        file.write_at(&from[shift..], offset)?;
        shadow[offset as usize..end].copy_from_slice(&from[shift..]);
        bytes += len;
    }
    let got = read_guarded(file, 0, shadow.len() + 1, 3)?;
    if got != shadow {
        let at = got.iter().zip(&shadow).take_while(|(one, other)| one == other).count();
        return Err(differ("the bytes written", 0, at));
    }
    std::fs::write(local, &shadow).map_err(|error| Error::from_io(&error, "cannot write the file"))?;
    println!("writes: {} of {bytes} bytes written, read again, compared", RANGES.len());
    tell(file);
    Ok(())
}

/// Rounds until a scenario has seen enough.
fn until(end: &str, mut round: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut number = 0;
    while !Path::new(end).exists() {
        number += 1;
        round(number)?;
        say(&format!("round {number}"));
    }
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

fn rounds(file: &NfsFile, local: &[u8], end: &str) -> Result<()> {
    until(end, |_| {
        let got = read_guarded(file, 0, local.len(), 5)?;
        if got == local { Ok(()) } else { Err(differ("a round", 0, got.len())) }
    })?;
    tell(file);
    Ok(())
}

fn rewrites(file: &NfsFile, end: &str) -> Result<()> {
    let len = file.opened().size as usize;
    until(end, |number| {
        let bytes = vec![number as u8; len];
        file.write_at(&bytes, 0)?;
        let got = read_guarded(file, 0, len, 7)?;
        same(&got, &bytes)
    })?;
    tell(file);
    Ok(())
}

/// Prints where two ranges differ: the first such offset, and both bytes.
fn same(got: &[u8], wanted: &[u8]) -> Result<()> {
    let pairs = || got.iter().zip(wanted).enumerate().filter(|(_, (got, wanted))| got != wanted);
    match pairs().next() {
        None if got.len() == wanted.len() => Ok(()),
        None => Err(differ("the length of what was rewritten", 0, got.len())),
        Some((at, (got, wanted))) => {
            let error = differ("what was rewritten", 0, at).with("got", got).with("wanted", wanted);
            Err(error.with("bytes", pairs().count()))
        }
    }
}

/// Counters, for scenarios.
fn tell(file: &NfsFile) {
    let traffic = file.client().traffic();
    say(&format!(
        "{} {}: calls {} read {} written {} connections {} resent {} waited {} strange {}",
        file.client().transport(),
        file.client().version(),
        traffic.calls,
        traffic.read,
        traffic.written,
        traffic.connections,
        traffic.resent,
        traffic.waited,
        traffic.strange
    ));
}

/// One line for each line of stdin. Bytes are printed as runs: `a*4096 b*12`.
fn talk(file: &NfsFile) -> Result<()> {
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::from_io(&error, "stdin"))?;
        match answer(file, &line) {
            Ok(said) => say(&said),
            Err(error) => say(&format!("{:?}: {error}", error.kind())),
        }
    }
    Ok(())
}

fn answer(file: &NfsFile, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| Error::new(ErrorKind::InvalidInput, format!("no number: {text}")))
    };
    match words[..] {
        ["read", offset, len] => Ok(runs(&read_guarded(file, number(offset)?, number(len)? as usize, 9)?)),
        ["write", offset, len, character] => {
            let bytes = vec![character.as_bytes()[0]; number(len)? as usize];
            Ok(format!("wrote {}", file.write_at(&bytes, number(offset)?)?))
        }
        ["size"] => Ok(format!("size {}", file.attributes()?.size)),
        ["waited"] => Ok(format!("waited {}", file.client().traffic().waited)),
        _ => Err(Error::new(ErrorKind::InvalidInput, format!("unknown: {line}"))),
    }
}

fn runs(bytes: &[u8]) -> String {
    let runs: Vec<String> = bytes
        .chunk_by(|one, other| one == other)
        .map(|run| {
            let name = if run[0].is_ascii_graphic() {
                char::from(run[0]).to_string()
            } else {
                format!("{:02x}", run[0])
            };
            format!("{name}*{}", run.len())
        })
        .collect();
    if runs.is_empty() { "nothing".to_owned() } else { runs.join(" ") }
}
