//! Files that are made by URL: whole or not there, whatever goes wrong; with the rights of those that they replace.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fake_nfs::{Asked, Fault, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{NewNfsFile, NfsOptions, NfsUrl, make};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

fn begun(server: &Server, path: &str, version: &str) -> Result<NewNfsFile> {
    make(&NfsUrl::parse(&server.url(path, version)).unwrap(), &NfsOptions::default(), 0o640)
}

/// A server with a folder.
fn server() -> Server {
    let server = Server::start();
    server.put("/export/other", vec![1]);
    server
}

#[test]
fn they_keep_the_contract() {
    forebay_nfs::register();
    for version in VERSIONS {
        let (server, count) = (server(), AtomicU32::new(0));
        let name = || format!("/export/new {}", count.fetch_add(1, Ordering::Relaxed)).replace(' ', "%20");
        forebay_contract::uploads(|| server.url(&name(), version));
        let [folder, missing] = ["/export", "/export/missing"].map(|path| server.url(path, version));
        forebay_contract::listings(&folder, &missing, || server.url(&name(), version));
        assert!(server.paths().iter().all(|name| !name.contains("forebay")), "{:?}", server.paths());
        assert_eq!((server.opens(), server.wrong_slots()), (0, 0), "{version}");
    }
}

#[test]
fn answers_that_are_lost_change_nothing() {
    for version in VERSIONS {
        for lost in [Asked::Make, Asked::Rename, Asked::Open, Asked::Close] {
            let server = server();
            server.put("/export/file", b"old".to_vec());
            server.faults(move |seen| {
                (seen.asked == lost && seen.before.is_multiple_of(2)).then_some(Fault::Close)
            });
            let new = begun(&server, "/export/file", version).unwrap();
            new.file().write_at(b"the new one", 0).unwrap();
            assert_eq!(server.durable("/export/file"), b"old");
            new.finish().unwrap();
            assert_eq!(server.durable("/export/file"), b"the new one", "{version} {lost:?}");
            assert_eq!(server.paths(), ["/export/file", "/export/other"]);
            assert_eq!(server.opens(), 0, "{version} {lost:?}");
        }
    }
}

#[test]
fn servers_that_ask_to_wait_or_restart_are_asked_again() {
    const DELAY: Fault = Fault::Status(10008);
    const GRACE: Fault = Fault::Status(10013);
    const STALE_CLIENT: Fault = Fault::Status(10022);
    // Two answers that ask to wait are waited for in less.
    let options = NfsOptions { deadline: Duration::from_secs(5), ..NfsOptions::default() };
    for version in &VERSIONS[1..] {
        for (asked, fault, times) in [
            (Asked::Make, DELAY, 2),
            (Asked::Make, GRACE, 2),
            (Asked::Close, DELAY, 2),
            (Asked::Make, STALE_CLIENT, 1),
            (Asked::Make, Fault::Restart, 1),
        ] {
            let (server, what) = (server(), format!("{version} {asked:?} {fault:?}"));
            server.faults(move |seen| (seen.asked == asked && seen.before < times).then(|| fault.clone()));
            let url = NfsUrl::parse(&server.url("/export/new", version)).unwrap();
            make(&url, &options, 0o640).expect(&what).finish().unwrap();
            assert_eq!((server.paths().len(), server.opens()), (2, 0), "{what}");
        }
    }
}

#[test]
fn threads_make_files_at_once() {
    for version in VERSIONS {
        let server = server();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let server = &server;
                scope.spawn(move || {
                    for at in 0..30 {
                        begun(server, &format!("/export/{thread}-{at}"), version).unwrap().finish().unwrap();
                    }
                });
            }
        });
        assert_eq!((server.paths().len(), server.opens()), (61, 0), "{version}");
    }
}

#[test]
fn what_fails_leaves_what_was_there() {
    for version in VERSIONS {
        for fails in [Asked::Make, Asked::Open, Asked::Other, Asked::Rename] {
            let server = server();
            server.put("/export/file", b"old".to_vec());
            // Not before the file is made.
            let mut is_made = false;
            server.faults(move |seen| {
                is_made |= seen.asked == Asked::Make;
                (is_made && seen.asked == fails).then_some(Fault::Status(28))
            });
            let error = begun(&server, "/export/file", version).and_then(NewNfsFile::finish).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
            assert!(!error.hints().is_empty() && error.to_string().contains("url=nfs://"), "{error:?}");
            assert_eq!(server.paths(), ["/export/file", "/export/other"], "{version}");
            assert_eq!(server.durable("/export/file"), b"old");
        }
    }
}

