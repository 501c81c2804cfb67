//! Trees: folders of this machine, and prefixes of buckets, in one order.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};
use forebay_objects::{Bucket, List, Listed, ObjectUrl};

use super::filter::Filter;

/// A tree.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Folder(PathBuf),
    /// Keys that begin with this, which is empty or ends in a `/`.
    Prefix(Bucket, String),
}

/// A file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// From the tree's root on, with `/`.
    pub(super) name: String,
    pub(super) len: u64,
    /// Seconds since 1970.
    pub(super) modified: Option<i64>,
    pub(super) etag: Option<String>,
}

/// What a listing of a tree has.
#[derive(Debug)]
pub(super) enum Entry {
    /// A file.
    File(Item),
    /// A name that cannot be looked at. Others follow.
    Unread(Error),
}

impl Tree {
    /// That of an argument.
    pub(super) fn of(path: &Path) -> Result<Self> {
        if !ObjectUrl::is_one(path) {
            return Ok(Self::Folder(path.to_owned()));
        }
        let url = ObjectUrl::parse_newest(path)?;
        Ok(Self::Prefix(Bucket::of_url(&url)?, url.prefix()))
    }

    /// The same for reads that may go to other sites.
    pub(super) fn anywhere(self) -> Result<Self> {
        Ok(match self {
            Self::Prefix(bucket, prefix) => Self::Prefix(bucket.anywhere()?, prefix),
            Self::Folder(_) => self,
        })
    }

    /// Whether it is in a bucket of a site, so that another one may have the same objects with other times.
    pub(super) fn has_site(&self) -> bool {
        matches!(self, Self::Prefix(bucket, _) if bucket.site_name().is_some())
    }

    /// Whether both are in buckets, of different sites.
    pub(super) fn is_elsewhere(&self, other: &Self) -> bool {
        let (Self::Prefix(one, _), Self::Prefix(other, _)) = (self, other) else { return false };
        one.site_name() != other.site_name()
    }

    /// Whether one of both prefixes has keys of the other.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (Self::Prefix(bucket, prefix), Self::Prefix(other, other_prefix)) = (self, other) else {
            return false;
        };
        bucket.is_same(other) && (prefix.starts_with(other_prefix) || other_prefix.starts_with(prefix))
    }

    /// Its files that are meant, by the order of the bytes of their names.
    pub(super) fn items(&self, filter: &Filter) -> Box<dyn Iterator<Item = Result<Entry>>> {
        match self {
            Self::Folder(folder) => Box::new(Walk::new(folder, filter.clone())),
            Self::Prefix(bucket, prefix) => {
                let keys = Keys::new(bucket, prefix, filter).filter(|item| {
                    // What consoles make for an empty folder.
                    item.as_ref().map_or(true, |item| !item.name.is_empty() && !item.name.ends_with('/'))
                });
                Box::new(keys.map(|item| item.map(Entry::File)))
            }
        }
    }

    /// The name of one of its files, for people.
    pub(super) fn place(&self, name: &str) -> Result<String> {
        match self {
            Self::Folder(_) => Ok(self.path(name)?.display().to_string()),
            Self::Prefix(bucket, prefix) => Ok(bucket.url(&format!("{prefix}{name}"))),
        }
    }

    /// Where a file of a folder is. A name that leads out of the folder is an error.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        let is_bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
        match self {
            Self::Folder(folder) if !name.split('/').any(is_bad) => Ok(folder.join(name)),
            _ => Err(Error::new(ErrorKind::InvalidInput, "the key is no name of a file")
                .with("key", name)
                .hint("leave it out with --exclude, or copy it alone under another name")),
        }
    }

    /// The same for a file that is removed. What a link leads to is not the tree's own.
    pub(super) fn own_path(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name)?;
        let mut folders = path.ancestors().skip(1).take(name.matches('/').count());
        match folders.find(|folder| folder.is_symlink()) {
            None => Ok(path),
            Some(link) => Err(Error::new(ErrorKind::InvalidInput, "a file behind a link is not removed")
                .with("path", path.display())
                .with("link", link.display())
                .hint("remove the link, or leave the file out with --exclude")),
        }
    }
}

/// Objects under a prefix, also those that only stand for folders.
pub(super) struct Keys {
    filter: Filter,
    list: List,
    url: String,
    prefix: String,
    last: String,
}

impl Iterator for Keys {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let object = match self.list.next()? {
                Ok(Listed::Object(object)) => object,
                Ok(Listed::Folder(_)) => continue,
                Err(error) => return Some(Err(error)),
            };
            let Some(name) = object.key.strip_prefix(&self.prefix) else {
                return Some(Err(self.wrong("the server lists keys that were not asked for")));
            };
            // Trees are compared item by item.
            if object.key <= self.last {
                return Some(Err(self.wrong("the server lists keys out of order")));
            }
            self.last.clone_from(&object.key);
            if !self.filter.takes(name) {
                continue;
            }
            let (name, etag) = (name.to_owned(), object.etag);
            return Some(Ok(Item { name, len: object.len, modified: object.modified, etag }));
        }
    }
}

impl Keys {
    pub(super) fn new(bucket: &Bucket, prefix: &str, filter: &Filter) -> Self {
        Self {
            filter: filter.clone(),
            list: bucket.list(prefix, true),
            url: bucket.url(prefix),
            prefix: prefix.to_owned(),
            last: String::new(),
        }
    }

    fn wrong(&self, why: &str) -> Error {
        let error = Error::new(ErrorKind::Unsupported, why).with("url", &self.url);
        error.hint("report this to those who run the server")
    }
}

