//! Names of files as slots: 48 bytes of the path in each.

use crate::record::{RECORD, RecordSlot, take};

/// The first byte of a slot with a part of a name.
pub(crate) const NAME: u8 = 0x80;
/// Bytes of the path in a slot.
const PART: usize = 48;
/// Paths longer than the kernel takes are cut.
pub(crate) const MAX_PATH: usize = 4096;

/// A part of a file's name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamePart<'a> {
    pub(crate) file: u32,
    /// Where in the name it belongs.
    pub(crate) at: usize,
    /// Length of the whole name.
    pub(crate) total: usize,
    pub(crate) bytes: &'a [u8],
}

/// The slots of a name; an empty name has one.
pub(crate) fn of_name(file: u32, name: &[u8]) -> Vec<RecordSlot> {
    let name = &name[..name.len().min(MAX_PATH)];
    let count = name.len().div_ceil(PART).max(1);
    (0..count)
        .map(|index| {
            let part = &name[index * PART..name.len().min((index + 1) * PART)];
            let mut bytes = [0; RECORD];
            bytes[0] = NAME;
            bytes[1] = part.len() as u8;
            bytes[2..4].copy_from_slice(&(index as u16).to_le_bytes());
            bytes[4..8].copy_from_slice(&file.to_le_bytes());
            bytes[8..12].copy_from_slice(&(name.len() as u32).to_le_bytes());
            bytes[16..16 + part.len()].copy_from_slice(part);
            RecordSlot(bytes)
        })
        .collect()
}

/// The part of a name in a slot, if it is one.
pub(crate) fn part(slot: &[u8; RECORD]) -> Option<NamePart<'_>> {
    let total = u32::from_le_bytes(take(slot, 8)) as usize;
    let at = usize::from(u16::from_le_bytes(take(slot, 2))) * PART;
    let len = usize::from(slot[1]);
    let fits = slot[0] == NAME && len <= PART && total <= MAX_PATH && at + len <= total;
    fits.then(|| NamePart { file: u32::from_le_bytes(take(slot, 4)), at, total, bytes: &slot[16..16 + len] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_come_back() {
        for len in [0, 1, 47, 48, 49, 96, 500, MAX_PATH, MAX_PATH + 10] {
            let name: Vec<u8> = (0..len).map(|index| (index % 251) as u8 + 1).collect();
            let mut back = Vec::new();
            for slot in of_name(5, &name) {
                let part = part(&slot.0).unwrap();
                assert_eq!((part.file, part.at, part.total), (5, back.len(), len.min(MAX_PATH)));
                back.extend_from_slice(part.bytes);
            }
            assert_eq!(back, name[..len.min(MAX_PATH)]);
        }
    }
}
