//! Refusals of a server with too much to do: one of them, or all of a moment, halve the number of ranges once.

use std::sync::Arc;

use fake_s3::FakeS3;

use super::{ObjectFetch, Target};
use crate::account::testing::account;
use crate::endpoint::Endpoint;

#[test]
fn refusals_of_a_moment_halve_the_ranges_once() {
    let server = FakeS3::start();
    let environment = server.environment();
    let variables: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let endpoint =
        Endpoint::of_account(Arc::new(account(&variables, "", "").unwrap().account), "bucket").unwrap();
    let [bucket, key] = ["bucket", "key"].map(str::to_owned);
    let fetch = ObjectFetch::new(
        endpoint.clone(),
        Target { bucket, key, version: None, etag: None, len: 1 },
        Vec::new(),
        None,
    );
    let first = endpoint.turns.limit();
    // A broken connection, or a server that failed, has not too much to do.
    ObjectFetch::refused(&fetch.route(), false, None);
    assert_eq!(endpoint.turns.limit(), first);
    let pass = || {
        while let Some(until) = endpoint.budget.until(std::time::Instant::now()) {
            std::thread::sleep(until.saturating_duration_since(std::time::Instant::now()));
        }
    };
    for (refusals, limit) in [(1, first / 2), (64, first / 4)] {
        pass();
        (0..refusals).for_each(|_| ObjectFetch::refused(&fetch.route(), true, None));
        assert_eq!(endpoint.turns.limit(), limit, "{refusals}");
    }
}
