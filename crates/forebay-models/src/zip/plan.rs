//! Laying out an archive of stored entries before their bytes, and so their CRCs, are known.

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind, Result};

use super::{
    CENTRAL, CENTRAL_LEN, END, END_64, END_64_LEN, END_LEN, EXTRA_64, FULL_16, FULL_32, LOCAL, LOCAL_LEN,
    LOCATOR_64, LOCATOR_64_LEN,
};
use crate::text::shown;

/// The extra field that only fills space, as Android's archives have it.
const FILLER: u16 = 0xD935;
/// Bytes of the filler before its padding: id, length and alignment, two each.
const FILLER_LEN: u64 = 6;
/// 1980-01-01, the first day of the format: the same data make the same archive.
const DATE: u16 = 0x21;
/// Readable by all, writable by the owner, in a Unix system's archive.
const ATTRIBUTES: u32 = 0o100_644 << 16;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;

/// Where one entry goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Offset of its header.
    pub header: u64,
    /// Offset of its bytes, right after the header.
    pub data: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// An archive to be written: the entries' bytes to their places in any order, then, when the CRCs are known, a
/// [`header`](Self::header) before each and the [`directory`](Self::directory) at the end.
///
/// ```
/// use forebay_models::zip::{Plan, crc32, read};
///
/// let plan = Plan::new([("a.txt".to_owned(), 5)], 64)?;
/// let (place, crc) = (&plan.places()[0], crc32(0, b"hello"));
/// let mut archive = vec![0; plan.size() as usize];
/// archive[place.data as usize..][..5].copy_from_slice(b"hello");
/// archive[place.header as usize..place.data as usize].copy_from_slice(&plan.header(0, crc));
/// archive[plan.end_of_data() as usize..].copy_from_slice(&plan.directory(&[crc])?);
/// assert_eq!(read(&archive)?[0].offset, 64);
/// # Ok::<(), forebay_error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    places: Vec<Place>,
    align: u64,
    directory: u64,
    size: u64,
}

impl Plan {
    /// Lays out entries of these names and sizes, one after another, each with its bytes at a multiple of `align` (a
    /// power of two up to 32768).
    pub fn new(entries: impl IntoIterator<Item = (String, u64)>, align: u64) -> Result<Self> {
        if !align.is_power_of_two() || align > 1 << 15 {
            return Err(invalid("the alignment is no power of two up to 32768")
                .with("align", align)
                .hint("align=64"));
        }
        let mut plan = Self { places: Vec::new(), align, directory: 0, size: 0 };
        for (name, size) in entries {
            plan.add(name, size)?;
        }
        let mut names = HashSet::new();
        if let Some(place) = plan.places.iter().find(|place| !names.insert(place.name.as_str())) {
            return Err(invalid(format!("zip entry {} appears twice", shown(&place.name))));
        }
        let records: u64 = plan.places.iter().map(central_len).sum();
        plan.size = plan.directory + records + END_LEN;
        if plan.has_wide_end(records) {
            plan.size += END_64_LEN + LOCATOR_64_LEN;
        }
        Ok(plan)
    }

    fn add(&mut self, name: String, size: u64) -> Result<()> {
        if name.is_empty() || name.len() > 4096 || name.contains('\0') {
            return Err(invalid("a zip entry has no or a bad name").with("name", shown(&name)));
        }
        let header = self.directory;
        let bare = header + LOCAL_LEN + name.len() as u64 + wide_local_len(size);
        let mut data = bare.next_multiple_of(self.align);
        while data != bare && data - bare < FILLER_LEN {
            data += self.align;
        }
        self.directory =
            data.checked_add(size).filter(|end| i64::try_from(*end).is_ok()).ok_or_else(|| {
                invalid("the archive would be larger than a file can be").with("entry", shown(&name))
            })?;
        self.places.push(Place { name, header, data, size });
        Ok(())
    }

    /// Where the entries go, in the order given.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where the directory goes: the end of the last entry.
    pub fn end_of_data(&self) -> u64 {
        self.directory
    }

