//! `forebay s3 sync`, and the trees of `cp --recursive` and `rm --recursive`.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::path::PathBuf;

use clap::Args;
use forebay_error::{Error, ErrorKind, Result};
use forebay_objects::ObjectUrl;

use super::filter::Filter;
use super::jobs::{Job, Jobs, REMOVED_AT_ONCE};
use super::ls::{is_without_keys, no_key, note_no_key};
use super::tree::{Entry, Item, Tree};
use crate::console::{Console, Failure};

/// Copies the files of a tree that the other one has not, or has in another state: of another length; on the way to a bucket with an older
/// time, from a bucket with another time; between sites (s3://SITE@BUCKET), and from one of several, with another CRC-64/NVME. A second run moves nothing
#[derive(Args, Clone, Debug)]
pub(super) struct SyncArgs {
    /// A directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// A directory, or s3://BUCKET/PREFIX; one of both is in a bucket
    #[arg(value_name = "DST")]
    destination: PathBuf,
    /// Remove files of DST that SRC has not
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    pub(super) how: How,
}

/// Flags of commands for many files.
#[derive(Args, Clone, Debug)]
pub(super) struct How {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(super) dryrun: bool,
    #[command(flatten)]
    pub(super) filter: Filter,
    /// A line of JSON for each file
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &SyncArgs, console: &Console<'_>) -> Result<i32, Failure> {
    // Another site may have fewer objects: nothing is removed by its listing.
    let (source, destination) = trees(&args.source, &args.destination, !args.delete)?;
    check_folder(&source)?;
    if let Tree::Prefix(bucket, prefix) = &source
        && is_without_keys(bucket, prefix, console)?
    {
        // A name that was mistyped would remove everything.
        if args.delete {
            return Err(no_key(bucket, prefix).into());
        }
        note_no_key(bucket, prefix, console);
    }
    let is_download = matches!(destination, Tree::Folder(_));
    let has_sums = source.is_elsewhere(&destination) || (is_download && source.has_site());
    let there: Box<dyn Iterator<Item = Result<Entry>>> = match &destination {
        // It is made with the first file.
        Tree::Folder(folder) if !folder.exists() => Box::new(std::iter::empty()),
        tree => tree.items(&args.how.filter),
    };
    let source_items = source.items(&args.how.filter);
    let mut jobs = Jobs::of_trees(source, destination, &args.how, console, "sync");
    jobs.deletes = args.delete;
    let merge = Merge {
        source: source_items.peekable(),
        destination: there.peekable(),
        is_download,
        has_sums,
        deletes: args.delete,
        removed: Vec::new(),
    };
    jobs.run(merge)
}

/// Fails if a source on this machine is no folder.
pub(super) fn check_folder(source: &Tree) -> Result<()> {
    match source {
        Tree::Folder(folder) if !folder.is_dir() => {
            Err(Error::new(ErrorKind::NotFound, "the source is no directory")
                .with("path", folder.display())
                .hint("name a directory; forebay s3 cp without --recursive copies a file"))
        }
        _ => Ok(()),
    }
}

/// Source and destination, of which one at least is in a bucket, and which lie side by side. Whether the source may be that of another
/// site, where the nearest one is gone.
pub(super) fn trees(
    source: &std::path::Path,
    destination: &std::path::Path,
    is_anywhere: bool,
) -> Result<(Tree, Tree), Failure> {
    if !ObjectUrl::is_one(source) && !ObjectUrl::is_one(destination) {
        return Err(Failure::usage(
            Error::new(ErrorKind::InvalidInput, "neither source nor destination is in a bucket")
                .hint("one of them is s3://BUCKET/PREFIX"),
        ));
    }
    let (one, other) =
        (Tree::of(source).map_err(Failure::usage)?, Tree::of(destination).map_err(Failure::usage)?);
    if one.overlaps(&other) {
        let error = Error::new(ErrorKind::InvalidInput, "one tree lies in the other")
            .with("source", source.display())
            .with("destination", destination.display());
        return Err(Failure::usage(error.hint("name two prefixes that lie side by side")));
    }
    // What goes to a bucket is compared with what its own site has.
    let one = if is_anywhere && matches!(other, Tree::Folder(_)) { one.anywhere()? } else { one };
    Ok((one, other))
}

/// Two trees side by side, and what makes the second one as the first.
struct Merge<A: Iterator<Item = Result<Entry>>, B: Iterator<Item = Result<Entry>>> {
    source: Peekable<A>,
    destination: Peekable<B>,
    is_download: bool,
    /// Files of equal lengths are compared by checksums: of different sites, or those of a folder with other times than a site's.
    has_sums: bool,
    deletes: bool,
    /// Names to be removed by one call.
    removed: Vec<String>,
}

