//! The names in a directory: READDIR and READDIRPLUS of version 3, READDIR of version 4.

use crate::protocol::handle::{FileKind, NfsHandle};
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::{self, CallOutcome};
use crate::protocol::v4::{self, op};
use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// How names are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDirForm {
    /// READDIR of version 3: names alone.
    V3,
    /// READDIRPLUS: names with attributes.
    V3Plus,
    /// Version 4: names with their types.
    V4,
}

impl ReadDirForm {
    /// Its number: a procedure of version 3, an operation of version 4.
    pub const fn number(self) -> u32 {
        match self {
            Self::V3 => 16,
            Self::V3Plus => 17,
            Self::V4 => op::READDIR,
        }
    }
}

/// Where a listing goes on; all zero where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirPlace {
    /// Of the last entry that came.
    pub cookie: u64,
    /// What the server's cookies hold for.
    pub verifier: [u8; 8],
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its bytes, of whatever encoding: at most 1024, and neither `/` nor a zero byte among them.
    pub name: Vec<u8>,
    /// What it names; `None` where the server does not say.
    pub kind: Option<FileKind>,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPart {
    /// Names without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Where the next part begins.
    pub next: DirPlace,
    /// Whether this is the last part.
    pub is_last: bool,
}

/// Attributes that are asked for in version 4: the type, or why it is unknown.
const TYPE: u32 = 1 << 1;
const WHY_NOT: u32 = 1 << 11;

/// Asks for the entries from a place on, in a reply of at most `most` bytes.
pub fn put(to: &mut XdrWriter<'_>, form: ReadDirForm, handle: &NfsHandle, place: DirPlace, most: u32) {
    if form == ReadDirForm::V4 {
        v4::put_handle(to, handle);
        to.u32(form.number());
    } else {
        v3::put_handle(to, handle);
    }
    to.u64(place.cookie);
    to.raw(&place.verifier);
    to.u32(most);
    if form != ReadDirForm::V3 {
        to.u32(most);
    }
    if form == ReadDirForm::V4 {
        to.words(&[1, TYPE | WHY_NOT]);
    }
}

/// Entries behind the place that was asked for.
pub fn get(from: &mut XdrReader<'_>, form: ReadDirForm, asked: DirPlace) -> CallOutcome<DirPart> {
    if let Err(status) = begin(from, form)? {
        return Ok(Err(status));
    }
    let mut next = DirPlace { cookie: asked.cookie, verifier: from.array()? };
    let mut entries = Vec::new();
    while from.bool()? {
        let (name, cookie, kind) = entry(from, form)?;
        next.cookie = cookie;
        if matches!(name, b"." | b"..") {
            continue;
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Malformed("a name in a directory that is none"));
        }
        entries.push(DirEntry { name: name.to_vec(), kind });
    }
    let is_last = from.bool()?;
    if !is_last && next.cookie == asked.cookie {
        return Err(Malformed("the names of a directory do not go on"));
    }
    Ok(Ok(DirPart { entries, next, is_last }))
}

/// What stands before the verifier.
fn begin(from: &mut XdrReader<'_>, form: ReadDirForm) -> CallOutcome<()> {
    if form == ReadDirForm::V4 {
        return match v4::get_op(from, op::PUTFH)? {
            Ok(()) => v4::get_op(from, op::READDIR),
            refused => Ok(refused),
        };
    }
    match from.u32()? {
        0 => v3::skip_attributes(from).map(Ok),
        status => Ok(Err(NfsStatus(status))),
    }
}

/// Bytes of a name at most: 255 in most file systems, and as many characters in some.
const NAME_BYTES: usize = 1024;

fn entry<'a>(
    from: &mut XdrReader<'a>,
    form: ReadDirForm,
) -> Result<(&'a [u8], u64, Option<FileKind>), Malformed> {
    if form == ReadDirForm::V4 {
        let (cookie, name) = (from.u64()?, from.opaque(NAME_BYTES)?);
        return Ok((name, cookie, kind_of_v4(from)?));
    }
    from.skip(8)?;
    let (name, cookie) = (from.opaque(NAME_BYTES)?, from.u64()?);
    let kind = if form == ReadDirForm::V3Plus { kind_of_plus(from)? } else { None };
    Ok((name, cookie, kind))
}

fn kind_of_plus(from: &mut XdrReader<'_>) -> Result<Option<FileKind>, Malformed> {
    let attributes = if from.bool()? { Some(v3::attributes(from)?) } else { None };
    if from.bool()? {
        from.opaque(v3::MAX_HANDLE_BYTES)?;
    }
    Ok(attributes.map(|attributes| attributes.kind))
}

fn kind_of_v4(from: &mut XdrReader<'_>) -> Result<Option<FileKind>, Malformed> {
    let (mut told, words) = (0, from.u32()?);
    for at in 0..words {
        let word = from.u32()?;
        if at == 0 {
            told = word;
        }
        if at > 7 || word & !if at == 0 { TYPE | WHY_NOT } else { 0 } != 0 {
            return Err(Malformed("attributes that were not asked for"));
        }
    }
    let mut values = XdrReader::new(from.opaque(64)?);
    Ok(if told & TYPE == 0 { None } else { Some(FileKind::of(values.u32()?)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: DirPlace = DirPlace { cookie: 7, verifier: [1; 8] };

    /// A reply of READDIR of version 3 with these names, whose cookies follow the one that was asked for.
    fn said(names: &[&[u8]], is_last: bool) -> CallOutcome<DirPart> {
        let mut bytes = [0; 2048];
        let mut to = XdrWriter::new(&mut bytes);
        to.words(&[0, 0]);
        to.raw(&[2; 8]);
        for (name, cookie) in names.iter().zip(ASKED.cookie + 1..) {
            to.words(&[1, 0, 5]);
            to.opaque(name);
            to.u64(cookie);
        }
        to.words(&[0, is_last.into()]);
        let len = to.finish().unwrap();
        get(&mut XdrReader::new(&bytes[..len]), ReadDirForm::V3, ASKED)
    }

    #[test]
    fn names_are_bytes_and_the_directory_itself_is_left_out() {
        let part = said(&[b".", b"caf\xE9", b"..", b"...", &[b'x'; 1024]], false).unwrap().unwrap();
        let names: Vec<_> = part.entries.iter().map(|entry| entry.name.as_slice()).collect();
        assert_eq!(names, [&b"caf\xE9"[..], b"...", &[b'x'; 1024]]);
        assert_eq!((part.next, part.is_last), (DirPlace { cookie: 12, verifier: [2; 8] }, false));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in [&b""[..], b"a/b", b"/", b"a\0", &[b'x'; 1025]] {
            assert!(said(&[b"a", name], true).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_part_without_names_is_the_last_one() {
        assert_eq!(said(&[], true).unwrap().unwrap().entries, []);
        assert_eq!(said(&[], false), Err(Malformed("the names of a directory do not go on")));
    }
}
