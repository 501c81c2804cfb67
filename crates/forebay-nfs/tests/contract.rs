//! Files of a server by their URL do what every source must.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use fake_nfs::Server;
use forebay_contract::{KEY, LEN, Subject, pattern, run};
use forebay_engine::File;

#[test]
fn files_of_a_server_keep_the_contract() {
    forebay_nfs::register();
    run(|| {
        let server = Server::start();
        server.put("/export/file", pattern(KEY, 0, LEN));
        let file = File::options().write(true).open(server.url("/export/file", "4.1")).unwrap();
        Subject { name: "nfs", file, outside: Box::new(move || server.durable("/export/file")) }
    });
}
