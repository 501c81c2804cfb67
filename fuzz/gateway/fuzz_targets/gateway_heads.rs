//! The bytes of a connection: whatever they are, each request is answered, none with 500, and nothing reaches the store that is not
//! signed.
#![no_main]

use forebay_fuzz_gateway::{Call, Server};
use libfuzzer_sys::fuzz_target;

thread_local! { static SERVER: Server = Server::new(); }

fuzz_target!(|data: &[u8]| {
    let (answers, calls) = SERVER.with(|server| server.serve(data));
    assert!(calls.iter().all(|call| *call == Call::Look), "{calls:?}");
    for answer in answers {
        // The server's own pages, and 100 before a body.
        assert!(answer.status < 300 || answer.status >= 400 || answer.status == 307, "{answer:?}");
        assert!(
            answer.status != 200 || answer.body.starts_with("# HELP") || answer.body == "ok\n",
            "{answer:?}"
        );
    }
});
