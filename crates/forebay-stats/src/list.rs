//! Texts that are counted: found without a lock, added under one.

use std::sync::{Mutex, OnceLock, PoisonError};

/// Up to `N` pairs of texts; a pair keeps its place for good.
pub(crate) struct WordList<const N: usize> {
    entries: [OnceLock<(Box<str>, Box<str>)>; N],
    adding: Mutex<()>,
}

impl<const N: usize> WordList<N> {
    pub(crate) const fn new() -> Self {
        Self { entries: [const { OnceLock::new() }; N], adding: Mutex::new(()) }
    }

    /// The place of a pair. If it is new, `publish` gets its place; none if all are taken.
    pub(crate) fn place(&self, first: &str, second: &str, publish: impl FnOnce(usize)) -> Option<usize> {
        if let Ok(found) = self.find(first, second) {
            return found;
        }
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let free = match self.find(first, second) {
            Ok(found) => return found,
            Err(free) => free,
        };
        publish(free);
        let _ = self.entries[free].set((first.into(), second.into()));
        Some(free)
    }

    /// The pair's place, or that there is no room for it; `Err` is the first free place.
    fn find(&self, first: &str, second: &str) -> Result<Option<usize>, usize> {
        for (index, entry) in self.entries.iter().enumerate() {
            match entry.get() {
                None => return Err(index),
                Some((a, b)) if **a == *first && **b == *second => return Ok(Some(index)),
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_keeps_its_place_and_what_has_no_room_is_told() {
        let list = WordList::<2>::new();
        let mut published = Vec::new();
        for (a, b) in [("x", "1"), ("x", "2"), ("x", "1"), ("y", "1")] {
            let place = list.place(a, b, |place| published.push(place));
            assert_eq!(place, [("x", "1"), ("x", "2")].iter().position(|pair| *pair == (a, b)));
        }
        assert_eq!(published, [0, 1]);
    }
}
