//! Each fault at a server in the process: the finding, and what to type.

use std::path::Path;
use std::sync::Arc;

use fake_s3::{Asked, FakeS3, Fault};

use super::*;
use crate::account::testing::account;

fn found(url: &str, variables: &[(&str, &str)]) -> Vec<ObjectFinding> {
    let url = ObjectUrl::parse(Path::new(url)).unwrap();
    let made = account(variables, "", "");
    // Its home is needed by providers that read files, and these accounts have keys.
    by_account(&url, made.map(|made| Arc::new(made.account)))
}

fn at(server: &FakeS3, url: &str, others: &[(&str, &str)]) -> Vec<ObjectFinding> {
    let environment = server.environment();
    let mut variables: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    variables.extend(others);
    found(url, &variables)
}

fn bad(found: &[ObjectFinding]) -> Vec<&'static str> {
    found.iter().filter(|one| one.weight == Weight::Bad).map(|one| one.id).collect()
}

/// One bad finding of this rule, whose text and fix have these words.
fn is_alone(found: &[ObjectFinding], id: &str, text: &str, fix: &str) {
    assert_eq!(bad(found), [id], "{found:#?}");
    let one = found.iter().find(|one| one.weight == Weight::Bad).unwrap();
    assert!(one.text.contains(text), "{one:#?}");
    assert!(one.fix.as_deref().unwrap_or_default().contains(fix), "{one:#?}");
}

fn server() -> FakeS3 {
    let server = FakeS3::start();
    server.put("bucket", "dir/key", "bytes");
    server.put("bucket", "empty", "");
    server.require_signatures();
    server
}

#[test]
fn all_is_well() {
    let server = server();
    for url in ["s3://bucket/dir/key", "s3://bucket/empty", "s3://bucket/dir/", "s3://bucket"] {
        let found = at(&server, url, &[]);
        assert!(found.iter().all(|one| one.weight == Weight::Good), "{url}: {found:#?}");
        assert!(found[0].text.contains("the credentials are those of environment"));
    }
}

#[test]
fn settings_and_keys() {
    let server = server();
    let url = "s3://bucket/dir/key";
    is_alone(&at(&server, url, &[("AWS_PROFILE", "none")]), "s3-settings", "profile", "AWS_PROFILE");
    is_alone(&at(&server, url, &[("AWS_ACCESS_KEY_ID", "")]), "s3-keys", "one of two", "AWS_ACCESS_KEY_ID");
    let both = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    is_alone(&at(&server, url, &both), "s3-keys", "no variable and no profile", "AWS_ACCESS_KEY_ID");
    is_alone(
        &at(&server, url, &[("AWS_ACCESS_KEY_ID", "AKOTHER")]),
        "s3-keys",
        "does not know",
        "environment",
    );
    is_alone(
        &at(&server, url, &[("AWS_SECRET_ACCESS_KEY", "x")]),
        "s3-keys",
        "signature",
        "AWS_SECRET_ACCESS_KEY",
    );
    server.expire_keys(fake_s3::ACCESS_KEY);
    is_alone(&at(&server, url, &[]), "s3-keys", "expired", "environment");
}

#[test]
fn the_region() {
    let server = server();
    server.set_region("eu-west-9");
    let found = at(&server, "s3://bucket/dir/key", &[("AWS_REGION", "us-east-1")]);
    let region = found.iter().find(|one| one.id == "s3-region").unwrap();
    assert_eq!((region.weight, region.fix.as_deref()), (Weight::Note, Some("export AWS_REGION=eu-west-9")));
    assert!(region.text.contains("in the region eu-west-9"), "{region:#?}");
    assert!(
        found.iter().any(|one| one.text.ends_with("can be read")),
        "it is looked at in the right region: {found:#?}"
    );
    let found = at(&server, "s3://bucket/none", &[("AWS_REGION", "")]);
    assert_eq!(bad(&found), ["s3-object"], "{found:#?}");
    assert!(found.iter().any(|one| one.seen.iter().any(|(_, text)| text.contains("none is set"))));
}

#[test]
fn what_is_not_there() {
    let server = server();
    is_alone(
        &at(&server, "s3://bucket/dir/none", &[]),
        "s3-object",
        "no such object",
        "forebay s3 ls s3://bucket/dir/",
    );
    is_alone(&at(&server, "s3://none/key", &[]), "s3-bucket", "no such bucket", "forebay s3 ls");
    is_alone(&at(&server, "s3://none/", &[]), "s3-bucket", "no such bucket", "forebay s3 ls");
}

#[test]
fn what_is_denied() {
    let server = server();
    server.fault_always(Asked::Get, Fault::Error(403, "AccessDenied", None));
    is_alone(
        &at(&server, "s3://bucket/dir/key", &[]),
        "s3-denied",
        "may be listed",
        "s3:GetObject to the credentials",
    );
    is_alone(
        &at(&server, "s3://bucket/dir/ke", &[]),
        "s3-object",
        "is not there",
        "forebay s3 ls s3://bucket/dir/",
    );
    server.faults(|_| Some(Fault::Error(403, "AccessDenied", None)));
    is_alone(&at(&server, "s3://bucket/dir/key", &[]), "s3-denied", "or it is not there", "s3:ListBucket");
    is_alone(&at(&server, "s3://bucket/dir/", &[]), "s3-denied", "access denied", "s3:ListBucket");
    let unsigned = [("AWS_NO_SIGN_REQUEST", "true")];
    is_alone(
        &at(&server, "s3://bucket/dir/key", &unsigned),
        "s3-denied",
        "access denied",
        "unset AWS_NO_SIGN_REQUEST",
    );
}

