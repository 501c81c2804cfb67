//! What every scheme must do alike that lists folders.

use forebay_engine::Session;
use forebay_error::ErrorKind;
use forebay_source::{ListEntry, opener_of};

use crate::uploads::{finish, uploaded};

/// All promises of listings. `url` names another file of the folder each time, where none is yet; `missing` is a folder that is
/// not there.
pub fn listings(folder: &str, missing: &str, url: impl Fn() -> String) {
    let session = Session::open().unwrap();
    let (one, other) = (url(), url());
    let names = |url: &str| -> Vec<ListEntry> {
        list(folder).unwrap().into_iter().filter(|entry| *entry.name == *name_of(url)).collect()
    };
    assert!(names(&one).is_empty(), "{one} is listed and not there");
    let upload = uploaded(&session, &one, b"bytes");
    assert!(names(&one).is_empty(), "{one} is listed before its upload is finished");
    finish(upload);
    finish(uploaded(&session, &other, b"bytes"));
    for url in [&one, &other] {
        let found = names(url);
        assert_eq!(found.len(), 1, "{url} is listed {} times", found.len());
        assert_ne!(found[0].is_folder, Some(true), "{url} is listed as a folder");
    }
    assert_eq!(list(missing).unwrap_err().kind(), ErrorKind::NotFound, "{missing}");
}

/// What a scheme promises that lists no folders: an error that says so, with a hint.
pub fn lists_nothing(folder: &str) {
    let error = list(folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(!error.hints().is_empty(), "{error} has no hint");
}

fn list(folder: &str) -> forebay_error::Result<Vec<ListEntry>> {
    opener_of(folder).unwrap().list(folder.as_ref())
}

/// The name in a file's URL, without escapes.
fn name_of(url: &str) -> String {
    opener_of(url).unwrap().file_name(url.as_ref()).unwrap().to_str().unwrap().to_owned()
}
