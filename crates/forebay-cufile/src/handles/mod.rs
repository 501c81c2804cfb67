//! Registrations of programs, and their handles.

mod files;
mod numbered;
mod table;

pub(crate) use files::{RegisteredFile, RegisteredFiles};
pub(crate) use numbered::{NumberTable, RegisteredRange, RegisteredStream};
pub(crate) use table::{HandleKind, HandleTable};
