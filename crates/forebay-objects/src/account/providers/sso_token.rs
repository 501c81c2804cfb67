//! The token that `aws sso login` left, renewed before it is over. reqsign reads it, and does not renew it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ::reqsign_core::hash::hex_sha1;
use ::reqsign_core::time::Timestamp;
use bytes::Bytes;
use forebay_config::files::read_plain_bytes;
use forebay_error::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::super::target::Target;
use super::world::{Sso, World};

/// How long before its end a token is renewed.
const AHEAD: Duration = Duration::from_mins(5);

/// Renews the token of a session where it is nearly over, and has what renews it. Without that reqsign says what is missing.
pub(super) fn renew(world: &World, sso: &Sso) -> Result<()> {
    let Some(home) = world.variables.get("HOME") else { return Ok(()) };
    let name = format!("{}.json", hex_sha1(sso.cache_key.as_bytes()));
    let path = Path::new(home).join(".aws/sso/cache").join(name);
    let Some(token) = Token::read(path.clone()) else { return Ok(()) };
    if token.lasts(AHEAD) {
        return Ok(());
    }
    let Some(request) = token.request() else { return Ok(()) };
    let renewed = token.renew(world, sso, &request);
    // One that failed is still good for a while, or another program renewed it meanwhile.
    if Token::read(path).is_some_and(|token| token.lasts(Duration::ZERO)) { Ok(()) } else { renewed }
}

/// The token's file.
struct Token {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Token {
    fn read(path: PathBuf) -> Option<Self> {
        let bytes = read_plain_bytes(&path, 1 << 20).ok()?;
        serde_json::from_slice(&bytes).ok().map(|fields| Self { path, fields })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    /// Whether a time of its file is at least this far ahead.
    fn is_ahead(&self, name: &str, time: Duration) -> Option<bool> {
        let end: Timestamp = self.text(name)?.parse().ok()?;
        Some(end.as_system_time() > SystemTime::now() + time)
    }

    fn lasts(&self, time: Duration) -> bool {
        self.is_ahead("expiresAt", time).unwrap_or(false)
    }

    /// What asks for a new one. `None`: it has no token for that, or its client's registration is over.
    fn request(&self) -> Option<Bytes> {
        let (id, secret) = (self.text("clientId")?, self.text("clientSecret")?);
        let token = self.text("refreshToken")?;
        let is_registered = self.is_ahead("registrationExpiresAt", Duration::ZERO).unwrap_or(true);
        let body = json!({
            "grantType": "refresh_token", "clientId": id, "clientSecret": secret, "refreshToken": token
        });
        is_registered.then(|| body.to_string().into())
    }

    /// Asks for a new token, and writes it to the file.
    fn renew(mut self, world: &World, sso: &Sso, request: &Bytes) -> Result<()> {
        let new = self.path.with_extension(format!("{}.new", std::process::id()));
        // Before the request: the token that renews is good once.
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)
            .map_err(|error| unwritten(&error, &self.path))?;
        let done = self.ask(world, sso, request).and_then(|()| {
            let text = Value::Object(std::mem::take(&mut self.fields)).to_string();
            let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &self.path));
            written.map_err(|error| unwritten(&error, &self.path))
        });
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done
    }

    fn ask(&mut self, world: &World, sso: &Sso, request: &Bytes) -> Result<()> {
        let server = match world.variables.get("AWS_ENDPOINT_URL_SSO_OIDC") {
            Some(url) => Target::parse(url, "AWS_ENDPOINT_URL_SSO_OIDC")?,
            None => Target::of_aws("oidc", &sso.region, false),
        };
        let wrong = |kind, why: &str| {
            let error = Error::new(kind, format!("cannot renew the token of SSO: {why}"));
            error.with("server", &server)
        };
        let request = http::Request::post(format!("{server}/token"))
            .header("content-type", "application/json")
            .body(request.clone())
            .map_err(|_| wrong(ErrorKind::InvalidInput, "the URL of the server is wrong"))?;
        let reply = world.http.send(&request).map_err(|why| wrong(ErrorKind::Io, &why))?;
        let body: Map<String, Value> = serde_json::from_slice(reply.body()).unwrap_or_default();
        if !reply.status().is_success() {
            let code = body.get("error").and_then(Value::as_str).filter(|code| is_code(code));
            let why = format!("{} (status {})", code.unwrap_or("refused"), reply.status().as_u16());
            return Err(wrong(ErrorKind::PermissionDenied, &why));
        }
        self.take(&body).ok_or_else(|| wrong(ErrorKind::Io, "the reply has none"))
    }

    /// Takes what a reply has over into the fields.
    fn take(&mut self, reply: &Map<String, Value>) -> Option<()> {
        let token = reply.get("accessToken")?.as_str()?;
        let seconds = i64::try_from(reply.get("expiresIn")?.as_u64()?).ok()?;
        let end = Timestamp::from_second(Timestamp::now().as_second().checked_add(seconds)?).ok()?;
        let mut set = |name: &str, value: &str| self.fields.insert(name.to_owned(), value.into());
        set("accessToken", token);
        set("expiresAt", &end.format_rfc3339_zulu());
        if let Some(next) = reply.get("refreshToken").and_then(Value::as_str) {
            set("refreshToken", next);
        }
        Some(())
    }
}

/// Whether it is a name of OAuth's, as `invalid_grant`: what else a server says may repeat a token.
fn is_code(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
}

fn unwritten(error: &std::io::Error, path: &Path) -> Error {
    Error::from_io(error, "cannot write the token of SSO").with("path", path.display())
}
