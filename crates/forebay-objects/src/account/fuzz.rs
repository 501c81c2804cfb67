//! Profiles and settings from any text.

use std::time::SystemTime;

use super::keys::Keys;
use super::place::Place;
use super::profile::Profiles;
use super::settings::Settings;
use super::sigv4::{Moment, Scope, Signable};
use super::variables::Variables;

/// The host and the path of a bucket by a config file with this text, where it is a valid one.
pub fn place(text: &str, bucket: &str) -> Option<(String, String)> {
    let profiles = Profiles::of_text(text)?;
    let settings = Settings::read(&Variables::default(), &profiles).ok()?;
    let place = Place::of(&settings, bucket, &settings.region).ok()?;
    Some((place.site.host, place.path))
}

/// A path as the client sends it.
pub fn path(text: &str) -> String {
    super::encoded(text, true)
}

/// A request that is signed with a key and its secret, for a server at `host` in us-east-1.
pub struct Signed<'a> {
    /// Its method.
    pub method: &'a str,
    /// As it is sent, percent-encoded.
    pub path: &'a str,
    /// Names and values, neither encoded.
    pub query: &'a [(String, String)],
    /// Other headers than those of the signature; their names in lower case.
    pub headers: &'a [(String, String)],
    /// What `x-amz-content-sha256` says.
    pub payload: &'a str,
}

impl Signed<'_> {
    /// The query as it is sent, and all headers with the signature's.
    pub fn now(&self, host: &str, key: &str, secret: &str) -> (String, Vec<(String, String)>) {
        let moment = Moment::of(SystemTime::now());
        let mut headers = self.headers.to_vec();
        for (name, value) in
            [("host", host), ("x-amz-date", moment.as_str()), ("x-amz-content-sha256", self.payload)]
        {
            headers.push((name.to_owned(), value.to_owned()));
        }
        let Signed { method, path, query, payload, .. } = *self;
        let signable = Signable { method, path, query, headers: &headers, payload };
        let keys = Keys::new(key.to_owned(), secret.to_owned(), None, None);
        let scope = Scope { region: "us-east-1", service: "s3" };
        let value = signable.authorization(&keys, &moment, scope);
        headers.push(("authorization".to_owned(), value));
        (super::sigv4::query(query, false), headers)
    }
}
