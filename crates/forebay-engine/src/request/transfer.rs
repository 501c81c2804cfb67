//! What is to be moved: a range of a source and a range of memory.

use std::sync::Arc;

use forebay_gpu::{Context, Device};

use crate::request::file::File;
use crate::source::piece::{Direction, Piece};

/// Memory on a device, by address.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The device it belongs to (the host device for host memory).
    pub device: Arc<dyn Device>,
    /// The context that copies must run in.
    pub context: Context,
    /// Its first address.
    pub address: u64,
}

impl Memory {
    /// Memory of `device` in its primary context.
    pub fn new(device: Arc<dyn Device>, address: u64) -> Self {
        Self { device, context: Context::PRIMARY, address }
    }
}

/// A source range ⇄ a memory range.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The source.
    pub file: File,
    /// Offset in it.
    pub offset: u64,
    /// The memory.
    pub memory: Memory,
    /// Bytes.
    pub len: usize,
    /// Which way.
    pub direction: Direction,
    /// A read that meets the end of the source is no error: its result is what was there.
    pub allow_short: bool,
}

/// Many pieces of one source and one memory in one direction: the cheap form of many transfers.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The source.
    pub file: File,
    /// Device and context of all addresses in `pieces`; its own address is not used.
    pub memory: Memory,
    /// Which way.
    pub direction: Direction,
    /// The pieces; each has its own result. Reads must not overlap in memory. Small ones cost least in the order of the
    /// file: neighbours share a kernel call.
    pub pieces: Vec<Piece>,
    /// As [`Transfer::allow_short`], for each piece.
    pub allow_short: bool,
}

impl Transfer {
    pub(crate) fn piece(&self) -> Piece {
        Piece { offset: self.offset, address: self.memory.address, len: self.len }
    }
}

impl Batch {
    /// A transfer as a batch of one piece.
    pub(crate) fn of(transfer: &Transfer) -> Self {
        Self {
            file: transfer.file.clone(),
            memory: transfer.memory.clone(),
            direction: transfer.direction,
            pieces: vec![transfer.piece()],
            allow_short: transfer.allow_short,
        }
    }
}
