//! New objects by their files: whole or not at all, and written by nobody behind that.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{File, Session};
use forebay_error::Result;
use forebay_gateway::AccountEntry;
use forebay_source::Upload;

use crate::node::{FileReply, Node, as_user, can_be_another_user, exchange, has_views};
use crate::served::{KEY, SECRET, pattern};

const LEN: usize = 5_000_003;

/// Begins an object as our client does.
fn make(node: &Node, mode: &str, url: &str) -> Result<Box<dyn Upload>> {
    forebay_objects::register();
    node.gateway.client(|| {
        // SAFETY: all that sets variables in these tests holds the lock of `client`.
        unsafe { std::env::set_var("FOREBAY_S3_LOCAL", mode) };
        forebay_source::opener_of(url).unwrap().make(Path::new(url), 0o644)
    })
}

#[test]
fn an_object_is_written_by_its_file() {
    let node = Node::start();
    node.bucket.put("before", b"says where the socket is").unwrap();
    let bytes = pattern(LEN);
    let upload = make(&node, "require", "s3://bucket/new/one").unwrap();
    let file = File::from_source(upload.source()).unwrap();
    assert!(file.raw_fd().is_some());
    let session = Session::open().unwrap();
    let mut buffer = session.host_buffer(LEN).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(&bytes);
    let receipt = session.write(&file, 0, &buffer).unwrap().to_string();
    assert!(receipt.contains("S3 gateway on this node, by its file: "), "{receipt}");
    // It is nowhere before it is whole.
    assert!(!node.path("new").exists());
    drop(file);
    node.gateway.client(|| upload.finish(true)).unwrap();
    assert!(std::fs::read(node.path("new/one")).unwrap() == bytes);
    assert!(node.gateway.client(|| node.bucket.get("new/one", None)).unwrap() == bytes);
    assert_eq!(std::fs::metadata(node.path("new/one")).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn an_object_that_is_given_up_leaves_nothing() {
    let node = Node::start();
    node.bucket.put("k", b"old").unwrap();
    let upload = make(&node, "require", "s3://bucket/k").unwrap();
    let file = File::from_source(upload.source()).unwrap();
    file.write_host(b"new bytes", 0).unwrap();
    drop((file, upload));
    assert_eq!(node.bucket.get("k", None).unwrap(), b"old");
}

#[test]
fn a_file_that_stays_open_is_copied_and_is_not_the_object() {
    let node = Node::start();
    node.bucket.put("k", b"old").unwrap();
    let upload = make(&node, "require", "s3://bucket/k").unwrap();
    let file = File::from_source(upload.source()).unwrap();
    file.write_host(b"new bytes", 0).unwrap();
    node.gateway.client(|| upload.finish(true)).unwrap();
    file.write_host(b"behind it", 0).unwrap();
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"new bytes");
}

/// The steps by hand, on one connection.
pub(crate) struct Steps<'a> {
    node: &'a Node,
    connection: UnixStream,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self { node, connection: node.connect() }
    }

    pub(crate) fn put_as(&self, key: &str, target: &str, headers: &[(&str, &str)]) -> FileReply {
        exchange(&self.connection, &self.node.head("PUT", target, key, headers))
    }

    fn put(&self, target: &str, headers: &[(&str, &str)]) -> FileReply {
        self.put_as(KEY, target, headers)
    }

    /// Whether the gateway closes the connection within this time.
    fn is_closed_within(&self, time: Duration) -> bool {
        self.connection.set_read_timeout(Some(time)).unwrap();
        matches!((&self.connection).read(&mut [0; 1]), Ok(0))
    }

    fn begin(&self, target: &str) -> std::fs::File {
        let reply = self.put(target, &[("x-forebay-file", "write")]);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.file.unwrap()
    }

    fn publish(&self, target: &str, more: &[(&str, &str)]) -> FileReply {
        let mut headers = vec![("x-forebay-file", "publish"), ("x-forebay-length", "5")];
        headers.extend(more);
        self.put(target, &headers)
    }
}

#[test]
fn nothing_is_published_while_a_descriptor_that_writes_is_open() {
    let node = Node::start();
    let steps = Steps::new(&node);
    let file = steps.begin("/bucket/k");
    file.write_all_at(b"first", 0).unwrap();
    let kept = file.try_clone().unwrap();
    drop(file);
    let refused = steps.publish("/bucket/k", &[]);
    if refused.status == 200 {
        // The gateway may make no mounts: the object is a copy.
        kept.write_all_at(b"later", 0).unwrap();
        assert_eq!(std::fs::read(node.path("k")).unwrap(), b"first");
        return;
    }
    assert_eq!(refused.status, 409);
    assert!(refused.text.contains("StillOpen"), "{}", refused.text);
    assert!(!node.path("k").exists());
    // On its way through a socket it is open, too.
    drop(kept);
    assert_eq!(steps.publish("/bucket/k", &[]).status, 200);
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"first");

    // The key is taken away meanwhile: what its holder still has is a file that nobody reads.
    let file = steps.begin("/bucket/k");
    file.write_all_at(b"other", 0).unwrap();
    let kept = file.try_clone().unwrap();
    drop(file);
    assert_eq!(steps.publish("/bucket/k", &[("x-forebay-still-open", "copy")]).status, 200);
    node.gateway.accounts.replace(vec![AccountEntry::new("another", SECRET)]).unwrap();
    kept.write_all_at(b"wrong", 0).unwrap();
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"other");
}

