//! A page of a bucket's keys. Only the directories that it needs are read; `runs` has their names in order.
//!
//! A directory's place among the names beside it is that of its name with a `/`: `a-`, then all below `a/`, then `a0`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::inner::Inner;
use super::names::{KeyPath, LONGEST_KEY, is_key, is_own};
use super::record::{self, Identity};
use super::runs::{DirState, read_names};
use super::tree::{self, fault, open_below};
use crate::store::{Entry, ListAsk, ListPage, Listed, StoreResult};

/// Names that a listing holds of all directories on its way, each of which is asked again for more.
const MOST_NAMES: usize = 8192;

/// Fewer names are looked at when their turn comes.
const LEAST_AHEAD: usize = 128;
/// The time that these take says what the others will.
const TRIED: usize = 32;
/// What a thread has to do, at least: its start and its end cost as much as looks at 50 names of a file system in memory.
const WORTH_A_THREAD: Duration = Duration::from_millis(2);
const MOST_THREADS: usize = 8;

/// A file of a directory; `None`: it is none.
type Examined = StoreResult<Option<(Identity, record::Record)>>;

/// A name that was examined before its turn comes.
#[expect(clippy::large_enum_variant, reason = "most are files, and there are a thousand for a moment")]
enum Ahead {
    File(Examined),
    /// There is a key below the directory.
    Full(StoreResult<bool>),
}

/// What a name in a directory is for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Dir,
    /// At least one file whose key has the delimiter: the name is the part up to it.
    Group,
}

/// Where a key was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// In the directory, or the directory itself: it is so while the directory stays as it is.
    Here,
    /// In a directory below.
    Below,
}

/// Lists a page.
pub(super) fn list(inner: &Inner, bucket: &str, ask: &ListAsk) -> StoreResult<ListPage> {
    inner.open_bucket(bucket)?;
    let start = ask.prefix.rfind('/').map_or("", |end| &ask.prefix[..=end]);
    let mut walk = Walk { inner, bucket, ask, page: ListPage::default(), skip: None, is_full: false };
    if ask.max == 0 || (!start.is_empty() && KeyPath::new(start).is_err()) || !walk.may_follow(start) {
        return Ok(walk.page);
    }
    match open_below(&inner.root, &format!("{bucket}/{start}"), OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(dir) => walk.visit(&dir, start, 0)?,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {}
        Err(errno) => return Err(fault(errno, "cannot open directory")),
    }
    if walk.is_full {
        walk.page.next = walk.page.entries.last().map(|entry| match entry {
            Entry::Object(object) => object.key.clone(),
            Entry::Prefix(prefix) => prefix.clone(),
        });
    }
    Ok(walk.page)
}

struct Walk<'a> {
    inner: &'a Inner,
    bucket: &'a str,
    ask: &'a ListAsk,
    page: ListPage,
    /// The common prefix that was listed last: keys below it are over.
    skip: Option<String>,
    /// The page has its entries, and there is one more.
    is_full: bool,
}

