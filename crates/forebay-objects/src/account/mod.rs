//! From the environment and profiles to an endpoint, keys, and signed heads of requests.

#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod head;
mod ini;
mod keys;
mod named;
mod place;
mod profile;
mod providers;
mod proxies;
mod renewal;
mod settings;
#[cfg(test)]
mod signatures;
#[cfg(test)]
mod signed_requests;
mod sigv4;
mod target;
#[cfg(test)]
pub(crate) mod testing;
mod variables;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use forebay_error::{Error, Result};
use forebay_remote::process::OfProcess;

use crate::lock;
use crate::wire::call::{Ask, Body, Heads};
use crate::wire::site::Site;
use head::Signing;
pub(crate) use keys::Keys;
use named::NamedSite;
use place::Place;
use profile::{ProfileFiles, Profiles};
use providers::{Source, World};
use renewal::KeyRing;
pub(crate) use settings::ChecksumMode;
pub(crate) use settings::checked_region;
use settings::{Lookup, Settings};
pub(crate) use sigv4::encoded;
pub(crate) use target::region_of_aws;
pub(crate) use variables::SITES;
use variables::Variables;

/// Accounts of the process that are kept, for the environments that it had last.
const KEPT: usize = 8;
/// A site that is gone is asked this often whether it is back.
pub(crate) const GONE: Duration = Duration::from_secs(5);

static ACCOUNTS: OfProcess<Mutex<Vec<Arc<Account>>>> = OfProcess::new();

/// Who asks, and where: settings and keys of a profile.
#[derive(Debug)]
pub(crate) struct Account {
    /// That of its site, where sites have names.
    name: Option<String>,
    variables: Variables,
    files: ProfileFiles,
    settings: Settings,
    signer: Signer,
    /// Regions of buckets that are elsewhere than the settings say.
    regions: Mutex<HashMap<String, String>>,
    /// When the server is asked whether it is back; `None`: it is there.
    ask_again: Mutex<Option<Instant>>,
}

/// Who signs.
#[derive(Debug)]
enum Signer {
    /// Nobody.
    Anonymous,
    /// Keys of a provider, and its name.
    Keys(KeyRing, String),
    /// The settings name no keys.
    None(Error),
}

impl Account {
    /// That of the environment and its profile, read anew where the environment or a file of profiles changed. Asks nobody. Where
    /// sites have names, that of the first.
    pub(crate) fn of_environment() -> Result<Arc<Self>> {
        let variables = Variables::of_process();
        match NamedSite::all(&variables)?.first() {
            Some(site) => Self::of_site(site, &variables),
            None => Self::kept(None, variables),
        }
    }

    /// Those of all sites that have names, the nearest first; none where they have none.
    pub(crate) fn of_sites() -> Result<Vec<Arc<Self>>> {
        let variables = Variables::of_process();
        NamedSite::all(&variables)?.iter().map(|site| Self::of_site(site, &variables)).collect()
    }

    /// That of the site with this name; `None`: as [`Account::of_environment`].
    pub(crate) fn named(name: Option<&str>) -> Result<Arc<Self>> {
        let Some(name) = name else { return Self::of_environment() };
        let variables = Variables::of_process();
        let sites = NamedSite::all(&variables)?;
        let found = sites.iter().find(|site| site.name == name);
        Self::of_site(found.ok_or_else(|| named::unknown(name, &sites))?, &variables)
    }

    fn of_site(site: &NamedSite, variables: &Variables) -> Result<Arc<Self>> {
        Self::kept(Some(&site.name), site.variables(variables))
            .map_err(|error| error.with("site", &site.name))
    }

    fn kept(name: Option<&str>, variables: Variables) -> Result<Arc<Self>> {
        let files = ProfileFiles::of(&variables);
        let mut all = lock(ACCOUNTS.get());
        let is_it =
            |one: &Arc<Self>| one.name.as_deref() == name && one.variables == variables && one.files == files;
        if let Some(known) = all.iter().find(|one| is_it(one)) {
            return Ok(known.clone());
        }
        let new = Arc::new(Self { name: name.map(str::to_owned), ..Self::new(variables, files)? });
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push(new.clone());
        Ok(new)
    }

    fn new(variables: Variables, files: ProfileFiles) -> Result<Self> {
        let profiles = Profiles::read(&files)?;
        let settings = Settings::read(&variables, &profiles)?;
        let signer = if settings.is_anonymous {
            Signer::Anonymous
        } else {
            Signer::choose(&variables, &profiles, &settings)?
        };
        let (name, regions, ask_again) = (None, Mutex::default(), Mutex::default());
        Ok(Self { name, variables, files, settings, signer, regions, ask_again })
    }

    /// The same as that of a site of this name.
    #[cfg(test)]
    pub(crate) fn of_test_site(&self, name: &str) -> Arc<Self> {
        let new = Self::new(self.variables.clone(), self.files.clone()).unwrap();
        Arc::new(Self { name: Some(name.to_owned()), ..new })
    }

