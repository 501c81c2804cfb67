//! The keys of all memory, and their rights.

use std::collections::HashMap;
use std::fmt;

use forebay_verbs::Access;

/// Why a key did not open memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// There is no such key: never, no more, or no longer bound.
    NoKey,
    /// The key is of another protection domain.
    OtherDomain,
    /// The window is bound for another connection.
    OtherConnection,
    /// The range is not within what the key is for.
    Bounds,
    /// The key does not allow it.
    Rights,
    /// A window is bound to the region.
    InUse,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKey => "no such key",
            Self::OtherDomain => "the key is of another domain",
            Self::OtherConnection => "the window is another connection's",
            Self::Bounds => "the range is out of bounds",
            Self::Rights => "the key does not allow it",
            Self::InUse => "a window is bound to the region",
        })
    }
}

/// A range of remote or local addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Span {
    const EMPTY: Self = Self { address: 0, len: 0 };

    fn holds(self, other: Self) -> bool {
        let end = |span: Self| span.address.checked_add(span.len);
        match (end(self), end(other)) {
            (Some(end), Some(other_end)) => other.address >= self.address && other_end <= end,
            _ => false,
        }
    }
}

/// The requester: a connection of a domain. Windows open for their connection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) domain: u64,
    pub(crate) connection: u64,
}

/// Memory to be entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRegion {
    pub(crate) device: usize,
    pub(crate) domain: u64,
    /// Where the first byte is in this process.
    pub(crate) base: usize,
    pub(crate) span: Span,
    pub(crate) access: Access,
}

#[derive(Debug)]
struct Entry {
    key: u32,
    device: usize,
    domain: u64,
    base: usize,
    span: Span,
    access: Access,
    what: What,
}

#[derive(Debug)]
enum What {
    Region { windows: u32 },
    Window { bound: Option<Binding> },
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    connection: u64,
    region: u32,
}

/// All keys. The upper 24 bits name an entry and are never used again; the lower 8 change with each binding.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<u32, Entry>,
    last: u32,
}

impl Table {
    /// Enters memory, and gives its key.
    pub(crate) fn add_region(&mut self, new: NewRegion) -> u32 {
        let NewRegion { device, domain, base, span, access } = new;
        self.add(Entry { key: 0, device, domain, base, span, access, what: What::Region { windows: 0 } })
    }

    /// Enters a window that is bound to nothing, and gives the key that its first binding counts from.
    pub(crate) fn add_window(&mut self, device: usize, domain: u64) -> u32 {
        let what = What::Window { bound: None };
        self.add(Entry { key: 0, device, domain, base: 0, span: Span::EMPTY, access: Access::READ, what })
    }

    fn add(&mut self, mut entry: Entry) -> u32 {
        self.last += 1;
        // A tag that differs from entry to entry: an index alone, or another's tag, opens nothing.
        entry.key = self.last << 8 | (self.last.wrapping_mul(0x9e37_79b1) >> 24);
        let key = entry.key;
        self.entries.insert(self.last, entry);
        key
    }

    /// Takes a region or a window out. A region stays while windows are bound to it.
    pub(crate) fn remove(&mut self, key: u32) -> Result<(), Refusal> {
        match self.entries.get(&(key >> 8)).map(|entry| &entry.what) {
            None => return Ok(()),
            Some(What::Region { windows: 1.. }) => return Err(Refusal::InUse),
            Some(What::Region { .. }) => {}
            Some(What::Window { .. }) => self.unbind(key >> 8),
        }
        self.entries.remove(&(key >> 8));
        Ok(())
    }