    /// Bytes of the whole archive.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from an entry's header to its data. Panics if there is no entry of this index.
    pub fn header(&self, index: usize, crc32: u32) -> Vec<u8> {
        let place = &self.places[index];
        let is_wide = wide_local_len(place.size) > 0;
        let size = narrow(place.size);
        let total = (place.data - place.header) as usize;
        let extra = total - LOCAL_LEN as usize - place.name.len();
        let mut bytes = Vec::with_capacity(total);
        word(&mut bytes, LOCAL);
        half(&mut bytes, version(is_wide));
        common(&mut bytes, crc32, size, size, place.name.len());
        half(&mut bytes, extra as u16);
        bytes.extend_from_slice(place.name.as_bytes());
        if is_wide {
            half(&mut bytes, EXTRA_64);
            half(&mut bytes, 16);
            long(&mut bytes, place.size);
            long(&mut bytes, place.size);
        }
        let filler = total - bytes.len();
        if filler > 0 {
            half(&mut bytes, FILLER);
            half(&mut bytes, (filler - 4) as u16);
            half(&mut bytes, self.align as u16);
            bytes.resize(total, 0);
        }
        bytes
    }

    /// The bytes after the last entry, from the CRC-32 of each.
    pub fn directory(&self, crcs: &[u32]) -> Result<Vec<u8>> {
        if crcs.len() != self.places.len() {
            return Err(invalid("the number of CRCs is not that of the entries")
                .with("crcs", crcs.len())
                .with("entries", self.places.len()));
        }
        let mut bytes = Vec::with_capacity((self.size - self.directory) as usize);
        for (place, crc) in self.places.iter().zip(crcs) {
            central(&mut bytes, place, *crc);
        }
        let (len, count) = (bytes.len() as u64, self.places.len() as u64);
        if self.has_wide_end(len) {
            word(&mut bytes, END_64);
            long(&mut bytes, END_64_LEN - 12);
            half(&mut bytes, MADE_BY | version(true));
            half(&mut bytes, version(true));
            word(&mut bytes, 0);
            word(&mut bytes, 0);
            for value in [count, count, len, self.directory] {
                long(&mut bytes, value);
            }
            word(&mut bytes, LOCATOR_64);
            word(&mut bytes, 0);
            long(&mut bytes, self.directory + len);
            word(&mut bytes, 1);
        }
        word(&mut bytes, END);
        word(&mut bytes, 0);
        half(&mut bytes, count.min(FULL_16.into()) as u16);
        half(&mut bytes, count.min(FULL_16.into()) as u16);
        word(&mut bytes, narrow(len));
        word(&mut bytes, narrow(self.directory));
        half(&mut bytes, 0);
        Ok(bytes)
    }

    fn has_wide_end(&self, records: u64) -> bool {
        is_wide(records) || is_wide(self.directory) || self.places.len() >= usize::from(FULL_16)
    }
}

/// Made on Unix.
const MADE_BY: u16 = 3 << 8;

fn central(bytes: &mut Vec<u8>, place: &Place, crc32: u32) {
    let wide: Vec<u64> =
        [place.size, place.size, place.header].into_iter().filter(|value| is_wide(*value)).collect();
    word(bytes, CENTRAL);
    half(bytes, MADE_BY | version(!wide.is_empty()));
    half(bytes, version(!wide.is_empty()));
    common(bytes, crc32, narrow(place.size), narrow(place.size), place.name.len());
    half(bytes, if wide.is_empty() { 0 } else { 4 + 8 * wide.len() as u16 });
    // No comment, the first disk, no internal attributes.
    for _ in 0..3 {
        half(bytes, 0);
    }
    word(bytes, ATTRIBUTES);
    word(bytes, narrow(place.header));
    bytes.extend_from_slice(place.name.as_bytes());
    if !wide.is_empty() {
        half(bytes, EXTRA_64);
        half(bytes, 8 * wide.len() as u16);
        for value in wide {
            long(bytes, value);
        }
    }
}

/// What both headers of an entry have after the version.
fn common(bytes: &mut Vec<u8>, crc32: u32, packed: u32, size: u32, name: usize) {
    // Flags, stored, midnight, the day.
    for value in [FLAGS, 0, 0, DATE] {
        half(bytes, value);
    }
    for value in [crc32, packed, size] {
        word(bytes, value);
    }
    half(bytes, name as u16);
}

fn central_len(place: &Place) -> u64 {
    let wide = u64::from(is_wide(place.size)) * 2 + u64::from(is_wide(place.header));
    let extra = if wide == 0 { 0 } else { 4 + 8 * wide };
    CENTRAL_LEN + place.name.len() as u64 + extra
}

/// An entry's own header has both sizes wide or none.
fn wide_local_len(size: u64) -> u64 {
    if is_wide(size) { 20 } else { 0 }
}

fn version(is_wide: bool) -> u16 {
    if is_wide { 45 } else { 20 }
}

fn is_wide(value: u64) -> bool {
    value >= u64::from(FULL_32)
}

fn narrow(value: u64) -> u32 {
    value.min(FULL_32.into()) as u32
}

fn half(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn word(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn long(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
