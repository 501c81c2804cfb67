//! Verification of AWS's signatures, version 4: in a header, and in the query of presigned URLs. Written from the specification.

use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, sign};

use crate::call::Call;
use crate::reply::Reply;
use crate::request::Request;
use crate::text::{basic_date, encoded, escaped, hex};
use crate::{lock, now};

/// The access key that a new server knows.
pub const ACCESS_KEY: &str = "AKIAFAKES3FAKES3FAKE";
/// Its secret.
pub const SECRET_KEY: &str = "fake/secret+of/the/test/double/never/used";

/// Seconds that clocks may differ.
const SKEW_MOST: i64 = 15 * 60;

/// Keys that the server knows.
pub(crate) struct Keys {
    pub(crate) access: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
    pub(crate) is_expired: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Self { access: ACCESS_KEY.to_owned(), secret: SECRET_KEY.to_owned(), token: None, is_expired: false }
    }
}

/// What a request says of its signature.
struct Claim {
    access: String,
    day: String,
    region: String,
    date: String,
    signed: Vec<String>,
    signature: String,
    token: Option<String>,
    /// Seconds that a presigned URL is good for.
    lasts: Option<i64>,
    payload: String,
}

fn denied(message: &str) -> Reply {
    Reply::error(403, "AccessDenied", message)
}

fn malformed(message: &str) -> Reply {
    Reply::error(
        400,
        "AuthorizationHeaderMalformed",
        &format!("The authorization header is malformed; {message}"),
    )
}

/// Lets a request through, or says why not.
pub(crate) fn check(call: &Call<'_>) -> Result<(), Reply> {
    let settings = lock(&call.shared.settings);
    let Some(claim) = claim(call.request)? else {
        return if settings.is_public { Ok(()) } else { Err(denied("Access Denied")) };
    };
    let keys = settings.keys.iter().find(|keys| keys.access == claim.access).ok_or_else(|| {
        let more = format!("<AWSAccessKeyId>{}</AWSAccessKeyId>", escaped(&claim.access));
        let message = "The AWS Access Key Id you provided does not exist in our records.";
        Reply::error_with(403, "InvalidAccessKeyId", message, &more)
    })?;
    if keys.is_expired {
        return Err(Reply::error(400, "ExpiredToken", "The provided token has expired."));
    }
    if keys.token != claim.token {
        let message = "The provided token is malformed or otherwise invalid.";
        return Err(Reply::error(400, "InvalidToken", message));
    }
    if claim.region != settings.region {
        let right = &settings.region;
        let message = format!(
            "The authorization header is malformed; the region '{}' is wrong; expecting '{right}'",
            claim.region
        );
        let more = format!("<Region>{right}</Region>");
        let reply = Reply::error_with(400, "AuthorizationHeaderMalformed", &message, &more);
        return Err(reply.with("x-amz-bucket-region", right));
    }
    in_time(&claim, now() + settings.skew)?;
    verify(call.request, &claim, &keys.secret)
}

/// Compares the signature in the head of a request with that of a secret.
///
/// # Errors
/// Why it is refused, as S3 says it.
pub fn verify_head(head: &[u8], secret: &str) -> Result<(), String> {
    let text = |reply: Reply| String::from_utf8_lossy(&reply.content.to_vec()).into_owned();
    let request = Request::parse(head).ok_or("no head of a request")?;
    let claim = claim(&request).map_err(text)?.ok_or("no signature")?;
    verify(&request, &claim, secret).map_err(text)
}

fn verify(request: &Request, claim: &Claim, secret: &str) -> Result<(), Reply> {
    all_signed(request, claim)?;
    if signature(request, claim, secret) == claim.signature {
        return Ok(());
    }
    let message = "The request signature we calculated does not match the signature you provided. Check your key and signing \
                   method.";
    let canonical = escaped(&canonical(request, claim));
    let more = format!(
        "<AWSAccessKeyId>{}</AWSAccessKeyId><SignatureProvided>{}</SignatureProvided>\
         <CanonicalRequest>{canonical}</CanonicalRequest>",
        escaped(&claim.access),
        escaped(&claim.signature)
    );
    Err(Reply::error_with(403, "SignatureDoesNotMatch", message, &more))
}

