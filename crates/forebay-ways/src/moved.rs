//! Bytes by way.

use std::ops::{Index, IndexMut};

use crate::{EngineKind, Way};

/// Bytes by the way they took: `moved[Way::Cached]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    ways: [u64; Way::COUNT],
    /// Of all bytes, those that the resident kernel copied to or from the device, without a driver call for each piece.
    pub resident: u64,
}

/// How many engines have a way of their own.
const OWNERS: usize = {
    let (mut count, mut index) = (0, 0);
    while index < EngineKind::ALL.len() {
        count += EngineKind::ALL[index].way().is_some() as usize;
        index += 1;
    }
    count
};

/// These, best first, with their ways.
const OWNED: [(EngineKind, Way); OWNERS] = {
    let (mut owned, mut count, mut index) = ([(EngineKind::Host, Way::Cached); OWNERS], 0, 0);
    while index < EngineKind::ALL.len() {
        if let Some(way) = EngineKind::ALL[index].way() {
            owned[count] = (EngineKind::ALL[index], way);
            count += 1;
        }
        index += 1;
    }
    owned
};

/// All bits for these ways.
const OWN: [u64; Way::COUNT] = {
    let (mut own, mut index) = ([0; Way::COUNT], 0);
    while index < OWNERS {
        own[OWNED[index].1 as usize] = u64::MAX;
        index += 1;
    }
    own
};

/// All bits for the ways of which no byte crosses the CPU.
const DIRECT: [u64; Way::COUNT] = {
    let (mut direct, mut index) = ([0; Way::COUNT], 0);
    while index < Way::COUNT {
        direct[index] = if Way::ALL[index].is_direct() { u64::MAX } else { 0 };
        index += 1;
    }
    direct
};

impl Moved {
    /// Bytes that all took one way.
    pub const fn of(way: Way, bytes: u64) -> Self {
        let mut ways = [0; Way::COUNT];
        ways[way as usize] = bytes;
        Self { ways, resident: 0 }
    }

    /// From bytes in the order of [`Way::ALL`].
    pub const fn from_ways(ways: [u64; Way::COUNT]) -> Self {
        Self { ways, resident: 0 }
    }

    /// The same of which the resident kernel copied this many.
    #[must_use]
    pub const fn by_resident(self, resident: u64) -> Self {
        Self { resident, ..self }
    }

    /// Bytes in the order of [`Way::ALL`].
    pub const fn as_array(&self) -> &[u64; Way::COUNT] {
        &self.ways
    }

    /// The ways that were taken, with their bytes.
    pub fn taken(self) -> impl Iterator<Item = (Way, u64)> {
        Way::ALL.into_iter().zip(self.ways).filter(|(_, bytes)| *bytes > 0)
    }

    /// All bytes.
    pub const fn total(self) -> u64 {
        let (mut sum, mut index) = (0, 0);
        while index < Way::COUNT {
            sum += self.ways[index];
            index += 1;
        }
        sum
    }

    /// Bytes that did not cross the CPU.
    pub const fn direct(self) -> u64 {
        self.sum_of(&DIRECT)
    }

    /// Bytes of the ways that belong to one engine alone.
    pub const fn by_own_ways(self) -> u64 {
        self.sum_of(&OWN)
    }

    // Each request asks: masks make it straight code.
    const fn sum_of(self, masks: &[u64; Way::COUNT]) -> u64 {
        let (mut sum, mut index) = (0, 0);
        while index < Way::COUNT {
            sum += self.ways[index] & masks[index];
            index += 1;
        }
        sum
    }

    /// The bytes of each engine that moved some: those with a way of their own, best first, and `rest`, which moved all else.
    pub fn by_engine(self, rest: EngineKind) -> impl Iterator<Item = (EngineKind, Self)> {
        let mut left = self;
        for (_, way) in OWNED {
            left[way] = 0;
        }
        // The resident kernel copies pieces read in place, or staged.
        let mapped = self.resident.min(self[Way::Mapped]);
        left.resident -= mapped;
        let own = OWNED.into_iter().map(move |(kind, way)| {
            let resident = if way == Way::Mapped { mapped } else { 0 };
            (kind, Self::of(way, self[way]).by_resident(resident))
        });
        own.chain([(rest, left)]).filter(|(_, moved)| moved.total() > 0)
    }

    /// The sum of two.
    #[must_use]
    pub const fn plus(mut self, other: Self) -> Self {
        let mut index = 0;
        while index < Way::COUNT {
            self.ways[index] += other.ways[index];
            index += 1;
        }
        self.resident += other.resident;
        self
    }

    /// At most this many bytes: those that count, where more were moved. Which of several ways the others took is not
    /// kept for each byte: those that read or wrote the file by calls lose theirs first.
    #[must_use]
    pub fn up_to(mut self, most: u64) -> Self {
        let mut more = self.total().saturating_sub(most);
        if more == 0 {
            return self;
        }
        for way in [Way::Direct, Way::Buffered].into_iter().chain(Way::ALL) {
            let less = more.min(self[way]);
            self[way] -= less;
            more -= less;
        }
        self.resident = self.resident.min(self.total());
        self
    }
}

impl Index<Way> for Moved {
    type Output = u64;
    fn index(&self, way: Way) -> &u64 {
        &self.ways[way as usize]
    }
}

impl IndexMut<Way> for Moved {
    fn index_mut(&mut self, way: Way) -> &mut u64 {
        &mut self.ways[way as usize]
    }
}

/// Bytes as a map from all ways' names, for `#[serde(flatten, serialize_with = …)]`.
pub fn serialize_ways<S: serde::Serializer>(moved: &Moved, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(Way::ALL.iter().map(|way| (way.name(), moved[*way])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_share_all_bytes() {
        let all = Moved::from_ways([1, 2, 3, 4, 5, 6, 7, 8]).by_resident(9);
        let shares: Vec<_> = all.by_engine(EngineKind::Staged).collect();
        assert_eq!(shares.iter().fold(Moved::default(), |sum, (_, moved)| sum.plus(*moved)), all);
        assert_eq!(shares[0], (EngineKind::P2p, Moved::of(Way::Drive, 7)));
        assert_eq!((all.total(), all.direct(), all.by_own_ways()), (36, 26, 20));
        assert_eq!(Moved::of(Way::Cached, 1).by_engine(EngineKind::Host).count(), 1);
    }

    #[test]
    fn bytes_by_calls_are_lost_first() {
        let moved = Moved::from_ways([1, 2, 0, 0, 5, 0, 0, 0]).by_resident(5);
        assert_eq!(moved.up_to(9), moved);
        assert_eq!(moved.up_to(6), Moved { resident: 5, ..Moved::from_ways([1, 0, 0, 0, 5, 0, 0, 0]) });
        assert_eq!(moved.up_to(3), Moved::of(Way::Mapped, 3).by_resident(3));
    }
}
