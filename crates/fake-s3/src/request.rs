//! Requests: heads and bodies as they come.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::time::Duration;

use crate::sums::Sums;
use crate::text::decoded;
use crate::{Asked, Wire};

/// The longest head that is taken.
const HEAD_MOST: usize = 64 << 10;

/// A request, before its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// The head as it came.
    pub(crate) raw: String,
    pub(crate) method: String,
    /// Percent-encoded, as it came, without the query.
    pub(crate) path: String,
    /// Decoded.
    pub(crate) query: Vec<(String, String)>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bucket: String,
    pub(crate) key: String,
}

/// The body of a request. `bytes` is empty where bodies are not kept.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sums: Sums,
    pace: Option<(usize, Duration)>,
}

impl Request {
    /// The next request of a connection; `None`: it was closed.
    pub(crate) fn read(from: &mut BufReader<Box<dyn Wire>>) -> Result<Option<Self>> {
        let mut raw = Vec::new();
        while !raw.ends_with(b"\r\n\r\n") {
            let come = (&mut *from).take((HEAD_MOST - raw.len()) as u64).read_until(b'\n', &mut raw)?;
            if come == 0 && raw.is_empty() {
                return Ok(None);
            }
            if come == 0 {
                return Err(Error::new(ErrorKind::InvalidData, "a head that does not end"));
            }
        }
        Self::parse(&raw).map(Some).ok_or_else(|| Error::new(ErrorKind::InvalidData, "no head of a request"))
    }

    pub(crate) fn parse(raw: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Request::new(&mut headers);
        parsed.parse(raw).ok()?;
        let mut made = Self {
            raw: String::from_utf8_lossy(raw).into_owned(),
            method: parsed.method?.to_owned(),
            ..Self::default()
        };
        for header in parsed.headers.iter() {
            let value = String::from_utf8_lossy(header.value).trim_ascii().to_owned();
            made.headers.push((header.name.to_ascii_lowercase(), value));
        }
        // What a client sends to a proxy begins with the server's name.
        let target = parsed.path?;
        let target = match target.strip_prefix("http://") {
            Some(rest) => &rest[rest.find('/')?..],
            None => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        path.clone_into(&mut made.path);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            made.query.push((decoded(name, true), decoded(value, true)));
        }
        made.name();
        Some(made)
    }

    /// Bucket and key, of the path or of the host: `bucket.s3.…` and `bucket.localhost`.
    fn name(&mut self) {
        let path = decoded(&self.path, false);
        let path = path.strip_prefix('/').unwrap_or(&path);
        let host = self.header("host").unwrap_or("").split(':').next().unwrap_or("");
        let of_host =
            host.strip_suffix(".localhost").or_else(|| host.split_once(".s3.").map(|(name, _)| name));
        if let Some(bucket) = of_host {
            (self.bucket, self.key) = (bucket.to_owned(), path.to_owned());
        } else {
            let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
            (self.bucket, self.key) = (bucket.to_owned(), key.to_owned());
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn asked(&self) -> Asked {
        let has = |name| self.parameter(name).is_some();
        match (self.method.as_str(), self.bucket.is_empty(), self.key.is_empty()) {
            ("GET", true, _) => Asked::Buckets,
            ("GET", _, true) if has("uploads") => Asked::Uploads,
            ("GET", _, true) if has("location") => Asked::Location,
            ("GET", _, true) => Asked::List,
            ("POST", _, true) if has("delete") => Asked::DeleteMany,
            ("HEAD", false, true) => Asked::HeadBucket,
            ("PUT", false, true) => Asked::MakeBucket,
            ("DELETE", false, true) => Asked::DeleteBucket,
            (_, _, true) => Asked::Other,
            ("GET", ..) if has("uploadId") => Asked::Parts,
            ("GET", ..) if has("tagging") => Asked::Tags,
            ("GET", ..) => Asked::Get,
            ("HEAD", ..) => Asked::Head,
            ("PUT", ..) if has("uploadId") => Asked::Part,
            ("PUT", ..) if self.header("x-amz-copy-source").is_some() => Asked::Copy,
            ("PUT", ..) => Asked::Put,
            ("POST", ..) if has("uploads") => Asked::Create,
            ("POST", ..) if has("uploadId") => Asked::Complete,
            ("DELETE", ..) if has("uploadId") => Asked::Abort,
            ("DELETE", ..) => Asked::Delete,
            _ => Asked::Other,
        }
    }

    /// Receives the body, and sums it on the way; perhaps this many bytes at a time, one in so long.
    pub(crate) fn body(
        &self,
        from: &mut BufReader<Box<dyn Wire>>,
        is_kept: bool,
        pace: Option<(usize, Duration)>,
    ) -> Result<Body> {
        if self.header("expect").is_some_and(|what| what.eq_ignore_ascii_case("100-continue")) {
            from.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = Body { bytes: Vec::new(), sums: Sums::new(self, is_kept), pace };
        if self.header("transfer-encoding").is_some_and(|what| what.eq_ignore_ascii_case("chunked")) {
            loop {
                let mut line = String::new();
                from.read_line(&mut line)?;
                let size = line.trim().split(';').next().unwrap_or("");
                let size = u64::from_str_radix(size, 16).map_err(Error::other)?;
                body.take(from, size, is_kept)?;
                from.read_line(&mut String::new())?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        let length = self.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        body.take(from, length, is_kept)?;
        Ok(body)
    }
}

impl Body {
    fn take(&mut self, from: &mut impl BufRead, len: u64, is_kept: bool) -> Result<()> {
        let mut left = len;
        let (most, pause) = self.pace.unwrap_or((1 << 20, Duration::ZERO));
        let mut block = vec![0; left.min(most as u64) as usize];
        while left > 0 {
            let size = block.len().min(left as usize);
            from.read_exact(&mut block[..size])?;
            self.sums.add(&block[..size]);
            if is_kept {
                self.bytes.extend_from_slice(&block[..size]);
            }
            left -= size as u64;
            std::thread::sleep(pause);
        }
        Ok(())
    }
}
