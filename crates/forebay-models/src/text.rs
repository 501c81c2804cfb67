//! Names from files, in messages.

/// A name as messages show it: quoted, control characters escaped, and cut when it is long.
pub(crate) fn shown(name: &str) -> String {
    const MAX_CHARACTERS: usize = 100;
    let mut text = String::new();
    for shown in name.chars().take(MAX_CHARACTERS) {
        match shown {
            '\'' | '"' => text.push(shown),
            _ => text.extend(shown.escape_debug()),
        }
    }
    if name.chars().nth(MAX_CHARACTERS).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}

/// A path to type into a shell.
pub(crate) fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c)) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_a_shell() {
        assert_eq!(quoted("/a/b".as_ref()), "/a/b");
        assert_eq!(quoted("/a b/it's".as_ref()), "'/a b/it'\\''s'");
    }

    #[test]
    fn long_and_odd_names() {
        assert_eq!(shown("a.'b'"), "`a.'b'`");
        assert_eq!(shown("a\n\x1b"), "`a\\n\\u{1b}`");
        assert_eq!(shown(&"é".repeat(5000)).chars().count(), 103);
    }
}
