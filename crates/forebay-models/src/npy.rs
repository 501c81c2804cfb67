//! The `.npy` format: a text that describes one array, and its bytes.

use forebay_error::{Error, ErrorKind, Result};

mod literal;

use crate::dtype::shape_text;
use crate::read_at::ReadAt;
use crate::text::shown;
use literal::Described;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Real headers have a few hundred bytes; those of structured arrays may have more.
const MAX_HEADER: u64 = 1 << 20;
/// More dimensions than numpy has.
const MAX_RANK: usize = 64;

/// An array in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of its elements as numpy writes it: `<f4`.
    pub descr: String,
    /// Whether its first index varies fastest in the file.
    pub fortran_order: bool,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Where its bytes begin, from the beginning of the file.
    pub offset: u64,
    /// How many there are.
    pub nbytes: u64,
}

/// Reads the header of the array at `begin`, whose header and data end at `end` at the latest (the end of the file, or
/// of an archive's entry; bytes after the array are left alone).
pub fn read<R: ReadAt + ?Sized>(file: &R, begin: u64, end: u64) -> Result<Header> {
    let end = end.min(file.len()?);
    let room = end.saturating_sub(begin);
    let have = room.min(12);
    let start = file.bytes(begin, have)?;
    if !start.starts_with(MAGIC) {
        return Err(not_npy(&start));
    }
    let (before, len) = match (start.get(6..8), start.len()) {
        (Some([1, 0]), 10..) => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        (Some([2 | 3, 0]), 12) => {
            (12, u64::from(u32::from_le_bytes([start[8], start[9], start[10], start[11]])))
        }
        (None | Some([1..=3, 0]), _) => return Err(invalid("the file ends within its .npy header")),
        (Some(version), _) => {
            return Err(Error::new(ErrorKind::Unsupported, "unknown version of the .npy format")
                .with("version", format!("{}.{}", version[0], version[1])));
        }
    };
    if len > MAX_HEADER {
        return Err(invalid("the .npy header is longer than any array needs")
            .with("header", len)
            .with("most", MAX_HEADER));
    }
    if before + len > room {
        return Err(invalid("the file ends within its .npy header").with("header", len).with("bytes", room));
    }
    let text = file.bytes(begin + before, len)?;
    let text = match start[6] {
        3 => String::from_utf8(text).map_err(|_| invalid("the .npy header is not UTF-8"))?,
        // Latin-1, before.
        _ => text.into_iter().map(char::from).collect(),
    };
    let Described { descr, fortran_order, shape } = literal::parse(&text)?;
    if shape.len() > MAX_RANK {
        return Err(invalid(format!("more than {MAX_RANK} dimensions")));
    }
    let nbytes = size(&descr, &shape)?;
    let (offset, left) = (begin + before + len, room - before - len);
    if nbytes > left {
        return Err(invalid("the file ends before its array does")
            .with("shape", shape_text(&shape))
            .with("descr", descr)
            .with("needs", nbytes)
            .with("bytes", left));
    }
    Ok(Header { descr, fortran_order, shape, offset, nbytes })
}

/// The bytes before the data of a new file: version 1.0 or, if the shape is that long, 2.0. The data begin at a multiple
/// of `align`, a power of two from 16 to 4096; numpy's own is 64.
pub fn header(descr: &str, fortran_order: bool, shape: &[u64], align: u64) -> Result<Vec<u8>> {
    if !align.is_power_of_two() || !(16..=4096).contains(&align) {
        return Err(invalid("the alignment is no power of two from 16 to 4096").with("align", align));
    }
    if shape.len() > MAX_RANK {
        return Err(invalid(format!("more than {MAX_RANK} dimensions")));
    }
    size(descr, shape)?;
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let order = if fortran_order { "True" } else { "False" };
    let text =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}{comma}), }}", dims.join(", "));
    let mut bytes = MAGIC.to_vec();
    // 64 dimensions of 20 digits fit version 1.0 by far.
    let total = (10 + text.len() as u64 + 1).next_multiple_of(align);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&((total - 10) as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(total as usize - 1, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

/// Bytes of one element of a type that numpy describes so.
pub fn itemsize(descr: &str) -> Result<u64> {
    let unknown = || {
        Error::new(ErrorKind::InvalidInput, format!("unknown element type {}", shown(descr)))
            .hint("a descr like <f4, <i8, |u1 or |b1")
    };
    let rest = descr.strip_prefix(['<', '>', '=', '|']).unwrap_or(descr);
    let kind = rest.chars().next().ok_or_else(unknown)?;
    if kind == 'O' {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the array holds Python objects, which are pickled code",
        )
        .with("descr", descr)
        .hint("np.load(path, allow_pickle=True)  # only for files from someone you trust"));
    }
    let mut digits = &rest[kind.len_utf8()..];
    if matches!(kind, 'M' | 'm') {
        // A unit follows: [ns] or [25s].
        digits = match digits.split_once('[') {
            Some((digits, unit))
                if unit.len() > 1 && unit.ends_with(']') && is_unit(&unit[..unit.len() - 1]) =>
            {
                digits
            }
            None => digits,
            Some(_) => return Err(unknown()),
        };
    }
    if digits.is_empty() || digits.len() > 10 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(unknown());
    }
    let size: u64 = digits.parse().map_err(|_| unknown())?;
    let fits = match kind {
        'b' => size == 1,
        'i' | 'u' => matches!(size, 1 | 2 | 4 | 8),
        // One byte: float8_e5m2, as ml_dtypes has numpy write it.
        'f' => matches!(size, 1 | 2 | 4 | 8 | 12 | 16),
        'c' => matches!(size, 8 | 16 | 24 | 32),
        'M' | 'm' => size == 8,
        // ml_dtypes' complex numbers of 16-bit floats.
        'W' => size == 4,
        'S' | 'a' | 'V' | 'U' => true,
        _ => false,
    };
    match fits {
        true if kind == 'U' => Ok(size * 4),
        true => Ok(size),
        false => Err(unknown()),
    }
}

fn is_unit(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 16
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
}

fn size(descr: &str, shape: &[u64]) -> Result<u64> {
    let item = itemsize(descr)?;
    shape
        .iter()
        .try_fold(item, |product, size| product.checked_mul(*size))
        .ok_or_else(|| invalid(format!("the size of {} overflows", shape_text(shape))).with("descr", descr))
}

fn not_npy(start: &[u8]) -> Error {
    let error = invalid("this is no .npy file");
    match start {
        [b'P', b'K', 3 | 5, ..] => {
            error.hint("this is a zip archive: forebay.read_npz(path) if it is numpy's")
        }
        [0x80, 2..=5, ..] => {
            error.hint("this is a pickle, which can run code: np.load(path, allow_pickle=True)")
        }
        _ => error,
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
