//! The files `~/.aws/config` and `~/.aws/credentials`: sections, keys, and keys below a key.

use std::collections::BTreeMap;

/// Sections of a file: the values of their keys. A key below another one is `parent.child`. It has secrets: no `Debug`.
#[derive(Clone, Default)]
pub(super) struct Ini(BTreeMap<String, BTreeMap<String, String>>);

impl Ini {
    /// Reads a file. `Err`: the number of a line, from 1, that is none of such a file.
    pub(super) fn parse(text: &str) -> Result<Self, usize> {
        let mut reader = Reader::default();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            reader.line(line).ok_or(index + 1)?;
        }
        Ok(Self(reader.sections))
    }

    /// The keys of a section.
    pub(super) fn section(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.0.get(name)
    }

    /// The names of all sections.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[derive(Default)]
struct Reader {
    sections: BTreeMap<String, BTreeMap<String, String>>,
    section: Option<String>,
    /// The key of the last line that did not begin with a blank.
    key: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Option<()> {
        let is_below = line.starts_with([' ', '\t']);
        let text = line.trim();
        if text.is_empty() || text.starts_with(['#', ';']) {
            return Some(());
        }
        if text.starts_with('[') && !is_below {
            let name = section_name(text)?;
            self.sections.entry(name.clone()).or_default();
            (self.section, self.key) = (Some(name), None);
            return Some(());
        }
        let section = self.sections.get_mut(self.section.as_deref()?)?;
        match (is_below, &self.key) {
            (true, Some(key)) if section.get(key).is_some_and(String::is_empty) => {
                let (child, value) = pair(text)?;
                section.insert(format!("{key}.{child}"), value);
            }
            // The value before goes on.
            (true, Some(key)) => {
                let value = section.get_mut(key)?;
                value.push('\n');
                value.push_str(text);
            }
            _ => {
                let (key, value) = pair(text)?;
                section.insert(key.clone(), value);
                self.key = Some(key);
            }
        }
        Some(())
    }
}

/// `[profile dev]`, `[profile "a b"]`, with a comment behind it: `profile dev`.
fn section_name(text: &str) -> Option<String> {
    let (inside, behind) = text[1..].split_once(']')?;
    let behind = behind.trim_start();
    if !behind.is_empty() && !behind.starts_with(['#', ';']) {
        return None;
    }
    let (kind, name) = inside.trim().split_once([' ', '\t']).unwrap_or((inside.trim(), ""));
    let name = name.trim().trim_matches(['"', '\'']);
    Some(if name.is_empty() { kind.to_owned() } else { format!("{kind} {name}") })
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let key = key.trim().to_ascii_lowercase();
    (!key.is_empty()).then(|| (key, without_comment(value).trim().to_owned()))
}

/// A value up to a `#` or `;` behind a blank.
fn without_comment(value: &str) -> &str {
    let starts = |at: &usize| value[..*at].ends_with([' ', '\t']);
    let comment = value.match_indices(['#', ';']).map(|(at, _)| at).find(starts);
    &value[..comment.unwrap_or(value.len())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value<'a>(ini: &'a Ini, section: &str, key: &str) -> Option<&'a str> {
        ini.section(section)?.get(key).map(String::as_str)
    }

    #[test]
    fn what_tools_write() {
        let text = "\u{feff}# a comment\n[default]\naws_access_key_id = AKID\nAWS_SECRET_ACCESS_KEY=a/b+c=d#e\n\n\
            [profile dev] ; mine\nregion = eu-west-1 # near\ns3 =\n  addressing_style = path\n\tmax = 3\nrole_arn=arn:x\n\
            [profile \"a b\"]\nregion = x\n[services local]\ns3 = \n  endpoint_url = http://h:9000\nsts =\n  endpoint_url = http://s\n\
            [default]\nregion = us-east-2\nlong = one\n  two\n";
        let ini = Ini::parse(text).unwrap();
        for (section, key, expected) in [
            ("default", "aws_access_key_id", "AKID"),
            ("default", "aws_secret_access_key", "a/b+c=d#e"),
            ("default", "region", "us-east-2"),
            ("default", "long", "one\ntwo"),
            ("profile dev", "region", "eu-west-1"),
            ("profile dev", "s3.addressing_style", "path"),
            ("profile dev", "s3.max", "3"),
            ("profile dev", "role_arn", "arn:x"),
            ("profile a b", "region", "x"),
            ("services local", "s3.endpoint_url", "http://h:9000"),
            ("services local", "sts.endpoint_url", "http://s"),
        ] {
            assert_eq!(value(&ini, section, key), Some(expected), "{section} {key}");
        }
        assert_eq!(
            ini.names().collect::<Vec<_>>(),
            ["default", "profile a b", "profile dev", "services local"]
        );
    }

    #[test]
    fn lines_that_are_none() {
        for (text, line) in [("key = 1", 1), ("[a]\nword", 2), ("[a]\n\n = 1", 3), ("[a", 1), ("[a] b", 1)] {
            assert_eq!(Ini::parse(text).err(), Some(line), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s)[\\[\\]a= #;\n\t\"'é]{0,60}") {
            let _ = Ini::parse(&text);
        }
    }
}
