//! What providers need, and what they are asked for.

use forebay_error::{Error, Result};

use super::super::settings::{Lookup, Settings};
use super::super::target::Target;
use super::super::variables::Variables;
use super::http::Http;
use super::reqsign::Machine;

/// What providers need beside their own settings.
pub(crate) struct World {
    pub(super) variables: Variables,
    pub(super) http: Http,
    /// Where roles are asked for, and the region that signs that.
    pub(super) sts: (Target, String),
    /// The URL of SSO, where one is named.
    pub(super) sso: Option<String>,
    pub(super) machine: Machine,
}

/// A role that is assumed.
#[derive(Clone)]
pub(crate) struct Role {
    /// Empty: variables name the role.
    pub(super) profile: String,
    pub(super) arn: String,
    pub(super) session: String,
    pub(super) external_id: Option<String>,
    pub(super) seconds: Option<String>,
}

/// A role of an account, by a token that `aws sso login` left.
#[derive(Clone)]
pub(crate) struct Sso {
    pub(super) profile: String,
    pub(super) account: String,
    pub(super) role: String,
    pub(super) region: String,
    /// What the name of the token's file is made from.
    pub(super) cache_key: String,
}

impl World {
    pub(crate) fn new(lookup: &Lookup<'_>, settings: &Settings) -> Result<Self> {
        let variables = lookup.variables;
        let sts = match lookup.endpoint("sts")? {
            Some((url, name)) => (Target::parse(url, name)?, settings.region.clone()),
            None if settings.has_region && variables.get("AWS_STS_REGIONAL_ENDPOINTS") != Some("legacy") => {
                (Target::of_aws("sts", &settings.region, settings.dual_stack), settings.region.clone())
            }
            None => (Target::of_aws_anywhere("sts"), "us-east-1".to_owned()),
        };
        let sso = variables.get("AWS_ENDPOINT_URL_SSO").map(ToOwned::to_owned);
        let http = Http::new(settings);
        Ok(Self { variables: variables.clone(), http, sts, sso, machine: Machine::new(variables)? })
    }
}

/// Adds how keys are given.
pub(super) fn with_ways(error: Error) -> Error {
    error
        .hint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
        .hint("for a bucket that anyone may read: AWS_NO_SIGN_REQUEST=true")
}
