//! Reading a header, believing none of it.

use std::borrow::Cow;
use std::fmt;

use forebay_error::{Error, ErrorKind, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{MAX_HEADER, MAX_RANK, METADATA};
use crate::dtype::{Dtype, shape_text};
use crate::read_at::ReadAt;
use crate::text::shown;

/// The most texts in `__metadata__`: each costs more memory than its bytes in the header.
const MAX_METADATA: usize = 1 << 20;

/// What a safetensors file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their bytes in the file.
    pub tensors: Vec<TensorInfo>,
    /// The file's own texts, in the order of the header; `None` if it has no such part.
    pub metadata: Option<Vec<(String, String)>>,
    /// Offset of the data section in the file.
    pub data_start: u64,
    /// Bytes of the whole file.
    pub size: u64,
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, row-major.
    pub shape: Box<[u64]>,
    /// Where its bytes begin, from the beginning of the file.
    pub offset: u64,
    /// How many there are.
    pub nbytes: u64,
}

/// Reads the header of a safetensors file and checks every claim it makes: names, types, sizes, and that the tensors
/// cover the rest of the file without a gap or an overlap.
pub fn read<R: ReadAt + ?Sized>(file: &R) -> Result<Header> {
    let size = file.len()?;
    let (mut first, have) = ([0; 8], size.min(8) as usize);
    file.read_at(0, &mut first[..have])?;
    let len = u64::from_le_bytes(first);
    if size < 8 {
        return Err(
            no_header(file, size, "the file is too short for a safetensors header").with("bytes", size)
        );
    }
    if len > MAX_HEADER {
        return Err(no_header(file, size, "the header is longer than safetensors allows")
            .with("header", len)
            .with("most", MAX_HEADER));
    }
    if len > size - 8 {
        return Err(no_header(file, size, "the file ends before its header does")
            .with("header", len)
            .with("bytes", size));
    }
    let text = file.bytes(8, len)?;
    let parsed: Parsed = serde_json::from_slice(&text).map_err(|error| json(&error))?;
    drop(text);
    let data_start = 8 + len;
    let Parsed { mut tensors, metadata } = parsed;
    distinct(&tensors)?;
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.offset + tensor.nbytes));
    cover(&tensors, size - data_start)?;
    for tensor in &mut tensors {
        tensor.offset += data_start;
    }
    Ok(Header { tensors, metadata, data_start, size })
}

/// No name twice. Sorts indices: a set of the names would hold them all once more.
fn distinct(tensors: &[TensorInfo]) -> Result<()> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    let name = |index: u32| tensors[index as usize].name.as_str();
    order.sort_unstable_by_key(|index| name(*index));
    match order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        Some(pair) => Err(invalid(format!("tensor {} appears twice", shown(name(pair[0]))))),
        None => Ok(()),
    }
}