    /// Memory that is registered.
    pub(crate) fn regions(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.what, What::Region { .. })).count()
    }

    /// Takes out all that is a device's.
    pub(crate) fn remove_device(&mut self, device: usize) {
        self.entries.retain(|_, entry| entry.device != device);
    }

    /// Binds the window behind `key` to a range of the region behind `region`.
    pub(crate) fn bind(
        &mut self,
        (key, new_key): (u32, u32),
        asker: Asker,
        (region, span): (u32, Span),
        access: Access,
    ) -> Result<(), Refusal> {
        let window =
            self.entries.get(&(key >> 8)).filter(|window| window.key == key).ok_or(Refusal::NoKey)?;
        // A window is bound anew only after it was invalidated (type 2), and under another tag.
        if window.domain != asker.domain {
            return Err(Refusal::OtherDomain);
        }
        if !matches!(window.what, What::Window { bound: None }) || new_key == key || new_key >> 8 != key >> 8
        {
            return Err(Refusal::InUse);
        }
        let memory = self.entries.get(&(region >> 8)).filter(|memory| memory.key == region);
        let memory = memory.ok_or(Refusal::NoKey)?;
        if memory.domain != asker.domain {
            return Err(Refusal::OtherDomain);
        }
        if !memory.span.holds(span) {
            return Err(Refusal::Bounds);
        }
        let asked = access | if access.has(Access::REMOTE_WRITE) { Access::WRITE } else { Access::READ };
        let writes = !asked.has(Access::WRITE) || memory.access.has(Access::WRITE);
        if !memory.access.has(Access::BIND) || !writes {
            return Err(Refusal::Rights);
        }
        let base = memory.base + (span.address - memory.span.address) as usize;
        if let Some(Entry { what: What::Region { windows }, .. }) = self.entries.get_mut(&(region >> 8)) {
            *windows += 1;
        }
        if let Some(window) = self.entries.get_mut(&(key >> 8)) {
            let bound = Some(Binding { connection: asker.connection, region: region >> 8 });
            (window.key, window.base, window.span, window.access) = (new_key, base, span, access);
            window.what = What::Window { bound };
        }
        Ok(())
    }

    /// Makes the key of a bound window invalid. Plain regions cannot be invalidated.
    pub(crate) fn invalidate(&mut self, key: u32, asker: Asker) -> Result<(), Refusal> {
        let entry = self.entries.get(&(key >> 8)).filter(|entry| entry.key == key).ok_or(Refusal::NoKey)?;
        match entry.what {
            What::Region { .. } => Err(Refusal::Rights),
            What::Window { bound: None } => Err(Refusal::NoKey),
            What::Window { .. } if entry.domain != asker.domain => Err(Refusal::OtherDomain),
            What::Window { bound: Some(bound) } if bound.connection != asker.connection => {
                Err(Refusal::OtherConnection)
            }
            What::Window { .. } => {
                self.unbind(key >> 8);
                Ok(())
            }
        }
    }

    fn unbind(&mut self, index: u32) {
        let Some(Entry { what: What::Window { bound }, .. }) = self.entries.get_mut(&index) else { return };
        let Some(Binding { region, .. }) = bound.take() else { return };
        if let Some(Entry { what: What::Region { windows }, .. }) = self.entries.get_mut(&region) {
            *windows -= 1;
        }
    }

    /// Where a range is in this process, if the key opens it for that.
    pub(crate) fn find(&self, key: u32, asker: Asker, span: Span, right: Access) -> Result<usize, Refusal> {
        let entry = self.entries.get(&(key >> 8)).filter(|entry| entry.key == key).ok_or(Refusal::NoKey)?;
        if entry.domain != asker.domain {
            return Err(Refusal::OtherDomain);
        }
        match entry.what {
            What::Window { bound: None } => return Err(Refusal::NoKey),
            What::Window { bound: Some(bound) } if bound.connection != asker.connection => {
                return Err(Refusal::OtherConnection);
            }
            _ => {}
        }
        if !entry.access.has(right) {
            return Err(Refusal::Rights);
        }
        if !entry.span.holds(span) {
            return Err(Refusal::Bounds);
        }
        Ok(entry.base + (span.address - entry.span.address) as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ME: Asker = Asker { domain: 1, connection: 10 };
    const RIGHTS: [Access; 3] = [Access::WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ];

    fn access(bits: u8) -> Access {
        let all = [Access::WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::BIND];
        all.into_iter()
            .enumerate()
            .filter(|(bit, _)| bits >> bit & 1 == 1)
            .fold(Access::READ, |sum, (_, one)| sum | one)
    }

    fn region(address: u64, len: u64, access: Access) -> NewRegion {
        NewRegion { device: 0, domain: 1, base: 1 << 40, span: Span { address, len }, access }
    }

    proptest! {
        /// A range is found exactly where each of its bytes lies in the region and the right was granted.
        #[test]
        fn bounds_and_rights(start in 0_u64..200, len in 0_u64..100, at in 0_u64..320, count in 0_u64..120, bits in 0_u8..16) {
            let mut table = Table::default();
            let key = table.add_region(region(start, len, access(bits)));
            for right in RIGHTS {
                let found = table.find(key, ME, Span { address: at, len: count }, right);
                let within = at >= start && at + count <= start + len;
                prop_assert_eq!(found.is_ok(), within && access(bits).has(right));
                if let Ok(place) = found {
                    prop_assert_eq!(place as u64, (1 << 40) + at - start);
                }
            }
        }

        /// Ends of ranges that do not fit 64 bits are no way in.
        #[test]
        fn no_range_wraps(at in any::<u64>(), count in any::<u64>()) {
            let mut table = Table::default();
            let key = table.add_region(region(1 << 32, 4096, Access::REMOTE_READ));
            let found = table.find(key, ME, Span { address: at, len: count }, Access::REMOTE_READ);
            let within = at >= 1 << 32 && u128::from(at) + u128::from(count) <= (1_u128 << 32) + 4096;
            prop_assert_eq!(found.is_ok(), within);
        }

        /// Only the very key opens: no other tag, no neighbour's index, nothing after removal.
        #[test]
        fn other_keys_open_nothing(guess in any::<u32>(), before in 0_u32..20) {
            let mut table = Table::default();
            for _ in 0..before {
                let key = table.add_region(region(0, 4096, Access::REMOTE_READ));
                table.remove(key).unwrap();
            }
            let key = table.add_region(region(0, 4096, Access::REMOTE_READ));
            let whole = Span { address: 0, len: 4096 };
            let open = |table: &Table, key| table.find(key, ME, whole, Access::REMOTE_READ);
            prop_assert_eq!(open(&table, guess).is_ok(), guess == key);
            prop_assert!(open(&table, key).is_ok());
            table.remove(key).unwrap();
            prop_assert_eq!(open(&table, key), Err(Refusal::NoKey));
            let next = table.add_region(region(0, 4096, Access::REMOTE_READ));
            prop_assert_eq!(open(&table, key), Err(Refusal::NoKey));
            prop_assert!(open(&table, next).is_ok());
        }

        /// Lives of windows: whatever the order of binding, invalidating and removing, a window opens exactly its range from
        /// its binding to its end, and a region stays while one is bound.
        #[test]
        fn windows_live_from_binding_to_invalidation(steps in proptest::collection::vec((0_u8..5, 0_u64..64, 0_u64..64), 1..60)) {
            let mut table = Table::default();
            let memory = table.add_region(region(0, 64, Access::WRITE | Access::BIND));
            let mut window = table.add_window(0, 1);
            let (mut range, mut there): (Option<Span>, bool) = (None, true);
            for (step, address, len) in steps {
                let span = Span { address, len };
                match step {
                    0 | 1 => {
                        let new = window & !0xff | (window + 1) & 0xff;
                        let done = table.bind((window, new), ME, (memory, span), Access::REMOTE_WRITE);
                        let fits = address + len <= 64;
                        prop_assert_eq!(done.is_ok(), there && range.is_none() && fits);
                        if done.is_ok() {
                            (window, range) = (new, Some(span));
                        }
                    }
                    2 => {
                        prop_assert_eq!(table.invalidate(window, ME).is_ok(), range.is_some());
                        range = None;
                    }
                    3 => {
                        prop_assert_eq!(table.remove(memory).is_ok(), range.is_none());
                        there &= range.is_some();
                    }
                    _ => {
                        let found = table.find(window, ME, span, Access::REMOTE_WRITE).is_ok();
                        prop_assert_eq!(found, range.is_some_and(|range| range.holds(span)));
                        let other = Asker { connection: 11, ..ME };
                        prop_assert!(table.find(window, other, span, Access::REMOTE_WRITE).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn refusals_name_the_reason() {
        let mut table = Table::default();
        let plain = table.add_region(region(0, 64, Access::WRITE));
        let bindable = table.add_region(region(0, 64, Access::BIND));
        let whole = Span { address: 0, len: 64 };
        let window = table.add_window(0, 1);
        let next = window & !0xff | (window + 1) & 0xff;
        let stranger = Asker { domain: 2, connection: 10 };
        assert_eq!(table.find(plain, stranger, whole, Access::WRITE), Err(Refusal::OtherDomain));
        assert_eq!(table.find(plain, ME, whole, Access::REMOTE_READ), Err(Refusal::Rights));
        assert_eq!(table.invalidate(plain, ME), Err(Refusal::Rights));
        let mut bind = |region, access| table.bind((window, next), ME, (region, whole), access);
        assert_eq!(bind(plain, Access::REMOTE_READ), Err(Refusal::Rights), "no right to bind");
        assert_eq!(bind(bindable, Access::REMOTE_WRITE), Err(Refusal::Rights), "the region is not writable");
        assert_eq!(bind(bindable, Access::REMOTE_READ), Ok(()));
        assert_eq!(table.remove(bindable), Err(Refusal::InUse));
        assert_eq!(table.remove(next), Ok(()));
        assert_eq!(table.remove(bindable), Ok(()));
        table.remove_device(0);
        assert_eq!(table.find(plain, ME, whole, Access::WRITE), Err(Refusal::NoKey));
    }
}
