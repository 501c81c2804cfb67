//! Names that cannot be looked up, and can be again.

use std::net::SocketAddr;

use forebay_error::{Error, ErrorKind};

use super::server::{answers, get, network, reply, server};

#[test]
fn a_name_that_comes_back_is_used_again_and_addresses_outlive_a_failure() {
    let mut site = server(|stream, _| answers(stream, |_, _| reply(b"body")));
    let address = SocketAddr::from(([127, 0, 0, 1], site.port));
    site.host = "no-such-host.invalid".to_owned();
    let network = network(site);
    // Each call looks it up anew, and none waits for ever.
    for _ in 0..3 {
        assert_eq!(get(&network, "").error().kind(), ErrorKind::NotFound);
    }
    network.pool.know(&[address]);
    assert_eq!(get(&network, "").body(), b"body");
    // A later look-up fails: calls that wait, and later ones, go to the addresses that are known.
    let waiting: Vec<_> = (0..4).map(|_| get(&network, "")).collect();
    network.pool.looked_up(Err(Error::new(ErrorKind::NotFound, "no such name")));
    for call in waiting {
        assert_eq!(call.body(), b"body");
    }
    assert_eq!(get(&network, "").body(), b"body");
}
