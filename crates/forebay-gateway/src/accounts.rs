//! Who may ask, and what is theirs: the accounts file, read again on demand.
//!
//! ```toml
//! [[account]]
//! access_key = "train"
//! secret_key = "…"       # 8 characters or more
//! directory = "models"   # below the served directory; without it, all of that
//! uid = 1000             # the user that files belong to and rights are checked of; without it, the server's own
//! gid = 1000
//! read_only = true
//! connections = 64       # at once, at most; without it, as many as the server takes
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use forebay_error::{Error, ErrorKind, Result};
use s3s::auth::SecretKey;
use serde::Deserialize;

use crate::store::{Store, StoreResult};
use crate::threads::Turns;

/// The rights of others: neither the file's user nor its group.
const OTHERS: u32 = 0o007;
const OTHERS_WRITE: u32 = 0o002;

/// An account as the file has it. Its secret is not in its `Debug`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountEntry {
    /// What requests name.
    pub access_key: String,
    /// What they are signed with.
    pub secret_key: SecretKey,
    /// Below the served directory.
    #[serde(default)]
    pub directory: PathBuf,
    /// The user that acts.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// It may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Its connections at once, at most.
    pub connections: Option<u32>,
}

impl AccountEntry {
    /// An account over the whole directory.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self {
            access_key: access_key.into(),
            secret_key: secret_key.into().into(),
            directory: PathBuf::new(),
            uid: None,
            gid: None,
            read_only: false,
            connections: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountsFile {
    #[serde(default)]
    account: Vec<AccountEntry>,
}

/// The least characters of a secret, as of other servers.
const SHORTEST_SECRET: usize = 8;

/// Reads an accounts file, which only its user and its group may read.
pub fn read_accounts(path: &Path) -> Result<Vec<AccountEntry>> {
    let file = AccountsText::read(path)?;
    file.check_mode(path)?;
    parse_accounts(&file.text).map_err(|error| error.with("path", path.display()))
}

/// What an accounts file has, right or wrong.
struct AccountsText {
    text: String,
    /// Of a file, and not of a pipe.
    mode: Option<u32>,
}

impl AccountsText {
    fn read(path: &Path) -> Result<Self> {
        let cannot =
            |error: &io::Error| Error::from_io(error, "cannot read accounts").with("path", path.display());
        let mut file = File::open(path).map_err(|error| cannot(&error))?;
        let found = file.metadata().map_err(|error| cannot(&error))?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| cannot(&error))?;
        Ok(Self { text, mode: found.is_file().then(|| found.mode() & 0o7777) })
    }

    fn check_mode(&self, path: &Path) -> Result<()> {
        let Some(mode) = self.mode.filter(|mode| mode & OTHERS != 0) else { return Ok(()) };
        let text = "the accounts file has secrets, and others may read it";
        let error = Error::new(ErrorKind::PermissionDenied, text);
        let hint = format!("chmod 600 {}", forebay_error::quoted(&path.display().to_string()));
        let error = error.with("path", path.display()).with("mode", format!("{mode:04o}")).hint(hint);
        Err(error.hint("a secret of Kubernetes: defaultMode: 0400 in its volume"))
    }

    /// The access keys that the file has, also where the rest of an account is wrong. `None`: it cannot be said, or others may have
    /// written it.
    fn named(&self) -> Option<HashSet<String>> {
        if self.mode.is_some_and(|mode| mode & OTHERS_WRITE != 0) {
            return None;
        }
        let file: toml::Table = self.text.parse().ok()?;
        let accounts = file.get("account")?.as_array().filter(|accounts| !accounts.is_empty())?;
        let key = |account: &toml::Value| account.get("access_key")?.as_str().map(str::to_owned);
        accounts.iter().map(key).collect()
    }
}

/// The accounts of a file's text. Errors do not repeat its lines: they have secrets.
fn parse_accounts(text: &str) -> Result<Vec<AccountEntry>> {
    let file: AccountsFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        // Others repeat a value.
        let is_plain = |start: &str| error.message().starts_with(start);
        let why = if is_plain("unknown field") || is_plain("missing field") {
            error.message()
        } else {
            "not as TOML has it, or of another type"
        };
        Error::new(ErrorKind::InvalidInput, format!("cannot read accounts: {why}"))
            .with("line", line)
            .hint("docs/guides/gateway.md has the fields of an account; values of texts are quoted")
    })?;
    if file.account.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the accounts file has no [[account]]"));
    }
    for (at, entry) in file.account.iter().enumerate() {
        check(entry, &file.account[..at]).map_err(|error| error.with("access_key", &entry.access_key))?;
    }
    Ok(file.account)
}

