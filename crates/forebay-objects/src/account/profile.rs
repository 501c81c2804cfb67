//! Profiles: keys of sections of the two files, merged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_config::files::read_plain;
use forebay_error::{Error, ErrorKind, Result};

use super::ini::Ini;
use super::variables::Variables;

/// Bytes of the largest file of profiles.
const LARGEST: u64 = 16 << 20;

/// Where the two files are, and their state: times and sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfileFiles {
    config: Option<PathBuf>,
    credentials: Option<PathBuf>,
    stamps: [Option<(SystemTime, u64)>; 2],
}

impl ProfileFiles {
    /// Those that variables name, or those of the home folder.
    pub(super) fn of(variables: &Variables) -> Self {
        let config = variables.path("AWS_CONFIG_FILE", ".aws/config");
        let credentials = variables.path("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let stamp = |path: &Option<PathBuf>| {
            let data = std::fs::metadata(path.as_deref()?).ok()?;
            Some((data.modified().ok()?, data.len()))
        };
        let stamps = [stamp(&config), stamp(&credentials)];
        Self { config, credentials, stamps }
    }
}

/// The profiles of both files.
#[derive(Clone, Default)]
pub(super) struct Profiles {
    config: Ini,
    credentials: Ini,
}

impl Profiles {
    /// Reads the files. One that is not there has no profiles.
    pub(super) fn read(files: &ProfileFiles) -> Result<Self> {
        Ok(Self { config: read(files.config.as_deref())?, credentials: read(files.credentials.as_deref())? })
    }

    /// Those of a config file with this text.
    #[cfg(feature = "fuzz")]
    pub(super) fn of_text(text: &str) -> Option<Self> {
        Some(Self { config: Ini::parse(text).ok()?, credentials: Ini::default() })
    }

    /// A value of a profile that is not empty. The file of credentials has the last word.
    pub(super) fn get(&self, profile: &str, key: &str) -> Option<&str> {
        let sections = [self.credentials.section(profile), self.in_config(profile)];
        let found = sections.into_iter().flatten().find_map(|section| section.get(key));
        found.map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A value of a section of the config file that is no profile: `[sso-session NAME]`, `[services NAME]`.
    pub(super) fn beside(&self, kind: &str, name: &str, key: &str) -> Option<&str> {
        let section = self.config.section(&format!("{kind} {name}"))?;
        section.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a file has the profile.
    pub(super) fn has(&self, profile: &str) -> bool {
        self.credentials.section(profile).is_some() || self.in_config(profile).is_some()
    }

    /// The names of all profiles.
    pub(super) fn names(&self) -> Vec<&str> {
        let named = self.config.names().filter_map(|name| match name {
            "default" => Some(name),
            _ => name.strip_prefix("profile "),
        });
        named.chain(self.credentials.names()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn in_config(&self, profile: &str) -> Option<&std::collections::BTreeMap<String, String>> {
        let named = self.config.section(&format!("profile {profile}"));
        named.or_else(|| self.config.section(profile).filter(|_| profile == "default"))
    }
}

fn read(path: Option<&Path>) -> Result<Ini> {
    let Some(path) = path else { return Ok(Ini::default()) };
    // How variables say that there is no file.
    if path == Path::new("/dev/null") {
        return Ok(Ini::default());
    }
    let text = match read_plain(path, LARGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ini::default()),
        Err(error) => return Err(Error::from_io(&error, "cannot read profiles").with("path", path.display())),
    };
    // A line may be a secret: only its number is shown.
    Ini::parse(&text).map_err(|line| {
        let error =
            Error::new(ErrorKind::InvalidInput, "cannot read profiles: no section, no key and no comment");
        error
            .with("path", path.display())
            .with("line", line)
            .hint("lines are [profile NAME], KEY = VALUE, # COMMENT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_null_is_no_file() {
        assert!(read(Some(Path::new("/dev/null"))).is_ok());
        assert!(read(Some(Path::new("/dev/zero"))).is_err());
    }

    fn files(config: &str, credentials: &str) -> (tempfile::TempDir, ProfileFiles) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        std::fs::write(folder.path().join(".aws/config"), config).unwrap();
        std::fs::write(folder.path().join(".aws/credentials"), credentials).unwrap();
        let variables = Variables::from([("HOME", folder.path().to_str().unwrap())]);
        let files = ProfileFiles::of(&variables);
        (folder, files)
    }

    #[test]
    fn both_files_are_merged() {
        let (_folder, files) = files(
            "[default]\nregion = a\n[profile dev]\nregion = b\naws_access_key_id = OLD\n[dev2]\nregion = no profile\n\
             [services s]\ns3 =\n  endpoint_url = http://h\n",
            "[dev]\naws_access_key_id = NEW\n[only]\naws_access_key_id = X\n",
        );
        let profiles = Profiles::read(&files).unwrap();
        assert_eq!(profiles.get("default", "region"), Some("a"));
        assert_eq!(profiles.get("dev", "region"), Some("b"));
        assert_eq!(profiles.get("dev", "aws_access_key_id"), Some("NEW"));
        assert_eq!(profiles.beside("services", "s", "s3.endpoint_url"), Some("http://h"));
        assert!(profiles.has("only") && !profiles.has("dev2"));
        assert_eq!(profiles.names(), ["default", "dev", "only"]);
    }

    #[test]
    fn a_changed_file_has_another_stamp() {
        let (folder, before) = files("[default]\n", "");
        std::fs::write(folder.path().join(".aws/config"), "[default]\nregion = x\n").unwrap();
        let after = ProfileFiles::of(&Variables::from([("HOME", folder.path().to_str().unwrap())]));
        assert_ne!(before, after);
    }

    #[test]
    fn bad_lines_are_named_and_not_shown() {
        let (_folder, files) = files("", "[dev]\nwJalrXUtnFEMI\n");
        let error = Profiles::read(&files).err().unwrap();
        assert!(error.to_string().contains("line=2") && !error.to_string().contains("wJalr"), "{error}");
    }

    #[test]
    fn files_that_are_not_there_are_empty() {
        let files = ProfileFiles::of(&Variables::from([("HOME", "/nowhere/at/all")]));
        assert!(Profiles::read(&files).unwrap().names().is_empty());
        assert!(Profiles::read(&ProfileFiles::of(&Variables::default())).unwrap().names().is_empty());
        let none = ProfileFiles::of(&Variables::from([("AWS_CONFIG_FILE", "/dev/null")]));
        assert!(Profiles::read(&none).unwrap().names().is_empty());
    }
}
