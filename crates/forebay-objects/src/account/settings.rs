//! Settings of an account: each from its variable, else from the profile.

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

use super::profile::Profiles;
use super::proxies::Proxies;
use super::target::Target;
use super::variables::{SITE_URL, SITES, Variables, bad, flag};

/// When checksums are sent or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumMode {
    /// Wherever the store knows them.
    WhenSupported,
    /// Only where an operation demands them.
    WhenRequired,
}

/// Where the bucket's name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// In the host's name at AWS, in the path at endpoints that were named.
    Auto,
    /// In the path.
    Path,
    /// In the host's name.
    Virtual,
}

/// Settings of an account. They have no keys.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The profile, and whether a variable named it.
    pub(crate) profile: String,
    pub(crate) is_named: bool,
    /// `us-east-1` where none is set.
    pub(crate) region: String,
    pub(crate) has_region: bool,
    /// One that was named; `None`: AWS.
    pub(super) endpoint: Option<Target>,
    pub(crate) style: Style,
    pub(crate) ca_file: Option<String>,
    pub(super) proxies: Proxies,
    /// Requests are not signed.
    pub(crate) is_anonymous: bool,
    pub(crate) requester_pays: bool,
    pub(crate) request_checksums: ChecksumMode,
    pub(crate) response_checksums: ChecksumMode,
    pub(super) dual_stack: bool,
    pub(super) fips: bool,
}

/// Where settings are looked up.
pub(super) struct Lookup<'a> {
    pub(super) variables: &'a Variables,
    pub(super) profiles: &'a Profiles,
    pub(super) profile: &'a str,
}

impl<'a> Lookup<'a> {
    /// The first of some variables that is set, or a key of the profile.
    fn setting(&self, variables: &[&str], key: &str) -> Option<&'a str> {
        self.variables.first(variables).or_else(|| self.profiles.get(self.profile, key))
    }

    fn flag(&self, variable: &'static str, key: &str) -> Result<bool> {
        self.setting(&[variable], key).map_or(Ok(false), |value| flag(variable, value))
    }

    /// The URL of a service (`s3`, `sts`), and the name of the setting that has it.
    pub(super) fn endpoint(&self, service: &str) -> Result<Option<(&'a str, &'static str)>> {
        // Other services are not at the site, and its URL is none that may be ignored.
        if service == "s3"
            && let Some(url) = self.variables.get(SITE_URL)
        {
            return Ok(Some((url, SITES)));
        }
        if self.flag("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore_configured_endpoint_urls")? {
            return Ok(None);
        }
        let services = self.profiles.get(self.profile, "services");
        let of_service = format!("{service}.endpoint_url");
        let name = if service == "s3" { "AWS_ENDPOINT_URL_S3" } else { "AWS_ENDPOINT_URL_STS" };
        let found = self.variables.get(name).map(|url| (url, name));
        let found = found.or_else(|| Some((self.variables.get("AWS_ENDPOINT_URL")?, "AWS_ENDPOINT_URL")));
        let found = found.or_else(|| {
            Some((self.profiles.beside("services", services?, &of_service)?, "endpoint_url of services"))
        });
        Ok(found.or_else(|| {
            Some((self.profiles.get(self.profile, "endpoint_url")?, "endpoint_url of the profile"))
        }))
    }
}

impl Settings {
    pub(super) fn read(variables: &Variables, profiles: &Profiles) -> Result<Self> {
        let named = variables.first(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]);
        let profile = named.unwrap_or("default");
        if named.is_some() && !profiles.has(profile) {
            return Err(no_profile(profile, profiles));
        }
        let lookup = Lookup { variables, profiles, profile };
        let region = lookup
            .setting(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region")
            .map(checked_region)
            .transpose()?;
        let endpoint = lookup.endpoint("s3")?.map(|(url, name)| Target::parse(url, name)).transpose()?;
        let ca_file = lookup.setting(&["AWS_CA_BUNDLE"], "ca_bundle");
        let ca_file = ca_file.map(|path| certificates(variables, path)).transpose()?;
        let unsigned = variables.flag("AWS_NO_SIGN_REQUEST")? || variables.flag("AWS_SKIP_SIGNATURE")?;
        Ok(Self {
            profile: profile.to_owned(),
            is_named: named.is_some(),
            has_region: region.is_some(),
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
            endpoint,
            style: style(&lookup)?,
            ca_file,
            proxies: Proxies::read(variables)?,
            is_anonymous: unsigned,
            requester_pays: requester_pays(variables)?,
            request_checksums: checksums(
                &lookup,
                "AWS_REQUEST_CHECKSUM_CALCULATION",
                "request_checksum_calculation",
            )?,
            response_checksums: checksums(
                &lookup,
                "AWS_RESPONSE_CHECKSUM_VALIDATION",
                "response_checksum_validation",
            )?,
            dual_stack: lookup.flag("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint")?,
            fips: lookup.flag("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint")?,
        })
    }

