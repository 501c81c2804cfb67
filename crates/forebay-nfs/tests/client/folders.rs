//! Names in directories: each version, more of them than a reply takes, and what servers do about it.

use std::collections::BTreeMap;

use fake_nfs::{Asked, Fault, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::handle::FileKind;
use forebay_nfs::{NfsOptions, NfsUrl, folder};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

fn listed(server: &Server, path: &str, version: &str) -> Result<BTreeMap<String, Option<FileKind>>> {
    let url = NfsUrl::parse(&server.url(path, version)).unwrap();
    let entries = folder::list(&url, &NfsOptions::default())?;
    let count = entries.len();
    let named = |entry: folder::DirEntry| (String::from_utf8(entry.name).unwrap(), entry.kind);
    let found: BTreeMap<_, _> = entries.into_iter().map(named).collect();
    assert_eq!(found.len(), count, "{version}: a name came twice");
    Ok(found)
}

fn filled() -> Server {
    let server = Server::start();
    for path in ["/export/a b", "/export/dir/1", "/export/dir/2", "/export/\u{e4}", "/other/x"] {
        server.put(path, vec![7]);
    }
    server
}

#[test]
fn every_version_lists_names_and_says_which_are_directories() {
    for version in VERSIONS {
        let server = filled();
        let expected =
            [("a b", FileKind::Regular), ("dir", FileKind::Directory), ("\u{e4}", FileKind::Regular)];
        let expected = expected.map(|(name, kind)| (name.to_owned(), Some(kind)));
        assert_eq!(listed(&server, "/export", version).unwrap(), expected.into(), "{version}");
        assert_eq!(listed(&server, "/export/dir/", version).unwrap().len(), 2, "{version}");
        assert_eq!(server.wrong_slots(), 0, "{version}");
    }
}

#[test]
fn the_root_of_a_server_is_listed_or_refused_with_what_to_name() {
    const ACCESS: u32 = 13;
    for version in VERSIONS {
        let found = listed(&filled(), "/", version).unwrap();
        assert!(found.keys().eq(["export", "other"]), "{version}: {found:?}");
    }
    // Version 3 has no root but an exported one.
    let server = filled();
    server.faults(|seen| (seen.asked == Asked::Open).then_some(Fault::Status(ACCESS)));
    let error = listed(&server, "/", "3").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.hints()[0].starts_with("name the whole path on the server"), "{error:?}");
}

#[test]
fn a_directory_of_many_names_comes_in_parts() {
    for version in VERSIONS {
        let server = Server::start();
        let names: Vec<_> = (0..3000).map(|at| format!("{at:05}{}", "x".repeat(at % 250))).collect();
        for name in &names {
            server.put(&format!("/export/{name}"), Vec::new());
        }
        let found = listed(&server, "/export", version).unwrap();
        assert!(found.keys().eq(&names), "{version}");
        assert!(server.count(Asked::Names) >= 30, "{version}");
    }
}

#[test]
fn what_is_no_directory_is_not_listed() {
    for version in VERSIONS {
        let server = filled();
        let error = listed(&server, "/export/a%20b", version).unwrap_err();
        assert_eq!(
            error.to_string().split(" (").next().unwrap(),
            "cannot list the directory: not a directory"
        );
        assert_eq!(
            listed(&server, "/export/no", version).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{version}"
        );
    }
}

#[test]
fn a_path_may_have_more_names_than_a_call_takes() {
    for version in VERSIONS {
        let server = Server::start();
        for names in [4, 11, 12, 24] {
            let path = format!("/export{}", "/d".repeat(names));
            server.put(&format!("{path}/file"), vec![7]);
            assert_eq!(listed(&server, &path, version).unwrap().len(), 1, "{version} {names}");
            server.remove(&format!("{path}/file"));
        }
    }
}

/// The first calls fail with a status.
fn failing(server: &Server, status: u32, calls: u64) {
    server.faults(move |seen| {
        (seen.asked == Asked::Names && seen.before < calls).then_some(Fault::Status(status))
    });
}

#[test]
fn a_server_without_attributes_in_listings_is_asked_for_names_alone() {
    const NOT_SUPPORTED: u32 = 10004;
    const TOO_SMALL: u32 = 10005;
    for status in [NOT_SUPPORTED, TOO_SMALL] {
        let server = filled();
        failing(&server, status, 1);
        let found = listed(&server, "/export", "3").unwrap();
        assert!(found.len() == 3 && found.values().all(Option::is_none), "{status}");
    }
}

#[test]
fn a_listing_begins_anew_where_its_cookies_do_not_hold_any_more() {
    const BAD_COOKIE: u32 = 10003;
    for version in VERSIONS {
        let server = Server::start();
        (0..250).for_each(|at| server.put(&format!("/export/{at}"), Vec::new()));
        server.faults(|seen| {
            (seen.asked == Asked::Names && seen.before == 1).then_some(Fault::Status(BAD_COOKIE))
        });
        assert_eq!(listed(&server, "/export", version).unwrap().len(), 250, "{version}");
        failing(&server, BAD_COOKIE, u64::MAX);
        let before = server.count(Asked::Names);
        assert_eq!(listed(&server, "/export", version).unwrap_err().kind(), ErrorKind::Busy, "{version}");
        assert_eq!(server.count(Asked::Names), before + 4, "{version}");
    }
}

#[test]
fn a_server_that_restarts_or_asks_to_wait_is_asked_again() {
    const DELAY: u32 = 10008;
    for version in VERSIONS {
        for fault in [Fault::Restart, Fault::Status(DELAY), Fault::Close] {
            let server = filled();
            let told = fault.clone();
            server
                .faults(move |seen| (seen.asked == Asked::Names && seen.before == 0).then(|| fault.clone()));
            assert_eq!(listed(&server, "/export", version).unwrap().len(), 3, "{version} {told:?}");
        }
    }
}

#[test]
fn listings_that_lie_are_errors() {
    for version in VERSIONS {
        let server = filled();
        // Each word of the reply is another, in turn: nothing hangs, and no name is made up.
        for at in (24..200).step_by(4) {
            server.faults(move |seen| (seen.asked == Asked::Names).then_some(Fault::Word(at, 0x0101_0101)));
            if let Ok(found) = listed(&server, "/export", version) {
                assert!(found.len() <= 3, "{version} {at}");
            }
        }
    }
}

#[test]
fn listings_that_do_not_end_are_errors() {
    // In a circle of two cookies; and `.` with another cookie each time.
    for version in VERSIONS {
        for (name, cookies) in [("a", 2), (".", u64::MAX)] {
            let server = filled();
            server.faults(move |seen| {
                (seen.asked == Asked::Names).then(|| Fault::Names(vec![(name, 3 + seen.before % cookies)]))
            });
            let error = listed(&server, "/export", version).unwrap_err();
            assert!(error.message().contains("the names of a directory do not end"), "{version} {error:?}");
            assert!(server.count(Asked::Names) < 20, "{version}");
        }
    }
}
