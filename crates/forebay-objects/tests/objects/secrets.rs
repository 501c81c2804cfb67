//! Keys, tokens and signatures are in no message, receipt or `Debug` output of a run that works and of one that fails.

use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::Duration;

use fake_s3::{Asked, FakeS3, Fault};
use forebay_engine::{File, Session};
use forebay_error::Error;
use forebay_objects::Bucket;
use forebay_source::opener_of;

use crate::servers::{BUCKET, pattern, with};

const ID: &str = "AKIASECRETSECRET0000";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "FwoGZXIvYXdzEJr//////////token+of/a/session=";
const LEN: usize = 9_000_000;

/// All that a run says.
#[derive(Default)]
struct Said(String);

impl Said {
    fn debug(&mut self, of: &impl Debug) {
        writeln!(self.0, "{of:?} {of:#?}").unwrap();
    }

    fn error(&mut self, error: &Error) {
        self.debug(error);
        writeln!(self.0, "{error} {error:#} {}", error.hints().join(" ")).unwrap();
        let mut cause = std::error::Error::source(error);
        while let Some(one) = cause {
            writeln!(self.0, "{one} {one:?}").unwrap();
            cause = one.source();
        }
    }

    fn take<T: Debug>(&mut self, result: Result<T, Error>) {
        match result {
            Ok(done) => self.debug(&done),
            Err(error) => self.error(&error),
        }
    }
}

/// Reads, writes, lists and removes.
fn run(said: &mut Said, variables: &[(&str, String)]) {
    with(variables, || {
        let session = Session::open().unwrap();
        let bucket = match Bucket::of(BUCKET) {
            Ok(bucket) => bucket,
            Err(error) => return said.error(&error),
        };
        said.debug(&bucket);
        said.take(bucket.head("key", None));
        said.take(bucket.list("", true).collect::<Result<Vec<_>, _>>());
        said.take(bucket.put("small", &Arc::from(b"bytes".as_slice())));
        said.take(bucket.copy_from(&bucket, "small", "copy"));
        said.take(bucket.delete_many(&["small".to_owned()]));
        let mut buffer = session.host_buffer(LEN).unwrap();
        match File::open("s3://bucket/key") {
            Ok(file) => {
                said.debug(&file);
                let receipt = session.read(&file, 0, &mut buffer);
                if let Ok(receipt) = &receipt {
                    writeln!(said.0, "{receipt}").unwrap();
                }
                said.take(receipt);
            }
            Err(error) => said.error(&error),
        }
        let url = "s3://bucket/new";
        let upload = opener_of(url).unwrap().make(url.as_ref(), 0o644).unwrap();
        let file = File::from_source(upload.source()).unwrap();
        said.debug(&file);
        said.take(session.write(&file, 0, &buffer));
        said.take(upload.finish(true));
    });
}

fn started() -> FakeS3 {
    let server = FakeS3::start();
    server.require_signatures();
    server.add_keys(ID, SECRET, Some(TOKEN));
    server.put(BUCKET, "key", pattern(LEN));
    server
}

fn variables(server: &FakeS3) -> Vec<(&'static str, String)> {
    let mine = [("AWS_ACCESS_KEY_ID", ID), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", TOKEN)];
    [server.environment(), mine.map(|(name, value)| (name, value.to_owned())).to_vec()].concat()
}

#[test]
fn nothing_that_a_run_says_has_a_secret() {
    forebay_objects::register();
    let mut said = Said::default();
    let mut signatures = Vec::new();
    let echo = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>\
                <StringToSign>AWS4 wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY</StringToSign></Error>";
    let faults = [
        None,
        Some(Fault::Error(403, "AccessDenied", None)),
        Some(Fault::Error(403, "SignatureDoesNotMatch", None)),
        Some(Fault::Body(403, echo.as_bytes().to_vec())),
        Some(Fault::Redirect(301, "eu-west-9", None)),
        Some(Fault::Raw(b"junk".to_vec())),
        Some(Fault::Header("Content-Length", "x".to_owned())),
    ];
    for fault in faults {
        let server = started();
        server.faults(move |seen| fault.clone().filter(|_| seen.asked != Asked::Head));
        run(&mut said, &variables(&server));
        for head in server.heads() {
            assert!(head.contains(TOKEN), "the token is sent");
            signatures
                .extend(head.split("Signature=").nth(1).and_then(|rest| rest.get(..64)).map(str::to_owned));
        }
    }
    let server = started();
    let wrong = [variables(&server), vec![("AWS_SESSION_TOKEN", format!("{TOKEN}x"))]].concat();
    run(&mut said, &wrong);
    let keys_in_url = vec![("AWS_ENDPOINT_URL", format!("http://{ID}:{SECRET}@127.0.0.1:1"))];
    run(&mut said, &[variables(&server), keys_in_url].concat());
    let proxy = vec![("http_proxy", format!("http://user:{SECRET}@127.0.0.1:1"))];
    run(&mut said, &[variables(&server), proxy].concat());
    let said = said.0;
    assert!(said.contains("Receipt") && said.contains("access denied") && signatures.len() > 20, "{said}");
    for secret in
        [SECRET, TOKEN, "wJalrXUt", "FwoGZXIv"].into_iter().chain(signatures.iter().map(String::as_str))
    {
        if let Some(at) = said.find(secret) {
            panic!("a secret in: {}", &said[said.floor_char_boundary(at.saturating_sub(300))..at]);
        }
    }
    // A signed URL is a secret that the caller wants; the `Debug` of the bucket has none of it.
    let bucket = with(&variables(&server), || Bucket::of(BUCKET)).unwrap();
    let url = bucket.presign("key", None, Duration::from_mins(1)).unwrap();
    let signature = url.split("X-Amz-Signature=").nth(1).unwrap();
    assert!(!format!("{bucket:#?}").contains(signature));
}
