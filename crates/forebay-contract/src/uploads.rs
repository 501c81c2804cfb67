//! The contract of schemes that make files.

use forebay_engine::{File, Session};
use forebay_error::ErrorKind;
use forebay_source::{Upload, opener_of};

use crate::{KEY, LEN, pattern};

/// All promises of uploads. `url` names another file each time, where none is yet.
pub fn uploads(url: impl Fn() -> String) {
    fake_cuda::install().unwrap();
    let session = Session::open().unwrap();
    let all: [fn(&Session, &str); 5] =
        [is_there_when_it_is_whole, replaces, leaves_nothing, any_length, two_at_once];
    for check in all {
        check(&session, &url());
    }
}

/// An upload with these bytes.
pub(crate) fn uploaded(session: &Session, url: &str, bytes: &[u8]) -> Box<dyn Upload> {
    let upload = opener_of(url).unwrap().make(url.as_ref(), 0o644).unwrap();
    let file = File::from_source(upload.source()).unwrap();
    let mut buffer = session.host_buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes).unwrap();
    session.write(&file, 0, &buffer).unwrap();
    upload
}

pub(crate) fn finish(upload: Box<dyn Upload>) {
    assert_eq!(upload.finish(true).unwrap(), [""; 0]);
}

/// The bytes of an open file.
fn bytes_of(file: &File) -> forebay_error::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    file.read_host(&mut bytes, 0)?;
    Ok(bytes)
}

fn there(url: &str) -> Vec<u8> {
    bytes_of(&File::open(url).unwrap()).unwrap()
}

fn assert_missing(url: &str) {
    assert_eq!(File::open(url).unwrap_err().kind(), ErrorKind::NotFound, "{url}");
}

/// The file appears at the end, whole; written bytes can be read before, where the source says so.
fn is_there_when_it_is_whole(session: &Session, url: &str) {
    let bytes = pattern(KEY, 0, LEN);
    assert_missing(url);
    let upload = uploaded(session, url, &bytes);
    let source = upload.source();
    let is_readable = source.access().0;
    let read = bytes_of(&File::from_source(source).unwrap());
    if is_readable {
        assert!(read.unwrap() == bytes);
    } else {
        read.unwrap_err();
    }
    assert_missing(url);
    finish(upload);
    assert!(there(url) == bytes, "other bytes than were written");
}

/// The old bytes are there until the end. A reader that has the old file open gets its bytes, or an error that it was
/// replaced.
fn replaces(session: &Session, url: &str) {
    let (old, new) = (pattern(1, 0, LEN), pattern(2, 0, LEN / 2));
    finish(uploaded(session, url, &old));
    let reader = File::open(url).unwrap();
    let upload = uploaded(session, url, &new);
    assert!(there(url) == old, "the old file changed before the end");
    finish(upload);
    assert!(there(url) == new, "other bytes than were written");
    match bytes_of(&reader) {
        Ok(bytes) => assert!(bytes == old, "a reader of the old file got bytes of the new one"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
    }
}

/// One that is dropped leaves what was there.
fn leaves_nothing(session: &Session, url: &str) {
    drop(uploaded(session, url, &pattern(3, 0, 100_000)));
    assert_missing(url);
    let old = pattern(1, 0, 5000);
    finish(uploaded(session, url, &old));
    drop(uploaded(session, url, &pattern(3, 0, 100_000)));
    assert!(there(url) == old, "an upload that was dropped changed the file");
}

/// Files without bytes, and with some that nothing was written to.
fn any_length(session: &Session, url: &str) {
    finish(uploaded(session, url, &[]));
    assert!(there(url).is_empty());
    let upload = uploaded(session, url, b"begin");
    File::from_source(upload.source()).unwrap().make_room(70_001).unwrap();
    finish(upload);
    let bytes = there(url);
    assert!(bytes.len() == 70_001 && bytes[..5] == *b"begin" && bytes[5..].iter().all(|byte| *byte == 0));
}

/// Of two for one URL the one that ends last stays, whole.
fn two_at_once(session: &Session, url: &str) {
    let (first, last) = (pattern(4, 0, 70_000), pattern(5, 0, 60_000));
    let (one, other) = (uploaded(session, url, &last), uploaded(session, url, &first));
    finish(other);
    assert!(there(url) == first);
    finish(one);
    assert!(there(url) == last);
}
