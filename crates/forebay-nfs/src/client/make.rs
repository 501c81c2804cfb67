//! New files of a server: written beside their place under a hidden name, and renamed when they are whole.

use std::fmt;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;

use crate::client::file::NfsFile;
use crate::client::folder_calls::NfsFolder;
use crate::client::open::{check_kind, find};
use crate::client::url::NfsUrl;
use crate::network::options::NfsOptions;
use crate::protocol::handle::FileKind;
use crate::protocol::new_file::{FileRights, SetRights, is_more_than_mode};
use crate::protocol::rpc::random;
use crate::protocol::status::NfsStatus;

/// A file with a hidden name, until it is finished; dropped before, it is removed.
pub struct NewNfsFile {
    hidden: HiddenName,
    file: NfsFile,
    name: Vec<u8>,
    /// Of a file that replaces none.
    mode: u32,
    /// Of the file that it replaces: with its access list, where the server tells it.
    replaced: Option<(FileRights, Option<Vec<u8>>)>,
}

/// How long the answer to the removal of a hidden file is waited for where waiting is to stop.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(2);

/// A name in a folder; dropped, it is removed if it is still there.
struct HiddenName {
    folder: NfsFolder,
    name: Vec<u8>,
    is_gone: bool,
}

impl Drop for HiddenName {
    fn drop(&mut self) {
        // A child's file is its parent's.
        if !self.is_gone && self.folder.client.check_process().is_ok() {
            let _ = stop::patiently(REMOVAL_PATIENCE, || self.folder.remove(&self.name));
        }
    }
}

impl fmt::Debug for NewNfsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewNfsFile({})", self.file.name())
    }
}

/// Begins a file that the URL is to name. It has these mode bits if it replaces none.
pub fn make(url: &NfsUrl, options: &NfsOptions, mode: u32) -> Result<NewNfsFile> {
    let names = url.names();
    let Some((name, parents)) = names.split_last().filter(|_| !url.path.ends_with(b"/")) else {
        return Err(Error::new(ErrorKind::InvalidInput, "the URL names no file")
            .with("url", url)
            .hint("name a file in the folder"));
    };
    let path = [b"/".as_slice(), &parents.join(&b'/')].concat();
    let found = find(&NfsUrl { path, ..url.clone() }, options)?;
    if found.attributes.kind != FileKind::Directory {
        let error = Error::new(ErrorKind::InvalidInput, "cannot create a file: no directory is above it");
        return Err(error.with("url", url).hint("check the path: one of its folders is a file"));
    }
    let folder = NfsFolder { client: found.client, handle: found.handle };
    make_in(folder, name, url, mode).map_err(|error| error.with("url", url))
}

fn make_in(folder: NfsFolder, name: &[u8], url: &NfsUrl, mode: u32) -> Result<NewNfsFile> {
    let replaced = match folder.look(name)? {
        Some((handle, found)) => {
            check_kind(found.kind)?;
            if !folder.may_modify(&handle)? {
                let error = Error::new(ErrorKind::PermissionDenied, "the file may not be replaced");
                return Err(error.hint("check owner and mode of the file"));
            }
            Some((folder.rights(&handle)?, folder.acl(&handle)?))
        }
        None => None,
    };
    let begin: String = String::from_utf8_lossy(name).chars().take(50).collect();
    let hidden = format!(".{begin}.{:016x}.forebay", random()).into_bytes();
    // From here on: what fails may have made it.
    let hidden = HiddenName { folder, name: hidden, is_gone: false };
    let (handle, attributes) = hidden.folder.create(&hidden.name)?;
    let file = NfsFile::new(hidden.folder.client.clone(), handle, url.to_string(), attributes);
    Ok(NewNfsFile { hidden, file, name: name.to_vec(), mode, replaced })
}

impl NewNfsFile {
    /// Where its bytes are written. They are durable when a write is answered.
    pub fn file(&self) -> &NfsFile {
        &self.file
    }

