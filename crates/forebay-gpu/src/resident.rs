//! Requests to a resident kernel.

/// A kernel that polls mailboxes in pinned memory and copies the requests posted there, until there are none for a
/// while.
///
/// A mailbox has [`Resident::MAILBOX`] bytes: two lines of 128, each written by one side alone. Numbers are of 32 bits, little-endian.
///
/// | offset | word | by |
/// |---|---|---|
/// | 0 | `posted`: the request's number, written last | host |
/// | 4 | `withdrawn`: a number; requests up to it are not begun any more | host |
/// | 8, 16, 24 | length, source and destination, of 64 bits | host |
/// | 128 | `claimed`: the number of the last request that the kernel has begun: the next life goes on there | device |
/// | 132 | `done`: the number of the last request that was carried out | device |
/// | 136 | `declined`: the number of the last request that was withdrawn in time | device |
/// | 140 | `serving`: 1 while a block looks at the mailbox | device |
///
/// A block says that it serves, fences, and looks; the host withdraws, fences, and looks whether a block serves. If none does, the
/// request is never carried out; otherwise the block answers, or ends without having begun it.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// The mailboxes' address for the device.
    pub mailboxes: u64,
    /// How many there are, at most [`Resident::MAILBOXES`].
    pub count: u32,
    /// The kernel ends after this time without a request, in nanoseconds,
    pub idle: u32,
    /// and after this one in all. It begins nothing that may take longer.
    pub life: u32,
    /// The address of a 32-bit word for the device: where the kernel writes `number` at its end.
    pub ended: u64,
    /// See `ended`.
    pub number: u32,
}

impl Resident {
    /// Bytes of a mailbox.
    pub const MAILBOX: usize = 256;
    /// Mailboxes of one kernel at most.
    pub const MAILBOXES: usize = 128;
    /// Blocks at most: a small part of the device's threads, and more bytes in flight than a link needs.
    pub const BLOCKS: u32 = 32;

    /// What the kernel reckons for a piece, in nanoseconds: one that takes longer than a life is never begun. As in `resident.cuh`.
    pub const fn takes(len: usize) -> u64 {
        5000 + len as u64 / 4
    }

    /// How much later than reckoned the last of `begun` bytes end, in nanoseconds, where all blocks share a link of `link` bytes a
    /// nanosecond: for the time that was reckoned each piece had one block's part of it.
    pub const fn late(begun: u64, link: u64) -> u64 {
        (begun - begun / 4 * link / Self::BLOCKS as u64) / link
    }
}
