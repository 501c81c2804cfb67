//! Windows that a program will read again: they are registered while nothing is copied.

use std::os::fd::AsRawFd;

use forebay_config::CachePolicy;
use forebay_gpu::Access;

use super::eligibility::{self, Reason};
use super::registrar::{PinPolicy, PinTerms};
use super::state::MappedState;
use super::window::{WindowAnswer, windows_of};
use crate::request::file::File;

impl MappedState {
    /// Has a range of a file registered in the background, even if the reads so far do not make that pay. Waits for nothing.
    /// Why none of it will be, if so.
    pub(super) fn pin_later(
        &self,
        file: &File,
        (offset, len): (u64, u64),
    ) -> std::result::Result<(), Reason> {
        let Some(owner) = file.opened() else { return Err(Reason::new("the source is not a file")) };
        let (descriptors, cache) = (&owner.descriptors, &self.cache);
        if self.stage.policy(file) == CachePolicy::Bypass {
            return Err(Reason::new("the page cache is to be bypassed (FOREBAY_CACHE)"));
        }
        eligibility::kind(descriptors, Access::ReadOnly)?;
        let entered = cache.enter(owner, descriptors.buffered.as_raw_fd(), Access::ReadOnly);
        let (version, pinned) = entered.map_err(|error| Reason::from(&error))?;
        let end = offset.saturating_add(len).min(version.len);
        let (registrar, mut is_any_coming, mut refusal) = (|request| self.register(request), false, None);
        for window in windows_of(offset.min(end), end) {
            let terms = PinTerms::of(PinPolicy::Announced, 0.0);
            let answer = cache.ask(owner, descriptors, &pinned, window, terms, &registrar);
            match answer {
                WindowAnswer::No(reason) if !pinned.is_coming(window) => {
                    refusal.get_or_insert(reason);
                }
                _ => is_any_coming = true,
            }
        }
        refusal.filter(|_| !is_any_coming).map_or(Ok(()), Err)
    }
}
