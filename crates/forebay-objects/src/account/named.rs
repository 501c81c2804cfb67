//! Sites by name: the same buckets at several servers, the nearest first.

use forebay_error::{Error, ErrorKind, Result};

use super::target::Target;
use super::variables::{SITE_URL, SITES, Variables};
use crate::url::is_name;

/// The most that are taken: accounts of this many environments are kept.
const MOST: usize = super::KEPT;
const FORM: &str = "FOREBAY_S3_ENDPOINTS=near=https://a.example,far=https://b.example";

/// Variables of keys, which a profile of a site takes the place of.
const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// A site: its name, its endpoint, and perhaps a profile of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSite {
    pub(super) name: String,
    url: String,
    profile: Option<String>,
}

impl NamedSite {
    /// Those that the variable names, the nearest first; none where it is not set.
    pub(super) fn all(variables: &Variables) -> Result<Vec<Self>> {
        let Some(text) = variables.get(SITES) else { return Ok(Vec::new()) };
        let all = text.split(',').map(Self::parse).collect::<Result<Vec<_>>>()?;
        let twice =
            all.iter().enumerate().find(|(at, site)| all[..*at].iter().any(|one| one.name == site.name));
        if let Some((_, site)) = twice {
            return Err(wrong("a name is given twice").with("site", &site.name));
        }
        if all.len() > MOST {
            return Err(wrong("there are too many sites").with("sites", all.len()).with("most", MOST));
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Self> {
        let (name, rest) = text.trim().split_once('=').ok_or_else(|| wrong("a site is NAME=URL"))?;
        if !is_name(name) {
            return Err(wrong("a name has letters, digits, - and _, 32 at most"));
        }
        let (url, option) = rest.split_once(';').map_or((rest, None), |(url, option)| (url, Some(option)));
        Target::parse(url, SITES)?;
        let profile = match option
            .map(|option| option.strip_prefix("profile=").filter(|name| !name.is_empty()))
        {
            None => None,
            Some(Some(profile)) => Some(profile.to_owned()),
            Some(None) => return Err(wrong("an unknown option").hint("near=https://a.example;profile=NAME")),
        };
        Ok(Self { name: name.to_owned(), url: url.to_owned(), profile })
    }

    /// The variables by which it is used: the same but for its endpoint, and its keys where it has a profile.
    pub(super) fn variables(&self, all: &Variables) -> Variables {
        let here = all.with(SITE_URL, &self.url);
        match &self.profile {
            Some(profile) => {
                KEYS.iter().fold(here.with("AWS_PROFILE", profile), |here, key| here.without(key))
            }
            None => here,
        }
    }
}

/// The error of a name that the variable has not.
pub(super) fn unknown(name: &str, known: &[NamedSite]) -> Error {
    let error = Error::new(ErrorKind::NotFound, "no site has this name").with("site", name);
    match known {
        [] => error.hint(FORM),
        known => {
            let names = known.iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(", ");
            error.hint(format!("sites of {SITES}: {names}"))
        }
    }
}

/// The value is not shown: a URL may have a secret in it.
fn wrong(why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("cannot read {SITES}: {why}")).hint(FORM)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn all(text: &str) -> Result<Vec<NamedSite>> {
        NamedSite::all(&Variables::from([(SITES, text)]))
    }

    #[test]
    fn sites_are_read_in_their_order() {
        let sites = all("near=https://a, far=http://b:9000/base;profile=x").unwrap();
        let names: Vec<_> = sites.iter().map(|site| (site.name.as_str(), site.profile.as_deref())).collect();
        assert_eq!(names, [("near", None), ("far", Some("x"))]);
        assert!(NamedSite::all(&Variables::from([])).unwrap().is_empty());
    }

    #[test]
    fn wrong_ones_are_refused() {
        for (text, why) in [
            ("https://a", "NAME=URL"),
            ("near", "NAME=URL"),
            ("a=https://a,a=https://b", "given twice"),
            ("a=ftp://a", "the URL of the endpoint"),
            ("a=https://a;region=x", "an unknown option"),
            ("a b=https://a", "a name has"),
            ("a=https://a,", "NAME=URL"),
        ] {
            let error = all(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(error.message().contains(why) && !error.hints().is_empty(), "{text}: {error}");
        }
        let many: Vec<_> = (0..=MOST).map(|number| format!("s{number}=http://h")).collect();
        assert!(all(&many.join(",")).unwrap_err().message().contains("too many"));
        assert!(!format!("{:?}", all("a=https://key:secret@h").unwrap_err()).contains("secret"));
    }

    #[test]
    fn an_endpoint_that_is_ignored_stays_so_for_other_services() {
        let profiles = crate::account::Profiles::default();
        let variables = Variables::from([
            ("AWS_ENDPOINT_URL", "http://old"),
            ("AWS_ENDPOINT_URL_S3", "http://older"),
            ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
        ]);
        let near = all("near=http://a").unwrap()[0].variables(&variables);
        let lookup = crate::account::Lookup { variables: &near, profiles: &profiles, profile: "default" };
        assert_eq!(lookup.endpoint("sts").unwrap(), None);
        assert_eq!(lookup.endpoint("s3").unwrap(), Some(("http://a", SITES)));
    }

    #[test]
    fn a_profile_takes_the_place_of_keys() {
        let variables = Variables::from([("AWS_ACCESS_KEY_ID", "k"), ("AWS_ENDPOINT_URL", "http://old")]);
        let sites = all("near=http://a,far=http://b;profile=x").unwrap();
        let near = sites[0].variables(&variables);
        assert_eq!((near.get(SITE_URL), near.get("AWS_ACCESS_KEY_ID")), (Some("http://a"), Some("k")));
        let far = sites[1].variables(&variables);
        assert_eq!((far.get("AWS_PROFILE"), far.get("AWS_ACCESS_KEY_ID")), (Some("x"), None));
    }
}