fn in_time(claim: &Claim, now: i64) -> Result<(), Reply> {
    let date = basic_date(&claim.date)
        .ok_or_else(|| denied("AWS authentication requires a valid Date or x-amz-date"))?;
    match claim.lasts {
        Some(lasts) if now > date + lasts => Err(denied("Request has expired")),
        Some(lasts) if !(1..=604_800).contains(&lasts) => {
            let message = "X-Amz-Expires must be less than a week (in seconds)";
            Err(Reply::error(400, "AuthorizationQueryParametersError", message))
        }
        None if (now - date).abs() > SKEW_MOST => {
            let message = "The difference between the request time and the current time is too large.";
            let more = format!("<RequestTime>{}</RequestTime>", claim.date);
            Err(Reply::error_with(403, "RequestTimeTooSkewed", message, &more))
        }
        _ => Ok(()),
    }
}

/// `host` and all `x-amz-*` must be signed.
fn all_signed(request: &Request, claim: &Claim) -> Result<(), Reply> {
    let must = |name: &str| name == "host" || name.starts_with("x-amz-");
    let is_signed = |name: &String| claim.signed.contains(name);
    match request.headers.iter().find(|(name, _)| must(name) && !is_signed(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let more = format!("<HeadersNotSigned>{}</HeadersNotSigned>", escaped(name));
            let message = "There were headers present in the request which were not signed";
            Err(Reply::error_with(403, "AccessDenied", message, &more))
        }
    }
}

fn claim(request: &Request) -> Result<Option<Claim>, Reply> {
    if let Some(header) = request.header("authorization") {
        return of_header(request, header).map(Some);
    }
    if request.parameter("X-Amz-Signature").is_some() {
        return of_query(request).map(Some);
    }
    Ok(None)
}

fn of_header(request: &Request, header: &str) -> Result<Claim, Reply> {
    let rest = header.strip_prefix("AWS4-HMAC-SHA256 ").ok_or_else(|| {
        let message =
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
        Reply::error(400, "InvalidRequest", message)
    })?;
    let part = |name: &str| {
        rest.split(',')
            .find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
            .ok_or_else(|| malformed(&format!("{name} is missing")))
    };
    let (access, day, region) = scope(part("Credential")?)?;
    let payload = request.header("x-amz-content-sha256").ok_or_else(|| {
        let message = "Missing required header for this request: x-amz-content-sha256";
        Reply::error(400, "InvalidRequest", message)
    })?;
    if payload.starts_with("STREAMING-") {
        return Err(crate::reply::errors::not_implemented());
    }
    Ok(Claim {
        access,
        day,
        region,
        date: request.header("x-amz-date").unwrap_or("").to_owned(),
        signed: part("SignedHeaders")?.split(';').map(str::to_owned).collect(),
        signature: part("Signature")?.to_owned(),
        token: request.header("x-amz-security-token").map(str::to_owned),
        lasts: None,
        payload: payload.to_owned(),
    })
}

fn of_query(request: &Request) -> Result<Claim, Reply> {
    let parameter = |name: &str| {
        request.parameter(name).ok_or_else(|| {
            let message = "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, \
                           X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.";
            Reply::error(400, "AuthorizationQueryParametersError", message)
        })
    };
    if parameter("X-Amz-Algorithm")? != "AWS4-HMAC-SHA256" {
        let message = "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"";
        return Err(Reply::error(400, "AuthorizationQueryParametersError", message));
    }
    let (access, day, region) = scope(parameter("X-Amz-Credential")?)?;
    Ok(Claim {
        access,
        day,
        region,
        date: parameter("X-Amz-Date")?.to_owned(),
        signed: parameter("X-Amz-SignedHeaders")?.split(';').map(str::to_owned).collect(),
        signature: parameter("X-Amz-Signature")?.to_owned(),
        token: request.parameter("X-Amz-Security-Token").map(str::to_owned),
        lasts: Some(parameter("X-Amz-Expires")?.parse().unwrap_or(0)),
        payload: request.header("x-amz-content-sha256").unwrap_or("UNSIGNED-PAYLOAD").to_owned(),
    })
}

