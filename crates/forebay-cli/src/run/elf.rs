//! Reads the ELF headers that the dynamic loader uses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_config::files::open_plain;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
/// Tables of honest files are far smaller.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// A program or a library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// 64 bits, not 32.
    pub(super) wide: bool,
    /// It names a dynamic loader: without one, nothing can be preloaded.
    pub(super) has_loader: bool,
    /// The libraries that it needs.
    pub(super) needed: Vec<String>,
    /// The name that it has as a library.
    pub(super) soname: Option<String>,
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

/// Reads a file's headers; `None` if it is no ELF file.
pub(super) fn read(path: &Path) -> io::Result<Option<Elf>> {
    let file = open_plain(path)?;
    let Some(head) = bytes(&file, 0, 64) else { return Ok(None) };
    if !head.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    if head[4] != 2 || head[5] != 1 {
        return Ok(Some(Elf::default()));
    }
    let (table, size, count) = (long(&head, 32), u64::from(half(&head, 54)), u64::from(half(&head, 56)));
    let Some(headers) = bytes(&file, table, size * count).filter(|_| size >= 56) else {
        return Ok(Some(Elf { wide: true, ..Elf::default() }));
    };
    let segments: Vec<_> = headers
        .chunks_exact(size as usize)
        .map(|entry| Segment {
            kind: word(entry, 0),
            offset: long(entry, 8),
            address: long(entry, 16),
            len: long(entry, 32),
        })
        .collect();
    let mut elf =
        Elf { wide: true, has_loader: segments.iter().any(|s| s.kind == PT_INTERP), ..Elf::default() };
    dynamic(&file, &segments, &mut elf);
    Ok(Some(elf))
}

/// Adds what the dynamic section says.
fn dynamic(file: &File, segments: &[Segment], elf: &mut Elf) -> Option<()> {
    let section = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let section = bytes(file, section.offset, section.len)?;
    let entries: Vec<_> = section
        .as_chunks::<16>()
        .0
        .iter()
        .map(|entry| (long(entry, 0), long(entry, 8)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (address, len) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let load = segments.iter().find(|segment| {
        segment.kind == PT_LOAD
            && (segment.address..segment.address.saturating_add(segment.len)).contains(&address)
    })?;
    let strings = bytes(file, load.offset.checked_add(address - load.address)?, len)?;
    let string = |at: u64| {
        let text = strings.get(usize::try_from(at).ok()?..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&text[..end]).into_owned())
    };
    elf.needed =
        entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|(_, at)| string(*at)).collect();
    elf.soname = value(DT_SONAME).and_then(string);
    Some(())
}

fn bytes(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    if len > MAX_TABLE_BYTES {
        return None;
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_program() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(elf.wide && elf.has_loader, "{elf:?}");
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
        assert_eq!(elf.soname, None);
    }

    #[test]
    fn damaged_files_are_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [0, 3, 63, 64, 100, 900] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let _ = read(&path).unwrap();
        }
        for at in 0..1024 {
            let mut bytes = whole[..4096].to_vec();
            bytes[at] = 0xff;
            std::fs::write(&path, &bytes).unwrap();
            let _ = read(&path).unwrap();
        }
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }
}