impl<A: Iterator<Item = Result<Entry>>, B: Iterator<Item = Result<Entry>>> Merge<A, B> {
    /// Which of the trees has the next name; `None`: both are at their ends.
    fn order(&mut self) -> Option<Ordering> {
        Some(match (self.source.peek(), self.destination.peek()) {
            (None, None) => return None,
            (Some(Ok(Entry::File(one))), Some(Ok(Entry::File(other)))) => one.name.cmp(&other.name),
            // What is no file comes out of its tree first.
            (Some(Ok(Entry::File(_))), None) | (Some(Ok(Entry::Unread(_)) | Err(_)), _) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
        })
    }

    fn differs(&self, source: &Item, there: &Item) -> bool {
        let is_other_time = match (source.modified, there.modified) {
            (Some(one), Some(other)) if self.is_download => one != other,
            (Some(one), Some(other)) => one > other,
            _ => false,
        };
        source.len != there.len || is_other_time
    }

    fn remove(&mut self) -> Option<Result<Job>> {
        let removed = std::mem::take(&mut self.removed);
        (!removed.is_empty()).then_some(Ok(Job::Remove(removed)))
    }

    /// A name of the source that the destination has not.
    fn of_source(&mut self, entry: Entry) -> Job {
        match entry {
            // It may stand for many names, which are there: from here on nothing is known to be gone.
            Entry::Unread(error) if self.deletes => {
                self.deletes = false;
                Job::Report(error.hint("nothing more is removed before this is mended"))
            }
            entry => Job::of(entry),
        }
    }

    /// A name of the destination that the source has not.
    fn of_destination(&mut self, entry: Entry) -> Option<Job> {
        match entry {
            Entry::File(item) if self.deletes => self.removed.push(item.name),
            // A link that leads nowhere is no file.
            Entry::Unread(error) if self.deletes && error.kind() != ErrorKind::NotFound => {
                return Some(Job::Report(error));
            }
            _ => {}
        }
        None
    }

    fn of_both(&self, source: Entry, there: &Entry) -> Option<Job> {
        match (source, there) {
            (Entry::File(one), Entry::File(other)) if self.has_sums && one.len == other.len => {
                let is_newer = self.differs(&one, other);
                (is_newer || !self.is_download).then_some(Job::Compare(one, is_newer))
            }
            (Entry::File(one), Entry::File(other)) if self.differs(&one, other) => Some(Job::Copy(one)),
            _ => None,
        }
    }
}

impl<A: Iterator<Item = Result<Entry>>, B: Iterator<Item = Result<Entry>>> Iterator for Merge<A, B> {
    type Item = Result<Job>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.removed.len() == REMOVED_AT_ONCE {
                return self.remove();
            }
            let job = match self.order() {
                None => return self.remove(),
                Some(Ordering::Less) => self.source.next()?.map(|entry| Some(self.of_source(entry))),
                Some(Ordering::Greater) => self.destination.next()?.map(|entry| self.of_destination(entry)),
                Some(Ordering::Equal) => {
                    let (one, other) = (self.source.next()?, self.destination.next()?);
                    one.and_then(|one| Ok(self.of_both(one, &other?)))
                }
            };
            if let Some(job) = job.transpose() {
                return Some(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn item(name: &str, len: u64, modified: i64) -> Item {
        Item { name: name.to_owned(), len, modified: Some(modified), etag: None }
    }

    fn merged(is_download: bool, deletes: bool) -> String {
        let source = [item("a", 1, 5), item("b", 1, 5), item("c", 2, 5), item("d", 1, 9), item("e", 1, 1)];
        let there = [
            item("a", 1, 5),
            item("aa", 1, 5),
            item("c", 1, 5),
            item("d", 1, 5),
            item("e", 1, 5),
            item("z", 1, 1),
        ];
        let merge = Merge {
            source: source.into_iter().map(|item| Ok(Entry::File(item))).peekable(),
            destination: there.into_iter().map(|item| Ok(Entry::File(item))).peekable(),
            is_download,
            has_sums: false,
            deletes,
            removed: Vec::new(),
        };
        let words = merge.map(|job| match job.unwrap() {
            Job::Copy(item) => item.name,
            Job::Remove(names) => format!("-{}", names.join("-")),
            other => panic!("{other:?}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn files_that_differ_are_copied_and_others_removed() {
        assert_eq!(merged(false, false), "b c d");
        assert_eq!(merged(false, true), "b c d -aa-z");
        assert_eq!(merged(true, false), "b c d e");
    }
}