/// Files under a folder. Links are followed. A name that the filter leaves out is no error, whatever it names. Names of one
/// folder at a time are kept, with those of the folders around it.
struct Walk {
    filter: Filter,
    /// The rest of each folder from the root to where the walk is.
    folders: Vec<Open>,
    /// Why the root cannot be read.
    error: Option<Error>,
    /// Names that cannot be looked at.
    unread: VecDeque<Error>,
}

struct Open {
    path: PathBuf,
    /// Relative to the root; empty, or with a `/` at its end.
    name: String,
    /// A folder that a link in it leads back to is not entered again.
    identity: (u64, u64),
    entries: VecDeque<(String, bool)>,
}

impl Walk {
    fn new(root: &Path, filter: Filter) -> Self {
        let mut walk = Self { filter, folders: Vec::new(), error: None, unread: VecDeque::new() };
        walk.error = walk.enter(root.to_owned(), String::new()).err();
        walk
    }

    fn enter(&mut self, path: PathBuf, name: String) -> Result<()> {
        let failed = |error: &std::io::Error| {
            let error = Error::from_io(error, "cannot read the directory").with("path", path.display());
            let error = error.hint("check the path and its mode: ls -ld");
            // The root cannot be left out.
            if name.is_empty() {
                return error;
            }
            error.hint(format!("leave it out: --exclude {}", forebay_error::quoted(&format!("{name}*"))))
        };
        let found = fs::metadata(&path).map_err(|error| failed(&error))?;
        let identity = (found.dev(), found.ino());
        if self.folders.iter().any(|open| open.identity == identity) {
            return Ok(());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let is_folder = is_folder(&entry);
            let whole = format!("{name}{}", entry.file_name().display());
            if !self.may_take(&whole, is_folder) {
                continue;
            }
            match entry.file_name().into_string() {
                Ok(entry) => entries.push((entry, is_folder)),
                Err(name) => self.unread.push_back(
                    Error::new(ErrorKind::InvalidInput, "a name is no UTF-8, and keys of S3 are")
                        .with("path", path.join(name).display())
                        .hint(
                            "rename the file, or leave it out with --exclude: ? stands for what is no UTF-8",
                        ),
                ),
            }
        }
        // As the whole names are sorted.
        entries.sort_by_cached_key(
            |(name, is_folder)| if *is_folder { format!("{name}/") } else { name.clone() },
        );
        self.folders.push(Open { path, name, identity, entries: entries.into() });
        Ok(())
    }

    fn may_take(&self, name: &str, is_folder: bool) -> bool {
        if is_folder { !self.filter.leaves_out_all_of(&format!("{name}/")) } else { self.filter.takes(name) }
    }
}

/// Whether an entry is a folder, or a link to one.
fn is_folder(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => fs::metadata(entry.path()).is_ok_and(|found| found.is_dir()),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            if let Some(error) = self.unread.pop_front() {
                return Some(Ok(Entry::Unread(error)));
            }
            let open = self.folders.last_mut()?;
            let Some((name, is_folder)) = open.entries.pop_front() else {
                self.folders.pop();
                continue;
            };
            let (path, name) = (open.path.join(&name), format!("{}{name}", open.name));
            if is_folder {
                let failed = self.enter(path.clone(), format!("{name}/")).err();
                self.unread.extend(failed.filter(|_| !is_gone(&path)));
                continue;
            }
            match fs::metadata(&path) {
                Ok(found) if found.is_file() => {
                    let modified = Some(found.mtime());
                    return Some(Ok(Entry::File(Item { name, len: found.len(), modified, etag: None })));
                }
                // Devices and pipes.
                Ok(_) => {}
                Err(_) if is_gone(&path) => {}
                Err(error) => {
                    let error =
                        Error::from_io(&error, "cannot look at the file").with("path", path.display());
                    self.unread.push_back(error.hint("leave it out with --exclude, or remove the link"));
                }
            }
        }
    }
}

/// Whether a name that was listed is no more: somebody removed it. A link that leads nowhere is still there.
fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name(entry: Result<Entry>) -> String {
        match entry.unwrap() {
            Entry::File(item) => item.name,
            Entry::Unread(error) => panic!("{error}"),
        }
    }

    #[test]
    fn files_come_in_the_order_of_keys() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "a!b", "a-/x", "a.txt", "a/1", "a/b/2", "a0", "b"];
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap_or_default();
            // "a" is a file and a folder here: of a key and a prefix of others.
            if name != "a" {
                fs::write(path, name).unwrap();
            }
        }
        std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
        let found: Vec<String> =
            Tree::Folder(folder.path().to_owned()).items(&Filter::default()).map(name).collect();
        assert_eq!(found, names[1..]);
        assert!(found.is_sorted());
    }

    #[test]
    fn what_is_removed_meanwhile_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c/1", "d"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let mut items = Tree::Folder(folder.path().to_owned()).items(&Filter::default());
        assert_eq!(name(items.next().unwrap()), "a");
        fs::remove_file(folder.path().join("b")).unwrap();
        fs::remove_dir_all(folder.path().join("c")).unwrap();
        let rest: Vec<String> = items.map(name).collect();
        assert_eq!(rest, ["d"]);
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let tree = Tree::Folder("/here".into());
        assert_eq!(tree.path("a/b").unwrap(), Path::new("/here/a/b"));
        for bad in ["", "../a", "a/../../b", "/etc/passwd", "a//b", "./a", "a\0"] {
            assert_eq!(tree.path(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
