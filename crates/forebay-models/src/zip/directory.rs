//! Reading an archive's directory, and holding it against the entries' own headers.
//!
//! Every check is one against archives that two readers read differently. `rawzip` 0.5 leaves entries that overlap, names
//! that appear twice and counts that lie to its users, takes bytes before the archive for a shift, and falls back to the
//! narrow end record where the wide one is not valid.

use forebay_error::{Error, ErrorKind, Result};

use super::{
    CENTRAL, CENTRAL_LEN, END, END_64, END_64_LEN, END_LEN, EXTRA_64, FULL_16, FULL_32, LOCAL, LOCAL_LEN,
    LOCATOR_64, LOCATOR_64_LEN,
};
use crate::read_at::ReadAt;
use crate::text::shown;

/// Longer than the directory of any archive of arrays.
const MAX_DIRECTORY: u64 = 100_000_000;

/// How an entry's bytes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// As they are.
    Stored,
    /// With deflate.
    Deflated,
    /// By a method that this crate does not know, by its number.
    Other(u16),
}

impl Method {
    /// Its number in archives.
    pub const fn number(self) -> u16 {
        match self {
            Self::Stored => 0,
            Self::Deflated => 8,
            Self::Other(number) => number,
        }
    }
}

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// How its bytes are packed.
    pub method: Method,
    /// Where its packed bytes begin, from the beginning of the archive.
    pub offset: u64,
    /// How many there are.
    pub packed: u64,
    /// How many it has unpacked.
    pub size: u64,
    /// CRC-32 of the unpacked bytes.
    pub crc32: u32,
}

/// Reads the directory of an archive, in its order, and checks it: every entry lies within the file, none overlaps
/// another, their own headers say the same, no name appears twice, and none is encrypted.
pub fn read<R: ReadAt + ?Sized>(file: &R) -> Result<Vec<Entry>> {
    let end = find_end(file)?;
    let directory = file.bytes(end.offset, end.len)?;
    let mut rest = directory.as_slice();
    // The count is a claim: it reserves no more than the directory has room for.
    let mut found = Vec::with_capacity(end.entries.min(end.len / CENTRAL_LEN) as usize);
    for _ in 0..end.entries {
        found.push(Central::parse(&mut rest)?);
    }
    if !rest.is_empty() {
        return Err(invalid("the zip directory is longer than its entries").with("bytes", rest.len()));
    }
    drop(directory);
    distinct(&found)?;
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_unstable_by_key(|index| found[*index].header);
    let mut offsets = vec![0; found.len()];
    let mut taken = 0;
    for index in order {
        let central = &found[index];
        if central.header < taken {
            return Err(at(central, "overlaps the entry before it").with("begin", central.header));
        }
        offsets[index] = data_offset(file, central, end.offset)?;
        taken = offsets[index] + central.packed;
    }
    let entry = |(central, offset): (Central, u64)| Entry {
        name: central.name,
        method: central.method,
        offset,
        packed: central.packed,
        size: central.size,
        crc32: central.crc32,
    };
    Ok(found.into_iter().zip(offsets).map(entry).collect())
}

/// Where the directory lies.
struct End {
    entries: u64,
    offset: u64,
    len: u64,
}

fn find_end<R: ReadAt + ?Sized>(file: &R) -> Result<End> {
    let size = file.len()?;
    let tail = size.min(END_LEN + u64::from(FULL_16) + LOCATOR_64_LEN);
    let bytes = file.bytes(size - tail, tail)?;
    // The comment after the record has any length, and may look like a record: the one whose length fits is it.
    let is_end = |start: usize| {
        let record = &bytes[start..];
        word(record, 0) == END && u64::from(half(record, 20)) + END_LEN == record.len() as u64
    };
    let last = bytes.len().checked_sub(END_LEN as usize);
    let Some(start) = last.and_then(|last| (0..=last).rev().find(|start| is_end(*start))) else {
        return Err(not_zip(file, size));
    };
    let (record, position) = (&bytes[start..], size - tail + start as u64);
    let (disk, directory_disk) = (half(record, 4), half(record, 6));
    let (on_disk, entries) = (half(record, 8), half(record, 10));
    let (len, offset) = (word(record, 12), word(record, 16));
    let locator = start.checked_sub(LOCATOR_64_LEN as usize).map(|at| &bytes[at..start]);
    let end = if let Some(locator) = locator.filter(|locator| word(locator, 0) == LOCATOR_64) {
        let end = end_64(file, locator, position - LOCATOR_64_LEN)?;
        let agrees = (entries == FULL_16 || u64::from(entries) == end.entries)
            && (len == FULL_32 || u64::from(len) == end.len)
            && (offset == FULL_32 || u64::from(offset) == end.offset);
        if !agrees {
            return Err(invalid("the two end records of the zip archive differ"));
        }
        end
    } else {
        if disk != 0 || directory_disk != 0 || on_disk != entries {
            return Err(several_disks());
        }
        let end = End { entries: u64::from(entries), offset: u64::from(offset), len: u64::from(len) };
        adjoin(&end, position)?;
        end
    };
    if end.len > MAX_DIRECTORY {
        return Err(invalid("the zip directory is too long")
            .with("bytes", end.len)
            .with("most", MAX_DIRECTORY));
    }
    if end.entries > end.len / CENTRAL_LEN {
        return Err(invalid("the zip directory is too short for its entries")
            .with("entries", end.entries)
            .with("bytes", end.len));
    }
    Ok(end)
}

