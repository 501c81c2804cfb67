//! Laying out a new file.

use std::fmt::Write;

use forebay_error::{Error, ErrorKind, Result};

use super::{MAX_HEADER, MAX_RANK, METADATA};
use crate::dtype::Dtype;
use crate::text::shown;

/// A tensor that a file shall hold.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, row-major.
    pub shape: Vec<u64>,
}

/// Where everything goes in a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The bytes before the data section.
    pub header: Vec<u8>,
    /// Offset from the beginning of the file and bytes of each tensor, in the order given.
    pub places: Vec<(u64, u64)>,
    /// Bytes of the whole file.
    pub size: u64,
}

/// Lays out a file: the data section begins at a multiple of `align` (a power of two from 8 to 16 MiB), and within it
/// every tensor at a multiple of its element's size, without gaps: the largest elements first, then by name.
pub fn plan(tensors: &[TensorSpec], metadata: Option<&[(String, String)]>, align: u64) -> Result<Layout> {
    if !align.is_power_of_two() || !(8..=1 << 24).contains(&align) {
        return Err(invalid("the alignment is no power of two from 8 to 16 MiB")
            .with("align", align)
            .hint("align=4096"));
    }
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_unstable_by_key(|index| {
        let tensor = &tensors[*index];
        (std::cmp::Reverse(tensor.dtype.bits()), tensor.name.as_str())
    });
    distinct(tensors)?;
    let mut places = vec![(0, 0); tensors.len()];
    let mut text = String::from("{");
    if let Some(metadata) = metadata {
        texts(metadata, &mut text)?;
    }
    let mut at = 0_u64;
    for index in order {
        let tensor = &tensors[index];
        let nbytes = size(tensor)?;
        let end =
            at.checked_add(nbytes).filter(|end| *end <= i64::MAX as u64 - (MAX_HEADER + 8)).ok_or_else(
                || invalid("the tensors are larger than a file can be").with("tensor", shown(&tensor.name)),
            )?;
        entry(tensor, at, end, &mut text);
        places[index] = (at, nbytes);
        at = end;
    }
    text.push('}');
    let data_start = (8 + text.len() as u64).next_multiple_of(align);
    if data_start - 8 > MAX_HEADER {
        return Err(invalid("the header would be longer than safetensors allows")
            .with("header", data_start - 8)
            .with("most", MAX_HEADER)
            .hint("spread the tensors over several files, or shorten the metadata"));
    }
    for place in &mut places {
        place.0 += data_start;
    }
    Ok(Layout { header: header(&text, data_start), places, size: data_start + at })
}

/// The length, the text, and blanks up to the data section.
fn header(text: &str, data_start: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data_start as usize);
    bytes.extend_from_slice(&(data_start - 8).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(data_start as usize, b' ');
    bytes
}

fn size(tensor: &TensorSpec) -> Result<u64> {
    let name = || shown(&tensor.name);
    if tensor.name == METADATA {
        return Err(invalid("a tensor cannot have the name of the metadata").with("tensor", name()));
    }
    if !tensor.dtype.is_of_safetensors() {
        return Err(Error::new(ErrorKind::Unsupported, "safetensors has no such dtype")
            .with("dtype", tensor.dtype.name())
            .with("tensor", name()));
    }
    if tensor.shape.len() > MAX_RANK {
        return Err(invalid(format!("more than {MAX_RANK} dimensions")).with("tensor", name()));
    }
    tensor.dtype.nbytes(&tensor.shape).map_err(|reason| invalid(reason).with("tensor", name()))
}

fn distinct(tensors: &[TensorSpec]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("tensor {} appears twice", shown(pair[0])))),
        None => Ok(()),
    }
}

fn texts(metadata: &[(String, String)], into: &mut String) -> Result<()> {
    let mut keys: Vec<&str> = metadata.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid(format!("the metadata's key {} appears twice", shown(pair[0]))));
    }
    into.push_str("\"__metadata__\":{");
    for (index, (key, value)) in metadata.iter().enumerate() {
        if index > 0 {
            into.push(',');
        }
        quote(key, into);
        into.push(':');
        quote(value, into);
    }
    into.push('}');
    Ok(())
}

fn entry(tensor: &TensorSpec, begin: u64, end: u64, into: &mut String) {
    if into.len() > 1 {
        into.push(',');
    }
    quote(&tensor.name, into);
    let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
    into.push_str(":{\"dtype\":\"");
    into.push_str(tensor.dtype.name());
    into.push_str("\",\"shape\":[");
    into.push_str(&shape.join(","));
    let _ = write!(into, "],\"data_offsets\":[{begin},{end}]}}");
}

fn quote(text: &str, into: &mut String) {
    into.push_str(&serde_json::Value::from(text).to_string());
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
