//! Blockers between a drive and a memory, and the result of rules.

use serde::Serialize;

use crate::exercise::Hinted;

/// One thing that keeps a drive from a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// The fact.
    pub text: String,
    /// The fix, if there is one.
    pub fix: Option<String>,
    /// The error of a transfer that is tried anyway.
    pub errno: Option<&'static str>,
}

impl Blocker {
    pub(super) fn new(id: &'static str, text: impl Into<String>) -> Self {
        Self { id, text: text.into(), fix: None, errno: None }
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// The kernel accepts the memory, and then finds that the drive cannot reach it.
    pub(super) const fn remote(mut self) -> Self {
        self.errno = Some("EREMOTEIO");
        self
    }

    /// The blocker as the reason of a verdict.
    pub(crate) fn reason(&self) -> Hinted {
        Hinted { text: self.text.clone(), fix: self.fix.clone() }
    }
}

/// The result of rules.
#[derive(Default)]
pub(super) struct RouteFindings {
    pub(super) blockers: Vec<Blocker>,
    pub(super) notes: Vec<String>,
    pub(super) unread: Vec<String>,
}

impl RouteFindings {
    pub(super) fn block(&mut self, blocker: Blocker) {
        self.blockers.push(blocker);
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(super) fn unread(&mut self, text: impl Into<String>) {
        self.unread.push(text.into());
    }
}