/// The end record with wide fields, which ends where its locator begins.
fn end_64<R: ReadAt + ?Sized>(file: &R, locator: &[u8], position: u64) -> Result<End> {
    let at = long(locator, 8);
    // Records may be longer than the known fields, so they are found by the locator alone.
    if at.checked_add(END_64_LEN).is_none_or(|end| end > position) {
        return Err(invalid("the wide end record of the zip archive lies elsewhere").with("offset", at));
    }
    let record = file.bytes(at, END_64_LEN)?;
    if word(&record, 0) != END_64 || long(&record, 4).checked_add(12) != Some(position - at) {
        return Err(invalid("the wide end record of the zip archive is not valid").with("offset", at));
    }
    if word(locator, 4) != 0 || word(&record, 16) != 0 || word(&record, 20) != 0 || word(locator, 16) > 1 {
        return Err(several_disks());
    }
    if long(&record, 24) != long(&record, 32) {
        return Err(several_disks());
    }
    let end = End { entries: long(&record, 32), len: long(&record, 40), offset: long(&record, 48) };
    adjoin(&end, at)?;
    Ok(end)
}

/// The directory ends where the end record begins: bytes between them, or before the archive, would shift everything.
fn adjoin(end: &End, position: u64) -> Result<()> {
    if end.offset.checked_add(end.len) == Some(position) {
        return Ok(());
    }
    Err(invalid("the zip directory does not end where its end record begins")
        .with("directory", end.offset)
        .with("bytes", end.len)
        .with("end_record", position)
        .hint("zip -FF archive --out fixed  # if something was put before or into the archive"))
}

/// What the directory says of an entry.
struct Central {
    name: String,
    flags: u16,
    method: Method,
    crc32: u32,
    packed: u64,
    size: u64,
    header: u64,
}

impl Central {
    /// Takes one record off the front.
    fn parse(rest: &mut &[u8]) -> Result<Self> {
        let cut = || invalid("the zip directory is cut off or not valid");
        let fixed =
            rest.get(..CENTRAL_LEN as usize).filter(|fixed| word(fixed, 0) == CENTRAL).ok_or_else(cut)?;
        let (name, extra, comment) = (half(fixed, 28).into(), half(fixed, 30).into(), half(fixed, 32).into());
        let mut variable = &rest[CENTRAL_LEN as usize..];
        let mut take = |len: usize| {
            let part = variable.split_off(..len);
            part.ok_or_else(cut)
        };
        let (raw_name, extra) = (take(name)?, take(extra)?);
        take(comment)?;
        let name = name_of(raw_name)?;
        let flags = half(fixed, 8);
        if flags & (1 | 1 << 6 | 1 << 13) != 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("zip entry {} is encrypted", shown(&name)),
            )
            .hint("unpack the archive with a tool that asks for the password"));
        }
        let (packed, size, header) = (word(fixed, 20), word(fixed, 24), word(fixed, 42));
        let mut wide = Wide::find(extra);
        let entry = Self {
            flags,
            method: match half(fixed, 10) {
                0 => Method::Stored,
                8 => Method::Deflated,
                other => Method::Other(other),
            },
            crc32: word(fixed, 16),
            // In this order: each is there only if its narrow field is full.
            size: wide.or(size),
            packed: wide.or(packed),
            header: wide.or(header),
            name,
        };
        if half(fixed, 34) != 0 && half(fixed, 34) != FULL_16 {
            return Err(several_disks());
        }
        if wide.is_short {
            return Err(at(&entry, "lacks its wide sizes"));
        }
        if entry.method == Method::Stored && entry.packed != entry.size {
            return Err(at(&entry, "is stored, but has two sizes")
                .with("packed", entry.packed)
                .with("size", entry.size));
        }
        *rest = variable;
        Ok(entry)
    }
}

/// The extra field with wide sizes, taken from the front.
struct Wide<'a> {
    rest: &'a [u8],
    is_short: bool,
}