/// The tensors, sorted by their bytes, follow one another from 0 to `data`. Offsets are those of the header.
fn cover(tensors: &[TensorInfo], data: u64) -> Result<()> {
    let mut expected = 0;
    let mut before: Option<&TensorInfo> = None;
    for tensor in tensors {
        let (begin, end) = (tensor.offset, tensor.offset + tensor.nbytes);
        if begin < expected {
            let other = before.map_or_else(String::new, |other| shown(&other.name));
            return Err(invalid(format!("tensors {other} and {} overlap", shown(&tensor.name)))
                .with("begin", begin)
                .with("end_before", expected));
        }
        if end > data {
            let lacks =
                tensors.iter().map(|tensor| tensor.offset + tensor.nbytes).max().unwrap_or(end) - data;
            return Err(invalid(format!("tensor {} ends beyond the end of the file", shown(&tensor.name)))
                .with("end", end)
                .with("data", data)
                .hint(format!("copy or download the file again: it lacks {lacks} bytes")));
        }
        if begin > expected {
            return Err(invalid(format!("bytes before tensor {} belong to none", shown(&tensor.name)))
                .with("begin", begin)
                .with("end_before", expected));
        }
        (expected, before) = (end, Some(tensor));
    }
    if expected < data {
        return Err(invalid("bytes after the last tensor belong to none".to_owned())
            .with("end", expected)
            .with("data", data));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

fn json(error: &serde_json::Error) -> Error {
    invalid(format!("the safetensors header is not valid: {error}"))
}

/// An error that says what the file seems to be instead, if that shows.
fn no_header<R: ReadAt + ?Sized>(file: &R, size: u64, message: &str) -> Error {
    let error = invalid(message);
    let mut begin = [0; 12];
    let have = size.min(12) as usize;
    if file.read_at(0, &mut begin[..have]).is_err() {
        return error;
    }
    match &begin {
        [b'P', b'K', 3 | 5, ..] => {
            error.hint("this is a zip archive: name it .pt or .bin (torch) or .npz (numpy) to load it")
        }
        [0x80, 2..=5, ..] => error.hint("this is a pickle, not safetensors: torch.load(path) may read it"),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => error.hint("this is a .npy file: forebay.read_npy(path)"),
        b"version http" => error.hint("this is a Git LFS pointer, not the file: git lfs pull"),
        [b'<', b'!' | b'h' | b'H' | b'?', ..] => error.hint("this is a web page: download the file again"),
        _ => error,
    }
}

/// The header as it stands. Tensors' offsets count from the data section.
struct Parsed {
    tensors: Vec<TensorInfo>,
    metadata: Option<Vec<(String, String)>>,
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Parsed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
                let mut parsed = Parsed { tensors: Vec::new(), metadata: None };
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        let entry = map.next_value::<Entry<'_>>();
                        let tensor = entry.map_err(|error| error.to_string()).and_then(Entry::check);
                        let tensor = tensor
                            .map_err(|error| A::Error::custom(format!("tensor {}: {error}", shown(&name))))?;
                        parsed.tensors.push(TensorInfo { name, ..tensor });
                    } else if std::mem::replace(&mut has_metadata, true) {
                        return Err(A::Error::custom("`__metadata__` appears twice"));
                    } else {
                        parsed.metadata = map.next_value::<Option<Texts>>()?.map(|texts| texts.0);
                    }
                }
                Ok(parsed)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// What the header says of a tensor.
#[derive(serde::Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl Entry<'_> {
    /// The tensor, its name left open. The error says what does not fit.
    fn check(self) -> std::result::Result<TensorInfo, String> {
        let Some(dtype) = Dtype::from_name(&self.dtype).filter(|dtype| dtype.is_of_safetensors()) else {
            return Err(format!("unknown dtype {}", shown(&self.dtype)));
        };
        let ((begin, end), shape) = (self.data_offsets, self.shape.0.into_boxed_slice());
        let nbytes = dtype.nbytes(&shape)?;
        if begin > end {
            return Err(format!("it ends before it begins: {begin} to {end}"));
        }
        if end - begin != nbytes {
            let (shape, given) = (shape_text(&shape), end - begin);
            return Err(format!(
                "its offsets span {given} bytes, but {} {shape} needs {nbytes}",
                dtype.name()
            ));
        }
        Ok(TensorInfo { name: String::new(), dtype, shape, offset: begin, nbytes })
    }
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = list.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format!("more than {MAX_RANK} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}

/// The texts of `__metadata__`.
struct Texts(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts: Vec<(String, String)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if texts.len() == MAX_METADATA {
                        return Err(A::Error::custom(format!(
                            "`__metadata__` has more than {MAX_METADATA} texts"
                        )));
                    }
                    texts.push(pair);
                }
                let mut keys: Vec<&str> = texts.iter().map(|(key, _)| key.as_str()).collect();
                keys.sort_unstable();
                match keys.windows(2).find(|pair| pair[0] == pair[1]) {
                    Some(pair) => {
                        Err(A::Error::custom(format!("{} appears twice in `__metadata__`", shown(pair[0]))))
                    }
                    None => Ok(Texts(texts)),
                }
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
