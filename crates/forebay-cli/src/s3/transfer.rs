//! `forebay s3 cp` and `rm`.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_error::{Error, ErrorKind, Result as Outcome};
use forebay_objects::{Bucket, ObjectUrl};
use serde_json::json;

use super::jobs::{Job, Jobs, REMOVED_AT_ONCE, with_sites};
use super::ls::{is_without_keys, no_key, note_no_key, object};
use super::sync::{How, check_folder, trees};
use super::tree::{Keys, Tree};
use crate::console::{Console, Failure};
use crate::cp::{self, BytesBySite, Copy};

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
    refuse_flags(!args.how.filter.is_empty(), "--exclude, --include")?;
    let copy = &args.copy;
    let (is_of_bucket, is_to_bucket) =
        (ObjectUrl::is_one(&copy.source), ObjectUrl::is_one(&copy.destination));
    if !is_of_bucket && !is_to_bucket {
        trees(&copy.source, &copy.destination, true)?;
    }
    refuse_streams(copy)?;
    if is_to_bucket {
        ObjectUrl::parse_newest(&copy.destination).map_err(Failure::usage)?;
    }
    if !args.is_through_here() {
        ObjectUrl::parse_newest(&copy.source).map_err(Failure::usage)?;
    }
    let destination = cp::destination(copy)?;
    let sites = if args.how.dryrun {
        Vec::new()
    } else if args.is_through_here() {
        cp::run(copy, console)?
    } else {
        cp::refuse_same_object(&copy.source, &destination)?;
        // Within a site the server copies by itself.
        let ((source, from), (target, to)) = (object(&copy.source)?, object(&destination)?);
        if source.site_name() == target.site_name() {
            target.copy_from(&source, &from.key, &to.key)?;
            Vec::new()
        } else {
            // A server does not reach the other one.
            let brought = target.bring(&source, &from.key, &to.key)?;
            if let Some(why) = brought.not_compared {
                console.say(format!("note: {why}\n"));
            }
            source.site_name().map(|site| (site.to_owned(), brought.len)).into_iter().collect()
        }
    };
    let action = match (is_of_bucket, is_to_bucket) {
        (false, _) => "upload",
        (_, false) => "download",
        _ => "copy",
    };
    say_one(args, &destination, action, &sites, console);
    Ok(0)
}

/// One line, as trees have it. A copy through this machine has said what it did.
fn say_one(args: &CopyArgs, destination: &Path, action: &str, sites: &BytesBySite, console: &Console<'_>) {
    let of_here = if action == "download" { destination } else { &args.copy.source };
    let (source, destination) = (args.copy.source.display().to_string(), destination.display().to_string());
    if args.how.json {
        let bytes = std::fs::metadata(of_here).map(|found| found.len()).ok();
        let dryrun = args.how.dryrun;
        let line = json!({
            "action": action, "source": source, "destination": destination, "bytes": bytes, "dryrun": dryrun
        });
        console.line(with_sites(line, sites));
    } else if args.how.dryrun || !args.is_through_here() {
        let dry = if args.how.dryrun { "(dryrun) " } else { "" };
        let (source, destination) = (forebay_error::plain(&source), forebay_error::plain(&destination));
        console.line(format!("{dry}{action}: {source} to {destination}"));
    }
}

/// aws-cli reads and writes the standard streams where a `-` is named.
fn refuse_streams(copy: &Copy) -> Result<(), Failure> {
    let refused = |what: &str, hint: String| {
        let error = Error::new(ErrorKind::Unsupported, format!("{what} cannot be named here"));
        Err(Failure::usage(error.hint(hint)))
    };
    let stream = Path::new("-");
    if copy.destination == stream {
        let url = forebay_error::quoted(&copy.source.display().to_string());
        return refused(
            "standard output",
            format!("curl -s \"$(forebay s3 presign {url})\"; a file of this name is ./-"),
        );
    }
    if copy.source == stream {
        return refused("standard input", "write it to a file first; a file of this name is ./-".to_owned());
    }
    Ok(())
}

fn copy_tree(args: &CopyArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let (source, destination) = trees(&args.copy.source, &args.copy.destination, true)?;
    check_folder(&source)?;
    if let Tree::Prefix(bucket, prefix) = &source
        && is_without_keys(bucket, prefix, console)?
    {
        return Err(no_key(bucket, prefix).hint("one object: leave --recursive out").into());
    }
    let items = source.items(&args.how.filter);
    let jobs = Jobs::of_trees(source, destination, &args.how, console, "cp");
    jobs.run(items.map(|entry| entry.map(Job::of)))
}

pub(super) fn remove(args: &RemoveArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let url = ObjectUrl::parse_newest(&args.url).map_err(Failure::usage)?;
    let prefix = if args.recursive { url.prefix() } else { String::new() };
    let bucket = Bucket::of_url(&url)?;
    let jobs = Jobs {
        source: None,
        destination: Tree::Prefix(bucket.clone(), prefix.clone()),
        deletes: false,
        is_dry: args.how.dryrun,
        is_json: args.how.json,
        console,
        what: "rm",
    };
    if args.recursive {
        if is_without_keys(&bucket, &prefix, console)? {
            note_no_key(&bucket, &prefix, console);
        }
        return jobs.run(Removals(Keys::new(&bucket, &prefix, &args.how.filter)));
    }
    if url.key.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no object").with("url", &url);
        return Err(Failure::usage(error.hint("all objects of the bucket: --recursive")));
    }
    refuse_flags(!args.how.filter.is_empty(), "--exclude, --include")?;
    jobs.run(std::iter::once(Ok(Job::Remove(vec![url.key]))))
}

/// Objects below a prefix, also those that only stand for folders, a call's worth at a time.
struct Removals(Keys);

impl Iterator for Removals {
    type Item = Outcome<Job>;

    fn next(&mut self) -> Option<Self::Item> {
        let items = self.0.by_ref().take(REMOVED_AT_ONCE);
        match items.map(|item| item.map(|item| item.name)).collect::<Outcome<Vec<_>>>() {
            Ok(names) => (!names.is_empty()).then_some(Ok(Job::Remove(names))),
            Err(error) => Some(Err(error)),
        }
    }
}
