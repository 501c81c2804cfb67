//! Roles, by the token service. reqsign asks it, too, but takes no endpoint for it.

use std::path::Path;
use std::time::SystemTime;

use ::reqsign_core::hash::hex_sha256;
use ::reqsign_core::time::Timestamp;
use bytes::Bytes;
use forebay_config::files::read_plain;
use forebay_error::{Error, ErrorKind, Result};
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

use super::super::keys::Keys;
use super::super::sigv4::{Moment, Scope, Signable, query};
use super::reqsign::short;
use super::{Role, World};

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
    let text = String::from_utf8_lossy(reply.body());
    if !reply.status().is_success() {
        return Err(refused(&text, reply.status().as_u16()).with("server", format!("{target}")));
    }
    keys_of(&text).ok_or_else(|| wrong("the reply has none"))
}

fn refused(text: &str, status: u16) -> Error {
    let code = element(text, "Code").unwrap_or_else(|| format!("status {status}"));
    let message = element(text, "Message").unwrap_or_default();
    let kind = if (400..500).contains(&status) { ErrorKind::PermissionDenied } else { ErrorKind::Io };
    Error::new(kind, format!("cannot get keys: {}", short(&format!("{code}: {message}"))))
}

fn keys_of(text: &str) -> Option<Keys> {
    let get = |name| element(text, name).filter(|value| !value.is_empty());
    let expires: Timestamp = get("Expiration")?.parse().ok()?;
    let (id, secret, token) = (get("AccessKeyId")?, get("SecretAccessKey")?, get("SessionToken")?);
    Some(Keys::new(id, secret, Some(token), Some(expires.as_system_time())))
}

/// The text of the first element of a name.
fn element(text: &str, name: &str) -> Option<String> {
    let mut reader = Reader::from_str(text);
    let mut found: Option<String> = None;
    loop {
        let event = reader.read_event().ok()?;
        let piece = match &event {
            Event::Start(start) if start.local_name().into_inner() == name => {
                found = Some(String::new());
                continue;
            }
            Event::End(end) if end.local_name().into_inner() == name => return found,
            Event::Text(piece) => piece.xml10_content(),
            Event::GeneralRef(entity) => match entity.resolve_char_ref().ok()? {
                Some(letter) => letter.to_string().into(),
                None => resolve_predefined_entity(&entity.xml10_content())?.into(),
            },
            Event::Eof => return None,
            _ => continue,
        };
        if let Some(found) = &mut found {
            found.push_str(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements() {
        let text = "<?xml version=\"1.0\"?><a xmlns=\"x\"><n:Code>A&amp;B&#x21;</n:Code><Message/><Code>2</Code></a>";
        assert_eq!(element(text, "Code").as_deref(), Some("A&B!"));
        assert_eq!(element(text, "Other"), None);
        assert_eq!(element("<Code>no end", "Code"), None);
    }
}