/// Access key, day and region of `KEY/20261127/us-east-1/s3/aws4_request`.
fn scope(credential: &str) -> Result<(String, String, String), Reply> {
    let parts: Vec<_> = credential.rsplitn(5, '/').collect();
    let [end, service, region, day, access] = parts[..] else {
        return Err(malformed("the Credential is mal-formed"));
    };
    if (end, service) != ("aws4_request", "s3") {
        return Err(malformed(&format!("incorrect service \"{service}\". This endpoint belongs to \"s3\".")));
    }
    Ok((access.to_owned(), day.to_owned(), region.to_owned()))
}

fn canonical(request: &Request, claim: &Claim) -> String {
    let path = encoded(&crate::text::decoded(&request.path, false), "/");
    let mut query: Vec<_> = request
        .query
        .iter()
        .filter(|(name, _)| name != "X-Amz-Signature")
        .map(|(name, value)| (encoded(name, ""), encoded(value, "")))
        .collect();
    query.sort();
    let query: Vec<_> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut headers = String::new();
    for name in &claim.signed {
        let values: Vec<_> = request
            .headers
            .iter()
            .filter(|(found, _)| found == name)
            .map(|(_, value)| value.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        headers += &format!("{name}:{}\n", values.join(","));
    }
    let (query, signed) = (query.join("&"), claim.signed.join(";"));
    format!("{}\n{path}\n{query}\n{headers}\n{signed}\n{}", request.method, claim.payload)
}

fn signature(request: &Request, claim: &Claim, secret: &str) -> String {
    let hmac = |key: &[u8], text: &str| sign(&Key::new(HMAC_SHA256, key), text.as_bytes());
    let day = hmac(format!("AWS4{secret}").as_bytes(), &claim.day);
    let region = hmac(day.as_ref(), &claim.region);
    let service = hmac(region.as_ref(), "s3");
    let key = hmac(service.as_ref(), "aws4_request");
    let hash = hex(digest(&SHA256, canonical(request, claim).as_bytes()).as_ref());
    let (date, scope) = (&claim.date, format!("{}/{}/s3/aws4_request", claim.day, claim.region));
    hex(hmac(key.as_ref(), &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}")).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const DATE: &str = "20130524T000000Z";
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    /// The examples of Amazon's page "Signature Calculations for the Authorization Header".
    #[test]
    fn signatures_are_those_of_the_published_examples() {
        let put = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let examples = [
            (
                "GET /test.txt",
                "range:bytes=0-9",
                EMPTY,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT /test$file.text",
                "date:Fri, 24 May 2013 00:00:00 GMT\r\nx-amz-storage-class:REDUCED_REDUNDANCY",
                put,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET /?lifecycle",
                "",
                EMPTY,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET /?max-keys=2&prefix=J",
                "",
                EMPTY,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ];
        for (line, more, payload, expected) in examples {
            let more = if more.is_empty() { String::new() } else { format!("{more}\r\n") };
            let head = format!(
                "{line} HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n{more}x-amz-content-sha256: {payload}\r\n\
                 x-amz-date: {DATE}\r\n\r\n"
            );
            let request = Request::parse(head.as_bytes()).unwrap();
            let mut signed: Vec<_> = request.headers.iter().map(|(name, _)| name.clone()).collect();
            signed.sort();
            let list = signed.join(";");
            let header = format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                 SignedHeaders={list}, Signature={expected}"
            );
            let claim = of_header(&request, &header).unwrap_or_else(|_| panic!("{line}"));
            assert_eq!(
                signature(&request, &claim, SECRET),
                expected,
                "{line}\n{}",
                canonical(&request, &claim)
            );
        }
    }

    #[test]
    fn a_presigned_url_is_that_of_the_published_example() {
        let expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        let head = format!(
            "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1\
             %2Fs3%2Faws4_request&X-Amz-Date={DATE}&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature={expected} \
             HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n\r\n"
        );
        let request = Request::parse(head.as_bytes()).unwrap();
        let claim = of_query(&request).unwrap_or_else(|_| panic!("a claim"));
        assert_eq!(signature(&request, &claim, SECRET), expected);
        let (made, day) = (basic_date(DATE).unwrap(), 86_400);
        assert!(in_time(&claim, made + day).is_ok() && in_time(&claim, made + day + 1).is_err());
    }
}
