//! Files of a server that are open, for versions that do not say who a server is: an address has to show that it has the same ones.

use std::sync::{Arc, Weak};

use crate::network::job::FileTarget;
use crate::protocol::handle::{FileAttributes, NfsHandle};

/// Files that were looked up, and of which nobody said that they are used. Chosen: more than threads open at a time.
const MOST_UNUSED: usize = 1024;

/// A file, as it was when it was opened.
pub(crate) type FileSample = (NfsHandle, FileAttributes);

/// The files.
#[derive(Default)]
pub(crate) struct OpenedFiles {
    /// How many there ever were.
    count: u64,
    last: Option<FileSample>,
    all: Vec<OpenedFile>,
    /// When closed ones are next taken out.
    most: usize,
}

struct OpenedFile {
    number: u64,
    sample: FileSample,
    /// Its user; `None`: not known yet.
    user: Option<Weak<FileTarget>>,
}

impl OpenedFiles {
    /// A file is being opened. Returns its number.
    pub(crate) fn opened(&mut self, sample: FileSample) -> u64 {
        if self.all.len() >= self.most {
            self.forget_closed();
        }
        let number = self.count;
        self.count += 1;
        self.last = Some(sample);
        self.all.push(OpenedFile { number, sample, user: None });
        number
    }

    /// It is used for as long as there is this.
    pub(crate) fn uses(&mut self, file: &Arc<FileTarget>) {
        let is_it = |known: &&mut OpenedFile| known.user.is_none() && known.sample.0 == file.handle;
        if let Some(known) = self.all.iter_mut().rev().find(is_it) {
            known.user = Some(Arc::downgrade(file));
        }
    }

    fn forget_closed(&mut self) {
        let unused = self.all.iter().filter(|file| file.user.is_none()).count();
        let mut too_many = unused.saturating_sub(MOST_UNUSED);
        self.all.retain(|file| {
            if let Some(user) = &file.user {
                return user.strong_count() > 0;
            }
            let stays = too_many == 0;
            too_many = too_many.saturating_sub(1);
            stays
        });
        self.most = (self.all.len() * 2).max(64);
    }

    /// How many there ever were.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The last one.
    pub(crate) const fn last(&self) -> Option<FileSample> {
        self.last
    }

    /// Those that are open, from a number on (the last one, if there are none); and how many there ever were.
    pub(crate) fn since(&self, number: u64) -> (Vec<FileSample>, u64) {
        let is_open = |file: &&OpenedFile| {
            file.number >= number && file.user.as_ref().is_none_or(|user| user.strong_count() > 0)
        };
        let mut found: Vec<_> = self.all.iter().filter(is_open).map(|file| file.sample).collect();
        if found.is_empty() {
            found.extend(self.last);
        }
        (found, self.count)
    }
}
