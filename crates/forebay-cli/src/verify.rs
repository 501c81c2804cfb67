//! `forebay verify`, and `gdsio_verify`: a range read to device memory against a plain read of it.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_bench::pattern_key;
use forebay_engine::{Buffer, File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{DeviceName, first_mismatch};
use forebay_source::{Location, hint_for_missing};

use crate::console::{Console, Failure};
use crate::load::size;

/// The longest piece that is held in memory at once.
const PIECE: u64 = 64 << 20;

/// Reads a range to device memory and compares it, byte by byte, with a plain read.
#[derive(Args, Clone, Debug)]
#[command(arg_required_else_help = true)]
pub(crate) struct Verify {
    /// File to read
    #[arg(short = 'f', value_name = "FILE", value_parser = crate::names::source())]
    file: PathBuf,
    /// GPU index (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS
    #[arg(short = 'd', value_name = "DEVICE", default_value_t, value_parser = crate::load::parse::<DeviceName>)]
    device: DeviceName,
    /// Offset in the file
    #[arg(short = 'o', value_name = "OFFSET", value_parser = size, default_value = "0")]
    offset: u64,
    /// Bytes [default: the rest of the file]
    #[arg(short = 's', value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Number of I/Os that the range is read by
    #[arg(short = 'n', value_name = "COUNT", default_value_t = 1)]
    ios: u64,
    /// 0 or 1, printed as "sync" (accepted)
    #[arg(short = 'm', value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    sync: u8,
    /// Accepted, as gdsio_verify does; no effect
    #[arg(short = 't', value_name = "N", num_args = 0..=1, default_missing_value = "1")]
    t: Option<u64>,
    /// Accepted, as gdsio_verify does; no effect
    #[arg(short = 'S', value_name = "N", num_args = 0..=1, default_missing_value = "1")]
    s: Option<u64>,
    /// Accepted, as gdsio_verify does; no effect
    #[arg(short = 'g', value_name = "N", num_args = 0..=1, default_missing_value = "1")]
    g: Option<u64>,
    /// Compare with the pattern of `bench -V -k SEED` in place of a plain read
    #[arg(long, value_name = "SEED")]
    pattern: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &Verify, console: &Console<'_>) -> Result<i32, Failure> {
    if args.ios == 0 {
        return Err(Failure::usage(Error::new(ErrorKind::InvalidInput, "0 I/Os").hint("use -n 1 or more")));
    }
    if args.size == Some(0) {
        return Err(Failure::usage(
            Error::new(ErrorKind::InvalidInput, "the size is 0")
                .hint("leave out -s for the rest of the file"),
        ));
    }
    let path = &args.file;
    let location = Location::of(path).map_err(Failure::usage)?;
    let (file, range) = open(args, &location)?;
    let len = range.end - range.start;
    let session = Session::open()?;
    let device = session.device_named(&args.device)?;
    let chunk = len.div_ceil(args.ios);
    console.line(format!(
        "gpu index :{},file :{}, gpu buffer alignment :0, gpu buffer offset :0, gpu devptr offset :0, file offset :{}, io_requested :{len}, io_chunk_size :{chunk}, bufregister :true, sync :{}, nr ios :{}, ",
        args.device,
        path.display(),
        args.offset,
        args.sync,
        args.ios,
    ));
    console.line("fsync :0, ");
    console.line("Batch mode: 0");
    if device.info().is_host {
        let why = session.devices().missing.as_ref().map_or(String::new(), |error| format!(" ({error})"));
        console.say(format!("note: no GPU in use{why}: -d {} is host memory\n", args.device));
    }
    let key = args.pattern.map(|seed| pattern_key(path, seed));
    match compare(args, &session, &file, key, range, chunk.min(PIECE)) {
        Ok(engines) => {
            console.line("Data Verification Success");
            console.say(format!("read by {engines}\n"));
            Ok(0)
        }
        Err(error) => {
            if error.kind() == ErrorKind::Corrupt {
                console.line("Data Verification Failed");
            }
            Err(error.into())
        }
    }
}

/// Why there is nothing to compare: a file of `/proc` has bytes, and tells no length.
fn without_length(path: &Path) -> Error {
    let mut byte = [0];
    let has_bytes = fs::File::open(path).and_then(|mut file| file.read(&mut byte)).is_ok_and(|read| read > 0);
    let (what, hint) = if has_bytes {
        ("the file does not tell its length", "verify a copy of it: forebay cp makes one")
    } else {
        ("the file is empty", "name a file with bytes in it")
    };
    Error::new(ErrorKind::InvalidInput, what).with("path", path.display()).hint(hint)
}

/// Fails for a path where no file is.
fn check_path(path: &Path) -> Result<()> {
    let found = fs::metadata(path).map_err(|error| {
        let error = Error::from_io(&error, "cannot open file").with("path", path.display());
        let meant = hint_for_missing(path).filter(|_| error.kind() == ErrorKind::NotFound);
        error.hint(meant.unwrap_or_else(|| "check the path and the mode: ls -l".to_owned()))
    })?;
    if found.is_dir() {
        return Err(Error::new(ErrorKind::IsDirectory, "a directory where a file is needed")
            .with("path", path.display())
            .hint("name a file with -f"));
    }
    Ok(())
}

/// Opens the file. Returns the range to compare, which lies within the file and is not empty.
fn open(args: &Verify, location: &Location) -> Result<(File, Range<u64>)> {
    let path = &args.file;
    if matches!(location, Location::Path) {
        check_path(path)?;
    }
    let file = File::open(path)?;
    let have = file.len()?;
    if have == 0 {
        return Err(without_length(path));
    }
    let len = args.size.unwrap_or_else(|| have.saturating_sub(args.offset));
    if len == 0 || args.offset.checked_add(len).is_none_or(|end| end > have) {
        return Err(Error::new(ErrorKind::InvalidInput, "the range goes beyond the end of the file")
            .with("path", path.display())
            .with("file_bytes", have)
            .hint("use a smaller -o or -s"));
    }
    Ok((file, args.offset..args.offset + len))
}

/// Reads piece by piece and compares; prints the engine.
fn compare(
    args: &Verify,
    session: &Session,
    file: &File,
    key: Option<u64>,
    range: std::ops::Range<u64>,
    piece: u64,
) -> Result<String> {
    let path = &args.file;
    let mut buffer = Buffer::new(session.device_named(&args.device)?, piece as usize)?;
    let mut expected = vec![0_u8; piece as usize];
    let mut engines: Vec<&'static str> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let take = piece.min(range.end - at) as usize;
        let receipt = session.read_into(file, at, &mut buffer, 0..take)?;
        for (engine, _) in receipt.engines() {
            if !engines.contains(&engine.name()) {
                engines.push(engine.name());
            }
        }
        let got = buffer.to_vec()?;
        let wrong = if let Some(key) = key {
            first_mismatch(&got[..take], key, at)
        } else {
            // Once more, by plain calls, or by requests where it has a URL.
            file.read_host(&mut expected[..take], at).map_err(|error| match error.kind() {
                ErrorKind::ShortRead => error.hint("something truncated the file meanwhile"),
                _ => error,
            })?;
            let (got, expected) = (&got[..take], &expected[..take]);
            let differs = || got.iter().zip(expected).position(|(a, b)| a != b);
            if got == expected { None } else { differs().map(|place| at + place as u64) }
        };
        if let Some(wrong) = wrong {
            let (what, hint) = if key.is_some() {
                (
                    "the bytes differ from the pattern",
                    "write the file with `forebay bench -V` under the same name and with the same seed",
                )
            } else {
                (
                    "device memory differs from a plain read",
                    "if nothing wrote to the file meanwhile, please report it",
                )
            };
            return Err(Error::new(ErrorKind::Corrupt, what)
                .with("path", path.display())
                .with("offset", wrong)
                .hint(hint));
        }
        at += take as u64;
    }
    Ok(engines.join(", "))
}
