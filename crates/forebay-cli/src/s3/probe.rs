//! `forebay s3 probe`.

use std::path::PathBuf;

use clap::Args;
use forebay_doctor::{RealSystem, System};
use forebay_error::{Error, ErrorKind};
use forebay_objects::{EndpointProbe, ObjectRate, ObjectUrl, Trial, probe};
use serde_json::{Value, json};

use crate::console::{Console, Failure};
use crate::json_file::JsonFile;

/// What the endpoint of an object can do, and how fast the object is read: by 1, 4 and 16 connections. Writes nothing without --write
#[derive(Args, Clone, Debug)]
pub(super) struct ProbeArgs {
    /// s3://BUCKET/KEY, of some MiB
    #[arg(value_name = "URL")]
    url: PathBuf,
    /// Try writes, too: with an object of 17 MiB beside it, which is removed
    #[arg(long)]
    write: bool,
    /// Write the result as JSON (docs/reference/s3-probe-json.md); - is standard output, and the lines go to stderr then
    #[arg(long, value_name = "FILE", value_parser = crate::names::target())]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &ProbeArgs, console: &Console<'_>) -> Result<i32, Failure> {
    let url = ObjectUrl::parse_newest(&args.url).map_err(Failure::usage)?;
    if url.key.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no object").with("url", &url);
        return Err(Failure::usage(error.hint("name an object of some MiB: s3://BUCKET/KEY")));
    }
    let json = args.json.as_deref().map(|path| JsonFile::open(path, console)).transpose()?;
    let found = probe(&url, args.write)?;
    say(&found, console);
    if let Some(json) = json {
        json.write(&in_json(&found), console)?;
    }
    Ok(0)
}

fn say(found: &EndpointProbe, console: &Console<'_>) {
    let line = |what: &str, text: String| console.line(format!("{what:<18} {text}"));
    console.line(&found.url);
    let server = found.object.server.as_ref().map_or(String::new(), |server| format!(", {server}"));
    line("endpoint", format!("{} over {}, region {}{server}", found.endpoint, found.transport, found.region));
    line("key", found.provider.clone().unwrap_or_else(|| "none".to_owned()));
    let etag = found.object.etag.as_deref().unwrap_or("none");
    line("object", format!("{} bytes, ETag {etag}", found.object.len));
    line("addresses", format!("{}: {}", found.addresses.len(), found.addresses.join(", ")));
    for (address, why) in &found.left_out {
        line("", format!("{address} left out: {why}"));
    }
    for Trial { name, works, seen, hint } in &found.trials {
        line(name, format!("{}: {seen}", if *works { "yes" } else { "no" }));
        if let Some(hint) = hint {
            line("", format!("hint: {hint}"));
        }
    }
    if found.rates.is_empty() {
        line("read", "not measured: name an object of some MiB, on a server with ranges".to_owned());
    }
    for rate in &found.rates {
        line("read", rate.to_string());
    }
}

fn in_json(found: &EndpointProbe) -> Value {
    let rate = |rate: &ObjectRate| {
        json!({
            "connections": rate.connections,
            "bytes": rate.bytes,
            "seconds": rate.elapsed.as_secs_f64(),
            "gb_per_s": rate.gb_per_s(),
            "cpu_s_per_gb": rate.cpu_per_gb(),
        })
    };
    let trial = |trial: &Trial| json!({ "name": trial.name, "works": trial.works, "seen": trial.seen, "fix": trial.hint });
    let left_out = found.left_out.iter().map(|(address, why)| json!({ "address": address, "reason": why }));
    let object = &found.object;
    json!({
        "schema": "forebay.s3-probe/1",
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": RealSystem.uname().release,
        "arch": RealSystem.uname().machine,
        "url": found.url.to_string(),
        "endpoint": found.endpoint,
        "transport": found.transport,
        "region": found.region,
        "provider": found.provider,
        "server": object.server,
        "object": { "bytes": object.len, "etag": object.etag, "version_id": object.version, "checksums": object.checksums },
        "addresses": { "list": found.addresses, "left_out": left_out.collect::<Vec<_>>() },
        "trials": found.trials.iter().map(trial).collect::<Vec<_>>(),
        "reads": found.rates.iter().map(rate).collect::<Vec<_>>(),
    })
}
