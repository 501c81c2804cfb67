//! A gateway for fuzz targets: its store keeps nothing but the last calls.

pub mod store;

use std::sync::Arc;

use forebay_gateway::fuzz::Gateway;
use forebay_gateway::{AccountEntry, Accounts};
use forebay_objects::fuzz::Signed;

pub use store::{Call, Calls};

/// The account of all targets.
pub const KEY: &str = "fuzz";
const SECRET: &str = "of-a-test";
const HOST: &str = "gateway.example";

/// A server, and what came to its store.
pub struct Server {
    gateway: Gateway,
    calls: Arc<Calls>,
}

/// An answer's first line and what follows its head.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Server {
    #[allow(clippy::new_without_default, reason = "it is no value")]
    pub fn new() -> Self {
        let calls = Arc::<Calls>::default();
        let store = store::Told(Arc::clone(&calls));
        let accounts = Accounts::new(
            vec![AccountEntry::new(KEY, SECRET)],
            Box::new(move |_| Ok(Arc::new(store.clone()))),
        );
        let accounts = Arc::new(accounts.expect("one account"));
        Self { gateway: Gateway::new(&accounts).expect("a server"), calls }
    }

    /// Serves bytes; returns the answers, and what the store was asked.
    pub fn serve(&self, bytes: &[u8]) -> (Vec<Answer>, Vec<Call>) {
        let answers = answers(&self.gateway.serve(bytes));
        for answer in &answers {
            assert!(answer.status != 500, "{answer:?}");
        }
        (answers, self.calls.take())
    }

    /// Serves a request that the client signed. `body`: with its head's length.
    pub fn signed(&self, request: &Signed<'_>, body: &[u8]) -> (Option<Answer>, Vec<Call>) {
        let (query, headers) = request.now(HOST, KEY, SECRET);
        let mark = if query.is_empty() { "" } else { "?" };
        let mut bytes = format!("{} {}{mark}{query} HTTP/1.1\r\n", request.method, request.path).into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        let (answers, calls) = self.serve(&bytes);
        // One request has one answer; 100 is on the way to it.
        assert!(answers.iter().filter(|answer| answer.status >= 200).count() <= 1, "{answers:?}");
        (answers.into_iter().find(|answer| answer.status >= 200), calls)
    }
}

/// Answers that follow each other. Each has a length, or is the last.
fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut all = Vec::new();
    while let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
        let head = std::str::from_utf8(&bytes[..end]).expect("a head is text");
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status = status.expect("a head begins with a status");
        let len = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let has_no_body = status < 200 || status == 204 || status == 304;
        let rest = &bytes[end + 4..];
        let len = if has_no_body { 0 } else { len.unwrap_or(rest.len()).min(rest.len()) };
        all.push(Answer { status, body: String::from_utf8_lossy(&rest[..len]).into_owned() });
        bytes = &rest[len..];
    }
    all
}
