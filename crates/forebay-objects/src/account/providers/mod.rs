//! Where keys come from. The settings alone say which provider is asked: one that fails is an error, and no other one is tried.

mod http;
mod process;
mod reqsign;
mod sso_token;
mod sts;
mod world;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use super::keys::Keys;
use super::settings::Lookup;
use super::variables::Variables;
pub(super) use world::World;
use world::{Role, Sso, with_ways};

/// One that gives keys.
#[derive(Clone)]
pub(super) enum Source {
    /// Keys that never change: of variables, or of a profile.
    Fixed(String, Arc<Keys>),
    Role(Role, Box<Source>),
    WebIdentity(Role, PathBuf),
    Sso(Sso),
    /// A command that a profile names.
    Process(String, String),
    Container,
    /// The metadata service of the machine.
    Machine,
}

impl Source {
    /// That of the variables and the profile.
    pub(super) fn choose(lookup: &Lookup<'_>, is_named: bool) -> Result<Self> {
        let variables = lookup.variables;
        let profile = lookup.profile;
        let by_profile = is_named && lookup.profiles.get(profile, "credential_source") == Some("Environment");
        if let Some(keys) = of_variables(variables)?.filter(|_| !by_profile) {
            return Ok(keys);
        }
        let of_pod = || Self::of_pod(variables);
        let found = if is_named { None } else { of_pod() };
        let found = match found {
            Some(found) => Some(found),
            None => Self::of_profile(lookup, profile, &mut Vec::new())?,
        };
        match found {
            Some(found) => Ok(found),
            None if is_named => Err(no_keys_in(profile)),
            None if has_container(variables) => Ok(Self::Container),
            None if variables.flag("AWS_EC2_METADATA_DISABLED")? => Err(no_keys()),
            None => Ok(Self::Machine),
        }
    }

    /// The role that a pod of Kubernetes has by its variables.
    fn of_pod(variables: &Variables) -> Option<Self> {
        let (arn, file) = (variables.get("AWS_ROLE_ARN")?, variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")?);
        let session = variables.get("AWS_ROLE_SESSION_NAME").map_or_else(session_name, ToOwned::to_owned);
        let role =
            Role { profile: String::new(), arn: arn.to_owned(), session, external_id: None, seconds: None };
        Some(Self::WebIdentity(role, file.into()))
    }

    fn of_profile(lookup: &Lookup<'_>, profile: &str, seen: &mut Vec<String>) -> Result<Option<Self>> {
        let get = |key| lookup.profiles.get(profile, key);
        if let Some(arn) = get("role_arn") {
            return Self::of_role(lookup, profile, arn, seen).map(Some);
        }
        if let Some(sso) = sso(lookup, profile)? {
            return Ok(Some(sso));
        }
        if let Some(keys) = fixed(lookup, profile)? {
            return Ok(Some(keys));
        }
        Ok(get("credential_process").map(|command| Self::Process(profile.to_owned(), command.to_owned())))
    }

    fn of_role(lookup: &Lookup<'_>, profile: &str, arn: &str, seen: &mut Vec<String>) -> Result<Self> {
        let get = |key| lookup.profiles.get(profile, key);
        let owned = |key| get(key).map(ToOwned::to_owned);
        let wrong = |why: &str, hint: &str| {
            let error =
                Error::new(ErrorKind::InvalidInput, format!("cannot assume the role of the profile: {why}"));
            Err(error.with("profile", profile).hint(hint.to_owned()))
        };
        let session = owned("role_session_name").unwrap_or_else(session_name);
        let (external_id, seconds) = (owned("external_id"), owned("duration_seconds"));
        let role = Role { profile: profile.to_owned(), arn: arn.to_owned(), session, external_id, seconds };
        if get("mfa_serial").is_some() {
            let hint = format!("eval $(aws configure export-credentials --profile {profile} --format env)");
            return wrong("it wants a code of a device (mfa_serial)", &hint);
        }
        if let Some(file) = get("web_identity_token_file") {
            let file = lookup.variables.expand(file).unwrap_or_else(|| file.into());
            return Ok(Self::WebIdentity(role, file));
        }
        let source = match (get("source_profile"), get("credential_source")) {
            (Some(own), None) if own == profile => fixed(lookup, profile)?,
            (Some(other), None) if seen.iter().any(|name| name == other) => {
                return wrong(
                    "its source_profile leads back to it",
                    "a source_profile that has keys of its own",
                );
            }
            (Some(other), None) => {
                seen.push(profile.to_owned());
                Self::of_profile(lookup, other, seen)?
            }
            (None, Some("Environment")) => of_variables(lookup.variables)?,
            (None, Some("Ec2InstanceMetadata")) => Some(Self::Machine),
            (None, Some("EcsContainer")) => Some(Self::Container),
            _ => {
                let hint = "one of source_profile = NAME, credential_source = Environment | Ec2InstanceMetadata | EcsContainer";
                return wrong("it does not say whose keys assume it", hint);
            }
        };
        match source {
            Some(source) => Ok(Self::Role(role, Box::new(source))),
            None => {
                wrong("its source has no keys", "aws configure list-profiles; aws configure --profile SOURCE")
            }
        }
    }

    /// Asks for keys. Waits, as long as its server takes.
    pub(super) fn ask(&self, world: &World) -> Result<Arc<Keys>> {
        let keys = match self {
            Self::Fixed(_, keys) => return Ok(keys.clone()),
            Self::Role(role, source) => {
                let keys = source.ask(world)?;
                sts::assume(world, role, &keys)
            }
            Self::WebIdentity(role, file) => sts::assume_by_token(world, role, file),
            Self::Sso(sso) => sso_token::renew(world, sso)
                .and_then(|()| reqsign::sso(world, sso))
                .map_err(|error| error.hint(format!("aws sso login --profile {}", sso.profile))),
            Self::Process(_, command) => reqsign::process(world, command),
            Self::Container => reqsign::container(world),
            Self::Machine => world.machine.ask(world),
        };
        keys.map(Arc::new).map_err(|error| error.with("provider", self))
    }

    /// Keys that it has without asking.
    pub(super) fn fixed(&self) -> Option<Arc<Keys>> {
        match self {
            Self::Fixed(_, keys) => Some(keys.clone()),
            _ => None,
        }
    }
}

/// For receipts and errors.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(name, _) => f.write_str(name),
            Self::Role(role, source) => write!(f, "profile {} (role {} by {source})", role.profile, role.arn),
            Self::WebIdentity(role, _) if role.profile.is_empty() => {
                write!(f, "web identity (role {})", role.arn)
            }
            Self::WebIdentity(role, _) => {
                write!(f, "profile {} (web identity, role {})", role.profile, role.arn)
            }
            Self::Sso(sso) => write!(f, "profile {} (SSO)", sso.profile),
            Self::Process(profile, _) => write!(f, "profile {profile} (process)"),
            Self::Container => f.write_str("container"),
            Self::Machine => f.write_str("IMDSv2"),
        }
    }
}

