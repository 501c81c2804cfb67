//! `forebay s3 cp` and `rm`.

use std::path::PathBuf;

use clap::Args;
use forebay_error::{Error, ErrorKind, Result as Outcome};
use forebay_objects::{Bucket, List, Listed, ObjectUrl};

use super::filter::Filter;
use super::jobs::{Job, Jobs, REMOVED_AT_ONCE};
use super::ls::object;
use super::sync::{How, trees};
use super::tree::Tree;
use crate::console::{Console, Failure};
use crate::cp::{self, Copy};

/// Copies an object from or to a file, as forebay cp does, or to another key; with --recursive a tree
#[derive(Args, Clone, Debug)]
pub(super) struct CopyArgs {
    #[command(flatten)]
    copy: Copy,
    /// All files below SRC
    #[arg(long)]
    recursive: bool,
    #[command(flatten)]
    how: How,
}

/// Removes an object; with --recursive all below a prefix
#[derive(Args, Clone, Debug)]
pub(super) struct RemoveArgs {
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL")]
    url: PathBuf,
    /// All objects below the prefix
    #[arg(long)]
    recursive: bool,
    #[command(flatten)]
    how: How,
}

impl CopyArgs {
    /// Whether one file goes through this machine.
    pub(super) fn is_through_here(&self) -> bool {
        let are_both_objects =
            ObjectUrl::is_one(&self.copy.source) && ObjectUrl::is_one(&self.copy.destination);
        !self.recursive && !are_both_objects
    }
}

/// Runs the command.
pub(super) fn copy(args: &CopyArgs, console: &Console<'_>) -> Result<i32, Failure> {
    if !args.is_through_here() {
        refuse_for_trees(&args.copy)?;
    }
    if args.recursive { copy_tree(args, console) } else { copy_one(args, console) }
}

/// Fails if flags are given of which a tree, or a copy within the server, would take no notice.
fn refuse_for_trees(copy: &Copy) -> Result<(), Failure> {
    let (what, hint) = if copy.verify {
        ("--verify is for one file, by this machine", "leave it out, or compare later: forebay verify -f URL")
    } else if copy.device.is_some() {
        let hint = "leave it out: trees go through host memory, and copies within a bucket's server not through this machine";
        ("--device is for one file, by this machine", hint)
    } else {
        return Ok(());
    };
    Err(Failure::usage(Error::new(ErrorKind::InvalidInput, what).hint(hint)))
}

/// Fails if flags of trees are given for one object.
fn refuse_flags(are_given: bool, names: &str) -> Result<(), Failure> {
    if !are_given {
        return Ok(());
    }
    let error = Error::new(ErrorKind::InvalidInput, format!("{names}: these flags are for trees"));
    Err(Failure::usage(error.hint("add --recursive, or leave them out")))
}

/// One file, or one object.
fn copy_one(args: &CopyArgs, console: &Console<'_>) -> Result<i32, Failure> {
    refuse_flags(!args.how.filter.is_empty() || args.how.json, "--exclude, --include, --json")?;
    let mut copy = args.copy.clone();
    let is_to_bucket = ObjectUrl::is_one(&copy.destination);
    if !ObjectUrl::is_one(&copy.source) && !is_to_bucket {
        trees(&copy.source, &copy.destination)?;
    }
    if is_to_bucket {
        copy.destination = named(&copy)?;
    }
    if !args.is_through_here() {
        ObjectUrl::parse_newest(&copy.source).map_err(Failure::usage)?;
    }
    if args.how.dryrun {
        let (source, destination) = (copy.source.display(), copy.destination.display());
        console.line(format!("(dryrun) copy: {source} to {destination}"));
        return Ok(0);
    }
    if args.is_through_here() {
        return cp::run(&copy, console);
    }
    // The server copies by itself.
    let ((source, from), (target, to)) = (object(&copy.source)?, object(&copy.destination)?);
    target.copy_from(&source, &from.key, &to.key)?;
    console.line(format!("copy: {from} to {to}"));
    Ok(0)
}

/// The destination, which may be a bucket or a prefix: the copy has the source's name there.
fn named(copy: &Copy) -> Result<PathBuf, Failure> {
    let url = ObjectUrl::parse_newest(&copy.destination).map_err(Failure::usage)?;
    if !url.is_prefix() {
        return Ok(copy.destination.clone());
    }
    let name = copy.file_name().and_then(|name| name.into_string().ok()).ok_or_else(|| {
        let error = Error::new(ErrorKind::InvalidInput, "the source has no name that a key can have");
        Failure::usage(error.with("path", copy.source.display()).hint("name the object: s3://BUCKET/KEY"))
    })?;
    Ok(url.with_key(format!("{}{name}", url.key)).to_string().into())
}

fn copy_tree(args: &CopyArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let (source, destination) = trees(&args.copy.source, &args.copy.destination)?;
    let items = source.items(&args.how.filter);
    let jobs = Jobs::of_trees(source, destination, &args.how, console, "cp");
    jobs.run(items.map(|item| item.map(Job::Copy)))
}

pub(super) fn remove(args: &RemoveArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let url = ObjectUrl::parse_newest(&args.url).map_err(Failure::usage)?;
    let prefix = if args.recursive { url.prefix() } else { String::new() };
    let bucket = Bucket::of(&url.bucket)?;
    let jobs = Jobs {
        source: None,
        destination: Tree::Prefix(bucket.clone(), prefix.clone()),
        is_dry: args.how.dryrun,
        is_json: args.how.json,
        console,
        what: "rm",
    };
    if args.recursive {
        return jobs.run(Removals {
            keys: bucket.list(&prefix, true),
            prefix,
            filter: args.how.filter.clone(),
        });
    }
    if url.key.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no object").with("url", &url);
        return Err(Failure::usage(error.hint("all objects of the bucket: --recursive")));
    }
    refuse_flags(!args.how.filter.is_empty(), "--exclude, --include")?;
    jobs.run(std::iter::once(Ok(Job::Remove(vec![url.key]))))
}

/// Objects below a prefix, also those that only stand for folders, a call's worth at a time.
struct Removals {
    keys: List,
    prefix: String,
    filter: Filter,
}

impl Iterator for Removals {
    type Item = Outcome<Job>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut names = Vec::new();
        while names.len() < REMOVED_AT_ONCE {
            match self.keys.next() {
                None => break,
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(Listed::Folder(_))) => {}
                Some(Ok(Listed::Object(object))) => {
                    let name = object.key.strip_prefix(&self.prefix).unwrap_or(&object.key).to_owned();
                    if self.filter.takes(&name) {
                        names.push(name);
                    }
                }
            }
        }
        (!names.is_empty()).then_some(Ok(Job::Remove(names)))
    }
}
