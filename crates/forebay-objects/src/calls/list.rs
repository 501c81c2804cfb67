//! Listings, page by page.

use std::collections::VecDeque;

use forebay_error::{Error, Result};

use super::bucket::{Bucket, ask};
use super::exchange::exchange;
use super::time;
use super::xml::{self, Node, malformed};
use crate::endpoint::Endpoint;
use crate::wire::call::{Body, Method};

/// An object of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedObject {
    /// The whole key.
    pub key: String,
    /// Bytes.
    pub len: u64,
    /// With its quotes.
    pub etag: Option<String>,
    /// When it was written, in seconds since 1970.
    pub modified: Option<i64>,
}

/// What a listing has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// An object.
    Object(ListedObject),
    /// What keys have before a `/`, with it.
    Folder(String),
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(super) struct Page {
    objects: Vec<ListedObject>,
    folders: Vec<String>,
    next: Option<String>,
}

/// A listing, which keeps one page. In the order of keys, objects and folders of a page apart.
#[derive(Debug)]
pub struct List {
    bucket: Bucket,
    prefix: String,
    is_tree: bool,
    page: VecDeque<Listed>,
    /// Where the next page begins; `None`: there is none.
    next: Option<Next>,
}

#[derive(Debug)]
enum Next {
    First,
    Token(String),
}

impl List {
    pub(super) fn new(bucket: Bucket, prefix: &str, is_tree: bool) -> Self {
        Self { bucket, prefix: prefix.to_owned(), is_tree, page: VecDeque::new(), next: Some(Next::First) }
    }

    fn turn(&mut self, next: Next) -> Result<()> {
        let mut ask = self.bucket.ask(Method::Get, "");
        let mut query = |name: &str, value: &str| ask.query.push((name.to_owned(), value.to_owned()));
        query("list-type", "2");
        query("encoding-type", "url");
        query("prefix", &self.prefix);
        if !self.is_tree {
            query("delimiter", "/");
        }
        let before = match next {
            Next::First => None,
            Next::Token(token) => {
                query("continuation-token", &token);
                Some(token)
            }
        };
        let reply = self.bucket.call(&ask, &Body::None)?;
        let page = page_of(&reply.body)?;
        if page.next.is_some() && page.next == before {
            return Err(malformed("a listing has no end"));
        }
        self.next = page.next.map(Next::Token);
        self.page.extend(page.folders.into_iter().map(Listed::Folder));
        self.page.extend(page.objects.into_iter().map(Listed::Object));
        Ok(())
    }
}

impl Iterator for List {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(one) = self.page.pop_front() {
                return Some(Ok(one));
            }
            let next = self.next.take()?;
            if let Err(error) = self.turn(next) {
                return Some(Err(error));
            }
        }
    }
}

pub(super) fn page_of(document: &[u8]) -> Result<Page> {
    let (mut page, mut object) = (Page::default(), ListedObject::default());
    let (mut is_url, mut has_more, mut is_list) = (false, false, false);
    xml::read(document, |path, node| {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        match (names.as_slice(), node) {
            (["ListBucketResult"], Node::Begin) => is_list = true,
            ([_, "EncodingType"], Node::End(text)) => is_url = text == "url",
            ([_, "IsTruncated"], Node::End(text)) => has_more = text == "true",
            ([_, "NextContinuationToken"], Node::End(text)) => page.next = Some(text.to_owned()),
            ([_, "Contents"], Node::End(_)) => page.objects.push(std::mem::take(&mut object)),
            ([_, "Contents", field], Node::End(text)) => match *field {
                "Key" => text.clone_into(&mut object.key),
                "Size" => object.len = text.parse().map_err(|_| malformed("a size is no number"))?,
                "ETag" => object.etag = Some(text.to_owned()),
                "LastModified" => object.modified = time::seconds(text),
                _ => {}
            },
            ([_, "CommonPrefixes", "Prefix"], Node::End(text)) => page.folders.push(text.to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    if !is_list {
        return Err(malformed("it is no listing"));
    }
    if has_more != page.next.is_some() {
        return Err(malformed("a listing does not say how it goes on"));
    }
    if is_url {
        for name in page.objects.iter_mut().map(|object| &mut object.key).chain(&mut page.folders) {
            *name = decoded(name)?;
        }
    }
    Ok(page)
}

/// A name without `%20`; a `+` is a space.
fn decoded(name: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| (byte as char).to_digit(16));
                let (high, low) = (digit(), digit());
                let bad = || malformed("a name has a bad escape");
                (high.ok_or_else(bad)? * 16 + low.ok_or_else(bad)?) as u8
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| malformed("a name is not UTF-8"))
}

/// The buckets of the key in use, and when they were made, in seconds since 1970.
pub fn buckets() -> Result<Vec<(String, Option<i64>)>> {
    let endpoint = Endpoint::of("")?;
    let reply = exchange(&endpoint, &ask(Method::Get, "", ""), &Body::None).map_err(Error::from)?;
    let (mut all, mut name, mut made) = (Vec::new(), String::new(), None);
    xml::read(&reply.body, |path, node| {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        match (names.as_slice(), node) {
            ([_, "Buckets", "Bucket"], Node::End(_)) => all.push((std::mem::take(&mut name), made.take())),
            ([_, "Buckets", "Bucket", "Name"], Node::End(text)) => text.clone_into(&mut name),
            ([_, "Buckets", "Bucket", "CreationDate"], Node::End(text)) => made = time::seconds(text),
            _ => {}
        }
        Ok(())
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_page_has_objects_folders_and_where_the_next_begins() {
        let document = br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Prefix>a+b</Prefix><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
            <Contents><Key>a%20b%2Fc+d%2B</Key><LastModified>2026-11-22T10:00:00.000Z</LastModified>
            <ETag>&quot;abc&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass></Contents>
            <Contents><Key>e</Key><Size>0</Size></Contents>
            <CommonPrefixes><Prefix>f%C3%BC/</Prefix></CommonPrefixes>
            <NextContinuationToken>t</NextContinuationToken></ListBucketResult>"#;
        let page = page_of(document).unwrap();
        assert_eq!(page.objects.len(), 2);
        let expected = ListedObject {
            key: "a b/c d+".to_owned(),
            len: 5,
            etag: Some("\"abc\"".to_owned()),
            modified: Some(1_795_341_600),
        };
        assert_eq!(page.objects[0], expected);
        assert_eq!((page.folders, page.next), (vec!["fü/".to_owned()], Some("t".to_owned())));
    }

    #[test]
    fn listings_that_lie_are_errors() {
        for bad in [
            "<a/>",
            "<ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Size>-1</Size></Contents></ListBucketResult>",
            "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%f</Key></Contents></ListBucketResult>",
            "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%ff</Key></Contents></ListBucketResult>",
        ] {
            assert!(page_of(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
