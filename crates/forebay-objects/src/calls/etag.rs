//! ETags.

/// One for `If-Match`, which a weak one (`W/"…"`) never fulfils: for that the ETag of the reply is compared.
pub(crate) fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| !etag.starts_with("W/"))
}