    /// The name of its site, where sites have names.
    pub(crate) fn site_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The server is gone: others are asked before it from now on.
    pub(crate) fn is_gone_now(&self) {
        lock(&self.ask_again).get_or_insert_with(|| Instant::now() + GONE);
    }

    /// The server has answered.
    pub(crate) fn is_there_now(&self) {
        *lock(&self.ask_again) = None;
    }

    /// Whether others are asked before it.
    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.ask_again).is_some()
    }

    /// Whether it is time to ask a server that is gone whether it is back. Says so once in a while.
    pub(crate) fn is_to_be_asked(&self) -> bool {
        let mut at = lock(&self.ask_again);
        let is_due = at.is_some_and(|at| Instant::now() >= at);
        if is_due {
            *at = Some(Instant::now() + GONE);
        }
        is_due
    }

    /// Its settings: region, endpoint, checksums.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where requests for a bucket go.
    pub(crate) fn site(&self, bucket: &str) -> Result<Site> {
        Ok(self.place(bucket)?.site)
    }

    /// A URL by which anyone may send the request, without keys, for at most 7 days.
    pub(crate) fn presign(&self, ask: &Ask, expires: Duration) -> Result<String> {
        self.signing(&ask.bucket, |signing, place| signing.url(place, ask, expires))
    }

    /// Who gives the keys, for receipts: "profile dev (SSO)", "anonymous". `None`: the settings name nobody.
    pub(crate) fn provider(&self) -> Option<String> {
        match &self.signer {
            Signer::Keys(_, name) => Some(name.clone()),
            Signer::Anonymous => Some("anonymous".to_owned()),
            Signer::None(_) => None,
        }
    }

    /// The same with buckets' names in the `path` or in the host's name (`virtual`).
    pub(crate) fn in_style(&self, style: &str) -> Result<Arc<Self>> {
        let variables = self.variables.with("AWS_S3_ADDRESSING_STYLE", style);
        let new = Self::new(variables.without("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"), self.files.clone())?;
        Ok(Arc::new(Self { name: self.name.clone(), ..new }))
    }

    /// When the keys are over, where they are; waits for them.
    pub(crate) fn expires(&self) -> Result<Option<SystemTime>> {
        Ok(self.keys()?.and_then(|keys| keys.expires))
    }

    /// A server refused the keys as over. Whether the provider has others: later requests wait for them.
    pub(crate) fn distrust_keys(&self) -> bool {
        matches!(&self.signer, Signer::Keys(ring, _) if ring.distrust())
    }

    /// A server said which region a bucket is in. Later sites and signatures of the bucket are of that one.
    pub(crate) fn learn_region(&self, bucket: &str, region: &str) -> Result<()> {
        let region = checked_region(region)?;
        lock(&self.regions).insert(bucket.to_owned(), region);
        Ok(())
    }

    /// The region of a bucket, as far as it is known.
    pub(crate) fn region(&self, bucket: &str) -> String {
        lock(&self.regions).get(bucket).unwrap_or(&self.settings.region).clone()
    }

    /// The path of a request without a query, percent-encoded.
    pub(crate) fn path(&self, ask: &Ask) -> Result<String> {
        Ok(self.place(&ask.bucket)?.path(&ask.key))
    }

    fn place(&self, bucket: &str) -> Result<Place> {
        Place::of(&self.settings, bucket, &self.region(bucket))
    }

    /// The keys that sign now; waits for them. `None`: nobody signs.
    pub(crate) fn keys(&self) -> Result<Option<Arc<Keys>>> {
        match &self.signer {
            Signer::Anonymous => Ok(None),
            Signer::Keys(ring, _) => ring.get().map(Some),
            Signer::None(error) => Err(error.clone()),
        }
    }

    fn signing<T>(&self, bucket: &str, sign: impl FnOnce(&Signing<'_>, &Place) -> Result<T>) -> Result<T> {
        let (keys, region) = (self.keys()?, self.region(bucket));
        let place = Place::of(&self.settings, bucket, &region)?;
        let requester_pays = self.settings.requester_pays;
        let now = SystemTime::now();
        let signing = Signing { keys: keys.as_deref(), region: &region, requester_pays, now };
        sign(&signing, &place).map_err(|error| match self.provider() {
            Some(provider) => error.with("provider", provider),
            None => error,
        })
    }
}

impl Signer {
    fn choose(variables: &Variables, profiles: &Profiles, settings: &Settings) -> Result<Self> {
        let lookup = Lookup { variables, profiles, profile: &settings.profile };
        let source = match Source::choose(&lookup, settings.is_named) {
            Ok(source) => source,
            Err(error) => return Ok(Self::None(error)),
        };
        let world = World::new(&lookup, settings)?;
        let (name, known) = (source.to_string(), source.fixed());
        Ok(Self::Keys(KeyRing::new(known, move || source.ask(&world)), name))
    }
}