fn session_name() -> String {
    format!("forebay-{}", std::process::id())
}

fn of_variables(variables: &Variables) -> Result<Option<Source>> {
    let (id, secret) = (variables.get("AWS_ACCESS_KEY_ID"), variables.get("AWS_SECRET_ACCESS_KEY"));
    let keys = pair(id, secret, variables.get("AWS_SESSION_TOKEN")).map_err(|missing| {
        let error =
            Error::new(ErrorKind::InvalidInput, "cannot sign requests: one of two variables is not set");
        let missing = missing.to_ascii_uppercase();
        error.hint(format!(
            "set {missing}, or unset the other one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ))
    })?;
    Ok(keys.map(|keys| Source::Fixed("environment".to_owned(), keys)))
}

fn fixed(lookup: &Lookup<'_>, profile: &str) -> Result<Option<Source>> {
    let get = |key| lookup.profiles.get(profile, key);
    let keys = pair(get("aws_access_key_id"), get("aws_secret_access_key"), get("aws_session_token"));
    let keys = keys.map_err(|missing| {
        let error =
            Error::new(ErrorKind::InvalidInput, "cannot sign requests: the profile has half of its keys");
        error.with("profile", profile).hint(format!("{missing} = …, below [{profile}]"))
    })?;
    Ok(keys.map(|keys| Source::Fixed(format!("profile {profile}"), keys)))
}

/// Keys, or the name of the half that is missing.
fn pair(
    id: Option<&str>,
    secret: Option<&str>,
    token: Option<&str>,
) -> Result<Option<Arc<Keys>>, &'static str> {
    // Files of secrets end with a line feed, and their text goes into variables as it is.
    let text = |value: &str| value.trim_end_matches(['\r', '\n']).to_owned();
    match (id, secret) {
        (Some(id), Some(secret)) => {
            Ok(Some(Arc::new(Keys::new(text(id), text(secret), token.map(text), None))))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err("aws_secret_access_key"),
        (None, Some(_)) => Err("aws_access_key_id"),
    }
}

fn sso(lookup: &Lookup<'_>, profile: &str) -> Result<Option<Source>> {
    let get = |key| lookup.profiles.get(profile, key);
    let (Some(account), Some(role)) = (get("sso_account_id"), get("sso_role_name")) else { return Ok(None) };
    let of_session = |name, key| lookup.profiles.beside("sso-session", name, key);
    let (cache_key, region) = match get("sso_session") {
        Some(name) => (Some(name), of_session(name, "sso_region")),
        None => (get("sso_start_url"), get("sso_region")),
    };
    let (Some(cache_key), Some(region)) = (cache_key, region) else {
        let error = Error::new(
            ErrorKind::InvalidInput,
            "cannot use SSO: the profile names no session, or it has no region",
        );
        return Err(error.with("profile", profile).hint(format!("aws configure sso --profile {profile}")));
    };
    let [profile, account, role, region, cache_key] =
        [profile, account, role, region, cache_key].map(ToOwned::to_owned);
    Ok(Some(Source::Sso(Sso { profile, account, role, region, cache_key })))
}

fn has_container(variables: &Variables) -> bool {
    variables
        .first(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"])
        .is_some()
}

fn no_keys_in(profile: &str) -> Error {
    let error = Error::new(
        ErrorKind::PermissionDenied,
        "cannot sign requests: the profile that AWS_PROFILE names has no keys",
    );
    error.with("profile", profile).hint(format!("aws configure --profile {profile}")).hint(
        "unset AWS_PROFILE: then the role of the container or machine is asked for, which is not done for a named profile",
    )
}

fn no_keys() -> Error {
    with_ways(Error::new(
        ErrorKind::PermissionDenied,
        "cannot sign requests: no variable and no profile has keys",
    ))
}

#[cfg(test)]
mod tests;