#[test]
fn a_key_that_is_taken_away_or_moved_publishes_nothing() {
    let node = Node::start();
    for entries in [
        vec![AccountEntry::new("another", SECRET)],
        vec![AccountEntry { read_only: true, ..AccountEntry::new(KEY, SECRET) }],
        vec![AccountEntry { directory: "elsewhere".into(), ..AccountEntry::new(KEY, SECRET) }],
    ] {
        std::fs::create_dir_all(node.directory.path().join("elsewhere/bucket")).unwrap();
        node.gateway.accounts.replace(vec![AccountEntry::new(KEY, SECRET)]).unwrap();
        let steps = Steps::new(&node);
        steps.begin("/bucket/k").write_all_at(b"bytes", 0).unwrap();
        node.gateway.accounts.replace(entries).unwrap();
        let reply = steps.publish("/bucket/k", &[]);
        assert!(matches!(reply.status, 400 | 403), "{}", reply.text);
        assert!(!node.path("k").exists());
    }
    // Reading it again changes nothing for those that stay.
    node.gateway.accounts.replace(vec![AccountEntry::new(KEY, SECRET)]).unwrap();
    let steps = Steps::new(&node);
    steps.begin("/bucket/k").write_all_at(b"bytes", 0).unwrap();
    node.gateway.accounts.replace(vec![AccountEntry::new(KEY, SECRET)]).unwrap();
    assert_eq!(steps.publish("/bucket/k", &[]).status, 200);
}

#[test]
fn what_is_published_is_what_was_said() {
    let node = Node::start();
    node.bucket.put("k", b"old").unwrap();
    let publish = |to: &str, more: &[(&str, &str)]| {
        let steps = Steps::new(&node);
        steps.begin("/bucket/k").write_all_at(b"bytes", 0).unwrap();
        steps.publish(to, more).status
    };
    assert_eq!(publish("/bucket/k", &[("if-none-match", "*")]), 412);
    assert_eq!(publish("/bucket/k", &[("if-match", "\"x\"")]), 412);
    assert_eq!(publish("/bucket/other", &[]), 400);
    assert_eq!(publish("/bucket/k", &[("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")]), 400);
    let steps = Steps::new(&node);
    steps.begin("/bucket/k").write_all_at(b"short", 0).unwrap();
    let wrong = [("x-forebay-file", "publish"), ("x-forebay-length", "6")];
    assert_eq!(steps.put("/bucket/k", &wrong).status, 400);
    // The file is gone with that.
    assert_eq!(steps.publish("/bucket/k", &[]).status, 400);
    // Another connection has no part in it.
    let steps = Steps::new(&node);
    steps.begin("/bucket/k").write_all_at(b"bytes", 0).unwrap();
    assert_eq!(Steps::new(&node).publish("/bucket/k", &[]).status, 400);
    assert_eq!(node.bucket.get("k", None).unwrap(), b"old");
    assert_eq!(steps.publish("/bucket/k", &[("x-amz-meta-colour", "blue"), ("if-match", "*")]).status, 200);
    assert_eq!(node.gateway.raw().get("/bucket/k").header("x-amz-meta-colour").as_deref(), Some("blue"));
    for target in ["/bucket/../secret", "/none/k", "/bucket/folder/", "/bucket/.forebay/x"] {
        let reply = steps.put(target, &[("x-forebay-file", "write")]);
        assert!(reply.status >= 400 && reply.file.is_none(), "{target}");
    }
}