fn check(entry: &AccountEntry, before: &[AccountEntry]) -> Result<()> {
    let wrong = |why: &str| Err(Error::new(ErrorKind::InvalidInput, why));
    if entry.access_key.is_empty() || entry.secret_key.expose().is_empty() {
        return wrong("an account's keys must not be empty");
    }
    // The guide has … in place of secrets.
    let secret = entry.secret_key.expose();
    if secret.chars().count() < SHORTEST_SECRET || secret.contains('…') {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "an account's secret is a placeholder, or has less than 8 characters",
        )
        .hint("openssl rand -hex 20"));
    }
    if before.iter().any(|other| other.access_key == entry.access_key) {
        return wrong("two accounts have one access key");
    }
    if entry.directory.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return wrong("an account's directory is below the served one: no `/` in front, no `..`");
    }
    if entry.uid.is_some() != entry.gid.is_some() {
        return wrong("uid and gid go together");
    }
    Ok(())
}

/// Opens the objects of an account.
pub type OpenStore = Box<dyn Fn(&AccountEntry) -> Result<Arc<dyn Store>> + Send + Sync>;

/// An account that requests can be made of.
pub(crate) struct Account {
    pub(crate) entry: AccountEntry,
    pub(crate) store: Arc<dyn Store>,
    /// Kept when the file is read again.
    pub(crate) turns: Turns,
    /// Connections that it has now; kept when the file is read again.
    open: Arc<AtomicU32>,
}

