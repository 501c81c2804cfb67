//! The environment, as far as it is to be believed. Nothing else in forebay reads it.

use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;

/// Whether this process has rights that its caller lacks (setuid, setgid, file capabilities: `AT_SECURE`). Then variables
/// would be the caller's wishes with another user's rights, so they are ignored.
pub fn is_elevated() -> bool {
    static ELEVATED: OnceLock<bool> = OnceLock::new();
    // SAFETY: looks a number up.
    *ELEVATED.get_or_init(|| unsafe { libc::getauxval(libc::AT_SECURE) } != 0)
}

/// A variable, empty or not.
pub fn value(name: &str) -> Option<OsString> {
    if is_elevated() { None } else { std::env::var_os(name) }
}

/// A variable that says something.
pub fn filled(name: &str) -> Option<OsString> {
    value(name).filter(|value| !value.is_empty())
}

/// The names of all variables that are text.
pub fn names() -> Vec<String> {
    let all = if is_elevated() { None } else { Some(std::env::vars_os()) };
    all.into_iter().flatten().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// A variable as text; `None` too if it is none.
pub fn text(name: &str) -> Option<String> {
    value(name)?.into_string().ok()
}

/// A variable that begins as forebay's do and is none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The one that was probably meant.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no variable of forebay and does nothing", self.name)?;
        self.nearest.map_or(Ok(()), |nearest| write!(f, "; the nearest is {nearest}"))
    }
}

/// Variables of builds and tests, which are documented where these are.
const OF_BUILDS: [&str; 5] =
    ["FOREBAY_BUILD_ID", "FOREBAY_HIDE_SYMBOLS", "FOREBAY_PATHS", "FOREBAY_TOOLS", "FOREBAY_WHEEL"];

/// The variables of this process that look like forebay's and are not, by name.
pub fn unknown() -> Vec<UnknownVariable> {
    unknown_among(names())
}

fn unknown_among(names: Vec<String>) -> Vec<UnknownVariable> {
    let known = |name: &str| {
        crate::VARIABLES.iter().any(|variable| variable.name == name)
            || OF_BUILDS.contains(&name)
            || ["FOREBAY_TEST_", "FOREBAY_LAB_"].iter().any(|start| name.starts_with(start))
    };
    let mut found: Vec<_> =
        names.into_iter().filter(|name| name.starts_with("FOREBAY_") && !known(name)).collect();
    found.sort();
    found.into_iter().map(|name| UnknownVariable { nearest: nearest(&name), name }).collect()
}

/// The variable whose name differs least, if it does not differ by more than a third.
fn nearest(name: &str) -> Option<&'static str> {
    let names = crate::VARIABLES.iter().map(|variable| variable.name);
    let (distance, nearest) = names.map(|known| (edit_distance(name, known), known)).min()?;
    (distance * 3 <= nearest.len() - "FOREBAY_".len()).then_some(nearest)
}

/// The Levenshtein distance of two words: how many letters to change, add or leave out.
pub(crate) fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (index, wanted) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *wanted);
            diagonal = row[index + 1];
            row[index + 1] = changed.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let distances = [("", "abc"), ("abc", "abc"), ("abz", "xabc"), ("ä", "a")]
            .map(|(one, other)| edit_distance(one, other));
        assert_eq!(distances, [3, 0, 2, 1]);
    }

    #[test]
    fn unknown_variables_have_the_nearest_known_one() {
        let names = [
            "FOREBAY_STRCT",
            "FOREBAY_STRICT",
            "HOME",
            "FOREBAY_ENGNIE",
            "FOREBAY_MY_OWN_THING",
            "FOREBAY_TEST_GPU",
        ];
        let found = unknown_among(names.map(str::to_owned).to_vec());
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.nearest)).collect();
        assert_eq!(
            found,
            [
                ("FOREBAY_ENGNIE", Some("FOREBAY_ENGINE")),
                ("FOREBAY_MY_OWN_THING", None),
                ("FOREBAY_STRCT", Some("FOREBAY_STRICT")),
            ]
        );
        let text = UnknownVariable { name: "FOREBAY_A".to_owned(), nearest: None }.to_string();
        assert_eq!(text, "FOREBAY_A is no variable of forebay and does nothing");
        assert_eq!((edit_distance("kitten", "sitting"), edit_distance("", "abc")), (3, 3));
    }
}
