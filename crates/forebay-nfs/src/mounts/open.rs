//! Opening the file of a mount of the kernel's on its server.

use std::net::SocketAddr;

use forebay_error::{Error, ErrorKind, Result};

use crate::client::clients::{KnownServer, is_known, known};
use crate::client::file::NfsFile;
use crate::client::look_up::{client_of, facts, look_up};
use crate::client::url::NfsUrl;
use crate::mounts::mount::{MountTarget, TargetName};
use crate::network::options::NfsOptions;
use crate::network::server::NfsServer;
use crate::network::wire::try_out_at;
use crate::protocol::status::NfsStatus;

/// How the error begins of a file that the server says other things of than the kernel.
pub(crate) const OTHER_FACTS: &str = "the server's attributes of the file differ from the kernel's";

/// The file of a mount of the kernel's, by the handle that the kernel told, else by its path. Calls without bytes go over TCP to the
/// mount's address. Fails where what the server says of the file does not fit: then it is another one. Without `low_ports` these are taken
/// where the server refuses others.
pub fn of_mount(mounted: &MountTarget, options: &NfsOptions) -> Result<NfsFile> {
    let options = options.clone().checked();
    if options.low_ports {
        return of_mount_by(mounted, options);
    }
    let low = NfsOptions { low_ports: true, ..options.clone() };
    let server = (mounted.mount.address.to_string(), mounted.mount.tcp_port);
    if is_known((&server.0, server.1), mounted.mount.version, &low) {
        return of_mount_by(mounted, low);
    }
    match of_mount_by(mounted, options) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let why = |by_low| if NfsStatus::is_without_low_port(&by_low) { by_low } else { error };
            of_mount_by(mounted, low).map_err(why)
        }
        found => found,
    }
}

/// Whether the server takes calls about a file of a mount from ports that any program may have: an export without `insecure` does not.
/// The error is why neither these nor low ones are taken, or why it did not answer.
pub fn takes_any_port(mounted: &MountTarget, options: &NfsOptions) -> Result<bool> {
    let by = |low_ports| of_mount_by(mounted, NfsOptions { low_ports, ..options.clone() }.checked());
    match by(false) {
        Ok(_) => Ok(true),
        // It has answered.
        Err(error) if error.message().starts_with(OTHER_FACTS) => Ok(true),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            by(true).map(|_| false).map_err(|_| error)
        }
        Err(error) => Err(error),
    }
}

fn of_mount_by(mounted: &MountTarget, options: NfsOptions) -> Result<NfsFile> {
    let mount = &mounted.mount;
    let port = mount.tcp_port;
    let address = mount.address.to_string();
    let known = known((&address, port), mount.version, &options).unwrap_or_else(|| {
        let addresses = vec![SocketAddr::new(mount.address, port)];
        KnownServer::new(NfsServer::new(address.clone(), addresses, mount.version, options.clone()))
    });
    let (handle, opened, limits) = known.look(|server| match &mounted.named {
        TargetName::Handle(handle) => {
            let (opened, limits) = facts(server, handle)?;
            Ok((*handle, opened, limits))
        }
        TargetName::Path(path) => {
            let (server_name, path, versions) =
                (address.clone(), path.clone().into_bytes(), vec![mount.version]);
            let url = NfsUrl { server: server_name, port, path, versions, mount_port: mount.mount_port };
            look_up(&url, server)
        }
    })?;
    let Some(known) = known.unless_outdated(limits) else { return of_mount_by(mounted, options) };
    if !mounted.agrees(&opened) {
        let what = match &mounted.named {
            TargetName::Handle(_) => "the handle is another's",
            TargetName::Path(_) => "its path on the server is another's",
        };
        let text = format!("{OTHER_FACTS}: it has just changed, or {what}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    known.server.opened(&handle, &opened, try_out_at);
    let client = client_of(known, limits)?;
    let name = format!("{}:{} (file {})", mount.server, mount.path, opened.file_id);
    Ok(NfsFile::new(client, handle, name, opened))
}