    /// The URL of the endpoint that was named; `None`: AWS.
    pub(crate) fn endpoint(&self) -> Option<String> {
        self.endpoint.as_ref().map(ToString::to_string)
    }
}

fn no_profile(profile: &str, profiles: &Profiles) -> Error {
    let error = Error::new(ErrorKind::NotFound, "cannot find the profile that AWS_PROFILE names");
    let names = profiles.names();
    let hint = if names.is_empty() {
        "unset AWS_PROFILE: there are no profiles; AWS_CONFIG_FILE names another file".to_owned()
    } else {
        format!("AWS_PROFILE: {}", names.join(", "))
    };
    error.with("profile", profile).hint(hint)
}

/// A region goes into names of hosts and into headers.
pub(crate) fn checked_region(region: &str) -> Result<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match region {
        "aws-global" => Ok("us-east-1".to_owned()),
        _ if region.bytes().all(plain) && (1..=64).contains(&region.len()) => Ok(region.to_owned()),
        _ => Err(bad("AWS_REGION", region, "the name of a region, as eu-west-1")),
    }
}

fn certificates(variables: &Variables, path: &str) -> Result<String> {
    let expanded = variables.expand(path);
    let found = expanded.as_deref().filter(|path| path.is_file()).and_then(Path::to_str);
    found.map(ToOwned::to_owned).ok_or_else(|| {
        let error = Error::new(ErrorKind::NotFound, "cannot find the file of certificates");
        error.with("path", path).hint("AWS_CA_BUNDLE or ca_bundle of the profile: a file in PEM")
    })
}

/// The style that variables name as `object_store` and others read them, else the profile.
fn style(lookup: &Lookup<'_>) -> Result<Style> {
    if let Some(value) = lookup.variables.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") {
        let is_virtual = flag("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", value)?;
        return Ok(if is_virtual { Style::Virtual } else { Style::Path });
    }
    let variable = "AWS_S3_ADDRESSING_STYLE";
    match lookup.setting(&[variable], "s3.addressing_style") {
        None | Some("auto") => Ok(Style::Auto),
        Some("path") => Ok(Style::Path),
        Some("virtual") => Ok(Style::Virtual),
        Some(value) => {
            let is_variable = lookup.variables.get(variable).is_some();
            let name = if is_variable { variable } else { "addressing_style of the profile" };
            Err(bad(name, value, "auto, path, virtual"))
        }
    }
}

fn requester_pays(variables: &Variables) -> Result<bool> {
    match variables.get("AWS_REQUEST_PAYER") {
        None => Ok(false),
        Some("requester") => Ok(true),
        Some(value) => {
            flag("AWS_REQUEST_PAYER", value).map_err(|error| error.hint("AWS_REQUEST_PAYER=requester"))
        }
    }
}

