//! Documents from any bytes.

use super::list::page_of;
use super::refusal::Told;
use crate::xml;

/// Reads a document as a listing, as an error, and as any other. Whether it is a document.
pub fn documents(bytes: &[u8]) -> bool {
    let _ = page_of(bytes);
    let _ = Told::of(bytes);
    xml::text_at(bytes, &["InitiateMultipartUploadResult", "UploadId"]).is_ok()
}