impl<'a> Wide<'a> {
    fn find(mut extra: &'a [u8]) -> Self {
        while extra.len() >= 4 {
            let (id, len) = (half(extra, 0), usize::from(half(extra, 2)));
            let Some(rest) = extra.get(4..4 + len) else { break };
            if id == EXTRA_64 {
                return Self { rest, is_short: false };
            }
            extra = &extra[4 + len..];
        }
        Self { rest: &[], is_short: false }
    }

    /// The narrow value, or if that is full, the next wide one.
    fn or(&mut self, narrow: u32) -> u64 {
        if narrow != FULL_32 {
            return u64::from(narrow);
        }
        if let Some(wide) = self.rest.split_off(..8) {
            return long(wide, 0);
        }
        self.is_short = true;
        0
    }
}

/// Where an entry's bytes begin, by its own header, which must agree with the directory.
fn data_offset<R: ReadAt + ?Sized>(file: &R, central: &Central, directory: u64) -> Result<u64> {
    let len = LOCAL_LEN + central.name.len() as u64;
    if central.header.checked_add(len).is_none_or(|end| end > directory) {
        return Err(at(central, "begins beyond the end of the data")
            .with("begin", central.header)
            .with("directory", directory));
    }
    let local = file.bytes(central.header, len)?;
    if word(&local, 0) != LOCAL {
        return Err(at(central, "has no header where the directory says").with("begin", central.header));
    }
    let (name, extra) = (half(&local, 26), half(&local, 28));
    if usize::from(name) != central.name.len() || &local[LOCAL_LEN as usize..] != central.name.as_bytes() {
        return Err(at(central, "has another name in its own header"));
    }
    if half(&local, 8) != central.method.number() {
        return Err(at(central, "has another packing in its own header"));
    }
    if half(&local, 6) & 1 != 0 {
        return Err(at(central, "is encrypted by its own header"));
    }
    let offset = central.header + len + u64::from(extra);
    if offset.checked_add(central.packed).is_none_or(|end| end > directory) {
        return Err(at(central, "ends beyond the end of the data")
            .with("begin", offset)
            .with("packed", central.packed)
            .with("directory", directory));
    }
    let extra = file.bytes(central.header + len, u64::from(extra))?;
    same_sizes(central, &local, &extra)?;
    Ok(offset)
}

/// Sizes and CRC of an entry's own header; zeros if they follow the data (flag 3).
fn same_sizes(central: &Central, local: &[u8], extra: &[u8]) -> Result<()> {
    let mut wide = Wide::find(extra);
    let (size, packed, crc32) = (wide.or(word(local, 22)), wide.or(word(local, 18)), word(local, 14));
    let told = (size, packed, crc32);
    let follows = half(local, 6) & 1 << 3 != 0 && central.flags & 1 << 3 != 0;
    if told == (central.size, central.packed, central.crc32) && !wide.is_short {
        return Ok(());
    }
    // Writers that do not know yet leave zeros, or all ones without the wide field.
    let is_open = |value: u64, known: u64| value == 0 || value == known;
    if follows && is_open(size, central.size) && is_open(packed, central.packed) {
        return Ok(());
    }
    Err(at(central, "has other sizes or another CRC in its own header")
        .with("size", format!("{size}, not {}", central.size))
        .with("packed", format!("{packed}, not {}", central.packed))
        .with("crc32", format!("{crc32:08x}, not {:08x}", central.crc32)))
}

fn name_of(raw: &[u8]) -> Result<String> {
    match std::str::from_utf8(raw) {
        Ok(name) if !name.is_empty() && !name.contains('\0') => Ok(name.to_owned()),
        Ok(name) => Err(invalid(format!("a zip entry has the name {}", shown(name)))),
        Err(_) => Err(Error::new(ErrorKind::Unsupported, "a zip entry's name is not UTF-8")
            .with("name", shown(&String::from_utf8_lossy(raw)))),
    }
}

fn distinct(found: &[Central]) -> Result<()> {
    let mut names: Vec<&str> = found.iter().map(|central| central.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("zip entry {} appears twice", shown(pair[0])))),
        None => Ok(()),
    }
}

fn at(central: &Central, problem: &str) -> Error {
    invalid(format!("zip entry {} {problem}", shown(&central.name)))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

fn several_disks() -> Error {
    Error::new(ErrorKind::Unsupported, "the zip archive is spread over several files")
        .hint("zip -s 0 split.zip --out whole.zip")
}

fn not_zip<R: ReadAt + ?Sized>(file: &R, size: u64) -> Error {
    let mut begin = [0; 2];
    let is_cut = size >= 2 && file.read_at(0, &mut begin).is_ok() && &begin == b"PK";
    if is_cut {
        return invalid("the zip archive has no end: it was cut off")
            .with("bytes", size)
            .hint("copy or download the file again");
    }
    invalid("this is no zip archive").with("bytes", size)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
