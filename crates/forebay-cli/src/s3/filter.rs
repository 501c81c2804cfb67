//! Which files of a tree are meant: `--exclude` and `--include`, as aws-cli has them.

use clap::{ArgMatches, Args, FromArgMatches};

/// Patterns in the order of the command line; of those that match, the last one counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter(Vec<(bool, String)>);

#[derive(Args, Clone, Debug)]
struct Flags {
    /// Leave out names that match, relative to the tree: * is any text, also with /, ? any character, [abc] one of these
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Take names that match nevertheless; of several patterns that match, the last one counts
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
}

impl Filter {
    /// Whether a name is meant.
    pub(super) fn takes(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let last = self.0.iter().rev().find(|(_, pattern)| {
            let pattern: Vec<char> = pattern.chars().collect();
            matches(&pattern, &name)
        });
        last.is_none_or(|(is_include, _)| *is_include)
    }

    /// Whether there is no pattern.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no name below a folder (`a/b/`) is meant: a pattern for all of them leaves them out, and no --include comes
    /// behind it.
    pub(super) fn leaves_out_all_of(&self, folder: &str) -> bool {
        let folder: Vec<char> = folder.chars().collect();
        self.0.iter().rev().take_while(|(is_include, _)| !is_include).any(|(_, pattern)| {
            let pattern: Vec<char> = pattern.chars().collect();
            pattern.ends_with(&['*']) && matches(&pattern, &folder)
        })
    }
}

impl FromArgMatches for Filter {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, clap::Error> {
        let of = |id: &str, is_include: bool| {
            let places = found.indices_of(id).into_iter().flatten();
            let patterns = found.get_many::<String>(id).into_iter().flatten();
            places.zip(patterns).map(move |(place, pattern)| (place, is_include, pattern.clone())).collect()
        };
        let mut all: Vec<(usize, bool, String)> = of("exclude", false);
        all.extend::<Vec<_>>(of("include", true));
        all.sort();
        Ok(Self(all.into_iter().map(|(_, is_include, pattern)| (is_include, pattern)).collect()))
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(found)?;
        Ok(())
    }
}

impl Args for Filter {
    fn augment_args(command: clap::Command) -> clap::Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Flags::augment_args_for_update(command)
    }
}

/// Whether a pattern fits a whole name. A `*` is tried from its shortest text on: one place to come back to is enough.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        let (fits, len) = match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
                continue;
            }
            Some('?') => (true, 1),
            Some('[') => one_of(&pattern[of..], name[at]),
            Some(same) => (*same == name[at], 1),
            None => (false, 0),
        };
        if fits {
            (at, of) = (at + 1, of + len);
            continue;
        }
        let Some((place, taken)) = star else { return false };
        star = Some((place, taken + 1));
        (at, of) = (taken + 1, place + 1);
    }
    pattern[of..].iter().all(|one| *one == '*')
}

/// Whether `[a-c]` or `[!abc]` at the begin of a pattern fits, and its length. A `[` without its end stands for itself.
fn one_of(pattern: &[char], one: char) -> (bool, usize) {
    let is_not = pattern.get(1) == Some(&'!');
    let begin = if is_not { 2 } else { 1 };
    // A ] at the begin is one of them.
    let Some(end) = pattern.iter().skip(begin + 1).position(|end| *end == ']').map(|end| end + begin + 1)
    else {
        return (one == '[', 1);
    };
    let set = &pattern[begin..end];
    let (mut fits, mut at) = (false, 0);
    while at < set.len() {
        if set.get(at + 1) == Some(&'-') && at + 2 < set.len() {
            fits |= (set[at]..=set[at + 2]).contains(&one);
            at += 3;
        } else {
            fits |= set[at] == one;
            at += 1;
        }
    }
    (fits != is_not, end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_shells() {
        let fits = |pattern: &str, name: &str| {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            matches(&chars(pattern), &chars(name))
        };
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("*.txt", "a/b.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a*b*c", "axxbyybzc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("ü*", "über", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_last_pattern_that_matches_counts() {
        let filter =
            Filter(vec![(false, "*".to_owned()), (true, "*.json".to_owned()), (false, "x*".to_owned())]);
        for (name, expected) in [("a.json", true), ("a.txt", false), ("x.json", false)] {
            assert_eq!(filter.takes(name), expected, "{name}");
        }
        assert!(Filter::default().takes("any"));
    }

    #[test]
    fn folders_are_left_out_where_no_name_in_them_is_meant() {
        let filter = |patterns: &[(bool, &str)]| {
            Filter(patterns.iter().map(|(is_include, text)| (*is_include, (*text).to_owned())).collect())
        };
        for (patterns, expected) in [
            (&[][..], false),
            (&[(false, "a/*")], true),
            (&[(false, "*")], true),
            (&[(false, "a/")], false),
            (&[(false, "*.txt")], false),
            (&[(false, "*"), (true, "*.json")], false),
            (&[(true, "*.json"), (false, "a*")], true),
        ] {
            assert_eq!(filter(patterns).leaves_out_all_of("a/"), expected, "{patterns:?}");
        }
    }
}