/// What the file's owner may do with a descriptor does not reach the object: a program with the owner's rights for all, a second name.
#[test]
fn rights_of_the_file_are_those_of_a_new_object() {
    let node = Node::start();
    let steps = Steps::new(&node);
    let file = steps.begin("/bucket/program");
    file.write_all_at(b"#!/x\n", 0).unwrap();
    file.set_permissions(Permissions::from_mode(0o6777)).unwrap();
    let forged =
        br#"{"size":5,"meta":{"checksum":{"algorithm":"CRC64NVME","value":"x","is_composite":false}}}"#;
    rustix::fs::fsetxattr(&file, "user.forebay.s3", forged, rustix::fs::XattrFlags::empty()).unwrap();
    drop(file);
    assert_eq!(steps.publish("/bucket/program", &[]).status, 200);
    let found = std::fs::metadata(node.path("program")).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o644);
    let mut names = [0; 1000];
    assert_eq!(rustix::fs::listxattr(node.path("program"), &mut names).unwrap(), 0);

    let file = steps.begin("/bucket/k");
    file.write_all_at(b"bytes", 0).unwrap();
    let second = node.directory.path().join("second name");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let linked = rustix::fs::linkat(
        rustix::fs::CWD,
        path,
        rustix::fs::CWD,
        &second,
        rustix::fs::AtFlags::SYMLINK_FOLLOW,
    );
    // No other mount takes a name of a file of the draft's own.
    assert_eq!(linked.is_err(), has_views());
    drop(file);
    assert_eq!(steps.publish("/bucket/k", &[]).status, 200);
    if linked.is_ok() {
        std::fs::File::options().write(true).open(&second).unwrap().write_all(b"wrong").unwrap();
    }
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"bytes");
}

#[test]
fn another_user_writes_by_its_key() {
    if !can_be_another_user() {
        eprintln!("skipped: another user needs root");
        return;
    }
    let node = Node::start();
    node.bucket.put("before", b"says where the socket is").unwrap();
    let node = Arc::new(node);
    as_user(12345, || {
        let upload = make(&node, "require", "s3://bucket/k").unwrap();
        let file = File::from_source(upload.source()).unwrap();
        file.write_host(b"bytes", 0).unwrap();
        drop(file);
        node.gateway.client(|| upload.finish(true)).unwrap();
    });
    let found = std::fs::metadata(node.path("k")).unwrap();
    assert_eq!((found.uid(), found.len()), (0, 5));
}

/// A gateway whose looks at connections need not be waited for.
fn hasty(draft_time: Duration) -> Node {
    Node::changed(vec![AccountEntry::new(KEY, SECRET)], |options| {
        options.limits.head_time = Duration::from_millis(300);
        options.limits.idle_time = Duration::from_millis(600);
        options.limits.draft_time = draft_time;
    })
}

#[test]
fn a_file_goes_with_the_key_that_it_was_given_for() {
    let node = hasty(Duration::from_secs(3600));
    for entries in [
        vec![AccountEntry::new("another", SECRET)],
        vec![AccountEntry { read_only: true, ..AccountEntry::new(KEY, SECRET) }],
    ] {
        node.gateway.accounts.replace(vec![AccountEntry::new(KEY, SECRET)]).unwrap();
        let steps = Steps::new(&node);
        let file = steps.begin("/bucket/k");
        assert!(!steps.is_closed_within(Duration::from_millis(1500)));
        node.gateway.accounts.replace(entries).unwrap();
        assert!(steps.is_closed_within(Duration::from_secs(5)));
        drop(file);
    }
}

#[test]
fn a_file_that_nobody_writes_goes_and_one_that_grows_stays() {
    let node = hasty(Duration::from_secs(2));
    let steps = Steps::new(&node);
    let file = steps.begin("/bucket/k");
    let begin = Instant::now();
    for at in 0..25 {
        file.write_all_at(b"bytes", 5 * at).unwrap();
        assert!(!steps.is_closed_within(Duration::from_millis(200)), "{:?}", begin.elapsed());
    }
    assert!(begin.elapsed() > Duration::from_secs(4));
    assert!(steps.is_closed_within(Duration::from_secs(8)));
}

#[test]
fn a_gateway_that_ends_publishes_what_is_being_written() {
    let node = Node::start();
    let steps = Steps::new(&node);
    let file = steps.begin("/bucket/k");
    node.gateway.stop();
    std::thread::sleep(Duration::from_millis(500));
    file.write_all_at(b"bytes", 0).unwrap();
    let mut reply = steps.publish("/bucket/k", &[]);
    drop(file);
    if reply.status == 409 {
        // It was open: without mounts the object is a copy.
        reply = steps.publish("/bucket/k", &[]);
    }
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"bytes");
}

#[test]
fn a_write_that_does_not_go_by_its_file_says_why() {
    let node = Node::start();
    node.bucket.put("before", b"says where the socket is").unwrap();
    std::fs::remove_file(&node.socket).unwrap();
    let upload = make(&node, "auto", "s3://bucket/k").unwrap();
    let said = format!("{:?}", upload.source().facts().left_out);
    assert!(
        said.contains("not by its file on this node: the gateway's socket is not on this node"),
        "{said}"
    );
    assert!(said.contains("again_in"), "{said}");
    assert!(make(&node, "off", "s3://bucket/k").unwrap().source().facts().left_out.is_empty());
}

#[test]
fn a_file_that_is_required_is_looked_for() {
    // Nothing was asked before, and the socket is in no usual directory.
    let node = Node::start();
    let upload = make(&node, "require", "s3://bucket/k").unwrap();
    assert!(File::from_source(upload.source()).unwrap().raw_fd().is_some());
}
