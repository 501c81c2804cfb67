//! An NFS server by its own files, as they were collected there.

use forebay_config::Config;

use crate::cufile::CufileConfig;
use crate::exercise::DriverOffer;
use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::machine::MachineFacts;
use crate::rules;
use crate::storage::StoragePlace;
use crate::system::{RootedSystem, System};

/// A server whose files were collected by [`COLLECT`](crate::system::COLLECT).
#[derive(Clone, Debug)]
pub struct ServerCopy {
    /// Its name, as the user gave it.
    pub host: String,
    /// Its files.
    pub machine: RootedSystem,
}

/// The faults of a server, and between it and this machine; each finding has the server's name.
pub(crate) fn look(server: &ServerCopy, here: &dyn System) -> Vec<Finding> {
    let system = &server.machine;
    let machine = MachineFacts::probe(system);
    let exports = rules::served(system);
    let places: Vec<StoragePlace> = exports.iter().map(|(_, place)| place.clone()).collect();
    let mut found = rules::of_server(
        &Facts {
            system,
            machine: &machine,
            offered: &DriverOffer::default(),
            gpus: &[],
            places: &places,
            config: &Ok(Config::default()),
            cufile: &CufileConfig::default(),
            library: None,
            tried: None,
            process: None,
            log: None,
            benches: &[],
        },
        &exports,
    );
    found.extend(rules::of_two_ends(here, system, &server.host));
    found.extend(hidden(server));
    for finding in &mut found {
        finding.host = Some(server.host.clone());
    }
    found
}

/// The files that the user of the connection may not read there.
fn hidden(server: &ServerCopy) -> Option<Finding> {
    let hidden = server.machine.hidden();
    if hidden.is_empty() {
        return None;
    }
    Some(Finding {
        id: "server-hidden",
        severity: Severity::Note,
        text: "its user may not read all that is looked at".to_owned(),
        evidence: hidden.iter().map(|path| format!("{path}: not for this user")).collect(),
        fix: Some(as_root(&server.host)),
        host: None,
    })
}

/// The flag that names the same host with root as its user: `HOST`, `USER@HOST` or `ssh://USER@HOST:PORT`.
fn as_root(host: &str) -> String {
    let (form, rest) = host.strip_prefix("ssh://").map_or(("ssh:", host), |rest| ("ssh://", rest));
    let name = rest.rsplit('@').next().unwrap_or_default();
    format!("--server {form}root@{name}")
}

#[cfg(test)]
mod tests {
    use super::as_root;

    #[test]
    fn root_is_named_in_the_form_of_the_host() {
        for (host, wanted) in [
            ("nfs1", "--server ssh:root@nfs1"),
            ("me@nfs1", "--server ssh:root@nfs1"),
            ("ssh://me@nfs1:2222", "--server ssh://root@nfs1:2222"),
            ("ssh://nfs1:2222", "--server ssh://root@nfs1:2222"),
        ] {
            assert_eq!(as_root(host), wanted);
        }
    }
}
