//! Openers: which crate opens the URLs of a scheme.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_config::elsewhere;
use forebay_error::{Error, ErrorKind, Result};

use crate::source::Source;
use crate::state::StateToken;
use crate::upload::Upload;

/// What a file is opened for. Neither to be read nor written: to be asked for its length and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its bytes are read.
    pub read: bool,
    /// They are written.
    pub write: bool,
    /// It is made, or cut to nothing.
    pub make: bool,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// The name, as the kernel would have it: no escapes of URLs.
    pub name: OsString,
    /// Whether it names a folder; `None` where that is to be asked for each.
    pub is_folder: Option<bool>,
}

/// The state of a file of which nothing else is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedState {
    /// Bytes.
    pub len: u64,
    /// Its content is that of the opened file's state.
    pub state: StateToken,
}

/// Opens URLs of one scheme, `SCHEME://…`. A program that registers one reads such files wherever it takes a path.
///
/// URLs come with bytes of names as `%20`, because Python makes them of what [`Opener::list`] gives: each function turns them back.
pub trait Opener: Send + Sync {
    /// The scheme in lower case, without `://`.
    fn scheme(&self) -> &'static str;

    /// An error if the URL has not the form that its scheme asks for. Asks nobody.
    fn check(&self, _url: &Path) -> Result<()> {
        Ok(())
    }

    /// Opens it. A folder is [`ErrorKind::IsDirectory`], what is not there [`ErrorKind::NotFound`]: Python tells by these what a
    /// URL names.
    fn open(&self, url: &Path, access: Access) -> Result<Arc<dyn Source>>;

    /// Begins a new file at the URL. It keeps the rights of the file that it replaces; without one it has those of `mode`
    /// (`0o644`), from which the process's umask was taken.
    fn make(&self, url: &Path, _mode: u32) -> Result<Box<dyn Upload>> {
        Err(Error::new(ErrorKind::Unsupported, format!("no file is made at a {}:// URL", self.scheme()))
            .with("url", url.display())
            .hint("name a path of this machine"))
    }

    /// What is in a folder, in any order. Links that it has are not folders.
    fn list(&self, url: &Path) -> Result<Vec<ListEntry>> {
        Err(Error::new(ErrorKind::Unsupported, format!("folders of {}:// are not listed", self.scheme()))
            .with("url", url.display())
            .hint("name its files, or an index of them"))
    }

    /// The states of many files by fewer requests than opening each takes; `None` for each that is to be opened for it.
    fn states(&self, urls: &[&Path]) -> Vec<Option<ListedState>> {
        vec![None; urls.len()]
    }

    /// Whether a file needs its folder to be there before. Without, any name can be written.
    fn has_folders(&self) -> bool {
        true
    }

    /// Removes a file. One that is not there is no error.
    fn remove(&self, url: &Path) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, format!("no file is removed at a {}:// URL", self.scheme()))
            .with("url", url.display()))
    }

    /// The URL that a path which is not there is meant to be.
    fn near_miss(&self, _path: &Path) -> Option<String> {
        None
    }

    /// The name that a copy has in a folder; `None` where the URL has none.
    fn file_name(&self, url: &Path) -> Option<OsString> {
        url.file_name().map(OsString::from)
    }
}

/// Those of the process. The first of a scheme stays.
static OPENERS: RwLock<Vec<Arc<dyn Opener>>> = RwLock::new(Vec::new());

/// From now on URLs of this scheme are opened by it. A second one of a scheme is left out.
pub fn register(opener: Arc<dyn Opener>) {
    let mut all = OPENERS.write().unwrap_or_else(PoisonError::into_inner);
    if all.iter().all(|other| other.scheme() != opener.scheme()) {
        all.push(opener);
    }
}

/// The first opener that `choose` has something of.
fn find<T>(choose: impl Fn(&Arc<dyn Opener>) -> Option<T>) -> Option<T> {
    OPENERS.read().unwrap_or_else(PoisonError::into_inner).iter().find_map(choose)
}

/// Whether the path begins with the scheme and `rest`.
fn begins(path: &Path, scheme: &str, rest: &[u8]) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let (begin, behind) = bytes.split_at(scheme.len().min(bytes.len()));
    begin.eq_ignore_ascii_case(scheme.as_bytes()) && behind.starts_with(rest)
}

/// What opens a URL; `None` for a path of this machine, and for URLs that nothing is registered for.
pub fn opener_of(path: impl AsRef<Path>) -> Option<Arc<dyn Opener>> {
    find(|opener| begins(path.as_ref(), opener.scheme(), b"://").then(|| opener.clone()))
}

/// The scheme of a URL that can be opened.
pub fn scheme_of(path: impl AsRef<Path>) -> Option<&'static str> {
    opener_of(path).map(|opener| opener.scheme())
}

fn opener_for(url: &Path) -> Result<Arc<dyn Opener>> {
    let none = || Error::new(ErrorKind::InvalidInput, "no URL that can be opened").with("url", url.display());
    opener_of(url).ok_or_else(none)
}

