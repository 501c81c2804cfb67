//! The variables that say who asks and where, as they were at one moment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_config::env;
use forebay_error::{Error, ErrorKind, Result};

/// The variable that has sites.
pub(crate) const SITES: &str = "FOREBAY_S3_ENDPOINTS";

/// The endpoint of one of these, among the variables by which it is used. No variable of the environment has this name.
pub(super) const SITE_URL: &str = "endpoint of the site";

/// Variables of other programs that are looked at, beside all that begin with `AWS_`.
const OTHERS: [&str; 10] = [
    SITES,
    "HOME",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// A picture of them. It has secrets: there is no `Debug` of the values.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of the process, now.
    pub(super) fn of_process() -> Self {
        let wanted = |name: &String| name.starts_with("AWS_") || OTHERS.contains(&name.as_str());
        let named = env::names().into_iter().filter(wanted);
        Self(
            named
                .filter_map(|name| Some((env::text(&name)?, name)))
                .map(|(value, name)| (name, value))
                .collect(),
        )
    }

    /// A variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The same with another value of one.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut all = self.0.clone();
        all.insert(name.to_owned(), value.to_owned());
        Self(all)
    }

    /// The same without one.
    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// The first of some that is set.
    pub(super) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// A variable that is true or false; false where it is not set.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool> {
        self.get(name).map_or(Ok(false), |value| flag(name, value))
    }

    /// All of them, for providers of keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }

    /// The path that a variable names, or one in the home folder.
    pub(super) fn path(&self, name: &str, at_home: &str) -> Option<PathBuf> {
        match self.get(name) {
            Some(path) => self.expand(path),
            None => Some(PathBuf::from(self.get("HOME")?).join(at_home)),
        }
    }

    /// A path whose first letter may be `~`.
    pub(super) fn expand(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix("~/") {
            Some(rest) => Some(PathBuf::from(self.get("HOME")?).join(rest)),
            None => Some(PathBuf::from(path)),
        }
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A value that is true or false, as AWS's tools read it.
pub(super) fn flag(name: &'static str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(bad(name, value, "true, false")),
    }
}

/// The error of a setting with a value that there is not.
pub(super) fn bad(name: &'static str, value: &str, words: &str) -> Error {
    let error = Error::new(ErrorKind::InvalidInput, format!("cannot read the setting {name}: no such value"));
    error.with("value", value).hint(format!("{name}: {words}"))
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Variables {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self::from(&pairs[..])
    }
}

#[cfg(test)]
impl From<&[(&str, &str)]> for Variables {
    fn from(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let variables = Variables::from([("AWS_SECRET_ACCESS_KEY", "wJalr")]);
        assert_eq!(format!("{variables:?}"), r#"{"AWS_SECRET_ACCESS_KEY"}"#);
    }

    #[test]
    fn empty_ones_count_as_unset() {
        let variables = Variables::from([("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "eu-west-1")]);
        assert_eq!(variables.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]), Some("eu-west-1"));
    }

    #[test]
    fn paths() {
        let variables = Variables::from([("HOME", "/home/me"), ("AWS_CONFIG_FILE", "~/x")]);
        assert_eq!(variables.path("AWS_CONFIG_FILE", ".aws/config"), Some("/home/me/x".into()));
        assert_eq!(variables.path("AWS_OTHER", ".aws/config"), Some("/home/me/.aws/config".into()));
    }

    #[test]
    fn flags() {
        let variables = Variables::from([("AWS_A", "TRUE"), ("AWS_B", "maybe")]);
        assert!(variables.flag("AWS_A").unwrap());
        assert!(!variables.flag("AWS_C").unwrap());
        assert!(variables.flag("AWS_B").unwrap_err().hints()[0].contains("true, false"));
    }
}
