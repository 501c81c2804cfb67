//! States of many objects by listings: a page has a thousand of them, where opening takes a request each.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_error::Result;
use forebay_source::{ListedState, StateToken};

use crate::calls::{Bucket, Listed, ListedObject};
use crate::source::Content;
use crate::url::ObjectUrl;

/// As many objects a page has to have that are asked for: stores charge for a page what they charge for a dozen heads.
const PER_PAGE: u64 = 32;

/// Keys of a folder, and where in the caller's list each stands.
type Keys = BTreeMap<String, Vec<usize>>;

/// The state of each object; `None` where it is to be asked for by itself.
pub(crate) fn states(urls: &[&Path]) -> Vec<Option<ListedState>> {
    let mut found = vec![None; urls.len()];
    for (folder, keys) in folders(urls) {
        if keys.len() as u64 >= PER_PAGE {
            // Whatever is wrong is found again where each is asked for.
            let listed = states_in(&folder, &keys).unwrap_or_default();
            for (key, state) in listed {
                keys[&key].iter().for_each(|at| found[*at] = Some(state.clone()));
            }
        }
    }
    found
}

/// The objects by folders. Those of one version each, and what is no object, are left out.
fn folders(urls: &[&Path]) -> Vec<(ObjectUrl, Keys)> {
    let mut folders: BTreeMap<String, (ObjectUrl, Keys)> = BTreeMap::new();
    for (at, url) in urls.iter().enumerate() {
        let Ok(url) = ObjectUrl::parse(url) else { continue };
        if url.version.is_none() && !url.is_prefix() {
            let folder = url.with_key(url.key.rsplit_once('/').map_or("", |(folder, _)| folder));
            let (_, keys) = folders.entry(folder.to_string()).or_insert_with(|| (folder, Keys::new()));
            keys.entry(url.key).or_default().push(at);
        }
    }
    folders.into_values().collect()
}

fn states_in(folder: &ObjectUrl, keys: &Keys) -> Result<BTreeMap<String, ListedState>> {
    let mut found = BTreeMap::new();
    let Some((first, last)) = keys.keys().next().zip(keys.keys().next_back()) else { return Ok(found) };
    let bucket = Bucket::of_url(folder)?.anywhere()?;
    let mut list = bucket.list(common(first, last), false).from(first);
    while let Some(one) = list.next() {
        if let Listed::Object(object) = one? {
            // Most stores list in the order of keys. Those that do not leave some objects to be asked for by themselves.
            let is_behind = object.key.as_str() > last.as_str();
            let key = object.key.clone();
            found.extend(state_of(object).filter(|_| keys.contains_key(&key)).map(|state| (key, state)));
            if is_behind || found.len() == keys.len() {
                break;
            }
        }
        if (found.len() as u64) < PER_PAGE * (list.pages() - 1) {
            break;
        }
    }
    Ok(if is_said_by_head(&bucket, &found) { found } else { BTreeMap::new() })
}

/// Whether the head of an object says the same as the listing: a server may write ETags otherwise there, and listings may be late.
fn is_said_by_head(bucket: &Bucket, found: &BTreeMap<String, ListedState>) -> bool {
    found.first_key_value().is_none_or(|(key, listed)| {
        let said = bucket.head(key, None).ok().and_then(|head| Content::of(&head).token());
        said.is_some_and(|said| said.has_bytes_of(&listed.state))
    })
}

fn state_of(object: ListedObject) -> Option<ListedState> {
    let ListedObject { len, etag, .. } = object;
    Some(ListedState { len, state: StateToken::new(Content::text(len, &etag?).as_bytes()) })
}

/// What two keys begin with.
fn common<'a>(first: &'a str, last: &str) -> &'a str {
    let both = first.char_indices().zip(last.chars());
    let end = both.take_while(|((_, one), other)| one == other).last();
    end.map_or("", |((at, sign), _)| &first[..at + sign.len_utf8()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_begin_with_the_same() {
        for (first, last, wanted) in
            [("a/b1", "a/b2", "a/b"), ("a", "a", "a"), ("", "x", ""), ("ä1", "ö1", ""), ("ää", "äö", "ä")]
        {
            assert_eq!(common(first, last), wanted);
        }
    }
}