/// A connection of an account, until it is dropped.
pub(crate) struct Seat(Arc<AtomicU32>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Account {
    /// One more connection, if the account may have it.
    pub(crate) fn sit(&self) -> Option<Seat> {
        let seat = Seat(Arc::clone(&self.open));
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        (before < self.entry.connections.unwrap_or(u32::MAX)).then_some(seat)
    }
}

/// All accounts, by their access keys.
pub struct Accounts {
    known: RwLock<HashMap<String, Arc<Account>>>,
    open_store: OpenStore,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl Accounts {
    /// Opens the store of each.
    pub fn new(entries: Vec<AccountEntry>, open_store: OpenStore) -> Result<Self> {
        let accounts = Self { known: RwLock::default(), open_store };
        accounts.replace(entries)?;
        Ok(accounts)
    }

    /// Takes these instead. Where one cannot be opened, all stays as it was.
    pub fn replace(&self, entries: Vec<AccountEntry>) -> Result<()> {
        let mut next = HashMap::new();
        for entry in entries {
            let store =
                (self.open_store)(&entry).map_err(|error| error.with("access_key", &entry.access_key))?;
            let before = self.find(&entry.access_key);
            let open = before.as_ref().map(|account| Arc::clone(&account.open)).unwrap_or_default();
            let turns = before.map(|account| account.turns.clone()).unwrap_or_default();
            next.insert(entry.access_key.clone(), Arc::new(Account { entry, store, turns, open }));
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Reads the file again. Where it is wrong all stays as it was, but for keys that it no longer names: they are refused from now on,
    /// and are in the error.
    pub fn reread(&self, path: &Path) -> Result<()> {
        let file = AccountsText::read(path)?;
        let entries = file.check_mode(path).and_then(|()| parse_accounts(&file.text));
        entries.and_then(|entries| self.replace(entries)).map_err(|error| {
            let gone = file.named().map(|named| self.keep_only(&named)).unwrap_or_default();
            if gone.is_empty() { error } else { error.with("removed", gone.join(",")) }
        })
    }

    /// Removes the accounts of all other keys, and returns these.
    fn keep_only(&self, named: &HashSet<String>) -> Vec<String> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone: Vec<String> =
            known.extract_if(|key, _| !named.contains(key)).map(|(key, _)| key).collect();
        gone.sort();
        gone
    }

    /// Their stores, each directory once.
    pub(crate) fn stores(&self) -> Vec<Arc<dyn Store>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let by_directory: HashMap<&Path, &Arc<Account>> =
            known.values().map(|account| (account.entry.directory.as_path(), account)).collect();
        by_directory.into_values().map(|account| Arc::clone(&account.store)).collect()
    }

    /// Asks the file system whether it is there, by one of the accounts.
    pub(crate) fn look(&self) -> StoreResult<()> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).values().next().cloned();
        known.map_or(Ok(()), |account| account.store.look())
    }

    pub(crate) fn find(&self, access_key: &str) -> Option<Arc<Account>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(access_key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[account]]\naccess_key = \"a\"\nsecret_key = \"hush-hush\"\n";

    #[test]
    fn a_file_of_one_account() {
        let read = parse_accounts(&format!(
            "{FILE}directory = \"x/y\"\nuid = 1\ngid = 2\nread_only = true\nconnections = 3\n"
        ));
        let [entry] = read.unwrap().try_into().unwrap();
        assert_eq!(
            (entry.uid, entry.gid, entry.read_only, entry.connections),
            (Some(1), Some(2), true, Some(3))
        );
        assert_eq!(entry.directory, Path::new("x/y"));
        assert!(!format!("{entry:?}").contains("hush-hush"));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("accounts.toml");
        std::fs::write(&path, FILE).unwrap();
        for (mode, is_good) in [(0o644, false), (0o602, false), (0o640, true), (0o600, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match read_accounts(&path) {
                Ok(_) => assert!(is_good, "{mode:o}"),
                Err(error) => {
                    assert!(!is_good && error.hints()[0].starts_with("chmod 600 "), "{mode:o}: {error:?}");
                }
            }
        }
    }

    /// Removing a key must not wait until the rest of the file is right.
    #[test]
    fn a_wrong_file_removes_keys_and_changes_nothing_else() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("accounts.toml");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let entry = |key: &str| format!("[[account]]\naccess_key = \"{key}\"\nsecret_key = \"of-a-test\"\n");
        let all = ["a", "b", "c"].map(entry).join("");
        let left_after = |text: &str, mode: u32| {
            write(&all, 0o600);
            let open_store = crate::in_directory(dir.path(), false);
            let accounts = Accounts::new(read_accounts(&path).unwrap(), open_store).unwrap();
            write(text, mode);
            let error = accounts.reread(&path).unwrap_err().to_string();
            let left = ["a", "b", "c", "d"].into_iter().filter(|key| accounts.find(key).is_some());
            (left.collect::<String>(), error)
        };
        let (a, b, d) = (entry("a"), entry("b"), entry("d"));
        for (text, mode, left) in [
            // A misspelt field, a number in place of a text, a secret that is a placeholder, a key that is there twice.
            (format!("{a}read_onlyy = true\n"), 0o600, "a"),
            (format!("{a}directory = 1\n{b}"), 0o600, "ab"),
            (format!("{a}{}{d}", b.replace("of-a-test", "…")), 0o600, "ab"),
            (format!("{b}{b}"), 0o600, "b"),
            // A store that cannot be opened; a file that others may read.
            (format!("{a}directory = \"none\"\n"), 0o600, "a"),
            (b.clone(), 0o644, "b"),
            // What cannot be trusted to be the whole file.
            (b.clone(), 0o602, "abc"),
            (String::new(), 0o600, "abc"),
            (format!("{a}[[account]\n"), 0o600, "abc"),
            (format!("{a}[[account]]\nsecret_key = \"of-a-test\"\n"), 0o600, "abc"),
        ] {
            let (found, error) = left_after(&text, mode);
            assert_eq!(found, left, "{text}: {error}");
            let removed =
                ["a", "b", "c"].into_iter().filter(|key| !left.contains(key)).collect::<Vec<_>>().join(",");
            assert_eq!(error.contains(&format!("removed={removed}")), !removed.is_empty(), "{error}");
            assert!(!error.contains("of-a-test"), "{error}");
        }
        write(&b, 0o600);
        let accounts =
            Accounts::new(read_accounts(&path).unwrap(), crate::in_directory(dir.path(), false)).unwrap();
        write(&a, 0o600);
        accounts.reread(&path).unwrap();
        assert!(accounts.find("a").is_some() && accounts.find("b").is_none());
    }

    #[test]
    fn placeholders_are_no_secrets() {
        for secret in ["…", "0123456", "a-long-secret…"] {
            let file = format!("[[account]]\naccess_key = \"a\"\nsecret_key = \"{secret}\"\n");
            let error = parse_accounts(&file).unwrap_err();
            assert!(error.message().contains("placeholder"), "{error}");
            assert!(!error.to_string().contains(secret), "{error}");
        }
    }

    #[test]
    fn wrong_files_are_named_without_their_secrets() {
        for (more, says) in [
            ("colour = 1\n", "unknown field"),
            ("directory = \"../x\"\n", "below the served one"),
            ("directory = \"/x\"\n", "below the served one"),
            ("uid = 1\n", "go together"),
            (FILE, "two accounts"),
            ("read_only = hush-hush\n", "line=4"),
            ("connections = \"hush-hush\"\n", "line=4"),
        ] {
            let error = parse_accounts(&format!("{FILE}{more}")).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("hush-hush"), "{error}");
        }
        assert!(parse_accounts("").is_err());
    }
}
