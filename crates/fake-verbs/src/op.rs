//! An operation as it was posted.

use std::borrow::Cow;

use forebay_verbs::{Access, Kind, Remote};

use crate::table::Span;

/// A range of this side's memory, with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) key: u32,
    pub(crate) span: Span,
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) enum Action<'a> {
    Send {
        bytes: Cow<'a, [u8]>,
        invalidate: Option<u32>,
    },
    Write {
        from: Own,
        to: Remote,
        immediate: Option<u32>,
    },
    Read {
        into: Own,
        from: Remote,
    },
    /// A WRITE of no bytes.
    Probe,
    Bind {
        keys: (u32, u32),
        to: Own,
        access: Access,
    },
    Invalidate {
        key: u32,
    },
}

/// An operation with its number.
#[derive(Clone, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) id: u64,
    pub(crate) quiet: bool,
    pub(crate) action: Action<'a>,
}

impl Op<'_> {
    pub(crate) const fn kind(&self) -> Kind {
        match self.action {
            Action::Send { .. } => Kind::Send,
            Action::Write { .. } | Action::Probe => Kind::Write,
            Action::Read { .. } => Kind::Read,
            Action::Bind { .. } => Kind::Bind,
            Action::Invalidate { .. } => Kind::Invalidate,
        }
    }

    pub(crate) fn owned(self) -> Op<'static> {
        let action = match self.action {
            Action::Send { bytes, invalidate } => {
                Action::Send { bytes: Cow::Owned(bytes.into_owned()), invalidate }
            }
            Action::Write { from, to, immediate } => Action::Write { from, to, immediate },
            Action::Read { into, from } => Action::Read { into, from },
            Action::Probe => Action::Probe,
            Action::Bind { keys, to, access } => Action::Bind { keys, to, access },
            Action::Invalidate { key } => Action::Invalidate { key },
        };
        Op { id: self.id, quiet: self.quiet, action }
    }

    pub(crate) const fn remote(&self) -> Option<Remote> {
        match self.action {
            Action::Write { to: remote, .. } | Action::Read { from: remote, .. } => Some(remote),
            Action::Send { invalidate: Some(key), .. } => Some(Remote { key, address: 0 }),
            _ => None,
        }
    }

    /// The number that the peer's message has.
    pub(crate) const fn immediate(&self) -> Option<u32> {
        match self.action {
            Action::Write { immediate, .. } => immediate,
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        match &self.action {
            Action::Send { bytes, .. } => bytes.len() as u32,
            Action::Write { from: own, .. } | Action::Read { into: own, .. } => own.span.len as u32,
            _ => 0,
        }
    }
}
