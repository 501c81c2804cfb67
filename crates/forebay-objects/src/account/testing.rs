//! Accounts of made settings, and a server that gives keys.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use forebay_error::Result;

use super::Account;
use super::profile::ProfileFiles;
use super::sigv4::Moment;
use super::variables::Variables;
use crate::lock;
use crate::wire::call::{Ask, Body, Heads, Method};

/// A request that came to the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Came {
    /// `GET /path?query`.
    pub(super) line: String,
    headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Came {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// An HTTP server on a thread: a function answers each request with a status and a body.
pub(crate) struct KeyServer {
    pub(crate) url: String,
    came: Arc<Mutex<Vec<Came>>>,
}

impl KeyServer {
    pub(crate) fn new(answer: impl Fn(&Came) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let came = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (came.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (log.clone(), answer.clone());
                std::thread::spawn(move || serve(&stream.unwrap(), &log, &*answer));
            }
        });
        Self { url, came }
    }

    /// All requests so far.
    pub(crate) fn came(&self) -> Vec<Came> {
        lock(&self.came).clone()
    }
}

fn serve(stream: &TcpStream, log: &Mutex<Vec<Came>>, answer: &dyn Fn(&Came) -> (u16, String)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut came = Came::default();
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    came.line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        came.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = came.header("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    came.body = String::from_utf8(body).unwrap();
    lock(log).push(came.clone());
    let (status, body) = answer(&came);
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .ok()
}

/// An account of variables and of the texts of the two files.
pub(crate) struct Made {
    pub(crate) account: Account,
    pub(super) home: tempfile::TempDir,
}

pub(crate) fn account(variables: &[(&str, &str)], config: &str, credentials: &str) -> Result<Made> {
    let home = tempfile::tempdir().unwrap();
    account_at(home, variables, config, credentials)
}

pub(super) fn account_at(
    home: tempfile::TempDir,
    variables: &[(&str, &str)],
    config: &str,
    credentials: &str,
) -> Result<Made> {
    std::fs::create_dir_all(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/config"), config).unwrap();
    std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
    let mut all = vec![("HOME", home.path().to_str().unwrap())];
    all.extend(variables);
    let variables = Variables::from(&all[..]);
    let files = ProfileFiles::of(&variables);
    Ok(Made { account: Account::new(variables, files)?, home })
}

/// The id of the key and the token that a request is signed with.
pub(super) fn signer(account: &Account) -> Result<(String, Option<String>)> {
    let (query, headers) = (Vec::new(), Vec::new());
    let ask = Ask { method: Method::Get, bucket: "bucket".into(), key: "key".into(), query, headers };
    let head = String::from_utf8(account.head(&ask, &Body::None)?).unwrap();
    let value = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name));
        line.map(ToOwned::to_owned)
    };
    let credential = value("authorization: AWS4-HMAC-SHA256 Credential=").unwrap_or_default();
    let id = credential.split('/').next().unwrap_or_default().to_owned();
    Ok((id, value("x-amz-security-token: ")))
}

/// The time in some seconds, as documents have it.
pub(crate) fn in_seconds(seconds: i64) -> String {
    let now = SystemTime::now();
    let time = match u64::try_from(seconds) {
        Ok(ahead) => now + std::time::Duration::from_secs(ahead),
        Err(_) => now - std::time::Duration::from_secs(seconds.unsigned_abs()),
    };
    let text = Moment::of(time);
    let text = text.as_str();
    format!(
        "{}-{}-{}T{}:{}:{}Z",
        &text[..4],
        &text[4..6],
        &text[6..8],
        &text[9..11],
        &text[11..13],
        &text[13..15]
    )
}

/// The reply of the token service.
pub(super) fn sts_reply(action: &str, id: &str, expires: &str) -> String {
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result><AssumedRoleUser>\
         <Arn>arn:x</Arn></AssumedRoleUser><Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>s&amp;s\
         </SecretAccessKey><SessionToken>token of {id}</SessionToken><Expiration>{expires}</Expiration></Credentials>\
         </{action}Result></{action}Response>"
    )
}

/// The reply of containers and machines.
pub(crate) fn json_reply(id: &str, expires: &str) -> String {
    format!(
        r#"{{"Code":"Success","AccessKeyId":"{id}","SecretAccessKey":"wJalrSecret","Token":"token of {id}","Expiration":"{expires}"}}"#
    )
}
