//! The header that says which bytes a reply has.

/// `bytes 0-9/100`: the first byte, the one behind the last, and the length of the whole, if it is known.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, len) = text.strip_prefix("bytes")?.trim().split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let len = if len.trim() == "*" { None } else { Some(number(len)?) };
    Some((number(start)?, number(last)?.checked_add(1)?, len))
}
