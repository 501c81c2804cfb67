//! From a URL to a file: the server's address, ports and version, the handle, and what the server takes.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::resolve;

use crate::client::clients::{KnownServer, known};
use crate::client::file::NfsFile;
use crate::client::look_up::{client_of, look_up};
use crate::client::nfs_client::NfsClient;
use crate::client::url::NfsUrl;
pub use crate::network::connect::is_unreached;
use crate::network::exchange::NO_ANSWER;
use crate::network::options::NfsOptions;
use crate::network::server::NfsServer;
pub use crate::network::wire::takes_rdma;
use crate::network::wire::try_out_at;
use crate::protocol::handle::{FileAttributes, FileKind, NfsHandle, NfsVersion};
use crate::protocol::status::NfsStatus;

/// Opens a file by its URL.
pub fn open(url: &NfsUrl, options: &NfsOptions) -> Result<NfsFile> {
    let found = find(url, options).map_err(|error| {
        if is_silent(&error) { error.hint(format!("forebay nfs probe '{url}'")) } else { error }
    })?;
    check_kind(found.attributes.kind).map_err(|error| error.with("url", url))?;
    if url.path.ends_with(b"/") {
        return Err(Error::new(ErrorKind::InvalidInput, "a file, and no directory")
            .with("url", url)
            .hint("leave out the / behind its name"));
    }
    Ok(NfsFile::new(found.client, found.handle, url.to_string(), found.attributes))
}

/// An error for what is no regular file.
pub(crate) fn check_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => {
            let error = Error::new(ErrorKind::IsDirectory, "a directory where a file is needed");
            Err(error.hint("name a file in it"))
        }
        FileKind::Link => Err(NfsStatus(10029).error("cannot open file", 0)),
        FileKind::Other => {
            let error = Error::new(ErrorKind::Unsupported, "it is no regular file");
            Err(error
                .hint("name a regular file: contents of devices, pipes and sockets are not on the server"))
        }
    }
}

/// A file or directory of a server.
#[derive(Clone, Debug)]
pub struct UrlTarget {
    /// Its server.
    pub client: Arc<NfsClient>,
    /// Its handle.
    pub handle: NfsHandle,
    /// What it is.
    pub attributes: FileAttributes,
}

/// Finds what a URL names. Versions are tried in the URL's order; the error is that of the version that came furthest.
pub fn find(url: &NfsUrl, options: &NfsOptions) -> Result<UrlTarget> {
    let options = options.clone().checked();
    let mut told: Option<Error> = None;
    for version in &url.versions {
        let error = match find_as(url, *version, &options) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        // Others would fail alike.
        let is_last = is_unreached(&error);
        let error = told.map_or(error.clone(), |first| better(first, error));
        if is_last {
            return Err(error);
        }
        told = Some(error);
    }
    Err(told.unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "no version to try")))
}

/// Whether the server was reached, but did not answer.
fn is_silent(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout && error.message().ends_with(NO_ANSWER)
}

/// A version that is not spoken says less than one that refuses.
fn better(first: Error, second: Error) -> Error {
    if first.kind() == ErrorKind::Unsupported { second } else { first }
}

fn find_as(url: &NfsUrl, version: NfsVersion, options: &NfsOptions) -> Result<UrlTarget> {
    let known = if let Some(known) = known((&url.server, url.port), version, options) {
        known
    } else {
        let addresses = resolve(&url.server, url.port)?;
        KnownServer::new(NfsServer::new(url.server.clone(), addresses, version, options.clone()))
    };
    let (handle, attributes, limits) =
        known.look(|server| look_up(url, server)).map_err(|error| at(url, error))?;
    let Some(known) = known.unless_outdated(limits) else { return find_as(url, version, options) };
    known.server.opened(&handle, &attributes, try_out_at);
    let client = client_of(known, limits).map_err(|error| at(url, error))?;
    Ok(UrlTarget { client, handle, attributes })
}

/// The error with its URL, and with what to look at where it does not say.
fn at(url: &NfsUrl, error: Error) -> Error {
    let error = error.with("url", url);
    if !error.hints().is_empty() {
        return error;
    }
    let server = &url.server;
    let has_status = error.context().iter().any(|(key, _)| *key == "nfs_status");
    match error.kind() {
        _ if error.errno() == libc::ECONNREFUSED => error.hint(format!(
            "nothing listens on port {}: start the server, or name its port: {}",
            url.port,
            url.with_port("PORT")
        )),
        ErrorKind::Io if has_status => error.hint("look at the server's log"),
        ErrorKind::Io | ErrorKind::Unsupported => {
            error.hint(format!("is it an NFS server that listens there? rpcinfo -p {server}"))
        }
        _ => error,
    }
}
