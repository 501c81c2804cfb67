//! Text of others, in what people read.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with what would steer a terminal, or turn lines around, written as escapes: a name out of another process's
/// memory or a file may hold anything. `\n`, `\u{1b}`; a backslash stays one.
///
/// ```
/// assert_eq!(forebay_error::plain("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
/// ```
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// JSON in which strings have escapes for such characters: writers of JSON need only escape those below a space.
pub fn plain_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        // Between strings there are line breaks.
        if steers(c) && c != '\n' {
            let _ = write!(shown, "\\u{:04x}", c as u32);
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A word as a shell takes it.
///
/// ```
/// assert_eq!(forebay_error::quoted("/data/a b"), "'/data/a b'");
/// ```
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,@%+-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_steers_is_escaped() {
        assert!(matches!(plain("/data/größe 7\\n.safetensors"), Cow::Borrowed(_)));
        assert_eq!(plain("\u{9b}31m\u{7f}\u{202e}\r\t"), "\\u{9b}31m\\u{7f}\\u{202e}\\r\\t");
        let json = plain_json("{\n  \"a\u{9b}\u{7f}é\": \"\\n\u{2066}\"\n}");
        assert_eq!(json, "{\n  \"a\\u009b\\u007fé\": \"\\n\\u2066\"\n}");
    }
}
