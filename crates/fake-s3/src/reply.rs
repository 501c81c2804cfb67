//! Replies before they are sent.

use std::fmt::Display;

use crate::content::Content;
use crate::text::escaped;

/// A reply: its head, and which bytes of a content are its body.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content: Content,
    pub(crate) first: u64,
    pub(crate) len: u64,
}

impl Reply {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), content: Content::of(""), first: 0, len: 0 }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.content = Content::of(bytes);
        (self.first, self.len) = (0, self.content.len());
        self
    }

    /// A document in S3's namespace.
    pub(crate) fn xml(root: &str, inner: &str) -> Self {
        let space = "http://s3.amazonaws.com/doc/2006-03-01/";
        let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
        Self::new(200)
            .with("Content-Type", "application/xml")
            .body(format!("{head}<{root} xmlns=\"{space}\">{inner}</{root}>"))
    }

    /// An error as S3 words it.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::error_with(status, code, message, "")
    }

    /// The same with further elements.
    pub(crate) fn error_with(status: u16, code: &str, message: &str, more: &str) -> Self {
        Self::new(status).with("Content-Type", "application/xml").body(error_body(code, message, more))
    }

    /// Replaces a header, or has it.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
    }
}

pub(crate) fn error_body(code: &str, message: &str, more: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{}</Message>{more}\
         <RequestId>FAKE00000000S3</RequestId><HostId>fake</HostId></Error>",
        escaped(message)
    )
}

/// The errors that several calls have.
pub(crate) mod errors {
    use super::Reply;
    use crate::text::escaped;

    pub(crate) fn no_such_key(key: &str) -> Reply {
        let more = format!("<Key>{}</Key>", escaped(key));
        Reply::error_with(404, "NoSuchKey", "The specified key does not exist.", &more)
    }

    pub(crate) fn no_such_bucket(bucket: &str) -> Reply {
        let more = format!("<BucketName>{}</BucketName>", escaped(bucket));
        Reply::error_with(404, "NoSuchBucket", "The specified bucket does not exist", &more)
    }

    pub(crate) fn no_such_upload() -> Reply {
        let message = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been \
                       aborted or completed.";
        Reply::error(404, "NoSuchUpload", message)
    }

    pub(crate) fn precondition(condition: &str) -> Reply {
        let more = format!("<Condition>{condition}</Condition>");
        let message = "At least one of the pre-conditions you specified did not hold";
        Reply::error_with(412, "PreconditionFailed", message, &more)
    }

    pub(crate) fn malformed() -> Reply {
        let message =
            "The XML you provided was not well-formed or did not validate against our published schema";
        Reply::error(400, "MalformedXML", message)
    }

    pub(crate) fn not_implemented() -> Reply {
        let message = "A header you provided implies functionality that is not implemented";
        Reply::error(501, "NotImplemented", message)
    }
}
