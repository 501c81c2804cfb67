//! Where a bucket is: in the host's name or in the path.

use forebay_error::{Error, ErrorKind, Result};

use super::settings::{Settings, Style};
use super::target::Target;
use crate::wire::site::Site;

/// Where requests for a bucket go, and how they name it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) site: Site,
    /// The value of `host`.
    pub(super) authority: String,
    /// What stands before keys, without a `/` at its end: empty, or `/bucket`.
    pub(super) path: String,
}

impl Place {
    /// That of a bucket in a region; an empty one: the list of buckets.
    pub(super) fn of(settings: &Settings, bucket: &str, region: &str) -> Result<Self> {
        if settings.endpoint.is_none() && bucket.ends_with("--x-s3") {
            return Err(directory_bucket(bucket));
        }
        let service = if settings.fips { "s3-fips" } else { "s3" };
        let aws = || Target::of_aws(service, region, settings.dual_stack);
        let mut target = settings.endpoint.clone().unwrap_or_else(aws);
        let mut path = std::mem::take(&mut target.base);
        if is_in_host(settings, &target, bucket)? {
            target.host = format!("{bucket}.{}", target.host);
        } else if !bucket.is_empty() {
            path = format!("{path}/{bucket}");
        }
        let proxy = settings.proxies.before(target.tls, &target.host, target.port);
        let ca_file = settings.ca_file.clone().filter(|_| target.tls);
        let site = Site { tls: target.tls, host: target.host, port: target.port, proxy, ca_file };
        Ok(Self { authority: site.name(), site, path })
    }
}

/// AWS's directory buckets have endpoints of their own, and take keys of sessions alone.
fn directory_bucket(bucket: &str) -> Error {
    let why = "cannot use the bucket: S3 Express (--x-s3) is not supported, it needs sessions of its own (CreateSession)";
    Error::new(ErrorKind::Unsupported, why)
        .with("bucket", bucket)
        .hint(format!("copy it to another bucket: aws s3 sync s3://{bucket} s3://BUCKET"))
}

fn is_in_host(settings: &Settings, target: &Target, bucket: &str) -> Result<bool> {
    if bucket.is_empty() {
        return Ok(false);
    }
    let label = |text: &str| {
        text.len() <= 63
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let is_name = bucket.split('.').all(label);
    match settings.style {
        Style::Path => Ok(false),
        // A certificate covers one label, so no bucket with dots.
        Style::Auto => Ok(settings.endpoint.is_none() && label(bucket)),
        Style::Virtual if is_name && !target.is_address() => Ok(true),
        Style::Virtual => {
            let error =
                Error::new(ErrorKind::InvalidInput, "cannot put the bucket's name into the host's name");
            Err(error.with("bucket", bucket).with("host", &target.host).hint("AWS_S3_ADDRESSING_STYLE=path"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::Profiles;
    use super::super::variables::Variables;
    use super::*;

    fn place<const N: usize>(variables: [(&str, &str); N], bucket: &str) -> Result<(String, String)> {
        let settings = Settings::read(&Variables::from(variables), &Profiles::default())?;
        let place = Place::of(&settings, bucket, &settings.region)?;
        Ok((place.authority, place.path))
    }

    #[test]
    fn styles() {
        const LOCAL: (&str, &str) = ("AWS_ENDPOINT_URL", "http://h:9000/base");
        const NAMED: (&str, &str) = ("AWS_S3_ADDRESSING_STYLE", "virtual");
        for (found, authority, path) in [
            (place([], "b"), "b.s3.us-east-1.amazonaws.com", ""),
            (place([("AWS_REGION", "eu-west-1")], "b.c"), "s3.eu-west-1.amazonaws.com", "/b.c"),
            (place([], "B_c"), "s3.us-east-1.amazonaws.com", "/B_c"),
            (place([], ""), "s3.us-east-1.amazonaws.com", ""),
            (place([LOCAL], "b"), "h:9000", "/base/b"),
            (place([LOCAL, NAMED], "b.c"), "b.c.h:9000", "/base"),
            (place([("AWS_USE_FIPS_ENDPOINT", "true")], "b"), "b.s3-fips.us-east-1.amazonaws.com", ""),
        ] {
            assert_eq!(found.unwrap(), (authority.to_owned(), path.to_owned()));
        }
        let address = place([("AWS_ENDPOINT_URL", "http://10.0.0.1"), NAMED], "b").unwrap_err();
        assert!(address.hints()[0].contains("path"));
    }

    #[test]
    fn directory_buckets_are_refused_at_aws_alone() {
        let error = place([], "data--usw2-az1--x-s3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("CreateSession"), "{error}");
        assert_eq!(
            error.hints(),
            ["copy it to another bucket: aws s3 sync s3://data--usw2-az1--x-s3 s3://BUCKET"]
        );
        assert!(place([("AWS_ENDPOINT_URL", "http://h")], "data--usw2-az1--x-s3").is_ok());
    }

    #[test]
    fn a_proxy_and_certificates_come_along() {
        let variables = [("AWS_ENDPOINT_URL", "http://h"), ("http_proxy", "http://p:3128")];
        let settings = Settings::read(&Variables::from(variables), &Profiles::default()).unwrap();
        assert_eq!(Place::of(&settings, "b", "r").unwrap().site.proxy.unwrap().host, "p");
    }
}
