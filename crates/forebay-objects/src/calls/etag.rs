//! ETags.

use forebay_error::{Error, ErrorKind};

/// One for `If-Match`, which a weak one (`W/"…"`) never fulfils: for that the ETag of the reply is compared.
pub(crate) fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| !etag.starts_with("W/"))
}

/// The error for bytes of another object than the one that was opened.
pub(crate) fn replaced(ours: Option<&str>, theirs: Option<&str>) -> Error {
    let plain = |etag: Option<&str>| forebay_error::plain(etag.unwrap_or("unknown")).to_string();
    Error::new(ErrorKind::Busy, "the object was replaced while it was read")
        .with("opened", plain(ours))
        .with("now", plain(theirs))
        .hint("copy it again; in a program, open it anew")
}