#[test]
fn an_open_that_does_not_end_is_no_error() {
    for version in VERSIONS {
        let server = server();
        server.faults(|seen| (seen.asked == Asked::Close).then_some(Fault::Status(28)));
        begun(&server, "/export/new", version).unwrap().finish().unwrap();
        assert_eq!(server.paths(), ["/export/new", "/export/other"], "{version}");
    }
}

#[test]
fn rights_are_kept_or_narrower() {
    let given_away = "the file belongs to the user who saved it: the server lets only root change owners";
    let group_lost = "the group could not be kept: its rights were taken away";
    let no_notes: &[&str] = &[];
    // SAFETY: no pointers are passed.
    let user = unsafe { libc::geteuid() };
    for version in VERSIONS {
        for (mode, owner, expected, notes) in [
            (0o660, (user, 0), 0o660, no_notes),
            (0o640, (user + 1, 0), 0o640, &[given_away]),
            (0o664, (user, 8), 0o644, &[group_lost]),
            (0o666, (user, 8), 0o666, no_notes),
        ] {
            let server = server();
            server.put("/export/file", b"old".to_vec());
            server.set_rights("/export/file", mode, owner);
            let new = begun(&server, "/export/file", version).unwrap();
            let hidden = server.paths().into_iter().find(|name| name.contains("/.file.")).unwrap();
            assert_eq!(server.mode(&hidden), Some(0o600), "nobody else reads a file that is not whole");
            assert_eq!(new.finish().unwrap(), notes, "{version} {mode:o}");
            assert_eq!(server.mode("/export/file"), Some(expected), "{version} {mode:o}");
        }
        let server = server();
        begun(&server, "/export/new", version).unwrap().finish().unwrap();
        assert_eq!(server.mode("/export/new"), Some(0o640));
    }
}

#[test]
fn access_lists_are_kept_or_rights_are_narrower() {
    const READ: u32 = 1;
    const BOTH: u32 = 3;
    let plain = [(0, BOTH, "OWNER@"), (0, BOTH, "GROUP@"), (0, READ, "EVERYONE@")];
    let named = [plain[0], (0, BOTH, "7"), plain[2]];
    let masked = [plain[0], (0, READ, "GROUP@"), plain[2]];
    let refused = [plain[0], (0, BOTH, "refused@"), plain[2]];
    let lost: &[&str] = &["the access list (ACL) could not be kept: only the owner may use the file"];
    // SAFETY: no pointers are passed.
    let user = unsafe { libc::geteuid() };
    // The old file's list, that of the folder, and what the new file has then; a list is set without a mode.
    let cases = [
        (&plain[..], &plain[..], &plain[..], 0o664, &[][..]),
        (&named, &plain, &named, 0o600, &[]),
        (&masked, &plain, &masked, 0o600, &[]),
        (&plain, &named, &plain, 0o600, &[]),
        (&refused, &plain, &plain, 0o600, lost),
        (&[], &named, &named, 0o600, lost),
    ];
    for version in &VERSIONS[1..] {
        for (old, folder, expected, mode, notes) in cases {
            let server = server();
            server.inherit_acl(old);
            server.put("/export/file", b"old".to_vec());
            server.set_rights("/export/file", 0o664, (user, 0));
            server.inherit_acl(expected);
            server.put("/export/expected", Vec::new());
            server.inherit_acl(folder);
            let new = begun(&server, "/export/file", version).unwrap();
            assert_eq!(new.finish().unwrap(), notes, "{version} {old:?} {folder:?}");
            assert_eq!(server.acl("/export/file"), server.acl("/export/expected"), "{version} {old:?}");
            assert_eq!(server.mode("/export/file"), Some(mode), "{version} {old:?}");
        }
    }
}

#[test]
fn what_cannot_be_made_says_why() {
    let server = server();
    server.put("/export/folder/file", vec![1]);
    server.put("/export/kept", vec![1]);
    server.set_rights("/export/kept", 0o444, (0, 0));
    for version in VERSIONS {
        for (path, kind) in [
            ("/export/none/file", ErrorKind::NotFound),
            ("/export/folder", ErrorKind::IsDirectory),
            ("/export/folder/", ErrorKind::InvalidInput),
            ("/export/kept", ErrorKind::PermissionDenied),
        ] {
            let error = begun(&server, path, version).unwrap_err();
            assert_eq!(error.kind(), kind, "{version} {path}: {error:?}");
            assert!(!error.hints().is_empty(), "{error:?}");
        }
    }
}