    /// Gives it its name. Returns, in words, what the replaced file had and this one could not be given.
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.finish_named().map_err(|error| error.with("url", self.file.name()))
    }

    fn finish_named(&mut self) -> Result<Vec<String>> {
        self.file.client().check_process()?;
        let notes = self.set_rights()?;
        let doing = "cannot give the file its name";
        let folder = &self.hidden.folder;
        // That an answer is missing does not say that nothing was done.
        let unknown = |error: Error| error.hint("check the file: it may be the new one already");
        match folder.rename(&self.hidden.name, &self.name, doing).map_err(unknown)? {
            Ok(()) => {}
            // Answered before, and the answer was lost.
            Err(NfsStatus::NO_ENTRY) if self.has_name().map_err(unknown)? => {}
            Err(status) => return Err(folder.client.server_of().error(status, doing)),
        }
        self.hidden.is_gone = true;
        Ok(notes)
    }

    fn has_name(&self) -> Result<bool> {
        let (found, own) = (self.hidden.folder.look(&self.name)?, self.file.opened());
        Ok(found
            .is_some_and(|(_, found)| (found.file_system, found.file_id) == (own.file_system, own.file_id)))
    }

    /// Gives it the rights of the file that it replaces, but nobody more than before.
    fn set_rights(&self) -> Result<Vec<String>> {
        let handle = self.file.handle();
        let folder = &self.hidden.folder;
        let set = |rights| folder.set_rights(handle, rights);
        let Some((old, acl)) = &self.replaced else {
            set(SetRights { mode: Some(self.mode), ..SetRights::default() })?;
            return Ok(Vec::new());
        };
        let (owner, group) = (Some(old.owner.as_slice()), Some(old.group.as_slice()));
        let own = folder.rights(handle)?;
        let (mut mode, mut notes) = (old.mode, Vec::new());
        let (has_owner, has_group) = (is_same(&own.owner, &old.owner), is_same(&own.group, &old.group));
        let may_give = is_told(&old.owner) && is_told(&old.group);
        let is_given =
            has_owner && has_group || may_give && set(SetRights { owner, group, mode: None }).is_ok();
        if !is_given && !has_owner {
            notes.push(
                "the file belongs to the user who saved it: the server lets only root change owners"
                    .to_owned(),
            );
        }
        let group_alone = SetRights { group, ..SetRights::default() };
        let is_of_group = is_given || has_group || is_told(&old.group) && set(group_alone).is_ok();
        if !is_of_group {
            // What both the group and others had.
            let both = mode & (mode >> 3) & 0o7;
            let kept = mode & 0o700 | both << 3 | both;
            if kept != mode {
                notes.push("the group could not be kept: its rights were taken away".to_owned());
            }
            mode = kept;
        }
        let says_more =
            |acl: &Option<Vec<u8>>, mode| acl.as_ref().is_some_and(|acl| is_more_than_mode(acl, mode));
        // The new file may have inherited one.
        if says_more(acl, old.mode) || says_more(&folder.acl(handle)?, own.mode) {
            if let Some(acl) = acl.as_ref().filter(|_| is_of_group)
                && matches!(folder.set_acl(handle, acl), Ok(Ok(())))
            {
                return Ok(notes);
            }
            notes.push("the access list (ACL) could not be kept: only the owner may use the file".to_owned());
            mode &= 0o700;
        }
        set(SetRights { mode: Some(mode), ..SetRights::default() })?;
        Ok(notes)
    }
}

/// Whether a name of a user or group says who that is: servers call all whose name they do not know nobody.
fn is_told(name: &[u8]) -> bool {
    ![b"nobody".as_slice(), b"nogroup"].iter().any(|unknown| name.starts_with(unknown))
}

fn is_same(own: &[u8], old: &[u8]) -> bool {
    own == old && is_told(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_the_server_does_not_know_are_not_the_same() {
        assert!(is_same(b"ada@here", b"ada@here") && is_same(&[0, 0, 0, 7], &[0, 0, 0, 7]));
        assert!(!is_same(b"ada@here", b"bob@here"));
        for unknown in [b"nobody".as_slice(), b"nobody@here", b"nogroup@here"] {
            assert!(!is_same(unknown, unknown));
        }
    }
}
