//! Many pieces of equal length out of one range, by one kernel launch.

/// One launch of many pieces of equal length out of one range. Piece `i` is `piece` bytes from
/// `base + offsets[i]`, and goes to `out + i * piece`.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// The address, reachable by the device, that offset 0 has.
    pub base: u64,
    /// Bytes that may be read from `base` on.
    pub len: u64,
    /// Address, reachable by the device, of `count` offsets of 64 bits.
    pub offsets: u64,
    /// How many pieces.
    pub count: u64,
    /// Bytes of each piece.
    pub piece: u64,
    /// Where the pieces go, one after another.
    pub out: u64,
    /// Device address of a [`GatherReport`] that the caller has set to [`GatherReport::START`].
    pub report: u64,
}

/// What a gather refused: the pieces that do not lie within `len`. They are not read, and their places in `out` are
/// filled with zeros. Laid out as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherReport {
    /// How many pieces were refused.
    pub refused: u64,
    /// Index of the first one; `u64::MAX` if there is none.
    pub first: u64,
}

impl GatherReport {
    /// What a report is set to before the launch: the kernel adds, and takes the least index.
    pub const START: Self = Self { refused: 0, first: u64::MAX };
}

impl Default for GatherReport {
    fn default() -> Self {
        Self::START
    }
}
