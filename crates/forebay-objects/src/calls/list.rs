//! Listings, page by page.

use std::collections::VecDeque;

use forebay_error::{Error, ErrorKind, Result};

use super::bucket::{Bucket, ask};
use super::exchange::exchange;
use super::time;
use crate::endpoint::Endpoint;
use crate::url::unescape;
use crate::wire::call::{Body, Method};
use crate::xml::{self, Node, malformed};

/// Empty pages in a row: stores that leave removed objects out send some.
const MOST_EMPTY: u32 = 1000;

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

impl Page {
    /// Whether it has an object of this name.
    pub(super) fn has(&self, key: &str) -> bool {
        self.objects.iter().any(|object| object.key == key)
    }
}

/// A listing, which keeps one page. In the order of keys, objects and folders of a page apart.
#[derive(Debug)]
pub struct List {
    /// From the first page on that of the site which has given it: others go on differently.
    bucket: Bucket,
    /// That site, where it is not the nearest.
    elsewhere: Option<String>,
    /// The nearest one, where it was gone then.
    gone: Option<String>,
    prefix: String,
    /// The first page begins behind this key.
    after: String,
    is_tree: bool,
    page: VecDeque<Listed>,
    /// Where the next page begins; `None`: there is none.
    next: Option<Next>,
    progress: Progress,
}

/// Whether a listing goes on: a server can send tokens in a circle, and empty pages for ever.
#[derive(Debug, Default)]
struct Progress {
    pages: u64,
    empty: u32,
    /// The token behind the last page whose number was a power of two: it comes again in each circle.
    kept: Option<String>,
}

impl Progress {
    fn page(&mut self, page: &Page) -> Result<()> {
        let is_empty = page.objects.is_empty() && page.folders.is_empty();
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        let has_next = page.next.is_some();
        if has_next && (page.next == self.kept || self.empty > MOST_EMPTY) {
            return Err(malformed("a listing has no end"));
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.kept.clone_from(&page.next);
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Next {
    First,
    Token(String),
}

impl List {
    pub(super) fn new(bucket: Bucket, prefix: &str, is_tree: bool) -> Self {
        let (page, next, progress) = (VecDeque::new(), Some(Next::First), Progress::default());
        let (elsewhere, gone, prefix) = (None, None, prefix.to_owned());
        let after = String::new();
        Self { bucket, elsewhere, gone, prefix, after, is_tree, page, next, progress }
    }

    /// The same without the keys before one. Servers may send them nevertheless.
    #[must_use]
    pub(crate) fn from(mut self, key: &str) -> Self {
        // Listings begin behind a key: one without the last sign lies before it, and next to nothing between.
        let mut signs = key.chars();
        signs.next_back();
        signs.as_str().clone_into(&mut self.after);
        self
    }

    /// How many pages have come.
    pub(crate) fn pages(&self) -> u64 {
        self.progress.pages
    }

    /// The site that gives the listing in place of the nearest one, which is gone or has not the bucket; known behind the first entry.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&str> {
        self.elsewhere.as_deref()
    }

    /// Of a listing that was empty: why that does not mean that there are no keys.
    #[must_use]
    pub fn unknown(&self) -> Option<Error> {
        let (gone, there) = (self.gone.as_ref()?, self.elsewhere()?);
        let text =
            format!("cannot list: site {gone} is gone, and site {there} has no key that begins with it");
        Some(Error::new(ErrorKind::Io, text).hint(format!("try again when site {gone} is back")))
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
        match next {
            Next::Token(token) => query("continuation-token", &token),
            Next::First if !self.after.is_empty() => query("start-after", &self.after),
            Next::First => {}
        }
        let (bucket, reply) =
            self.bucket.read(|bucket| Ok((bucket.clone(), bucket.call(&ask, &Body::None)?)))?;
        let mut page = page_of(&reply.body)?;
        if bucket.site_name() != self.bucket.site_name() {
            self.elsewhere = bucket.site_name().map(str::to_owned);
            let nearest = &self.bucket.endpoint.account;
            self.gone = nearest.site_name().filter(|_| nearest.is_gone()).map(str::to_owned);
        }
        self.bucket = Bucket { patience: self.bucket.patience, ..bucket };
        if self.elsewhere.is_some() {
            // Reads of the objects begin at the nearest site, where they have other ETags.
            page.objects.iter_mut().for_each(|object| object.etag = None);
        }
        self.progress.page(&page)?;
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
    let bytes = unescape(name.replace('+', " ").as_bytes());
    String::from_utf8(bytes.ok_or_else(|| malformed("a name has a bad escape"))?)
        .map_err(|_| malformed("a name is not UTF-8"))
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
    fn circles_of_tokens_and_endless_empty_pages_are_found_out() {
        let page = |token: u64, keys: usize| Page {
            objects: vec![ListedObject::default(); keys],
            folders: Vec::new(),
            next: Some(token.to_string()),
        };
        for circle in [1, 2, 3, 10, 100] {
            let mut progress = Progress::default();
            let mut pages = (0..).map(|number| page(number % circle, 1));
            assert!(pages.by_ref().take(1000).any(|page| progress.page(&page).is_err()), "{circle}");
        }
        let mut progress = Progress::default();
        for number in 0..10_000 {
            progress.page(&page(number, usize::from(number % 500 == 0))).unwrap();
        }
        assert!((10_000..12_000).any(|number| progress.page(&page(number, 0)).is_err()));
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
