//! `forebay s3 sync`, and the trees of `cp --recursive` and `rm --recursive`.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::path::PathBuf;

use clap::Args;
use forebay_error::{Error, ErrorKind, Result};
use forebay_objects::ObjectUrl;

use super::filter::Filter;
use super::jobs::{Job, Jobs, REMOVED_AT_ONCE};
use super::ls::no_key;
use super::tree::{Item, Tree};
use crate::console::{Console, Failure};

/// Copies the files of a tree that the other one has not, or has in another state: of another length; on the way to a bucket with an older
/// time, from a bucket with another time. A second run moves nothing
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
    let (source, destination) = trees(&args.source, &args.destination)?;
    if let Tree::Folder(folder) = &source
        && !folder.is_dir()
    {
        return Err(no_folder(folder).into());
    }
    // A name that was mistyped would remove everything.
    if args.delete
        && let Tree::Prefix(bucket, prefix) = &source
        && bucket.list(prefix, true).next().transpose()?.is_none()
    {
        return Err(no_key(bucket, prefix).into());
    }
    let is_download = matches!(destination, Tree::Folder(_));
    let there: Box<dyn Iterator<Item = Result<Item>>> = match &destination {
        // It is made with the first file.
        Tree::Folder(folder) if !folder.exists() => Box::new(std::iter::empty()),
        tree => tree.items(&args.how.filter),
    };
    let source_items = source.items(&args.how.filter);
    let jobs = Jobs::of_trees(source, destination, &args.how, console, "sync");
    let merge = Merge {
        source: source_items.peekable(),
        destination: there.peekable(),
        is_download,
        deletes: args.delete,
        removed: Vec::new(),
    };
    jobs.run(merge)
}

fn no_folder(folder: &std::path::Path) -> Error {
    Error::new(ErrorKind::NotFound, "the source is no directory")
        .with("path", folder.display())
        .hint("name a directory; forebay s3 cp copies a file")
}

/// Source and destination, of which one at least is in a bucket, and which lie side by side.
pub(super) fn trees(
    source: &std::path::Path,
    destination: &std::path::Path,
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
    Ok((one, other))
}

/// Two trees side by side, and what makes the second one as the first.
struct Merge<A: Iterator<Item = Result<Item>>, B: Iterator<Item = Result<Item>>> {
    source: Peekable<A>,
    destination: Peekable<B>,
    is_download: bool,
    deletes: bool,
    /// Names to be removed by one call.
    removed: Vec<String>,
}

impl<A: Iterator<Item = Result<Item>>, B: Iterator<Item = Result<Item>>> Merge<A, B> {
    /// Which of the trees has the next name; `None`: both are at their ends.
    fn order(&mut self) -> Option<Ordering> {
        Some(match (self.source.peek(), self.destination.peek()) {
            (None, None) => return None,
            // An error comes out of its tree.
            (Some(Err(_)), _) | (Some(_), None) => Ordering::Less,
            (_, Some(Err(_))) | (None, Some(_)) => Ordering::Greater,
            (Some(Ok(one)), Some(Ok(other))) => one.name.cmp(&other.name),
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
}

impl<A: Iterator<Item = Result<Item>>, B: Iterator<Item = Result<Item>>> Iterator for Merge<A, B> {
    type Item = Result<Job>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.removed.len() == REMOVED_AT_ONCE {
                return self.remove();
            }
            match self.order() {
                None => return self.remove(),
                Some(Ordering::Less) => return Some(self.source.next()?.map(Job::Copy)),
                Some(Ordering::Greater) => match self.destination.next()? {
                    Ok(item) if self.deletes => self.removed.push(item.name),
                    Ok(_) => {}
                    Err(error) => return Some(Err(error)),
                },
                Some(Ordering::Equal) => {
                    let (one, other) = (self.source.next()?, self.destination.next()?);
                    match (one, other) {
                        (Ok(one), Ok(other)) if self.differs(&one, &other) => {
                            return Some(Ok(Job::Copy(one)));
                        }
                        (Ok(_), Ok(_)) => {}
                        (Err(error), _) | (_, Err(error)) => return Some(Err(error)),
                    }
                }
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
            source: source.into_iter().map(Ok).peekable(),
            destination: there.into_iter().map(Ok).peekable(),
            is_download,
            deletes,
            removed: Vec::new(),
        };
        let words = merge.map(|job| match job.unwrap() {
            Job::Copy(item) => item.name,
            Job::Remove(names) => format!("-{}", names.join("-")),
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
