//! Roles, by the token service. reqsign asks it, too, but takes no endpoint for it.

use std::path::Path;
use std::time::SystemTime;

use ::reqsign_core::hash::hex_sha256;
use ::reqsign_core::time::Timestamp;
use bytes::Bytes;
use forebay_config::files::read_plain;
use forebay_error::{Error, ErrorKind, Result};

use super::super::keys::Keys;
use super::super::sigv4::{Moment, Scope, Signable, query};
use super::reqsign::short;
use super::world::{Role, World};
use crate::xml;

/// Keys of a role, by other keys.
pub(super) fn assume(world: &World, role: &Role, keys: &Keys) -> Result<Keys> {
    let hint = format!("aws sts assume-role --role-arn {} --role-session-name {}", role.arn, role.session);
    call(world, &form("AssumeRole", role), Some(keys)).map_err(|error| error.hint(hint))
}

/// Keys of a role, by the token of a file.
pub(super) fn assume_by_token(world: &World, role: &Role, file: &Path) -> Result<Keys> {
    let token = read_plain(file, 1 << 20).map_err(|error| {
        Error::from_io(&error, "cannot read the token of the web identity").with("path", file.display())
    })?;
    let mut form = form("AssumeRoleWithWebIdentity", role);
    form.push(("WebIdentityToken".to_owned(), token.trim().to_owned()));
    call(world, &form, None).map_err(|error| error.with("token", file.display()))
}

fn form(action: &str, role: &Role) -> Vec<(String, String)> {
    let mut form = Vec::new();
    let mut add = |name: &str, value: &str| form.push((name.to_owned(), value.to_owned()));
    add("Action", action);
    add("Version", "2011-06-15");
    add("RoleArn", &role.arn);
    add("RoleSessionName", &role.session);
    if let Some(id) = &role.external_id {
        add("ExternalId", id);
    }
    if let Some(seconds) = &role.seconds {
        add("DurationSeconds", seconds);
    }
    form
}

fn call(world: &World, form: &[(String, String)], keys: Option<&Keys>) -> Result<Keys> {
    let (target, region) = &world.sts;
    let body = query(form, true);
    let path = format!("{}/", target.base);
    let moment = Moment::of(SystemTime::now());
    let mut headers = vec![
        ("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned()),
        ("host".to_owned(), target.authority()),
        ("x-amz-date".to_owned(), moment.as_str().to_owned()),
    ];
    if let Some(keys) = keys {
        headers.extend(keys.token.iter().map(|token| ("x-amz-security-token".to_owned(), token.clone())));
        let payload = hex_sha256(body.as_bytes());
        let signed =
            Signable { method: "POST", path: &path, query: &[], headers: &headers, payload: &payload };
        let value = signed.authorization(keys, &moment, Scope { region, service: "sts" });
        headers.push(("authorization".to_owned(), value));
    }
    let wrong = |why: &str| {
        let error = Error::new(ErrorKind::Io, format!("cannot get keys: {why}"));
        error.with("server", format!("{target}"))
    };
    let mut request = http::Request::post(format!("{target}/"));
    for (name, value) in &headers {
        request = request.header(name, value);
    }
    let request = request.body(Bytes::from(body)).map_err(|_| wrong("the request has a bad header"))?;
    let reply = world.http.send(&request).map_err(|why| wrong(&why))?;
    let document = reply.body();
    if !reply.status().is_success() {
        return Err(refused(document, reply.status().as_u16()).with("server", format!("{target}")));
    }
    keys_of(document).ok_or_else(|| wrong("the reply has none"))
}

fn refused(document: &[u8], status: u16) -> Error {
    // What is no XML has no code: a proxy's page.
    let [code, message] = xml::first(document, ["Code", "Message"]).unwrap_or_default();
    let code = code.unwrap_or_else(|| format!("status {status}"));
    let kind = if (400..500).contains(&status) { ErrorKind::PermissionDenied } else { ErrorKind::Io };
    let said = short(&format!("{code}: {}", message.unwrap_or_default()));
    Error::new(kind, format!("cannot get keys: {said}"))
}

fn keys_of(document: &[u8]) -> Option<Keys> {
    let names = ["AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"];
    let [id, secret, token, expires] =
        xml::first(document, names).ok()?.map(|text| text.filter(|text| !text.is_empty()));
    let expires: Timestamp = expires?.parse().ok()?;
    Some(Keys::new(id?, secret?, Some(token?), Some(expires.as_system_time())))
}
