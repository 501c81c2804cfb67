//! `forebay s3 ls` and `presign`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_error::{Error, ErrorKind, plain};
use forebay_objects::{Bucket, List, Listed, ListedObject, ObjectUrl, buckets};
use forebay_sys::UtcTime;
use serde_json::json;

use crate::console::{Console, Failure};

/// Lists buckets, or the objects and prefixes that begin with a prefix: time (UTC), bytes, name
#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    /// s3://BUCKET/PREFIX; without it, the buckets
    #[arg(value_name = "URL")]
    url: Option<PathBuf>,
    /// All objects below the prefix, by their whole keys
    #[arg(long)]
    recursive: bool,
    /// Sizes as 1.5 GiB
    #[arg(long)]
    human_readable: bool,
    /// A line of JSON for each bucket, prefix or object
    #[arg(long)]
    json: bool,
}

/// Makes a URL by which anyone reads an object without a key, until it expires
#[derive(Args, Clone, Debug)]
pub(super) struct PresignArgs {
    /// s3://BUCKET/KEY
    #[arg(value_name = "URL")]
    url: PathBuf,
    /// Seconds, at most 604800: 7 days
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    expires_in: u64,
}

/// An object's URL.
pub(super) fn object(path: &std::path::Path) -> Result<(Bucket, ObjectUrl), Failure> {
    let url = ObjectUrl::parse(path).map_err(Failure::usage)?;
    if url.key.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no object").with("url", &url);
        return Err(Failure::usage(error.hint("s3://BUCKET/KEY")));
    }
    Ok((Bucket::of_url(&url)?, url))
}

pub(super) fn presign(args: &PresignArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let (bucket, url) = object(&args.url)?;
    let signed = bucket.presign(&url.key, url.version.as_deref(), Duration::from_secs(args.expires_in))?;
    console.line(signed);
    Ok(0)
}

pub(super) fn run(args: &ListArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let Some(url) = &args.url else {
        for (name, made) in buckets()? {
            if args.json {
                console.line(json!({ "bucket": name, "created": made.map(iso) }));
            } else {
                console.line(format!("{} {}", time(made), plain(&name)));
            }
        }
        return Ok(0);
    };
    let url = ObjectUrl::parse_newest(url).map_err(Failure::usage)?;
    let bucket = Bucket::of_url(&url)?.anywhere()?;
    let mut is_empty = true;
    let mut list = bucket.list(&url.key, args.recursive);
    while let Some(listed) = list.next() {
        if is_empty {
            note_elsewhere(&bucket, &list, console);
        }
        is_empty = false;
        let listed = listed?;
        // What marks the folder itself is not in it.
        if !args.recursive
            && url.is_prefix()
            && matches!(&listed, Listed::Object(object) if object.key == url.key)
        {
            continue;
        }
        console.line(if args.json { in_json(&listed) } else { args.line(&listed, &url.key) });
        if console.is_lost() {
            break;
        }
    }
    // An empty bucket is no error.
    if let Some(error) = list.unknown().filter(|_| is_empty) {
        return Err(error.with("url", bucket.url(&url.key)).into());
    }
    if is_empty && !url.key.is_empty() {
        return Err(no_key(&bucket, &url.key).into());
    }
    Ok(0)
}

/// Whether nothing is below a prefix.
pub(super) fn is_without_keys(bucket: &Bucket, prefix: &str, console: &Console<'_>) -> Result<bool, Error> {
    let mut list = bucket.list(prefix, true);
    let is_empty = list.next().transpose()?.is_none();
    if let Some(error) = list.unknown().filter(|_| is_empty) {
        return Err(error.with("url", bucket.url(prefix)));
    }
    note_elsewhere(bucket, &list, console);
    Ok(is_empty)
}

/// Says where another site gives the listing.
fn note_elsewhere(bucket: &Bucket, list: &List, console: &Console<'_>) {
    if let (Some(near), Some(site)) = (bucket.site_name(), list.elsewhere()) {
        console.say(format!(
            "note: site {near} is gone, or has not the bucket: site {site} gives the listing\n"
        ));
    }
}

/// Says so where it is no error.
pub(super) fn note_no_key(bucket: &Bucket, prefix: &str, console: &Console<'_>) {
    console.say(format!("note: no key begins with {}\n", plain(&bucket.url(prefix))));
}

/// Nothing is there.
pub(super) fn no_key(bucket: &Bucket, prefix: &str) -> Error {
    let error = Error::new(ErrorKind::NotFound, "no key begins with it").with("url", bucket.url(prefix));
    error.hint(format!("list the bucket: forebay s3 ls {}", bucket.url("")))
}

impl ListArgs {
    fn line(&self, listed: &Listed, prefix: &str) -> String {
        // Behind the last / of the prefix, as in a folder.
        let begin = if self.recursive { 0 } else { prefix.rfind('/').map_or(0, |at| at + 1) };
        let name = |key: &str| plain(key.get(begin..).unwrap_or(key)).into_owned();
        match listed {
            Listed::Folder(prefix) => format!("{:>30} {}", "PRE", name(prefix)),
            Listed::Object(ListedObject { key, len, modified, .. }) => {
                let size =
                    if self.human_readable { forebay_bench::text::bytes(*len) } else { len.to_string() };
                format!("{} {size:>10} {}", time(*modified), name(key))
            }
        }
    }
}

fn time(seconds: Option<i64>) -> String {
    let known = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    known.map_or_else(|| "-".repeat(19), |seconds| UtcTime::from_unix(seconds).to_string())
}

/// As JSON has times: `2026-11-22T10:00:00Z`.
fn iso(seconds: i64) -> String {
    format!("{}Z", time(Some(seconds)).replace(' ', "T"))
}

fn in_json(listed: &Listed) -> String {
    let value = match listed {
        Listed::Folder(prefix) => json!({ "prefix": prefix }),
        Listed::Object(ListedObject { key, len, etag, modified }) => {
            json!({ "key": key, "bytes": len, "etag": etag, "modified": modified.map(iso) })
        }
    };
    value.to_string()
}
