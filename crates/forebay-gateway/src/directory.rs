//! The stores of accounts below one directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind};

use crate::accounts::{AccountEntry, OpenStore};
use crate::posix::{Options, PosixStore, User};
use crate::store::{Store, StoreError};

/// Opens an account's directory below this one. `sync`: objects outlive a power cut.
pub fn in_directory(directory: &Path, sync: bool) -> OpenStore {
    let directory: PathBuf = directory.into();
    Box::new(move |entry: &AccountEntry| {
        let user = entry.uid.zip(entry.gid).map(|(uid, gid)| User { uid, gid });
        let opened =
            PosixStore::open_below(&directory, &entry.directory, Options { sync, user, abilities: None });
        let store =
            opened.map_err(|error| plain(error).with("path", directory.join(&entry.directory).display()))?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

fn plain(error: StoreError) -> Error {
    match error {
        StoreError::Later(error) | StoreError::Other(error) => error,
        other => Error::new(ErrorKind::InvalidInput, other.to_string()),
    }
}
