//! Each provider against a server of this process.

use std::time::Duration;

use super::super::testing::{KeyServer, account, account_at, in_seconds, json_reply, signer, sts_reply};
use forebay_error::ErrorKind;

const ROLE: &str = "arn:aws:iam::123456789012:role/reader";

fn gives(found: &super::super::testing::Made, id: &str, token: Option<&str>, provider: &str) {
    let signed = signer(&found.account).unwrap_or_else(|error| panic!("{provider}: {error:?}"));
    assert_eq!((signed.0.as_str(), signed.1.as_deref()), (id, token));
    assert_eq!(found.account.provider().as_deref(), Some(provider));
}

#[test]
fn variables_go_before_profiles() {
    let variables =
        [("AWS_ACCESS_KEY_ID", "AKID1"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")];
    let found =
        account(&variables, "", "[default]\naws_access_key_id = AKID2\naws_secret_access_key = s\n").unwrap();
    gives(&found, "AKID1", Some("t"), "environment");
}

#[test]
fn a_profile_has_keys() {
    let credentials = "[default]\naws_access_key_id = AKID2\naws_secret_access_key = s\n[dev]\naws_access_key_id = AKID3\n\
        aws_secret_access_key = s\naws_session_token = t\n";
    gives(&account(&[], "", credentials).unwrap(), "AKID2", None, "profile default");
    gives(&account(&[("AWS_PROFILE", "dev")], "", credentials).unwrap(), "AKID3", Some("t"), "profile dev");
}

#[test]
fn nobody_signs_where_that_is_asked_for() {
    let found = account(&[("AWS_NO_SIGN_REQUEST", "true"), ("AWS_ACCESS_KEY_ID", "AKID")], "", "").unwrap();
    gives(&found, "", None, "anonymous");
}

#[test]
fn half_of_the_keys_is_an_error() {
    let found = account(&[("AWS_ACCESS_KEY_ID", "AKID")], "", "").unwrap();
    assert!(signer(&found.account).unwrap_err().hints()[0].contains("AWS_SECRET_ACCESS_KEY"));
    let found = account(&[], "", "[default]\naws_secret_access_key = s\n").unwrap();
    assert!(signer(&found.account).unwrap_err().hints()[0].contains("aws_access_key_id"));
}

#[test]
fn a_named_profile_never_falls_back_to_the_machine() {
    let server = KeyServer::new(|_| (200, json_reply("ASIA", &in_seconds(3600))));
    let variables = [
        ("AWS_PROFILE", "dev"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &server.url),
        ("AWS_ROLE_ARN", ROLE),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere"),
    ];
    let found = account(&variables, "[profile dev]\nregion = eu-west-1\n", "").unwrap();
    let error = signer(&found.account).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(
        error.to_string().contains("profile=dev") && error.hints()[1].contains("unset AWS_PROFILE"),
        "{error}"
    );
    assert!(server.came().is_empty());
}

#[test]
fn a_role_by_another_profile() {
    let server = KeyServer::new(|_| (200, sts_reply("AssumeRole", "ASIAROLE", &in_seconds(3600))));
    let config = format!(
        "[profile dev]\nrole_arn = {ROLE}\nsource_profile = base\nexternal_id = my id\nduration_seconds = 900\n\
         role_session_name = me\nregion = eu-west-1\n"
    );
    let credentials = "[base]\naws_access_key_id = AKBASE\naws_secret_access_key = s\n";
    let variables = [("AWS_PROFILE", "dev"), ("AWS_ENDPOINT_URL_STS", server.url.as_str())];
    let found = account(&variables, &config, credentials).unwrap();
    let name = format!("profile dev (role {ROLE} by profile base)");
    gives(&found, "ASIAROLE", Some("token of ASIAROLE"), &name);
    gives(&found, "ASIAROLE", Some("token of ASIAROLE"), &name);
    let came = server.came();
    assert_eq!(came.len(), 1, "keys are kept");
    assert_eq!(came[0].line, "POST /");
    let authorization = came[0].header("authorization").unwrap();
    assert!(
        authorization.contains("Credential=AKBASE/") && authorization.contains("/eu-west-1/sts/aws4_request")
    );
    for part in ["Action=AssumeRole&", "ExternalId=my%20id", "DurationSeconds=900", "RoleSessionName=me"] {
        assert!(came[0].body.contains(part), "{}", came[0].body);
    }
}

#[test]
fn a_chain_of_roles() {
    let server = KeyServer::new(|came| {
        let id = if came.body.contains("first") { "ASIAFIRST" } else { "ASIASECOND" };
        (200, sts_reply("AssumeRole", id, &in_seconds(3600)))
    });
    let config = "[default]\nrole_arn = arn:second\nsource_profile = first\n\
        [profile first]\nrole_arn = arn:first\nsource_profile = first\n";
    let credentials = "[first]\naws_access_key_id = AKBASE\naws_secret_access_key = s\n";
    let found = account(&[("AWS_ENDPOINT_URL_STS", &server.url)], config, credentials).unwrap();
    let name = "profile default (role arn:second by profile first (role arn:first by profile first))";
    gives(&found, "ASIASECOND", Some("token of ASIASECOND"), name);
    let came = server.came();
    assert!(came[1].header("authorization").unwrap().contains("ASIAFIRST"));
    assert_eq!(came[1].header("x-amz-security-token"), Some("token of ASIAFIRST"));
}

#[test]
fn roles_that_cannot_be_assumed() {
    for (config, why) in [
        ("[default]\nrole_arn = a\n", "whose keys"),
        ("[default]\nrole_arn = a\nsource_profile = other\n", "its source has no keys"),
        (
            "[default]\nrole_arn = a\nsource_profile = b\n[profile b]\nrole_arn = b\nsource_profile = default\n",
            "leads back",
        ),
        ("[default]\nrole_arn = a\ncredential_source = Other\n", "whose keys"),
    ] {
        let found = account(&[], config, "").unwrap();
        let error = signer(&found.account).unwrap_err();
        assert!(error.to_string().contains(why), "{config}: {error}");
        assert!(!error.hints().is_empty());
    }
}

/// Also where the profile of the source wants it.
#[test]
fn codes_of_devices_are_refused() {
    let role = "role_arn = a\nsource_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/me\n";
    let credentials = "[keys]\naws_access_key_id = A\naws_secret_access_key = s\n";
    for (config, named, wants) in [
        (format!("[profile dev]\n{role}"), "dev", "dev"),
        (
            format!("[profile dev]\nrole_arn = b\nsource_profile = base\n[profile base]\n{role}"),
            "dev",
            "base",
        ),
    ] {
        let found = account(&[("AWS_PROFILE", named)], &config, credentials).unwrap();
        let error = signer(&found.account).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("mfa_serial") && error.to_string().contains(wants), "{error}");
        let hint = format!("eval $(aws configure export-credentials --profile {wants} --format env)");
        assert_eq!(error.hints(), [hint]);
    }
}

#[test]
fn replies_of_the_token_service_without_keys_are_errors() {
    let whole = sts_reply("AssumeRole", "ASIAROLE", &in_seconds(3600));
    let config = "[default]\nrole_arn = arn:r\nsource_profile = default\naws_access_key_id = A\naws_secret_access_key = s\n";
    for (status, body, why) in [
        // All keys are in it, but it breaks off.
        (200, whole[..whole.len() - 5].to_owned(), "the reply has none"),
        (
            200,
            whole.replace("<SessionToken>", "<Other>").replace("</SessionToken>", "</Other>"),
            "the reply has none",
        ),
        (200, "<!DOCTYPE a><a/>".to_owned(), "the reply has none"),
        (403, "<html>a proxy".to_owned(), "status 403"),
    ] {
        let shown = body.clone();
        let server = KeyServer::new(move |_| (status, body.clone()));
        let found = account(&[("AWS_ENDPOINT_URL_STS", &server.url)], config, "").unwrap();
        let error = signer(&found.account).unwrap_err();
        assert!(error.to_string().contains(why), "{shown}: {error}");
    }
}

#[test]
fn the_token_service_refuses() {
    let body = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not &lt;you&gt;</Message></Error></ErrorResponse>";
    let server = KeyServer::new(move |_| (403, body.to_owned()));
    let config = "[default]\nrole_arn = arn:r\nsource_profile = default\naws_access_key_id = A\naws_secret_access_key = s\n";
    let found = account(&[("AWS_ENDPOINT_URL", &server.url)], config, "").unwrap();
    let error = signer(&found.account).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(
        error.to_string().contains("AccessDenied: not <you>") && error.to_string().contains("provider="),
        "{error}"
    );
    assert!(error.hints()[0].starts_with("aws sts assume-role --role-arn arn:r"));
    assert_eq!(server.came().len(), 1);
}

#[test]
fn a_web_identity() {
    let server =
        KeyServer::new(|_| (200, sts_reply("AssumeRoleWithWebIdentity", "ASIAWEB", &in_seconds(3600))));
    let home = tempfile::tempdir().unwrap();
    let token = home.path().join("token");
    std::fs::write(&token, "a.b.c\n").unwrap();
    let token = token.to_str().unwrap();
    let variables = [
        ("AWS_ROLE_ARN", ROLE),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token),
        ("AWS_ENDPOINT_URL_STS", &server.url),
    ];
    let found = account(&variables, "", "").unwrap();
    gives(&found, "ASIAWEB", Some("token of ASIAWEB"), &format!("web identity (role {ROLE})"));
    let came = server.came();
    assert!(came[0].body.contains("WebIdentityToken=a.b.c") && came[0].header("authorization").is_none());
    let config = format!("[default]\nrole_arn = {ROLE}\nweb_identity_token_file = {token}\n");
    let found = account(&[("AWS_ENDPOINT_URL_STS", &server.url)], &config, "").unwrap();
    gives(
        &found,
        "ASIAWEB",
        Some("token of ASIAWEB"),
        &format!("profile default (web identity, role {ROLE})"),
    );
    let gone = [("AWS_ROLE_ARN", ROLE), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere/token")];
    let error = signer(&account(&gone, "", "").unwrap().account).unwrap_err();
    assert!(error.to_string().contains("/nowhere/token"), "{error}");
}

#[test]
fn sso() {
    let server = KeyServer::new(|_| (200, sso_reply()));
    let config = "[profile new]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n\
        [sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://x\n\
        [profile old]\nsso_start_url = https://x\nsso_region = eu-west-1\nsso_account_id = 1\nsso_role_name = r\n";
    for (profile, cache_key) in [("new", "corp"), ("old", "https://x")] {
        let home = tempfile::tempdir().unwrap();
        let cache = home.path().join(".aws/sso/cache");
        std::fs::create_dir_all(&cache).unwrap();
        let file = cache.join(format!("{}.json", reqsign_core::hash::hex_sha1(cache_key.as_bytes())));
        let variables = [("AWS_PROFILE", profile), ("AWS_ENDPOINT_URL_SSO", server.url.as_str())];
        let found = account_at(home, &variables, config, "").unwrap();
        let error = signer(&found.account).unwrap_err();
        assert!(error.hints().contains(&format!("aws sso login --profile {profile}")), "{error:?}");
        let token = |expires: &str| format!(r#"{{"accessToken":"bearer","expiresAt":"{expires}"}}"#);
        std::fs::write(&file, token(&in_seconds(-60))).unwrap();
        let found = account_at(found.home, &variables, config, "").unwrap();
        assert!(signer(&found.account).is_err(), "the token is over");
        std::fs::write(&file, token(&in_seconds(600))).unwrap();
        let found = account_at(found.home, &variables, config, "").unwrap();
        gives(&found, "ASIASSO", Some("t"), &format!("profile {profile} (SSO)"));
    }
    let came = server.came();
    assert_eq!(came.len(), 2);
    assert_eq!(came[0].line, "GET /federation/credentials?role_name=r&account_id=1");
    assert_eq!(came[0].header("x-amz-sso_bearer_token"), Some("bearer"));
}

/// The reply of SSO with keys.
fn sso_reply() -> String {
    let end = std::time::SystemTime::now() + Duration::from_hours(1);
    let end = end.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!(
        r#"{{"roleCredentials":{{"accessKeyId":"ASIASSO","secretAccessKey":"s","sessionToken":"t","expiration":{end}}}}}"#
    )
}

/// A profile of SSO, whose token ends in some seconds and has these further fields; the servers are one. Also the token's file.
fn with_token(
    server: &KeyServer,
    seconds: i64,
    more: &str,
) -> (super::super::testing::Made, std::path::PathBuf) {
    let config = "[profile new]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n\
        [sso-session corp]\nsso_region = eu-west-1\n";
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).unwrap();
    let file = cache.join(format!("{}.json", reqsign_core::hash::hex_sha1(b"corp")));
    let token =
        format!(r#"{{"accessToken":"old","expiresAt":"{}","region":"x"{more}}}"#, in_seconds(seconds));
    std::fs::write(&file, token).unwrap();
    let variables = [
        ("AWS_PROFILE", "new"),
        ("AWS_ENDPOINT_URL_SSO", server.url.as_str()),
        ("AWS_ENDPOINT_URL_SSO_OIDC", &server.url),
    ];
    (account_at(home, &variables, config, "").unwrap(), file)
}

const RENEWS: &str = r#","clientId":"id","clientSecret":"wJalrC","refreshToken":"wJalrR""#;

#[test]
fn a_token_of_sso_is_renewed_where_it_is_over() {
    let server = KeyServer::new(|came| match came.line.as_str() {
        "POST /token" => (
            200,
            r#"{"accessToken":"new","expiresIn":600,"refreshToken":"next","tokenType":"Bearer"}"#.into(),
        ),
        _ if came.header("x-amz-sso_bearer_token") == Some("new") => (200, sso_reply()),
        _ => (401, String::new()),
    });
    let (found, file) = with_token(&server, -60, RENEWS);
    gives(&found, "ASIASSO", Some("t"), "profile new (SSO)");
    let came = server.came();
    let asked: serde_json::Value = serde_json::from_str(&came[0].body).unwrap();
    let expected = serde_json::json!({
        "grantType": "refresh_token", "clientId": "id", "clientSecret": "wJalrC", "refreshToken": "wJalrR"
    });
    assert_eq!(asked, expected);
    // Others find it in the file, which nobody else reads, with its other fields.
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!([&kept["accessToken"], &kept["refreshToken"], &kept["region"]], ["new", "next", "x"]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left");
    let variables = [
        ("AWS_PROFILE", "new"),
        ("AWS_ENDPOINT_URL_SSO", server.url.as_str()),
        ("AWS_ENDPOINT_URL_SSO_OIDC", "http://127.0.0.1:1"),
    ];
    let config = std::fs::read_to_string(found.home.path().join(".aws/config")).unwrap();
    let again = account_at(found.home, &variables, &config, "").unwrap();
    gives(&again, "ASIASSO", Some("t"), "profile new (SSO)");
}

#[test]
fn a_token_of_sso_that_cannot_be_renewed_says_how_to_log_in() {
    let server = KeyServer::new(|came| match came.line.as_str() {
        "POST /token" => (400, r#"{"error":"invalid_grant","error_description":"wJalrR"}"#.into()),
        _ if came.header("x-amz-sso_bearer_token") == Some("old") => (200, sso_reply()),
        _ => (401, String::new()),
    });
    let over = format!(r#"{RENEWS},"registrationExpiresAt":"{}""#, in_seconds(-60));
    for (more, asks, why) in
        [(RENEWS, 1, "invalid_grant"), (&over, 0, "aws sso login"), ("", 0, "aws sso login")]
    {
        let before = server.came().len();
        let (found, _) = with_token(&server, -60, more);
        let error = signer(&found.account).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.hints().contains(&"aws sso login --profile new".to_owned()), "{error:?}");
        assert!(!format!("{error:?}").contains("wJalr"), "{error:?}");
        assert_eq!(server.came().len() - before, asks, "{more}");
    }
    // One that is nearly over serves on.
    let (found, file) = with_token(&server, 60, RENEWS);
    gives(&found, "ASIASSO", Some("t"), "profile new (SSO)");
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left");
}

#[test]
fn a_process() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("keys of me.json");
    std::fs::write(&file, r#"{"Version":1,"AccessKeyId":"AKPROC","SecretAccessKey":"s","SessionToken":"t"}"#)
        .unwrap();
    let config = format!("[default]\ncredential_process = cat \"{}\"\n", file.display());
    gives(&account(&[], &config, "").unwrap(), "AKPROC", Some("t"), "profile default (process)");
    for (command, why) in [
        ("/nowhere/command", "/nowhere/command"),
        ("sh -c 'echo no >&2; exit 3'", "status 3: no"),
        ("echo 'wJalr'", "failed to parse"),
        ("cat 'x", "quote"),
    ] {
        let config = format!("[default]\ncredential_process = {command}\n");
        let error = signer(&account(&[], &config, "").unwrap().account).unwrap_err();
        assert!(error.to_string().contains(why), "{command}: {error}");
        assert!(!format!("{error:?}").contains("wJalr"), "{error:?}");
    }
}

#[test]
fn a_container() {
    let server = KeyServer::new(|came| match came.header("authorization") {
        Some("my token") => (200, json_reply("ASIACON", &in_seconds(3600))),
        _ => (401, String::new()),
    });
    let url = format!("{}/v2/credentials", server.url);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "my token\n").unwrap();
    let token = home.path().join("token");
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().unwrap()),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
    ];
    gives(&account(&variables, "", "").unwrap(), "ASIACON", Some("token of ASIACON"), "container");
    let error = signer(&account(&variables[..1], "", "").unwrap().account).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let far = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/x")];
    let error = signer(&account(&far, "", "").unwrap().account).unwrap_err();
    assert!(error.to_string().contains("neither https"), "{error}");
}

fn machine(came: &super::super::testing::Came) -> (u16, String) {
    match (came.line.as_str(), came.header("x-aws-ec2-metadata-token")) {
        ("PUT /latest/api/token", _) if came.header("x-aws-ec2-metadata-token-ttl-seconds").is_some() => {
            (200, "T".into())
        }
        ("GET /latest/meta-data/iam/security-credentials/", Some("T")) => (200, "my-role".into()),
        ("GET /latest/meta-data/iam/security-credentials/my-role", Some("T")) => {
            (200, json_reply("ASIAEC2", &in_seconds(3600)))
        }
        (_, None) => (401, String::new()),
        _ => (404, String::new()),
    }
}

#[test]
fn a_machine() {
    let server = KeyServer::new(machine);
    let variables =
        [("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url.as_str()), ("http_proxy", "http://127.0.0.1:1")];
    gives(&account(&variables, "", "").unwrap(), "ASIAEC2", Some("token of ASIAEC2"), "IMDSv2");
    assert_eq!(server.came().len(), 3);
}

#[test]
fn a_role_by_the_machine() {
    let server = KeyServer::new(|came| match came.line.as_str() {
        "POST /" => (200, sts_reply("AssumeRole", "ASIAROLE", &in_seconds(3600))),
        _ => machine(came),
    });
    let config = format!("[profile dev]\nrole_arn = {ROLE}\ncredential_source = Ec2InstanceMetadata\n");
    let variables = [
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url.as_str()),
        ("AWS_ENDPOINT_URL_STS", &server.url),
        ("AWS_PROFILE", "dev"),
    ];
    let name = format!("profile dev (role {ROLE} by IMDSv2)");
    gives(&account(&variables, &config, "").unwrap(), "ASIAROLE", Some("token of ASIAROLE"), &name);
    assert!(server.came()[3].header("authorization").unwrap().contains("Credential=ASIAEC2/"));
}

#[test]
fn machines_that_give_none() {
    let refuses = KeyServer::new(|_| (403, String::new()));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for url in [&refuses.url, "http://127.0.0.1:1", &silent] {
        let found = account(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)], "", "").unwrap();
        let begin = std::time::Instant::now();
        let error = signer(&found.account).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert!(error.to_string().contains("provider=IMDSv2"), "{error}");
        assert!(
            refuses.url == *url || error.hints().iter().any(|hint| hint.contains("AWS_PROFILE")),
            "{error:?}"
        );
    }
    let off = account(&[("AWS_EC2_METADATA_DISABLED", "true")], "", "").unwrap();
    let error = signer(&off.account).unwrap_err();
    assert!(error.hints().iter().any(|hint| hint.contains("AWS_NO_SIGN_REQUEST=true")), "{error:?}");
}

#[test]
fn nothing_shows_secrets() {
    let credentials =
        "[default]\naws_access_key_id = AKID\naws_secret_access_key = wJalrX\naws_session_token = FwoGZX\n";
    let found =
        account(&[("AWS_SECRET_ACCESS_KEY", "wJalrX"), ("AWS_ACCESS_KEY_ID", "x")], "", credentials).unwrap();
    signer(&found.account).unwrap();
    let shown = format!("{:?}", found.account);
    assert!(!shown.contains("wJalrX") && !shown.contains("FwoGZX"), "{shown}");
}