impl Heads for Account {
    fn are_keys_at_hand(&self) -> bool {
        match &self.signer {
            Signer::Keys(ring, _) => ring.are_at_hand(),
            Signer::Anonymous | Signer::None(_) => true,
        }
    }

    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        let head = |ask: &Ask| self.signing(&ask.bucket, |signing, place| signing.head(place, ask, body));
        if self.settings.response_checksums == ChecksumMode::WhenSupported {
            return head(ask);
        }
        // Some stores refuse requests that ask for checksums.
        let mut ask = ask.clone();
        ask.headers.retain(|(name, _)| name != "x-amz-checksum-mode");
        head(&ask)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::account;
    use super::*;
    use crate::wire::call::Method;

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s")];

    fn head(account: &Account) -> String {
        let headers = vec![("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned())];
        let ask = Ask {
            method: Method::Get,
            bucket: "bucket".into(),
            key: "a b".into(),
            query: Vec::new(),
            headers,
        };
        String::from_utf8(account.head(&ask, &Body::None).unwrap()).unwrap()
    }

    #[test]
    fn checksums_are_asked_for_where_the_settings_want_them() {
        let asking = account(&KEYS, "", "").unwrap().account;
        assert!(head(&asking).contains("\r\nx-amz-checksum-mode: ENABLED\r\n"));
        let silent = [KEYS[0], KEYS[1], ("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")];
        assert!(!head(&account(&silent, "", "").unwrap().account).contains("checksum"));
    }

    #[test]
    fn regions_of_buckets_are_learned() {
        let account = account(&KEYS, "", "").unwrap().account;
        assert_eq!(account.site("bucket").unwrap().host, "bucket.s3.us-east-1.amazonaws.com");
        account.learn_region("bucket", "eu-west-1").unwrap();
        assert_eq!(account.site("bucket").unwrap().host, "bucket.s3.eu-west-1.amazonaws.com");
        assert_eq!(account.site("other").unwrap().host, "other.s3.us-east-1.amazonaws.com");
        let head = head(&account);
        assert!(
            head.starts_with("GET /a%20b HTTP/1.1\r\nhost: bucket.s3.eu-west-1.amazonaws.com\r\n"),
            "{head}"
        );
        assert!(head.contains("/eu-west-1/s3/aws4_request"), "{head}");
        assert!(account.learn_region("bucket", "evil.host/").is_err());
    }

    #[test]
    fn heads_for_a_proxy_have_whole_urls() {
        let variables =
            [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", "http://h:9000"), ("http_proxy", "http://me:pw@p:3128")];
        let head = head(&account(&variables, "", "").unwrap().account);
        assert!(head.starts_with("GET http://h:9000/bucket/a%20b HTTP/1.1\r\nhost: h:9000\r\n"), "{head}");
        assert!(head.contains("\r\nproxy-authorization: Basic bWU6cHc=\r\n"), "{head}");
    }

    /// Secrets that are mounted as files end with a line feed, which shells take away and others do not.
    #[test]
    fn a_line_feed_behind_keys_is_no_part_of_them() {
        let clean = [KEYS[0], KEYS[1], ("AWS_SESSION_TOKEN", "token")];
        let ended = [
            ("AWS_ACCESS_KEY_ID", "AKID\n"),
            ("AWS_SECRET_ACCESS_KEY", "s\r\n"),
            ("AWS_SESSION_TOKEN", "token\n"),
        ];
        let keys = |variables: &[(&str, &str)]| {
            let keys = account(variables, "", "").unwrap().account.keys().unwrap().unwrap();
            (keys.id.clone(), keys.secret.clone(), keys.token.clone())
        };
        assert_eq!(keys(&ended), keys(&clean));
    }

    #[test]
    fn keys_cannot_add_lines() {
        for (id, token, what) in
            [("k\r\nx-evil: 1", "t", "the access key"), ("k", "t\0", "the session token")]
        {
            let variables =
                [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", token)];
            let account = account(&variables, "", "").unwrap().account;
            let ask = Ask {
                method: Method::Get,
                bucket: "bucket".into(),
                key: "k".into(),
                query: Vec::new(),
                headers: Vec::new(),
            };
            let error = account.head(&ask, &Body::None).unwrap_err();
            assert!(error.message().contains(what), "{error}");
            assert!(error.to_string().contains("provider=environment"), "{error}");
            assert!(account.presign(&ask, Duration::from_mins(1)).is_err());
        }
    }

    #[test]
    fn headers_from_users_cannot_add_lines() {
        let account = account(&KEYS, "", "").unwrap().account;
        for (name, value) in [("x-amz-meta-a", "b\r\nx: y"), ("x: y\r\na", "b"), ("", "b")] {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let ask = Ask {
                method: Method::Put,
                bucket: "bucket".into(),
                key: "k".into(),
                query: Vec::new(),
                headers,
            };
            assert!(account.head(&ask, &Body::None).is_err(), "{name:?}");
        }
    }
}
