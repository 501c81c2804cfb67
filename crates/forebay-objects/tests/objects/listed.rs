//! States of many objects come by listings: fewer requests, and the same states as of opened objects.

use std::path::{Path, PathBuf};

use fake_s3::{Asked, FakeS3, Fault};
use forebay_engine::File;
use forebay_source::ListedState;

use crate::servers::{BUCKET, at};

/// A server with objects of a folder.
fn with_objects(count: usize) -> (FakeS3, Vec<PathBuf>) {
    let server = FakeS3::start();
    server.make_bucket(BUCKET);
    let names = (0..count).map(|number| format!("set/part-{number:05}.bin"));
    let urls = names.map(|name| {
        server.put(BUCKET, &name, name.as_bytes());
        PathBuf::from(format!("s3://{BUCKET}/{name}"))
    });
    let urls = urls.collect();
    (server, urls)
}

fn states<P: AsRef<Path>>(server: &FakeS3, urls: &[P]) -> Vec<Option<ListedState>> {
    forebay_objects::register();
    let urls: Vec<_> = urls.iter().map(AsRef::as_ref).collect();
    at(server, || forebay_source::states(&urls))
}

fn is_opened_one(server: &FakeS3, url: &Path, listed: &ListedState) -> bool {
    let file = at(server, || File::options().read(false).open(url)).unwrap();
    file.len().unwrap() == listed.len && file.state().unwrap().unwrap().has_bytes_of(&listed.state)
}

#[test]
fn ten_thousand_objects_take_ten_pages() {
    let (server, urls) = with_objects(10_000);
    server.forget_counts();
    let found = states(&server, &urls);
    assert!(found.iter().all(Option::is_some));
    assert_eq!((server.requests(Asked::List), server.all_requests()), (10, 11));
    assert!(is_opened_one(&server, &urls[7777], found[7777].as_ref().unwrap()));
    // A part of them begins at its first page, in any order and twice.
    server.forget_counts();
    let part: Vec<_> = urls[5000..6000].iter().rev().chain(&urls[5000..6000]).collect();
    let found = states(&server, &part);
    assert!(found[0] == found[1999] && found.iter().all(Option::is_some));
    assert_eq!(server.requests(Asked::List), 1, "{:?}", server.heads());
}

#[test]
fn few_objects_are_asked_for_by_themselves() {
    let (server, urls) = with_objects(3000);
    server.forget_counts();
    assert!(states(&server, &urls[..31]).iter().all(Option::is_none));
    assert_eq!(server.all_requests(), 0);
    // Far apart in the listing: it is left where a page has few of them.
    let far: Vec<_> = urls.iter().step_by(90).collect();
    let found = states(&server, &far);
    assert!(found.iter().any(Option::is_none) && found.iter().any(Option::is_some));
    assert_eq!(server.requests(Asked::List), 2, "{:?}", server.heads());
}

#[test]
fn odd_names_versions_and_what_is_not_there() {
    let server = FakeS3::start();
    server.make_bucket(BUCKET);
    server.keep_versions(BUCKET);
    let names = ["a b", "a+b", "a%b", "ä", "x&<y>", "a#b", "sub/below"];
    let keys: Vec<_> =
        names.map(str::to_owned).into_iter().chain((0..40).map(|number| format!("n{number}"))).collect();
    for key in &keys {
        server.put(BUCKET, key, key.as_bytes());
    }
    let url = |key: &str| {
        PathBuf::from(
            forebay_objects::ObjectUrl::parse(Path::new("s3://bucket/x")).unwrap().with_key(key).to_string(),
        )
    };
    let mut urls: Vec<_> = keys.iter().map(|key| url(key)).collect();
    urls.extend(
        ["s3://bucket/gone", "s3://bucket/sub/", "s3://bucket/n1?versionId=1", "/etc/passwd", "s3://"]
            .map(PathBuf::from),
    );
    let found = states(&server, &urls);
    for (number, (url, listed)) in urls.iter().zip(&found).enumerate() {
        let is_listed = number < keys.len() && keys[number] != "sub/below";
        assert_eq!(listed.is_some(), is_listed, "{}", url.display());
        assert!(
            listed.as_ref().is_none_or(|listed| is_opened_one(&server, url, listed)),
            "{}",
            url.display()
        );
    }
}

#[test]
fn a_listing_that_is_denied_or_says_something_else_is_not_taken() {
    let (server, urls) = with_objects(100);
    let differs = Fault::Header("ETag", "\"another\"".to_owned());
    for (asked, fault) in [(Asked::List, Fault::Error(403, "AccessDenied", None)), (Asked::Head, differs)] {
        server.no_faults();
        server.fault_always(asked, fault);
        assert!(states(&server, &urls).iter().all(Option::is_none), "{asked:?}");
    }
}
