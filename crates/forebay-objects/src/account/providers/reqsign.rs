//! Providers of reqsign, each asked by itself. Their futures never wait: the parts that they are given block this thread.

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Poll, Waker};
use std::time::Duration;

use ::reqsign_core as core;
use core::{Context, FileRead, ProvideCredential, StaticEnv};
use forebay_config::files::read_plain_bytes;
use forebay_error::{Error, ErrorKind, Result, plain};
use reqsign_aws_v4::{
    Credential, ECSCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider,
    SSOCredentialProvider,
};

use super::super::keys::Keys;
use super::super::variables::{Variables, bad};
use super::http::{Http, Patience};
use super::process::OneCommand;
use super::world::{Sso, World, with_ways};
use crate::lock;

/// Letters of the longest message of a server that is repeated.
const LONGEST_MESSAGE: usize = 300;

#[derive(Clone, Copy, Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> core::Result<Vec<u8>> {
        read_plain_bytes(path.as_ref(), 1 << 20)
            .map_err(|error| core::Error::config_invalid(format!("{path}: {error}")))
    }
}

fn context(variables: &Variables, http: Http, command: &str) -> Context {
    let env = StaticEnv {
        home_dir: variables.get("HOME").map(Into::into),
        envs: variables.all().map(|(name, value)| (name.clone(), value.clone())).collect(),
    };
    let command = OneCommand(command.to_owned());
    Context::new().with_file_read(Files).with_http_send(http).with_env(env).with_command_execute(command)
}

fn asked(provider: &impl ProvideCredential<Credential = Credential>, context: &Context) -> Result<Keys> {
    let mut future = pin!(provider.provide_credential(context));
    match future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(Some(keys)))
            if !keys.access_key_id.is_empty() && !keys.secret_access_key.is_empty() =>
        {
            let expires = keys.expires_in.map(core::time::Timestamp::as_system_time);
            Ok(Keys::new(keys.access_key_id, keys.secret_access_key, keys.session_token, expires))
        }
        Poll::Ready(Ok(_)) => {
            Err(Error::new(ErrorKind::PermissionDenied, "cannot get keys: the provider has none"))
        }
        Poll::Ready(Err(error)) => Err(failed(&error)),
        Poll::Pending => Err(Error::new(ErrorKind::Internal, "a provider of keys waits for nothing")),
    }
}

/// What reqsign says, and the first reason below that.
fn failed(error: &core::Error) -> Error {
    let mut message = error.to_string();
    if message.starts_with("failed to parse") {
        // A parser repeats a part of its text, which may be a secret.
        message.truncate(message.find(':').unwrap_or(message.len()));
    } else if let Some(reason) = std::error::Error::source(error) {
        message = format!("{message}: {reason}");
    }
    let kind = match error.kind() {
        core::ErrorKind::PermissionDenied | core::ErrorKind::CredentialInvalid => ErrorKind::PermissionDenied,
        core::ErrorKind::ConfigInvalid | core::ErrorKind::RequestInvalid => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("cannot get keys: {}", short(&message)))
}

/// A message of a server in one line, without its end where it is long.
pub(super) fn short(message: &str) -> String {
    let message = plain(message.trim_end_matches([' ', ':', '\n']).trim()).to_string();
    message.chars().take(LONGEST_MESSAGE).collect()
}

pub(super) fn sso(world: &World, sso: &Sso) -> Result<Keys> {
    // The start URL is nothing but the name of the token's file.
    let mut provider = SSOCredentialProvider::new()
        .with_account_id(&sso.account)
        .with_role_name(&sso.role)
        .with_region(&sso.region)
        .with_start_url(&sso.cache_key);
    if let Some(url) = &world.sso {
        provider = provider.with_endpoint(format!("{}/federation/credentials", url.trim_end_matches('/')));
    }
    asked(&provider, &context(&world.variables, world.http.clone(), ""))
}

pub(super) fn process(world: &World, command: &str) -> Result<Keys> {
    // The words of the command are OneCommand's affair.
    let provider = ProcessCredentialProvider::new().with_command("credential_process");
    asked(&provider, &context(&world.variables, world.http.clone(), command))
        .map_err(|error| error.hint("run the command of credential_process: it prints JSON with Version 1"))
}

pub(super) fn container(world: &World) -> Result<Keys> {
    if let Some(url) = world.variables.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
        check_container(url)?;
    }
    let http = Http::nearby(Patience {
        connect: Duration::from_secs(2),
        whole: Duration::from_secs(5),
        attempts: 3,
    });
    asked(&ECSCredentialProvider::new(), &context(&world.variables, http, ""))
        .map_err(|error| error.hint("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are set by ECS and EKS: does it serve them?"))
}

/// Keys come in clear text only from this machine.
fn check_container(url: &str) -> Result<()> {
    let parsed: Option<http::Uri> = url.parse().ok();
    let is_near = |host: &str| {
        let host = host.trim_matches(['[', ']']);
        matches!(host, "localhost" | "169.254.170.2" | "169.254.170.23" | "fd00:ec2::23")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    match parsed.as_ref().map(|url| (url.scheme_str(), url.host())) {
        Some((Some("https"), Some(_))) => Ok(()),
        Some((Some("http"), Some(host))) if is_near(host) => Ok(()),
        _ => {
            let error = Error::new(
                ErrorKind::InvalidInput,
                "cannot ask for keys: the server is neither https nor of this machine",
            );
            Err(error
                .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
                .hint("https://…, or http:// and a loopback address"))
        }
    }
}

/// The metadata service of the machine, and its token.
pub(super) struct Machine {
    provider: Mutex<IMDSv2CredentialProvider>,
    patience: Patience,
}

impl Machine {
    pub(super) fn new(variables: &Variables) -> Result<Self> {
        let number = |name: &'static str, default: u32, most: u32| match variables.get(name) {
            None => Ok(default),
            Some(text) => {
                let number = text.parse().ok().filter(|number| (1..=most).contains(number));
                number.ok_or_else(|| bad(name, text, &format!("1 to {most}")))
            }
        };
        let seconds = Duration::from_secs(number("AWS_METADATA_SERVICE_TIMEOUT", 1, 60)?.into());
        let attempts = number("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 1, 10)?;
        let patience = Patience { connect: seconds, whole: seconds * 2, attempts };
        Ok(Self { provider: Mutex::new(provider(variables)), patience })
    }

    pub(super) fn ask(&self, world: &World) -> Result<Keys> {
        let context = context(&world.variables, Http::nearby(self.patience), "");
        let known = lock(&self.provider).clone();
        let mut answer = asked(&known, &context);
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            // Its token may be over.
            let new = provider(&world.variables);
            *lock(&self.provider) = new.clone();
            answer = asked(&new, &context);
        }
        answer.map_err(|error| {
            let error = with_ways(error);
            error.hint("in a container on EC2: aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2 …")
        })
    }
}

fn provider(variables: &Variables) -> IMDSv2CredentialProvider {
    let is_ipv6 = variables
        .get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")
        .is_some_and(|mode| mode.eq_ignore_ascii_case("ipv6"));
    let new = IMDSv2CredentialProvider::new();
    match variables.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
        Some(url) => new.with_endpoint(url.trim_end_matches('/')),
        None if is_ipv6 => new.with_endpoint("http://[fd00:ec2::254]"),
        None => new,
    }
}
