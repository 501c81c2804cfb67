//! JSON as people write it: with `//` and `/* */` comments and a comma too many.

use forebay_error::{Error, ErrorKind, Result};
use serde_json::Value;

/// A document without its comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    /// The text; comments are blanks, lines stay where they are.
    pub(super) text: String,
    /// Lines (from 1) with a comma before a closing bracket, which is a blank now.
    pub(super) extra_commas: Vec<usize>,
}

/// Blanks out comments that stand outside of strings, and commas that nothing follows.
pub(super) fn plain(text: &str) -> Plain {
    let mut out = Vec::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut in_string = false;
    let mut line = 1;
    // Where the last comma stands, as long as only blanks have followed it.
    let mut comma: Option<(usize, usize)> = None;
    let mut extra_commas = Vec::new();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match (in_string, c, chars.peek()) {
            (true, '\\', _) => {
                out.push(c);
                out.extend(chars.next());
            }
            (_, '"', _) => {
                in_string = !in_string;
                comma = None;
                out.push(c);
            }
            (false, '/', Some('/')) => while chars.next_if(|&c| c != '\n').is_some() {},
            (false, '/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for c in chars.by_ref() {
                    if last == '*' && c == '/' {
                        break;
                    }
                    if c == '\n' {
                        line += 1;
                        out.push(c);
                    }
                    last = c;
                }
                out.push(' ');
            }
            (false, ',', _) => {
                comma = Some((out.len(), line));
                out.push(c);
            }
            (false, '}' | ']', _) => {
                if let Some((place, line)) = comma.take() {
                    out[place] = ' ';
                    extra_commas.push(line);
                }
                out.push(c);
            }
            _ => {
                if !c.is_whitespace() {
                    comma = None;
                }
                out.push(c);
            }
        }
    }
    Plain { text: out.into_iter().collect(), extra_commas }
}

/// Reads a document whose top is an object, and the lines with commas too many.
pub(super) fn parse(text: &str) -> Result<(serde_json::Map<String, Value>, Vec<usize>)> {
    let plain = plain(text);
    let bad = |what: String| Error::new(ErrorKind::InvalidInput, format!("cannot read cufile.json: {what}"));
    match serde_json::from_str(&plain.text) {
        Ok(Value::Object(map)) => Ok((map, plain.extra_commas)),
        Ok(_) => Err(bad("the top is not an object in braces".to_owned())),
        Err(error) => Err(bad(format!("not JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comments_go_and_strings_stay() {
        let text = "{ // one\n \"dir\": \"http://x/*y*/\", /* two\n lines */ \"q\": \"a\\\"//b\" }";
        let (map, commas) = parse(text).unwrap();
        assert_eq!(map["dir"], "http://x/*y*/");
        assert_eq!(map["q"], "a\"//b");
        assert!(commas.is_empty());
        assert_eq!(plain("/* never closed").text, " ");
    }

    #[test]
    fn commas_that_nothing_follows_are_counted_by_line() {
        let (map, commas) = parse("{ \"a\": [1, 2, // last\n ],\n \"b\": \",]\", \n /* x, */ }").unwrap();
        assert_eq!((map["a"].to_string(), map["b"].as_str()), ("[1,2]".to_owned(), Some(",]")));
        assert_eq!(commas, [1, 3]);
        assert!(parse("{ \"a\": 1,, }").is_err());
    }

    #[test]
    fn errors_name_the_line_of_the_file() {
        let error = parse("{ /* a\n b\n */\n // c\n oops }").unwrap_err();
        assert!(error.to_string().contains("line 5"), "{error}");
        assert!(parse("").is_err());
        assert!(parse("[]").unwrap_err().to_string().contains("not an object"));
    }

    /// A document, as text with comments wherever blanks may stand.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}|[/*\"\\\\\n,\\]}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z/*\"]{1,5}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn commented(value: &Value, gaps: &mut impl Iterator<Item = &'static str>, out: &mut String) {
        out.push_str(gaps.next().unwrap_or(""));
        match value {
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    commented(item, gaps, out);
                }
                out.push(']');
            }
            Value::Object(map) => {
                out.push('{');
                for (index, (key, item)) in map.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    commented(&Value::from(key.as_str()), gaps, out);
                    out.push(':');
                    commented(item, gaps, out);
                }
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
        out.push_str(gaps.next().unwrap_or(" "));
    }

    const GAPS: [&str; 7] =
        ["", " ", "\n", "// \"x\": { /* \n", "/* , } \" // */", "/**/", "/* *\n/ * / **/"];

    proptest! {
        #[test]
        fn comments_change_nothing(value in value(), picks in prop::collection::vec(0..GAPS.len(), 1..16)) {
            let mut text = String::new();
            commented(&value, &mut picks.iter().cycle().map(|&pick| GAPS[pick]), &mut text);
            let plain = plain(&text);
            prop_assert_eq!(serde_json::from_str::<Value>(&plain.text).unwrap(), value);
            prop_assert!(plain.extra_commas.is_empty());
            prop_assert_eq!(plain.text.lines().count(), text.lines().count());
        }

        #[test]
        fn any_text_is_taken_without_a_panic(text in "\\PC*|[/*\"\\\\\n,{}\\[\\]]{0,40}") {
            let _ = plain(&text);
        }
    }
}