fn checksums(lookup: &Lookup<'_>, variable: &'static str, key: &str) -> Result<ChecksumMode> {
    let Some(value) = lookup.setting(&[variable], key) else { return Ok(ChecksumMode::WhenSupported) };
    match value.to_ascii_lowercase().as_str() {
        "when_supported" => Ok(ChecksumMode::WhenSupported),
        "when_required" => Ok(ChecksumMode::WhenRequired),
        _ => Err(bad(variable, value, "when_supported, when_required")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(config: &str) -> Profiles {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, config).unwrap();
        let variables = Variables::from([("AWS_CONFIG_FILE", path.to_str().unwrap())]);
        Profiles::read(&super::super::profile::ProfileFiles::of(&variables)).unwrap()
    }

    fn read<const N: usize>(variables: [(&str, &str); N], config: &str) -> Result<Settings> {
        Settings::read(&Variables::from(variables), &profiles(config))
    }

    #[test]
    fn defaults() {
        let settings = read([], "").unwrap();
        assert_eq!((settings.region.as_str(), settings.has_region), ("us-east-1", false));
        assert_eq!((settings.style, settings.endpoint()), (Style::Auto, None));
        assert_eq!(settings.request_checksums, ChecksumMode::WhenSupported);
        assert!(!settings.is_anonymous && !settings.requester_pays && !settings.is_named);
    }

    const CONFIG: &str = "[default]\nregion = a\n[profile dev]\nregion = b\nendpoint_url = http://p:1\nservices = local\n\
        s3 =\n  addressing_style = virtual\nrequest_checksum_calculation = when_required\n\
        [services local]\ns3 =\n  endpoint_url = http://s:2\n[profile plain]\nendpoint_url = http://p:1\n";

    #[test]
    fn a_profile_is_read_and_variables_go_before() {
        let settings = read([("AWS_PROFILE", "dev")], CONFIG).unwrap();
        assert_eq!((settings.region.as_str(), settings.style), ("b", Style::Virtual));
        assert_eq!(settings.endpoint().as_deref(), Some("http://s:2"));
        assert_eq!(settings.request_checksums, ChecksumMode::WhenRequired);
        let settings = read([("AWS_PROFILE", "plain")], CONFIG).unwrap();
        assert_eq!(settings.endpoint().as_deref(), Some("http://p:1"));
        let settings = read(
            [
                ("AWS_PROFILE", "dev"),
                ("AWS_DEFAULT_REGION", "c"),
                ("AWS_ENDPOINT_URL", "https://v:3"),
                ("AWS_S3_ADDRESSING_STYLE", "path"),
                ("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_SUPPORTED"),
            ],
            CONFIG,
        );
        let settings = settings.unwrap();
        assert_eq!((settings.region.as_str(), settings.style), ("c", Style::Path));
        assert_eq!(settings.endpoint().as_deref(), Some("https://v:3"));
        assert_eq!(settings.request_checksums, ChecksumMode::WhenSupported);
        assert_eq!(read([], CONFIG).unwrap().region, "a");
    }

    #[test]
    fn errors_name_the_setting_that_is_wrong() {
        let hint = |error: Error| error.hints()[0].clone();
        let style = hint(read([("AWS_S3_ADDRESSING_STYLE", "foo")], "").unwrap_err());
        assert!(style.starts_with("AWS_S3_ADDRESSING_STYLE: "), "{style}");
        let style = hint(read([], "[default]\ns3 =\n  addressing_style = foo\n").unwrap_err());
        assert!(style.starts_with("addressing_style of the profile: "), "{style}");
        let error = read([("AWS_ENDPOINT_URL_S3", "foo")], "").unwrap_err();
        assert!(format!("{error} {:?}", error.hints()).contains("AWS_ENDPOINT_URL_S3"), "{error}");
    }

    #[test]
    fn endpoints_of_variables() {
        let both = [("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL_S3", "http://b")];
        assert_eq!(read(both, "").unwrap().endpoint().as_deref(), Some("http://b"));
        let ignored = [("AWS_ENDPOINT_URL", "http://a"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(read(ignored, "").unwrap().endpoint(), None);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (name, value, hint) in [
            ("AWS_PROFILE", "other", "default, dev, plain"),
            ("AWS_REGION", "a b", "eu-west-1"),
            ("AWS_ENDPOINT_URL", "ftp://x", "http"),
            ("AWS_S3_ADDRESSING_STYLE", "host", "auto, path, virtual"),
            ("AWS_NO_SIGN_REQUEST", "maybe", "true, false"),
            ("AWS_REQUEST_CHECKSUM_CALCULATION", "never", "when_required"),
            ("AWS_CA_BUNDLE", "/nowhere", "PEM"),
            ("AWS_REQUEST_PAYER", "me", "requester"),
        ] {
            let error = read([(name, value)], CONFIG).expect_err(name);
            assert!(error.hints().iter().any(|text| text.contains(hint)), "{name}: {error:?}");
        }
        assert!(read([("AWS_PROFILE", "x")], "").unwrap_err().hints()[0].contains("no profiles"));
    }

    #[test]
    fn what_others_set() {
        let settings = read(
            [
                ("AWS_SKIP_SIGNATURE", "true"),
                ("AWS_REQUEST_PAYER", "requester"),
                ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true"),
            ],
            "",
        );
        let settings = settings.unwrap();
        assert!(settings.is_anonymous && settings.requester_pays);
        assert_eq!(settings.style, Style::Virtual);
    }
}
