//! A call under way, and what goes wrong with it.

use crate::words::Out;
use crate::{Asked, Fault, Seen, Shared, lock};

/// Why a call has no results.
pub(crate) enum Refused {
    NoProgram,
    Versions(u32, u32),
    NoProcedure,
    Arguments,
}

pub(crate) type Results = Result<Out, Refused>;

/// What a call's arguments have, or why there are no results.
pub(crate) fn arguments<T>(found: Option<T>) -> Result<T, Refused> {
    found.ok_or(Refused::Arguments)
}

/// A call under way.
pub(crate) struct Calling<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) connection: u64,
    /// The user that it is made as; by AUTH_NONE nobody.
    pub(crate) user: Option<u32>,
    pub(crate) fault: Option<Fault>,
    /// Bytes of a READ's data, at the end of its results, before their pad.
    pub(crate) payload: usize,
}

impl Calling<'_> {
    /// Looks what goes wrong with a call. Returns the status that it is to fail with.
    pub(crate) fn asks(&mut self, handle: &[u8], asked: Asked, offset: u64, count: u32) -> Option<u32> {
        self.fault = self.shared.fault(Seen {
            asked,
            before: 0,
            connection: self.connection,
            user: self.user,
            offset,
            count,
        });
        match self.fault {
            Some(Fault::Status(status)) => Some(status),
            Some(Fault::Forget) => {
                lock(&self.shared.files).restart();
                None
            }
            Some(Fault::Cut(len)) => {
                if let Some(file) = lock(&self.shared.files).file(handle) {
                    file.cut(len as usize);
                }
                None
            }
            Some(Fault::Overwrite(byte)) => {
                if let Some(file) = lock(&self.shared.files).file(handle) {
                    let bytes = vec![byte; file.len()];
                    file.write(0, &bytes, true);
                }
                None
            }
            _ => None,
        }
    }

    /// Bytes that are moved of those that are asked for.
    pub(crate) fn moved(&self, count: u32) -> usize {
        let most = self.shared.most().min(count.into()) as u32;
        match self.fault {
            Some(Fault::Short(short)) => most.min(short) as usize,
            _ => most as usize,
        }
    }
}
