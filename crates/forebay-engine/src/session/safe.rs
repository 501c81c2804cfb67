//! Transfers of buffers that the session or a ticket keeps from others meanwhile.

use std::ops::Range;

use forebay_error::Result;

use super::request::{buffer_transfer, check_disjoint, owned_batch};
use super::{ReadPiece, Session};
use crate::request::buffer::Buffer;
use crate::request::file::File;
use crate::request::receipt::Receipt;
use crate::request::ticket::Ticket;
use crate::request::transfer::Transfer;
use crate::source::piece::Direction;

impl Session {
    /// Fills the whole buffer from `offset` of the file. A file that ends before is an error
    /// ([`ErrorKind::ShortRead`](forebay_error::ErrorKind::ShortRead)).
    pub fn read(&self, file: &File, offset: u64, buffer: &mut Buffer) -> Result<Receipt> {
        let all = 0..buffer.len();
        self.read_into(file, offset, buffer, all)
    }

    /// Fills `range` of the buffer from `offset` of the file.
    pub fn read_into(
        &self,
        file: &File,
        offset: u64,
        buffer: &mut Buffer,
        range: Range<usize>,
    ) -> Result<Receipt> {
        let transfer = buffer_transfer(file, offset, buffer, range, Direction::Read)?;
        // SAFETY: the buffer is borrowed mutably until the transfer is done.
        unsafe { self.run(&transfer) }
    }

    /// Writes the whole buffer to `offset` of the file.
    pub fn write(&self, file: &File, offset: u64, buffer: &Buffer) -> Result<Receipt> {
        self.write_from(file, offset, buffer, 0..buffer.len())
    }

    /// Writes `range` of the buffer to `offset` of the file.
    pub fn write_from(
        &self,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        range: Range<usize>,
    ) -> Result<Receipt> {
        let transfer = buffer_transfer(file, offset, buffer, range, Direction::Write)?;
        // SAFETY: the buffer is borrowed, so nobody changes it, until the transfer is done.
        unsafe { self.run(&transfer) }
    }

    /// Starts filling a buffer. The ticket owns it until the read is done.
    pub fn submit_read(&self, file: &File, offset: u64, buffer: Buffer) -> Result<Ticket<Buffer>> {
        let all = 0..buffer.len();
        let transfer = buffer_transfer(file, offset, &buffer, all, Direction::Read)?;
        // SAFETY: the ticket owns the buffer until the transfer is done.
        let ticket = unsafe { self.submit(vec![Transfer::clone(&transfer)]) }?;
        Ok(ticket.with_buffer(buffer))
    }

    /// Starts writing a buffer. The ticket owns it until the write is done.
    pub fn submit_write(&self, file: &File, offset: u64, buffer: Buffer) -> Result<Ticket<Buffer>> {
        let transfer = buffer_transfer(file, offset, &buffer, 0..buffer.len(), Direction::Write)?;
        // SAFETY: as in `submit_read`.
        let ticket = unsafe { self.submit(vec![Transfer::clone(&transfer)]) }?;
        Ok(ticket.with_buffer(buffer))
    }

    /// Starts reading many pieces of a file into one buffer; each piece has its own result.
    pub fn read_batch(&self, file: &File, pieces: &[ReadPiece], buffer: Buffer) -> Result<Ticket<Buffer>> {
        check_disjoint(pieces)?;
        let batch = owned_batch(file, pieces, &buffer, Direction::Read)?;
        // SAFETY: the ticket owns the buffer until the transfer is done; ranges were checked to be disjoint.
        let ticket = unsafe { self.submit_batch(batch) }?;
        Ok(ticket.with_buffer(buffer))
    }

    /// Starts writing many pieces of one buffer to a file; each piece has its own result. Where pieces overlap in the
    /// file, the bytes of either may end up there.
    pub fn write_batch(&self, file: &File, pieces: &[ReadPiece], buffer: Buffer) -> Result<Ticket<Buffer>> {
        let batch = owned_batch(file, pieces, &buffer, Direction::Write)?;
        // SAFETY: the ticket owns the buffer, so nobody changes it, until the transfer is done.
        let ticket = unsafe { self.submit_batch(batch) }?;
        Ok(ticket.with_buffer(buffer))
    }
}
