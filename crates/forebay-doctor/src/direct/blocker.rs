//! What keeps a drive from a memory, and what rules find.

use serde::Serialize;

use crate::exercise::Hinted;

/// One thing that keeps a drive from a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// What is so.
    pub text: String,
    /// What to type or change, if anything helps.
    pub fix: Option<String>,
    /// What a transfer that tries all the same fails with.
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

/// What rules found.
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
