//! Files of an NFS server by URL: what only this source has. The contract runs over it, too.

use fake_nfs::{Asked, Fault, Server};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{File, Session, Way};
use forebay_error::ErrorKind;

use crate::common::{Target, config, install_gpu, pattern};

const KEY: u64 = 5;
const LEN: usize = 9_000_001;

fn session() -> Session {
    install_gpu();
    forebay_nfs::register();
    Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap()
}

#[test]
fn the_receipt_names_server_version_and_connections() {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let session = session();
    for version in ["3", "4.0", "4.1"] {
        let file = File::open(server.url("/export/file", version)).unwrap();
        for target in [Target::Host, Target::Device] {
            let mut buffer = target.buffer(&session, LEN);
            let receipt = session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
            assert_eq!((receipt.moved[Way::Requested], receipt.bytes()), (LEN as u64, LEN as u64));
            let expected = format!(
                "NFS v{version} over TCP, by forebay's own client: server 127.0.0.1, up to 8 connections"
            );
            let notes: Vec<_> = receipt.election.notes.iter().map(|note| &note.text).collect();
            assert!(notes.contains(&&expected), "{version} {target:?}: {notes:?}");
        }
        assert_eq!((file.file_system(), file.access()), ("nfs", (true, false)));
    }
}

#[test]
fn a_change_on_the_server_is_another_state() {
    let server = Server::start();
    for version in ["3", "4.1"] {
        server.put("/export/file", pattern(KEY, 0, LEN));
        let file = File::options().write(true).open(server.url("/export/file", version)).unwrap();
        let before = file.state().unwrap().unwrap();
        assert_eq!(file.state().unwrap(), Some(before.clone()));
        let session = session();
        session.write(&file, 5, &session.host_buffer(7).unwrap()).unwrap();
        let after = file.state().unwrap().unwrap();
        assert!(!after.has_bytes_of(&before), "{version}: {after}");
        server.put("/export/file", pattern(KEY, 0, LEN));
        assert_eq!(file.state().unwrap_err().kind(), ErrorKind::Busy, "another file has its name: {version}");
    }
}

#[test]
fn reads_within_the_file_ask_for_bytes_alone() {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let session = session();
    let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
    for target in [Target::Host, Target::Device] {
        let before = server.count(Asked::Other);
        let mut buffer = target.buffer(&session, LEN);
        for _ in 0..5 {
            session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
        }
        assert_eq!(server.count(Asked::Other), before, "{target:?}");
        // What lies behind the length that the server said last is looked for.
        let mut longer = target.buffer(&session, LEN + 5_000_000);
        assert_eq!(
            session.read(&file, 0, &mut longer).unwrap_err().kind(),
            ErrorKind::ShortRead,
            "{target:?}"
        );
        assert!(server.count(Asked::Other) > before, "{target:?}");
    }
    let more = vec![7u8; 5_000_000];
    let mut written = session.host_buffer(more.len()).unwrap();
    written.copy_from_slice(&more).unwrap();
    session.write(&file, LEN as u64, &written).unwrap();
    let mut longer = session.host_buffer(LEN + more.len()).unwrap();
    session.read(&file, 0, &mut longer).unwrap();
    assert!(longer.to_vec().unwrap() == [pattern(KEY, 0, LEN), more].concat());
}

#[test]
fn a_file_that_is_open_for_reading_is_not_written() {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, 100));
    let session = session();
    let file = File::open(server.url("/export/file", "3")).unwrap();
    let error = session.write(&file, 0, &session.host_buffer(10).unwrap()).unwrap_err();
    assert_eq!(error.hints(), ["open the file for this direction"]);
    assert_eq!(server.count(Asked::Write), 0);
    for options in
        [File::options().create(true), File::options().truncate(true), File::options().create_new(true)]
    {
        let error = options.write(true).open(server.url("/export/file", "3")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert!(server.durable("/export/file") == pattern(KEY, 0, 100));
}

#[test]
fn errors_of_the_server_end_the_transfer_and_nothing_else() {
    let server = Server::start();
    server.put("/export/file", pattern(KEY, 0, LEN));
    let session = session();
    let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
    for (status, kind) in [
        (13, ErrorKind::PermissionDenied),
        (5, ErrorKind::Io),
        (70, ErrorKind::Busy),
        (28, ErrorKind::NoSpace),
        (69, ErrorKind::NoSpace),
        (30, ErrorKind::ReadOnly),
    ] {
        for target in [Target::Host, Target::Device] {
            // The third piece of each transfer fails.
            server.faults({
                let mut seen = 0;
                move |call| {
                    seen += u32::from(matches!(call.asked, Asked::Read | Asked::Write));
                    (seen == 3 && call.asked != Asked::Other).then_some(Fault::Status(status))
                }
            });
            let mut buffer = target.buffer(&session, LEN);
            let error = session.read(&file, 0, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            buffer.copy_from_slice(&pattern(KEY, 0, LEN)).unwrap();
            server.faults({
                let mut seen = 0;
                move |call| {
                    seen += u32::from(call.asked == Asked::Write);
                    (seen == 3 && call.asked == Asked::Write).then_some(Fault::Status(status))
                }
            });
            let error = session.write(&file, 0, &buffer).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            server.faults(|_| None);
            let mut buffer = target.buffer(&session, LEN);
            session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{status} {target:?}");
        }
    }
}

#[test]
fn a_name_as_mounts_write_it_is_told_with_its_url() {
    forebay_nfs::register();
    let told = |path: &str| File::open(path).unwrap_err().hints().join("\n");
    assert_eq!(told("server:/no/such file"), "a file of a server is named nfs://server/no/such%20file");
    assert_eq!(told("/no/such:/file"), "check the path (ls -l) and the spelling");
}
