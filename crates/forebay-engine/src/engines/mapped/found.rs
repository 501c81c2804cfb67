//! Files of the pin cache as small reads found them: threads do not fight over its lock, nor over one count of a file's owners.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_sys::Striped;

use super::window::PinnedFile;
use crate::source::version::{FileId, FileVersion};

/// A file as some threads found it, in the state that was registered.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct FoundFile {
    pub(super) pinned: Arc<PinnedFile>,
    pub(super) version: FileVersion,
    touched: u64,
}

impl FoundFile {
    /// Whether no write in place has given the file another version since.
    fn is_now(&self) -> bool {
        self.pinned.touched() == self.touched
    }
}

/// What the threads found. A file is in there only while it is in the cache.
#[derive(Debug, Default)]
pub(super) struct FoundFiles(Striped<RwLock<HashMap<FileId, Arc<FoundFile>>>>);

impl FoundFiles {
    pub(super) fn get(&self, id: FileId) -> Option<Arc<FoundFile>> {
        let found = self.0.own().read().unwrap_or_else(PoisonError::into_inner);
        found.get(&id).filter(|found| found.is_now()).cloned()
    }

    /// Keeps a file, which nobody takes out of the cache meanwhile.
    pub(super) fn keep(&self, id: FileId, pinned: Arc<PinnedFile>) -> Arc<FoundFile> {
        let touched = pinned.touched();
        let found = Arc::new(FoundFile { version: pinned.version(), touched, pinned });
        self.0.own().write().unwrap_or_else(PoisonError::into_inner).insert(id, found.clone());
        found
    }

    /// The file is not in the cache any more.
    pub(super) fn lose(&self, id: FileId) {
        for found in self.0.all() {
            found.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
}
