//! Bodies in XML, of signed requests: taken or refused as the client's mistake.
#![no_main]

use forebay_fuzz_gateway::{Call, Server};
use forebay_objects::fuzz::Signed;
use libfuzzer_sys::fuzz_target;

/// Method, path, query.
const KINDS: [(&str, &str, &str); 8] = [
    ("POST", "/bucket", "delete"),
    ("POST", "/bucket/key", "uploadId"),
    ("PUT", "/bucket/key", "tagging"),
    ("PUT", "/bucket/key", "acl"),
    ("PUT", "/bucket", "acl"),
    ("PUT", "/bucket", ""),
    ("POST", "/bucket/key", "restore"),
    ("POST", "/bucket/key", "select"),
];

thread_local! { static SERVER: Server = Server::new(); }

fuzz_target!(|data: &[u8]| {
    let Some((choice, xml)) = data.split_first() else { return };
    let (method, path, name) = KINDS[usize::from(*choice) % KINDS.len()];
    let query: Vec<_> = (!name.is_empty())
        .then(|| (name.to_owned(), if name == "uploadId" { "id" } else { "" }.to_owned()))
        .into_iter()
        .collect();
    let request = Signed { method, path, query: &query, headers: &[], payload: "UNSIGNED-PAYLOAD" };
    let (answer, calls) = SERVER.with(|server| server.signed(&request, xml));
    let answer = answer.expect("a request that is whole has an answer");
    let removed = calls.iter().filter(|call| matches!(call, Call::Removed(_))).count();
    assert!(removed <= 1000);
    if name == "delete" && answer.status == 200 {
        let told = answer.body.matches("<Deleted>").count();
        assert!(told == removed || told == 0, "{removed} removed: {answer:?}");
    } else {
        assert!(removed == 0);
    }
    // A document that is refused changes nothing.
    if answer.status >= 400 {
        let changes =
            |call: &Call| matches!(call, Call::Described(_) | Call::Finished(..) | Call::Written(..));
        assert!(!calls.iter().any(changes), "{answer:?} {calls:?}");
    }
});
