//! From a request to its reply.

use crate::call::Call;
use crate::content::Content;
use crate::reply::{Reply, errors};
use crate::store::Object;
use crate::sums::etag;
use crate::{Asked, Fault, listing, lock, now, objects, signing, uploads};

impl Call<'_> {
    pub(crate) fn answer(&self) -> Reply {
        match self.fault {
            Some(Fault::Error(status, code, after)) => return refused(*status, code, *after),
            Some(Fault::Redirect(status, region, endpoint)) => {
                return self.redirect(*status, region, endpoint.as_deref());
            }
            Some(Fault::Replace(bytes)) => self.replace(bytes),
            _ => {}
        }
        let reply = self.check().and_then(|()| self.carry_out()).unwrap_or_else(|error| error);
        match self.fault {
            Some(Fault::LateError(status, code)) => refused(*status, code, None),
            Some(Fault::ErrorInBody(code)) => {
                let body =
                    crate::reply::error_body(code, "We encountered an internal error. Please try again.", "");
                Reply::new(200).with("Content-Type", "application/xml").body(body)
            }
            Some(Fault::Body(status, bytes)) => {
                Reply::new(*status).with("Content-Type", "application/xml").body(bytes.clone())
            }
            _ => reply,
        }
    }

    /// A bucket of another region is said to be there before the signature is looked at, which may be of that region.
    fn check(&self) -> Result<(), Reply> {
        if let Some(endpoint) = lock(&self.shared.settings).moved.get(&self.request.bucket) {
            return Err(self.redirect(301, &endpoint.0, Some(&endpoint.1)));
        }
        signing::check(self)
    }

    fn carry_out(&self) -> Result<Reply, Reply> {
        match self.asked {
            Asked::Get | Asked::Head => objects::get(self),
            Asked::Put => objects::put(self),
            Asked::Delete => objects::delete(self),
            Asked::DeleteMany => objects::delete_many(self),
            Asked::Copy => objects::copy(self),
            Asked::Tags => objects::tags(self),
            Asked::List => listing::objects(self),
            Asked::Buckets => Ok(listing::buckets(self)),
            Asked::HeadBucket | Asked::MakeBucket | Asked::DeleteBucket | Asked::Location => {
                listing::bucket(self)
            }
            Asked::Create => uploads::create(self),
            Asked::Part => uploads::part(self),
            Asked::Parts => uploads::parts(self),
            Asked::Complete => uploads::complete(self),
            Asked::Abort => uploads::abort(self),
            Asked::Uploads => Ok(uploads::list(self)),
            Asked::Other => Err(errors::not_implemented()),
        }
    }

    fn redirect(&self, status: u16, region: &str, endpoint: Option<&str>) -> Reply {
        let (code, message) = if status == 307 {
            let message = "Please re-send this request to the specified temporary endpoint. Continue to use the original \
                           request endpoint for future requests.";
            ("TemporaryRedirect", message)
        } else {
            let message = "The bucket you are attempting to access must be addressed using the specified endpoint. Please \
                           send all future requests to this endpoint.";
            ("PermanentRedirect", message)
        };
        let host = endpoint.map_or(String::new(), |endpoint| {
            format!("<Endpoint>{}</Endpoint>", endpoint.trim_start_matches("http://"))
        });
        let more = format!("{host}<Bucket>{}</Bucket>", self.request.bucket);
        let reply = Reply::error_with(status, code, message, &more);
        let reply = if region.is_empty() { reply } else { reply.with("x-amz-bucket-region", region) };
        // A 301 of S3 has no Location: clients take the region.
        match endpoint.filter(|_| status == 307) {
            Some(endpoint) => reply.with("Location", format!("{endpoint}{}", self.request.path)),
            None => reply,
        }
    }

    fn replace(&self, bytes: &[u8]) {
        let content = Content::of(bytes);
        let etag = etag(&content);
        lock(&self.shared.store).put(
            &self.request.bucket,
            &self.request.key,
            Object::new(content, etag, now()),
        );
    }
}

fn refused(status: u16, code: &str, after: Option<u32>) -> Reply {
    let message = match code {
        "SlowDown" => "Please reduce your request rate.",
        "InternalError" => "We encountered an internal error. Please try again.",
        "AccessDenied" => "Access Denied",
        "ExpiredToken" => "The provided token has expired.",
        "RequestTimeTooSkewed" => {
            "The difference between the request time and the current time is too large."
        }
        _ => "The request was refused.",
    };
    let reply = Reply::error(status, code, message);
    after.iter().fold(reply, |reply, after| reply.with("Retry-After", after))
}