impl Walk<'_> {
    /// Whether keys that begin with this can come behind `after`.
    fn may_follow(&self, start: &str) -> bool {
        start >= self.ask.after.as_str() || self.ask.after.starts_with(start)
    }

    /// Of a key, or of a directory's path: the common prefix that it is listed as.
    fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.ask.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
        let at = key.get(self.ask.prefix.len()..)?.find(delimiter)?;
        Some(&key[..self.ask.prefix.len() + at + delimiter.len()])
    }

    /// All keys of a directory, whose path is empty or ends in `/`, in their order.
    fn visit(&mut self, dir: &OwnedFd, path: &str, depth: usize) -> StoreResult<()> {
        self.offer_folder(dir, path)?;
        let most = (self.ask.max - self.page.entries.len() + 1).min(MOST_NAMES / (depth + 1)).max(32);
        let mut last = String::new();
        while !self.is_full {
            let (names, is_last) = self.smallest(dir, path, &last, most)?;
            let mut ahead = self.look_ahead(dir, path, &names).into_iter();
            for (name, kind) in names {
                if self.is_full {
                    return Ok(());
                }
                let ahead = ahead.next().flatten();
                self.offer(dir, path, &name, (kind, ahead), depth)?;
                last = name;
            }
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists the directory itself where it is an object.
    fn offer_folder(&mut self, dir: &OwnedFd, path: &str) -> StoreResult<()> {
        if path.is_empty() || path <= self.ask.after.as_str() || !path.starts_with(&self.ask.prefix) {
            return Ok(());
        }
        let Some(plain) = path.strip_suffix('/') else { return Ok(()) };
        if let Some((identity, record)) = super::folder::marked(self.inner, self.bucket, plain, dir)? {
            self.push(listed(path.to_owned(), identity, record));
        }
        Ok(())
    }

    /// Looks at many names; by some threads at once where each takes a while: it may be asked of a server far away. Nothing for few
    /// names.
    fn look_ahead(&self, dir: &OwnedFd, path: &str, names: &[(String, Kind)]) -> Vec<Option<Ahead>> {
        if names.len() < LEAST_AHEAD {
            return Vec::new();
        }
        let each = |part: &[(String, Kind)]| -> Vec<_> {
            part.iter().map(|(name, kind)| self.ahead(dir, path, name, *kind)).collect()
        };
        let (tried, rest) = names.split_at(TRIED);
        let begin = Instant::now();
        let mut all = each(tried);
        let threads = threads_for(begin.elapsed(), rest.len());
        std::thread::scope(|scope| {
            let mut parts = rest.chunks(rest.len().div_ceil(threads));
            let first = parts.next().unwrap_or_default();
            // They have the rights of this one. The names of one that cannot be started are looked at when they are needed.
            let others: Vec<_> = parts
                .map(|part| (part.len(), std::thread::Builder::new().spawn_scoped(scope, move || each(part))))
                .collect();
            all.extend(each(first));
            for (len, thread) in others {
                let done = thread.ok().and_then(|thread| thread.join().ok());
                all.extend(done.unwrap_or_else(|| (0..len).map(|_| None).collect()));
            }
        });
        all
    }

    fn ahead(&self, dir: &OwnedFd, path: &str, name: &str, kind: Kind) -> Option<Ahead> {
        match kind {
            Kind::File => Some(Ahead::File(self.file(dir, name))),
            // Of another delimiter many directories may be one common prefix, for which one is enough.
            Kind::Dir if self.ask.delimiter.as_deref() == Some("/") => {
                let key = format!("{path}{name}");
                let is_wanted = key.len() <= LONGEST_KEY
                    && self.common_prefix(&key).is_some_and(|common| common > self.ask.after.as_str());
                is_wanted.then(|| Ahead::Full(self.has_key_in(dir, name.trim_end_matches('/'), &key)))
            }
            Kind::Dir | Kind::Group => None,
        }
    }

    fn offer(
        &mut self,
        dir: &OwnedFd,
        path: &str,
        name: &str,
        (kind, ahead): (Kind, Option<Ahead>),
        depth: usize,
    ) -> StoreResult<()> {
        let key = format!("{path}{name}");
        if self.skip.as_ref().is_some_and(|skip| key.starts_with(skip)) {
            return Ok(());
        }
        match kind {
            Kind::Group => self.push_prefix(&key),
            Kind::File => {
                let examined = match ahead {
                    Some(Ahead::File(examined)) => examined,
                    _ => self.file(dir, name),
                };
                if let Some((identity, record)) = examined? {
                    self.push(listed(key, identity, record));
                }
            }
            Kind::Dir => self.offer_dir(dir, name, &key, depth, ahead)?,
        }
        Ok(())
    }

    fn file(&self, dir: &OwnedFd, name: &str) -> Examined {
        tree::again_when_stale(|| self.examine(dir, name))
    }

    /// A file of a directory; `None`: it went since the directory was read, or became another thing.
    fn examine(&self, dir: &OwnedFd, name: &str) -> Examined {
        let stat = match tree::stat_name(dir, name) {
            Ok(stat) if super::read::is_file(&stat) => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fault(errno, "cannot examine file")),
        };
        let identity = Identity::new(&stat);
        let attribute = match record::read_attribute_of(dir.as_fd(), name) {
            Ok(attribute) => attribute,
            Err(Errno::NOENT) => return Ok(None),
            // The account may list it and not read it.
            Err(Errno::ACCESS) => return Ok(Some((identity, record::Record::default()))),
            Err(errno) => return Err(fault(errno, "cannot read attribute")),
        };
        let record = record::record(self.inner, self.bucket, identity, attribute.as_deref())?;
        Ok(Some((identity, record)))
    }

    fn offer_dir(
        &mut self,
        above: &OwnedFd,
        name: &str,
        path: &str,
        depth: usize,
        ahead: Option<Ahead>,
    ) -> StoreResult<()> {
        // No key is below it, and others' trees may be deeper than a thread's stack.
        if path.len() > LONGEST_KEY {
            return Ok(());
        }
        let common = self.common_prefix(path);
        if common.is_some_and(|common| common <= self.ask.after.as_str()) {
            return Ok(());
        }
        let name = name.trim_end_matches('/');
        match common {
            Some(common) => {
                let is_full = match ahead {
                    Some(Ahead::Full(is_full)) => is_full,
                    _ => self.has_key_in(above, name, path),
                };
                if is_full? {
                    self.push_prefix(common);
                }
            }
            None => {
                if let Some(dir) = open_listed(above, name)? {
                    self.visit(&dir, path, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    /// Whether there is a key at or below a directory, whose path ends in `/`. One that is known to have a key is not opened.
    fn has_key_in(&self, above: &OwnedFd, name: &str, path: &str) -> StoreResult<bool> {
        let full = &self.inner.full_dirs;
        match tree::stat_name(above, name) {
            Ok(stat) if full.has(&DirState::by(&stat)) => return Ok(true),
            Ok(stat) if tree::is_dir(&stat) => {}
            Ok(_) | Err(Errno::NOENT | Errno::ACCESS) => return Ok(false),
            Err(errno) => return Err(fault(errno, "cannot examine directory")),
        }
        let Some(dir) = open_listed(above, name)? else { return Ok(false) };
        let state = DirState::of(&dir)?;
        let found = self.find_key(&dir, path)?;
        if found == Found::Here {
            full.keep(state);
        }
        Ok(found != Found::Nothing)
    }

    /// Where there is a key at or below a directory.
    fn find_key(&self, dir: &OwnedFd, path: &str) -> StoreResult<Found> {
        let mut found = Ok(Found::Nothing);
        // A key is among the first names, most often: 8 KiB of them cost tmpfs 150 µs.
        read_names(dir, 512, |name, kind| {
            let key = format!("{path}{name}");
            found = match kind {
                FileType::RegularFile if is_key(&key) => Ok(Found::Here),
                FileType::Directory if !is_own(name) => self.find_key_below(dir, name, &key),
                _ => return true,
            };
            matches!(found, Ok(Found::Nothing))
        })?;
        match found? {
            Found::Nothing => {
                let plain = path.trim_end_matches('/');
                let is_object = super::folder::marked(self.inner, self.bucket, plain, dir)?.is_some();
                Ok(if is_object { Found::Here } else { Found::Nothing })
            }
            found => Ok(found),
        }
    }

    fn find_key_below(&self, above: &OwnedFd, name: &str, path: &str) -> StoreResult<Found> {
        // No key is so long, and a thread's stack ends.
        if path.len() > LONGEST_KEY {
            return Ok(Found::Nothing);
        }
        let is_there = self.has_key_in(above, name, &format!("{path}/"))?;
        Ok(if is_there { Found::Below } else { Found::Nothing })
    }

    /// The smallest names of a directory behind `last` that the page can need, at most `most`, and whether no others follow.
    fn smallest(
        &self,
        dir: &OwnedFd,
        path: &str,
        last: &str,
        most: usize,
    ) -> StoreResult<(Vec<(String, Kind)>, bool)> {
        let filter = Filter::new(self, path, last);
        let mut found: Vec<(String, Kind)> = Vec::new();
        let mut floor = filter.floor();
        loop {
            let run = self.inner.name_runs.run(dir, &floor)?;
            for name in &run.names[run.place(&floor).unwrap_or_default()..] {
                if filter.is_past(name) {
                    return Ok((found, true));
                }
                let Some((name, kind)) = self.taken(&filter, path, name) else { continue };
                if found.last().is_some_and(|(last, _)| *last == name) {
                    continue;
                }
                if found.len() == most {
                    return Ok((found, false));
                }
                found.push((name, kind));
            }
            match run.names.last() {
                Some(last) if !run.is_last => floor = format!("{last}\0"),
                _ => return Ok((found, true)),
            }
        }
    }

    /// What a name of a directory is for the page; `None`: nothing.
    fn taken(&self, filter: &Filter<'_>, path: &str, name: &str) -> Option<(String, Kind)> {
        let kind = if name.ends_with('/') { Kind::Dir } else { Kind::File };
        if !filter.takes(name, kind) {
            return None;
        }
        if kind == Kind::File && filter.has_groups {
            let key = format!("{path}{name}");
            if let Some(common) = self.common_prefix(&key) {
                let group = &common[path.len()..];
                let is_new = common > self.ask.after.as_str() && group > filter.last;
                return is_new.then(|| (group.to_owned(), Kind::Group));
            }
        }
        Some((name.to_owned(), kind))
    }

    fn push_prefix(&mut self, prefix: &str) {
        self.skip = Some(prefix.to_owned());
        self.push(Entry::Prefix(prefix.to_owned()));
    }

    fn push(&mut self, entry: Entry) {
        if self.page.entries.len() == self.ask.max {
            self.is_full = true;
        } else {
            self.page.entries.push(entry);
        }
    }
}

/// How many threads look at this many names, when the first ones took so long.
fn threads_for(tried: Duration, names: usize) -> usize {
    let all = tried.as_nanos() * names as u128 / TRIED as u128;
    ((all / WORTH_A_THREAD.as_nanos()) as usize).clamp(1, MOST_THREADS)
}

fn listed(key: String, identity: Identity, record: record::Record) -> Entry {
    let facts = record::facts(identity, record);
    Entry::Object(Listed { key, len: facts.len, modified: facts.modified, etag: facts.etag })
}

/// Opens a directory of a listing. `None`: it went, or the account may not read it: it has no objects for the account.
fn open_listed(above: &OwnedFd, name: &str) -> StoreResult<Option<OwnedFd>> {
    match open_below(above, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => Ok(None),
        Err(errno) => Err(fault(errno, "cannot open directory")),
    }
}

/// Which names of one directory a page can need: what it asks for, without the directory's path.
struct Filter<'a> {
    prefix: &'a str,
    after: &'a str,
    last: &'a str,
    skip: Option<&'a str>,
    longest: usize,
    has_groups: bool,
}

impl<'a> Filter<'a> {
    fn new(walk: &'a Walk<'_>, path: &str, last: &'a str) -> Self {
        let delimiter = walk.ask.delimiter.as_deref().unwrap_or_default();
        Self {
            // Outside the path, it holds for all names or the directory would not be read.
            prefix: walk.ask.prefix.strip_prefix(path).unwrap_or_default(),
            after: walk.ask.after.strip_prefix(path).unwrap_or_default(),
            last,
            skip: walk.skip.as_deref().and_then(|skip| skip.strip_prefix(path)),
            longest: 1024usize.saturating_sub(path.len()),
            // A directory whose path has the delimiter is not read, and no name has a /.
            has_groups: !delimiter.is_empty() && delimiter != "/",
        }
    }

    /// No name before it can be needed.
    fn floor(&self) -> String {
        let after = self.after.find('/').map_or(self.after, |end| &self.after[..=end]);
        [self.prefix, after, self.last].into_iter().max().unwrap_or_default().to_owned()
    }

    /// Neither this name nor one behind it begins with the prefix.
    fn is_past(&self, name: &str) -> bool {
        name > self.prefix && !name.starts_with(self.prefix)
    }

    fn takes(&self, name: &str, kind: Kind) -> bool {
        let is_dir = kind == Kind::Dir;
        name.len() <= self.longest
            && name > self.last
            && (name > self.after || (is_dir && self.after.starts_with(name)))
            && (name.starts_with(self.prefix) || (is_dir && self.prefix.starts_with(name)))
            && !self.skip.is_some_and(|skip| name.starts_with(skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_for_names_that_take_a_while() {
        let each = |microseconds| threads_for(Duration::from_micros(microseconds) * TRIED as u32, 1000);
        assert_eq!((each(1), each(5), each(200), each(1_000_000)), (1, 2, 8, 8));
    }
}
