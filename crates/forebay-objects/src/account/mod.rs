//! From the environment and profiles to an endpoint, keys, and signed heads of requests.

mod head;
mod ini;
mod keys;
mod place;
mod profile;
mod proxies;
mod settings;
mod sigv4;
mod target;
mod variables;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use forebay_error::Result;

use crate::lock;
use crate::wire::call::{Ask, Body, Heads};
use crate::wire::site::Site;
use head::Signing;
use keys::Keys;
use place::Place;
use profile::{ProfileFiles, Profiles};
pub(crate) use settings::{ChecksumMode, Settings, Style};
use variables::Variables;

/// Accounts of the process that are kept, for the environments that it had last.
const KEPT: usize = 8;

static ACCOUNTS: Mutex<Vec<Arc<Account>>> = Mutex::new(Vec::new());

/// Who asks, and where: settings and keys of a profile.
#[derive(Debug)]
pub(crate) struct Account {
    variables: Variables,
    files: ProfileFiles,
    settings: Settings,
    keys: Option<Arc<Keys>>,
}

impl Account {
    /// That of the environment and its profile, read anew where the environment or a file of profiles changed. Asks nobody.
    pub(crate) fn of_environment() -> Result<Arc<Self>> {
        let variables = Variables::of_process();
        let files = ProfileFiles::of(&variables);
        let mut all = lock(&ACCOUNTS);
        if let Some(known) = all.iter().find(|one| one.variables == variables && one.files == files) {
            return Ok(known.clone());
        }
        let new = Arc::new(Self::new(variables, files)?);
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push(new.clone());
        Ok(new)
    }

    fn new(variables: Variables, files: ProfileFiles) -> Result<Self> {
        let profiles = Profiles::read(&files)?;
        let settings = Settings::read(&variables, &profiles)?;
        let text = |name| variables.get(name).map(ToOwned::to_owned);
        let keys = text("AWS_ACCESS_KEY_ID").zip(text("AWS_SECRET_ACCESS_KEY"));
        let keys = keys.filter(|_| !settings.is_anonymous);
        let keys = keys.map(|(id, secret)| Arc::new(Keys::new(id, secret, text("AWS_SESSION_TOKEN"), None)));
        Ok(Self { variables, files, settings, keys })
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
        self.signing(|signing| signing.url(&self.place(&ask.bucket)?, ask, expires))
    }

    /// Who gave the keys, for receipts: "profile dev (SSO)". `None`: not asked yet.
    pub(crate) fn provider(&self) -> Option<String> {
        self.keys.as_ref().map(|_| "environment".to_owned())
    }

    fn place(&self, bucket: &str) -> Result<Place> {
        Place::of(&self.settings, bucket, &self.settings.region)
    }

    fn signing<T>(&self, sign: impl FnOnce(&Signing<'_>) -> Result<T>) -> Result<T> {
        sign(&Signing {
            keys: self.keys.as_deref(),
            region: &self.settings.region,
            requester_pays: self.settings.requester_pays,
            now: SystemTime::now(),
        })
    }
}

impl Heads for Account {
    fn are_keys_at_hand(&self) -> bool {
        true
    }

    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        self.signing(|signing| signing.head(&self.place(&ask.bucket)?, ask, body))
    }
}
