//! Handles of exported directories, in version 3: the portmapper tells the port of mountd, and mountd the handle.
//!
//! Neither is asked from a port below 1024 unless that is needed: there are few, and each open would take two.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::resolve;

use crate::client::url::{EscapedPath, NfsUrl};
use crate::network::connect::is_unreached;
use crate::network::exchange::Exchange;
use crate::network::options::NfsOptions;
use crate::network::server::NfsServer;
use crate::protocol::handle::NfsHandle;
use crate::protocol::rpc::RpcProgram;
use crate::protocol::status::NfsStatus;
use crate::protocol::v3;
use crate::protocol::xdr::{XdrReader, XdrWriter};

/// The request, for errors.
const DOING: &str = "cannot mount the export";

/// The mountd of a server.
struct Mountd<'a> {
    server: &'a NfsServer,
    /// From any port, and from one below 1024.
    any: Exchange,
    low: Exchange,
    uses_low: bool,
}

impl<'a> Mountd<'a> {
    fn new(addresses: &[SocketAddr], server: &'a NfsServer) -> Self {
        let exchange = |low_ports| {
            let options = NfsOptions { low_ports, ..server.options.clone() };
            Exchange::new(addresses.to_vec(), options, server.clock.clone())
        };
        let uses_low = server.options.low_ports && server.asks_low_port.load(Ordering::Relaxed);
        Self { server, any: exchange(false), low: exchange(server.options.low_ports), uses_low }
    }

    /// Asks for a directory: first from any port, unless it is known that mountd refuses that.
    fn ask(&mut self, path: &[u8]) -> Result<Result<NfsHandle, NfsStatus>> {
        if !self.uses_low {
            let said = call(&mut self.any, self.server, path)?;
            // A path further up is not asked for before this one was from a port that will do: it may be of another export.
            let refused = said.as_ref().is_err_and(|status| status.is_refusal());
            if !refused || !self.server.options.low_ports {
                return Ok(said);
            }
            self.uses_low = true;
            let said = call(&mut self.low, self.server, path)?;
            self.server.asks_low_port.fetch_or(said.is_ok(), Ordering::Relaxed);
            return Ok(said);
        }
        call(&mut self.low, self.server, path)
    }

    /// mountd gives the same error for a path that is not exported and for a client without permission; owner and mode
    /// do not matter.
    fn not_mounted(&self, status: NfsStatus) -> Error {
        if !status.is_refusal() {
            return status.error(DOING, self.server.who.uid());
        }
        if self.uses_low && self.low.lacks_low_port() {
            return NfsStatus::without_low_port(DOING);
        }
        let text = format!("{DOING}: no such path is exported to this host");
        Error::new(ErrorKind::PermissionDenied, text).hint(
            "name the whole path on the server: version 3 knows no root of exports (fsid=0), as version 4 does",
        )
    }
}

fn call(mountd: &mut Exchange, server: &NfsServer, path: &[u8]) -> Result<Result<NfsHandle, NfsStatus>> {
    let put = |to: &mut XdrWriter<'_>| to.opaque(path);
    mountd.call(DOING, (v3::MOUNT, v3::MNT), Some(&server.who), put, v3::get_mount)
}

/// Mounts the longest part of the path, of at most `most` names, that the server exports. Returns its handle, and the names below it.
pub(crate) fn mount<'a>(
    url: &'a NfsUrl,
    server: &NfsServer,
    most: usize,
) -> Result<(NfsHandle, Vec<&'a [u8]>)> {
    let port = match url.mount_port {
        Some(port) => port,
        None => port_of_mountd(url, server)?,
    };
    let mut mountd = Mountd::new(&resolve(&url.server, port)?, server);
    let unanswered = |error: Error| {
        if !error.hints().is_empty() && !is_unreached(&error) {
            return error;
        }
        let hint = "use ?version=4, which needs no mountd, or name its port";
        error.with("service", "mountd").hint(match url.mount_port {
            Some(_) => format!("{hint} in place of mountport={port}: rpcinfo -p {}", url.server),
            None => format!("{hint}: ?version=3&mountport=PORT"),
        })
    };
    let names = url.names();
    let mut first = None;
    for count in (0..=most).rev() {
        let path = [b"/".to_vec(), names[..count].join(&b'/')].concat();
        let said = mountd.ask(&path).map_err(unanswered)?;
        match said {
            Ok(handle) => return Ok((handle, names[count..].to_vec())),
            Err(status) => {
                // What the server says of the directory tells most: the file itself is no directory.
                let told = mountd.not_mounted(status).with("export", EscapedPath(&path));
                if count < names.len() || names.is_empty() {
                    first.get_or_insert(told);
                }
            }
        }
    }
    let error = first.unwrap_or_else(|| Error::new(ErrorKind::NotFound, "cannot mount the export"));
    Err(error.hint(format!("showmount -e {} lists the exports", url.server)))
}

fn port_of_mountd(url: &NfsUrl, server: &NfsServer) -> Result<u16> {
    let ask = |program: RpcProgram| {
        let addresses = resolve(&url.server, 111)?;
        // It takes calls from any port.
        let options = NfsOptions { low_ports: false, ..server.options.clone() };
        let mut portmap = Exchange::new(addresses, options, server.clock.clone());
        let put = |to: &mut XdrWriter<'_>| v3::put_getport(to, program);
        let get = |from: &mut XdrReader<'_>| v3::get_port(from);
        portmap.call("cannot ask the portmapper", (v3::PORTMAP, v3::GETPORT), None, put, get)
    };
    ask(v3::MOUNT)
        .map_err(|error| {
            error.with("service", "portmapper").hint(
                "use ?version=4, which needs no portmapper, or name mountd's port: ?version=3&mountport=PORT",
            )
        })?
        .ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the server has no mountd for version 3")
                .with("server", &url.server)
                .hint("add ?version=4 to the URL")
        })
}