/// What is in a folder that a URL names.
pub fn list(url: impl AsRef<Path>) -> Result<Vec<ListEntry>> {
    opener_for(url.as_ref())?.list(url.as_ref())
}

/// The states of files by requests for many at once; `None` for each that is to be opened for it, and for paths.
pub fn states(urls: &[&Path]) -> Vec<Option<ListedState>> {
    let mut found = vec![None; urls.len()];
    let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner).clone();
    for opener in openers {
        let is_its = |url: &Path| begins(url, opener.scheme(), b"://");
        let (places, its): (Vec<_>, Vec<_>) =
            urls.iter().copied().enumerate().filter(|(_, url)| is_its(url)).unzip();
        if !its.is_empty() {
            opener.states(&its).into_iter().zip(places).for_each(|(state, at)| found[at] = state);
        }
    }
    found
}

/// Removes the file that a URL names. One that is not there is no error.
pub fn remove(url: impl AsRef<Path>) -> Result<()> {
    opener_for(url.as_ref())?.remove(url.as_ref())
}

/// The URL that a path which is not there is meant to be, if any scheme knows one.
pub fn near_miss(path: impl AsRef<Path>) -> Option<String> {
    let path = path.as_ref();
    // What begins with one scheme may be the name of a server for another.
    let own = find(|opener| begins(path, opener.scheme(), b":").then(|| opener.near_miss(path))?);
    own.or_else(|| find(|opener| opener.near_miss(path)))
}

/// What to say of a path that is not there, but is meant for a file of a server, or for a repository of models.
pub fn hint_for_missing(path: impl AsRef<Path>) -> Option<String> {
    let path = path.as_ref();
    let named = near_miss(path).map(|url| format!("a file of a server is named {url}"));
    named.or_else(|| elsewhere::repository_hint(path))
}

/// Whether it is a scheme that is registered, and then no more than one slash.
pub(crate) fn has_one_slash(path: &Path) -> bool {
    find(|opener| begins(path, opener.scheme(), b":").then_some(())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    struct Nothing;

    impl Opener for Nothing {
        fn scheme(&self) -> &'static str {
            "nothing"
        }

        fn check(&self, url: &Path) -> Result<()> {
            let is_good = url.as_os_str().len() > "nothing://".len();
            if is_good { Ok(()) } else { Err(Error::new(ErrorKind::InvalidInput, "it names nothing")) }
        }

        fn open(&self, _: &Path, _: Access) -> Result<Arc<dyn Source>> {
            Err(Error::new(ErrorKind::NotFound, "there is nothing"))
        }

        fn near_miss(&self, path: &Path) -> Option<String> {
            path.to_str()?.strip_prefix("nothing:").map(|rest| format!("nothing://{rest}"))
        }
    }

    /// Takes any path for one of a server.
    struct Server;

    impl Opener for Server {
        fn scheme(&self) -> &'static str {
            "server"
        }

        fn open(&self, _: &Path, _: Access) -> Result<Arc<dyn Source>> {
            Err(Error::new(ErrorKind::NotFound, "there is nothing"))
        }

        fn near_miss(&self, path: &Path) -> Option<String> {
            path.to_str()?.split_once(':').map(|(name, rest)| format!("server://{name}/{rest}"))
        }
    }

    #[test]
    fn urls_are_of_who_registered_their_scheme() {
        assert_eq!(Location::of("nothing://a").err().unwrap().kind(), ErrorKind::Unsupported);
        register(Arc::new(Server));
        register(Arc::new(Nothing));
        register(Arc::new(Nothing));
        for (path, scheme) in [
            ("nothing://a", Some("nothing")),
            ("NOTHING://a", Some("nothing")),
            ("nothing:/a", None),
            ("/a", None),
        ] {
            assert_eq!(scheme_of(path), scheme, "{path}");
            let is_url = matches!(Location::of(path).unwrap(), Location::Url(_));
            assert_eq!(is_url, scheme.is_some(), "{path}");
        }
        assert_eq!(Location::of("nothing://").err().unwrap().kind(), ErrorKind::InvalidInput);
        assert_eq!(Location::of("other://a").err().unwrap().kind(), ErrorKind::Unsupported);
        assert_eq!(Location::of_new("other://a").err().unwrap().kind(), ErrorKind::Unsupported);
        assert!(Location::of_new("/a").is_ok() && Location::of_new("nothing://a").is_ok());
        let error = Nothing.make(Path::new("nothing://a"), 0o644).unwrap_err();
        assert_eq!(error.message(), "no file is made at a nothing:// URL");
        assert_eq!(hint_for_missing("nothing:a").unwrap(), "a file of a server is named nothing://a");
        assert_eq!(near_miss("host:a").unwrap(), "server://host/a");
        assert_eq!(hint_for_missing("/a"), None);
    }
}
