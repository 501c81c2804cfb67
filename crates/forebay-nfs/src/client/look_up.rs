//! Looks up a path on a server: its handle, its attributes, and the server's limits.

use std::sync::Arc;

use forebay_error::{Error, Result};

use crate::client::clients::{self, KnownServer};
use crate::client::mountd::mount;
use crate::client::nfs_client::NfsClient;
use crate::client::url::NfsUrl;
use crate::network::connect::is_unreached;
use crate::network::server::NfsServer;
use crate::network::wire::try_out;
use crate::protocol::handle::{CallLimits, FileAttributes, FileKind, NfsHandle, NfsVersion};
use crate::protocol::status::NfsStatus;
use crate::protocol::v3;
use crate::protocol::v4::{self, op};
use crate::protocol::xdr::XdrWriter;

/// The client of a server on which a file was found.
pub(crate) fn client_of(known: KnownServer, limits: CallLimits) -> Result<Arc<NfsClient>> {
    if let Some(client) = known.client {
        return Ok(client);
    }
    try_out(&known.server)?;
    Ok(new_client(&known.server, limits))
}

pub(crate) fn new_client(server: &Arc<NfsServer>, limits: CallLimits) -> Arc<NfsClient> {
    let client = NfsClient::new(server.clone(), server.limits(limits));
    clients::add(&client);
    client
}

/// What a handle is of, and what its server takes.
pub(crate) fn facts(server: &NfsServer, handle: &NfsHandle) -> Result<(FileAttributes, CallLimits)> {
    server.renew(0)?;
    let (attributes, limits) = server.facts(handle)?;
    Ok((attributes, limits.map_or_else(|| limits_v3(server, handle), Ok)?))
}

/// A handle, what it is of, and what its server takes.
type Found = (NfsHandle, FileAttributes, CallLimits);

/// What a path of a server is, in the server's version.
pub(crate) fn look_up(url: &NfsUrl, server: &NfsServer) -> Result<Found> {
    match server.version {
        NfsVersion::V3 => look_up_v3(url, server),
        NfsVersion::V4(_) => look_up_v4(url, server),
    }
}

// ---- version 4 --------------------------------------------------------------------------------------------------

fn look_up_v4(url: &NfsUrl, server: &NfsServer) -> Result<Found> {
    server.renew(0)?;
    let (names, most) = (url.names(), server.session().names_in_call());
    let (first, rest) = names.split_at(names.len().min(most));
    rest.chunks(most)
        .try_fold(walk(server, None, first)?, |(directory, ..), names| walk(server, Some(&directory), names))
}

/// Looks up names one below the other, in a directory or in the root.
fn walk(server: &NfsServer, directory: Option<&NfsHandle>, names: &[&[u8]]) -> Result<Found> {
    let doing = "cannot open file";
    let first = if directory.is_some() { op::PUTFH } else { op::PUTROOTFH };
    let said = server.compound(
        doing,
        names.len() as u32 + 3,
        |to| {
            match directory {
                Some(handle) => v4::put_handle(to, handle),
                None => to.u32(op::PUTROOTFH),
            }
            for name in names {
                to.u32(op::LOOKUP);
                to.opaque(name);
            }
            to.u32(op::GETFH);
            v4::put_getattr(to);
        },
        |from| {
            for expected in std::iter::once(first).chain(names.iter().map(|_| op::LOOKUP)) {
                if let Err(status) = v4::get_op(from, expected)? {
                    return Ok(Err(status));
                }
            }
            match v4::get_handle(from)? {
                Ok(handle) => Ok(v4::get_attributes(from)?.map(|(facts, limits)| (handle, facts, limits))),
                Err(status) => Ok(Err(status)),
            }
        },
    )?;
    said.map_err(|status| explain(status, server, doing))
}

// ---- version 3 --------------------------------------------------------------------------------------------------

fn look_up_v3(url: &NfsUrl, server: &NfsServer) -> Result<Found> {
    let names = url.names().len();
    // Linux's server holds on to whatever was mounted, also to a file that is removed: the last name is looked up. An exported
    // directory is mounted: looked up, it would be what the export covers.
    let below = look_up_below(url, server, names.saturating_sub(1));
    let is_final = match &below {
        Ok((_, attributes)) => attributes.kind != FileKind::Directory,
        // It would be as silent again.
        Err(error) => is_unreached(error),
    };
    let (handle, attributes) = if is_final { below? } else { look_up_below(url, server, names).or(below)? };
    Ok((handle, attributes, limits_v3(server, &handle)?))
}

fn limits_v3(server: &NfsServer, handle: &NfsHandle) -> Result<CallLimits> {
    let doing = "cannot look at the file";
    let limits = server.call3(doing, v3::FSINFO, |to| v3::put_handle(to, handle), v3::get_limits)?;
    limits.map_err(|status| explain(status, server, doing))
}

/// Mounts at most `most` names of the path, and looks up the others.
fn look_up_below(url: &NfsUrl, server: &NfsServer, most: usize) -> Result<(NfsHandle, FileAttributes)> {
    let doing = "cannot open file";
    let (mut handle, rest) = mount(url, server, most)?;
    for name in rest {
        let put = |to: &mut XdrWriter<'_>| {
            v3::put_handle(to, &handle);
            to.opaque(name);
        };
        let said = server.call3(doing, v3::LOOKUP, put, v3::get_lookup)?;
        handle = said.map_err(|status| explain(status, server, doing))?;
    }
    Ok((handle, server.facts(&handle)?.0))
}

fn explain(status: NfsStatus, server: &NfsServer, doing: &str) -> Error {
    let error = server.error(status, doing);
    if status == NfsStatus::NO_ENTRY {
        error.hint(format!("check the export and the path: showmount -e {}", server.name))
    } else {
        error
    }
}
