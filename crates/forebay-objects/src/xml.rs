//! Documents of servers: each element's text, by its path. Nothing in them is trusted: depth and length have limits, and entities
//! beyond XML's own five are errors.

use forebay_error::{Error, ErrorKind, Result};
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

/// Elements within each other. Listings have four.
const MAX_DEPTH: usize = 16;

/// What a document has, in its order.
pub(super) enum Node<'a> {
    /// An element begins.
    Begin,
    /// It ends; all text directly in it.
    End(&'a str),
}

/// Calls `visit` for each element, with the names from the root's to its own, without prefixes. A document that breaks off is
/// an error.
pub(super) fn read(document: &[u8], mut visit: impl FnMut(&[String], Node<'_>) -> Result<()>) -> Result<()> {
    let text = std::str::from_utf8(document).map_err(|_| malformed("it is not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let (mut path, mut texts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut has_root = false;
    loop {
        match reader.read_event().map_err(|error| malformed(&error.to_string()))? {
            Event::Start(tag) => {
                begin(&mut path, &mut texts, &tag)?;
                visit(&path, Node::Begin)?;
                has_root = true;
            }
            Event::Empty(tag) => {
                begin(&mut path, &mut texts, &tag)?;
                visit(&path, Node::Begin)?;
                visit(&path, Node::End(""))?;
                end(&mut path, &mut texts);
                has_root = true;
            }
            Event::End(_) => {
                let text = texts.last().map_or("", String::as_str);
                visit(&path, Node::End(text))?;
                end(&mut path, &mut texts);
            }
            Event::Text(piece) => push(&mut texts, &piece.xml10_content()),
            Event::CData(piece) => push(&mut texts, &piece.xml10_content()),
            Event::GeneralRef(name) => {
                let of_number = name.resolve_char_ref().map_err(|error| malformed(&error.to_string()))?;
                let name = name.xml10_content();
                match (of_number, resolve_predefined_entity(&name)) {
                    (Some(one), _) => push(&mut texts, one.encode_utf8(&mut [0; 4])),
                    (None, Some(known)) => push(&mut texts, known),
                    (None, None) => return Err(malformed("it has an entity that XML has not")),
                }
            }
            Event::DocType(_) => return Err(malformed("it has a document type")),
            Event::Eof if path.is_empty() && has_root => return Ok(()),
            Event::Eof => return Err(malformed("it breaks off")),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
}

fn begin(path: &mut Vec<String>, texts: &mut Vec<String>, tag: &BytesStart<'_>) -> Result<()> {
    if path.len() == MAX_DEPTH {
        return Err(malformed("its elements are too deep"));
    }
    path.push(tag.local_name().into_inner().to_owned());
    texts.push(String::new());
    Ok(())
}

fn end(path: &mut Vec<String>, texts: &mut Vec<String>) {
    path.pop();
    texts.pop();
}

fn push(texts: &mut [String], piece: &str) {
    if let Some(text) = texts.last_mut() {
        text.push_str(piece);
    }
}

/// The text of the first element at this path, which begins with the root's name.
pub(super) fn text_at(document: &[u8], wanted: &[&str]) -> Result<Option<String>> {
    let mut found = None;
    read(document, |path, node| {
        if let Node::End(text) = node
            && found.is_none()
            && path == wanted
        {
            found = Some(text.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// The text of the first element of each name, wherever it is.
pub(crate) fn first<const N: usize>(document: &[u8], names: [&str; N]) -> Result<[Option<String>; N]> {
    let mut found = [const { None }; N];
    read(document, |path, node| {
        if let (Some(name), Node::End(text)) = (path.last(), node)
            && let Some(at) = names.iter().position(|wanted| wanted == name)
        {
            found[at].get_or_insert_with(|| text.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether text can stand in a document: XML has most control characters neither plain nor as numbers.
pub(super) fn can_have(text: &str) -> bool {
    text.chars().all(
        |one| !matches!(one, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}'),
    )
}

/// Text as content of an element.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Readers turn bare ones into line feeds.
            '\r' => out.push_str("&#13;"),
            one => out.push(one),
        }
    }
    out
}

pub(super) fn malformed(why: &str) -> Error {
    Error::new(ErrorKind::Io, format!("the server sent XML that cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn texts_have_their_paths_and_entities() {
        let document =
            b"<?xml version=\"1.0\"?><s3:A xmlns:s3='x'> <B>a&amp;b&#x41;<![CDATA[<c>]]></B><C/></s3:A>";
        let mut all = Vec::new();
        read(document, |path, node| {
            if let Node::End(text) = node {
                all.push((path.join("/"), text.to_owned()));
            }
            Ok(())
        })
        .unwrap();
        let of = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        assert_eq!(all, [of("A/B", "a&bA<c>"), of("A/C", ""), of("A", " ")]);
        assert_eq!(text_at(document, &["A", "B"]).unwrap().unwrap(), "a&bA<c>");
        assert_eq!(text_at(document, &["B"]).unwrap(), None);
    }

    #[test]
    fn elements_are_found_by_their_names_wherever_they_are() {
        let document = b"<a xmlns=\"x\"><n:Code>A&amp;B&#x21;</n:Code><Message/><b><Code>2</Code></b></a>";
        let [code, message, other] = first(document, ["Code", "Message", "Other"]).unwrap();
        assert_eq!((code.as_deref(), message.as_deref(), other), (Some("A&B!"), Some(""), None));
        assert!(first(b"<a><Code>A</Code>", ["Code"]).is_err(), "it breaks off");
    }

    #[test]
    fn what_is_no_document_is_an_error() {
        let deep = "<a>".repeat(100) + &"</a>".repeat(100);
        for bad in [
            "",
            " ",
            "text",
            "<a>",
            "<a></b>",
            "<a>&unknown;</a>",
            "<a>&#x110000;</a>",
            "</a>",
            "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            &deep,
        ] {
            assert!(text_at(bad.as_bytes(), &["a"]).is_err(), "{bad}");
        }
        assert!(text_at(b"<a>\xff</a>", &["a"]).is_err());
    }

    #[test]
    fn control_characters_are_none_of_xml() {
        for (text, expected) in
            [("a\t\r\nü\u{7f}\u{10ffff}", true), ("a\x01", false), ("\x1b[m", false), ("\u{ffff}", false)]
        {
            assert_eq!(can_have(text), expected, "{text:?}");
        }
    }

    #[test]
    fn escaped_text_comes_back() {
        let text = "a&b<c>\r\n\"'d";
        let document = format!("<a>{}</a>", escaped(text));
        assert_eq!(text_at(document.as_bytes(), &["a"]).unwrap().unwrap(), text);
    }
}
