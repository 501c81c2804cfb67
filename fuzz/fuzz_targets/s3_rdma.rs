//! Tokens, bodies and answers of S3 over RDMA: read or refused, and all that is read can be written again.
#![no_main]

use std::collections::HashMap;

use forebay_s3_rdma::hipobj::{Finished, Prepare, Prepared, Ready};
use forebay_s3_rdma::rc1::{Ask, ConnectAnswer, ConnectAsk, Token};
use forebay_s3_rdma::{Asked, Dialect, Operation, Reply};
use libfuzzer_sys::fuzz_target;

fn token(text: &str) {
    let dialect = Dialect::of_token(text.trim());
    match Ask::parse(|name| (name == "x-amz-rdma-token").then_some(text)) {
        Ok(Ask::Rc1(token)) => {
            assert!(dialect == Some(Dialect::Rc1));
            assert!(Token::parse(&token.text()) == Ok(token));
        }
        Ok(Ask::Other(other)) => assert!(dialect == Some(other)),
        Ok(Ask::Plain) => unreachable!("there is a token"),
        Err(refusal) => assert!(refusal.status() == 400),
    }
}

fn connect(body: &[u8]) {
    if let Ok(ask) = ConnectAsk::parse(body) {
        assert!(ConnectAsk::parse(ask.to_json().as_bytes()) == Ok(ask));
    }
    if let Ok(answer) = ConnectAnswer::parse(200, body) {
        assert!(ConnectAnswer::parse(200, answer.to_json().as_bytes()) == Ok(answer));
    }
}

/// The first byte's status, then lines of headers. Bytes are believed only if they are those that were asked for.
fn reply(operation: Operation, bytes: &[u8]) {
    let Some((status, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let headers: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let header = |name: &str| headers.get(name).copied();
    let asked = Asked { operation, bytes: 10 };
    if let Reply::Done(moved) = Reply::parse(asked, 200 + u16::from(*status), header) {
        assert!(moved.bytes == 10 && *status < 100 && header("content-length") == Some("0"));
    }
}

/// Lines of headers as each message of hipobj-rc-v2.
fn hipobj(text: &str) {
    let headers: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let header = |name: &str| headers.get(name).copied();
    if let Ok(ask) = Prepare::parse(4096, header) {
        let written: HashMap<&str, String> = ask.headers().into_iter().collect();
        assert!(Prepare::parse(4096, |name| written.get(name).map(String::as_str)) == Ok(ask));
    }
    if let Ok(ready) = Ready::parse(header) {
        let written: HashMap<&str, String> = ready.headers().into_iter().collect();
        assert!(Ready::parse(|name| written.get(name).map(String::as_str)) == Ok(ready));
    }
    if let Ok(answer) = Prepared::parse(Operation::Put, 1024, 200, header) {
        let written: HashMap<&str, String> = answer.headers().into_iter().collect();
        let again = Prepared::parse(Operation::Put, 1024, 200, |name| written.get(name).map(String::as_str));
        assert!(again == Ok(answer));
    }
    if let Ok(finished) = Finished::parse((10, 0xfeed), 200, header) {
        assert!(finished.bytes == 10 && finished.cookie == 0xfeed);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 5 {
        0 => token(&String::from_utf8_lossy(bytes)),
        1 => connect(bytes),
        2 => reply(Operation::Get, bytes),
        3 => hipobj(&String::from_utf8_lossy(bytes)),
        _ => reply(Operation::Put, bytes),
    }
});