#[test]
fn the_clock() {
    let server = server();
    for (ahead, side) in [(3600, "3600 seconds behind"), (-3600, "3600 seconds ahead of")] {
        server.set_skew(ahead);
        is_alone(&at(&server, "s3://bucket/dir/key", &[]), "s3-clock", side, "timedatectl");
    }
    server.set_skew(300);
    let found = at(&server, "s3://bucket/dir/key", &[]);
    assert!(found.iter().any(|one| (one.id, one.weight) == ("s3-clock", Weight::Note)), "{found:#?}");
}

#[test]
fn names_and_connections() {
    let url = "s3://bucket/key";
    let keys = [
        ("AWS_ACCESS_KEY_ID", "A"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_ENDPOINT_URL", "http://no.such.host.invalid"),
    ];
    is_alone(&found(url, &keys), "s3-name", "no address", "getent hosts no.such.host.invalid");
    let server = server();
    let port = server.address().port();
    drop(server);
    let closed = format!("http://127.0.0.1:{port}");
    let found_closed =
        found(url, &[keys[0], keys[1], ("AWS_ENDPOINT_URL", &closed), ("AWS_MAX_ATTEMPTS", "1")]);
    if bad(&found_closed) != ["s3-unreachable"] {
        // The server of the test may still listen.
        assert_eq!(found_closed.len(), 2, "{found_closed:#?}");
    }
}

/// Names of hosts and buckets have any words.
#[test]
fn failures_are_sorted_by_what_they_are() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let keys = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "s")];
    let variables = [keys[0], keys[1], ("AWS_ENDPOINT_URL", &closed)];
    is_alone(&found("s3://proxy-certificate/TLS", &variables), "s3-unreachable", "", "nc -vz 127.0.0.1");
    let variables = [keys[0], keys[1], ("AWS_ENDPOINT_URL", "http://s3.example"), ("http_proxy", &closed)];
    is_alone(&found("s3://bucket/key", &variables), "s3-proxy", "proxy=127.0.0.1:", "NO_PROXY=s3.example");
    // The port is one of TLS.
    let server = FakeS3::start_tls();
    let clear = server.endpoint().replace("https", "http");
    let variables = [keys[0], keys[1], ("AWS_ENDPOINT_URL", &clear)];
    is_alone(
        &found("s3://bucket/key", &variables),
        "s3-unreachable",
        "",
        "AWS_ENDPOINT_URL=https://127.0.0.1:",
    );
}

#[test]
fn a_region_of_a_server_is_no_command() {
    let server = server();
    let evil = "x; echo pwned; #";
    let body = format!("<Error><Code>PermanentRedirect</Code><Region>{evil}</Region></Error>");
    for fault in [
        Fault::Body(301, body.into_bytes()),
        Fault::Header("x-amz-bucket-region", evil.to_owned()),
        Fault::Redirect(301, "x; echo pwned; #", None),
    ] {
        server.fault_always(Asked::Get, fault);
        let found = at(&server, "s3://bucket/dir/key", &[]);
        assert!(
            !found.iter().any(|one| one.fix.as_ref().is_some_and(|fix| fix.contains("pwned"))),
            "{found:#?}"
        );
    }
}

#[test]
fn tls_and_proxies() {
    let server = FakeS3::start_tls();
    server.put("bucket", "key", "bytes");
    is_alone(&at(&server, "s3://bucket/key", &[]), "s3-tls", "is not trusted", "AWS_CA_BUNDLE");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, fake_s3::CA).unwrap();
    let trusted = ("AWS_CA_BUNDLE", file.to_str().unwrap());
    assert_eq!(bad(&at(&server, "s3://bucket/key", &[trusted])), [""; 0]);
    // A proxy that is none.
    let other = FakeS3::start();
    let proxy = other.endpoint();
    let found = at(&server, "s3://bucket/key", &[trusted, ("HTTPS_PROXY", &proxy)]);
    is_alone(&found, "s3-proxy", "", "NO_PROXY");
}

#[test]
fn the_style() {
    let server = server();
    let variables = [("AWS_S3_ADDRESSING_STYLE", "virtual")];
    is_alone(&at(&server, "s3://bucket/dir/key", &variables), "s3-style", "into the host's name", "path");
    let by_name = format!("http://localhost:{}", server.address().port());
    let variables = [variables[0], ("AWS_ENDPOINT_URL", by_name.as_str())];
    if forebay_remote::endpoint::resolve("bucket.localhost", 80).is_ok() {
        eprintln!("skipped: names below localhost have addresses here");
        return;
    }
    is_alone(
        &at(&server, "s3://bucket/dir/key", &variables),
        "s3-style",
        "in the path",
        "AWS_S3_ADDRESSING_STYLE=path",
    );
}
