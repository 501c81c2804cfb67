//! Calls that change a folder of a server, in the server's version.

use std::cell::Cell;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use crate::client::nfs_client::NfsClient;
use crate::lock;
use crate::network::server::NfsServer;
use crate::protocol::handle::{FileAttributes, NfsHandle, NfsVersion};
use crate::protocol::new_file::{self, FileRights, MODIFY, OpenOwner, SetRights, op, procedure};
use crate::protocol::rpc::random;
use crate::protocol::status::NfsStatus;
use crate::protocol::v3::{self, CallOutcome};
use crate::protocol::v4;
use crate::protocol::xdr::{XdrReader, XdrWriter};

/// A folder, and its server.
pub(crate) struct NfsFolder {
    pub(crate) client: Arc<NfsClient>,
    pub(crate) handle: NfsHandle,
}

/// Mode bits of a file that is not whole.
const MODE: u32 = 0o600;
/// Times that a file is opened anew because the server does not know its client.
const RESTARTS: u32 = 3;

/// What a call answered.
type Said<T> = Result<std::result::Result<T, NfsStatus>>;

impl NfsFolder {
    fn server(&self) -> &NfsServer {
        self.client.server_of()
    }

    fn is_three(&self) -> bool {
        self.client.version() == NfsVersion::V3
    }

    fn error(&self, status: NfsStatus, doing: &str) -> Error {
        self.server().error(status, doing)
    }

    /// A compound of operations on a file or folder that have no results but their heads up to what `get` reads.
    fn on<T>(
        &self,
        doing: &str,
        (handle, heads): (&NfsHandle, &[u32]),
        put: impl Fn(&mut XdrWriter<'_>),
        get: impl Fn(&mut XdrReader<'_>) -> CallOutcome<T>,
        more: u32,
    ) -> Said<T> {
        let put = |to: &mut XdrWriter<'_>| {
            v4::put_handle(to, handle);
            put(to);
        };
        let get =
            |from: &mut XdrReader<'_>| match new_file::get_heads(from, &[v4::op::PUTFH]).and_then(|put| {
                match put {
                    Ok(()) => new_file::get_heads(from, heads),
                    refused => Ok(refused),
                }
            })? {
                Ok(()) => get(from),
                Err(status) => Ok(Err(status)),
            };
        self.server().compound(doing, 1 + heads.len() as u32 + more, put, get)
    }

    /// What has a name; `None`: nothing.
    pub(crate) fn look(&self, name: &[u8]) -> Result<Option<(NfsHandle, FileAttributes)>> {
        let doing = "cannot look at the file";
        let said = if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| new_file::put_name3(to, &self.handle, name);
            match self.server().call3(doing, v3::LOOKUP, put, v3::get_lookup)? {
                Ok(handle) => self.server().said_of(&handle)?.map(|(facts, _)| (handle, facts)),
                Err(status) => Err(status),
            }
        } else {
            let put = |to: &mut XdrWriter<'_>| {
                to.u32(v4::op::LOOKUP);
                to.opaque(name);
                to.u32(v4::op::GETFH);
                v4::put_getattr(to);
            };
            let get = |from: &mut XdrReader<'_>| match v4::get_handle(from)? {
                Ok(handle) => Ok(v4::get_attributes(from)?.map(|(facts, _)| (handle, facts))),
                Err(status) => Ok(Err(status)),
            };
            self.on(doing, (&self.handle, &[v4::op::LOOKUP]), put, get, 2)?
        };
        match said {
            Ok(found) => Ok(Some(found)),
            Err(NfsStatus::NO_ENTRY) => Ok(None),
            Err(status) => Err(self.error(status, doing)),
        }
    }

    /// Makes a file of a name that nothing else has, for this user alone. That the name is taken means that the call was answered
    /// before, and the answer was lost.
    pub(crate) fn create(&self, name: &[u8]) -> Result<(NfsHandle, FileAttributes)> {
        let doing = "cannot create a file in the folder";
        if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| new_file::put_create3(to, &self.handle, name, MODE);
            match self.server().call3(doing, procedure::CREATE, put, new_file::get_status)? {
                Ok(()) | Err(NfsStatus::EXISTS) => {}
                Err(status) => return Err(self.error(status, doing)),
            }
            return self.made(name, doing);
        }
        let mut restarts = 0;
        let opened = loop {
            let said = match self.client_id(doing)? {
                Ok(client) => self.open(client, name, doing)?,
                Err(status) => Err(status),
            };
            match said {
                Ok(opened) => break opened,
                // A server of version 4.0 that has restarted does not know the client any more.
                Err(status) if status.is_session_lost() && restarts < RESTARTS => restarts += 1,
                Err(status) => return Err(self.error(status, doing)),
            }
        };
        let made = self.made(name, doing)?;
        // Bytes are written without an open: what does not end here ends with the session, or with the client's lease.
        let _ = self.close(&made.0, opened);
        Ok(made)
    }

    /// Makes a file by an open, in version 4: its stateid, and whether it is to be confirmed.
    fn open(&self, client: Option<u64>, name: &[u8], doing: &str) -> Said<([u8; 16], bool)> {
        let owner = Cell::new(random());
        let open = |mode| {
            let put = |to: &mut XdrWriter<'_>| {
                // In version 4.0 an answer that asks to wait is a call's, too: with the same number it would only come again.
                if client.is_some() {
                    owner.set(random());
                }
                let owner = OpenOwner { client, name: &owner.get().to_be_bytes() };
                new_file::put_open4(to, owner, name, mode);
            };
            self.on(doing, (&self.handle, &[]), put, new_file::get_open4, 1)
        };
        match open(Some(MODE))? {
            Err(NfsStatus::EXISTS) => open(None),
            said => Ok(said),
        }
    }

    /// Ends an open.
    fn close(&self, file: &NfsHandle, (mut state, is_unconfirmed): ([u8; 16], bool)) -> Result<()> {
        let doing = "cannot close the file";
        let sequence = Cell::new(0);
        // In version 4.0 each call of the owner has the next number, also behind an answer that asks to wait.
        let next = || {
            sequence.set(sequence.get() + 1);
            sequence.get()
        };
        if is_unconfirmed {
            let put = |to: &mut XdrWriter<'_>| new_file::put_confirm40(to, &state, next());
            match self.on(doing, (file, &[]), put, new_file::get_confirm40, 1)? {
                Ok(confirmed) => state = confirmed,
                Err(_) => return Ok(()),
            }
        }
        let put = |to: &mut XdrWriter<'_>| new_file::put_close4(to, &state, next());
        self.on(doing, (file, &[]), put, new_file::get_close4, 1).map(drop)
    }

    /// The id of this process as the server's client, in version 4.0.
    fn client_id(&self, doing: &str) -> Said<Option<u64>> {
        if self.client.version().has_session() {
            return Ok(Ok(None));
        }
        let server = self.server();
        let verifier = lock(&server.client40);
        let owner = format!("forebay {} {} {:x}", server.who.uid(), std::process::id(), *verifier);
        let put =
            |to: &mut XdrWriter<'_>| new_file::put_client40(to, verifier.to_be_bytes(), owner.as_bytes());
        let (client, confirm) = match server.compound(doing, 1, put, new_file::get_client40)? {
            Ok(known) => known,
            Err(status) => return Ok(Err(status)),
        };
        let put = |to: &mut XdrWriter<'_>| {
            to.u32(op::SETCLIENTID_CONFIRM);
            to.u64(client);
            to.raw(&confirm);
        };
        let get = |from: &mut XdrReader<'_>| new_file::get_heads(from, &[op::SETCLIENTID_CONFIRM]);
        Ok(server.compound(doing, 1, put, get)?.map(|()| Some(client)))
    }

    fn made(&self, name: &[u8], doing: &str) -> Result<(NfsHandle, FileAttributes)> {
        let gone = || Error::new(ErrorKind::Busy, format!("{doing}: another program has removed it"));
        self.look(name)?.ok_or_else(gone)
    }

    /// Gives a file another name, and that name's file up.
    pub(crate) fn rename(&self, old: &[u8], new: &[u8], doing: &str) -> Said<()> {
        if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| {
                new_file::put_name3(to, &self.handle, old);
                new_file::put_name3(to, &self.handle, new);
            };
            return self.server().call3(doing, procedure::RENAME, put, new_file::get_status);
        }
        let put = |to: &mut XdrWriter<'_>| {
            to.words(&[op::SAVEFH, op::RENAME]);
            to.opaque(old);
            to.opaque(new);
        };
        self.on(doing, (&self.handle, &[op::SAVEFH, op::RENAME]), put, |_| Ok(Ok(())), 0)
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &[u8]) -> Said<()> {
        let doing = "cannot remove the file";
        if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| new_file::put_name3(to, &self.handle, name);
            return self.server().call3(doing, procedure::REMOVE, put, new_file::get_status);
        }
        let put = |to: &mut XdrWriter<'_>| {
            to.u32(op::REMOVE);
            to.opaque(name);
        };
        self.on(doing, (&self.handle, &[op::REMOVE]), put, |_| Ok(Ok(())), 0)
    }

    /// Whether this user may change a file's bytes.
    pub(crate) fn may_modify(&self, file: &NfsHandle) -> Result<bool> {
        let doing = "cannot look at the file";
        let said = if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| {
                v3::put_handle(to, file);
                to.u32(MODIFY);
            };
            self.server().call3(doing, procedure::ACCESS, put, new_file::get_access3)?
        } else {
            let put = |to: &mut XdrWriter<'_>| to.words(&[op::ACCESS, MODIFY]);
            self.on(doing, (file, &[]), put, new_file::get_access4, 1)?
        };
        Ok(said.map_err(|status| self.error(status, doing))? & MODIFY != 0)
    }

    /// The rights to a file.
    pub(crate) fn rights(&self, file: &NfsHandle) -> Result<FileRights> {
        let doing = "cannot look at the file";
        let said = if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| v3::put_handle(to, file);
            self.server().call3(doing, v3::GETATTR, put, new_file::get_rights3)?
        } else {
            self.on(doing, (file, &[]), new_file::put_get_rights4, new_file::get_rights4, 1)?
        };
        said.map_err(|status| self.error(status, doing))
    }

    /// The access list of a file; `None` where the server has none to tell, and in version 3.
    pub(crate) fn acl(&self, file: &NfsHandle) -> Result<Option<Vec<u8>>> {
        if self.is_three() {
            return Ok(None);
        }
        let doing = "cannot look at the file's access list";
        let said = self.on(doing, (file, &[]), new_file::put_get_acl4, new_file::get_acl4, 1)?;
        Ok(said.ok().flatten())
    }

    /// Sets the access list of a file, in version 4, and with it the mode.
    pub(crate) fn set_acl(&self, file: &NfsHandle, acl: &[u8]) -> Said<()> {
        let put = |to: &mut XdrWriter<'_>| new_file::put_set_acl4(to, acl);
        self.on("cannot set the file's access list", (file, &[op::SETATTR]), put, |_| Ok(Ok(())), 0)
    }

    /// Sets who may use a file.
    pub(crate) fn set_rights(&self, file: &NfsHandle, rights: SetRights<'_>) -> Result<()> {
        let doing = "cannot set the file's mode and owner";
        let said = if self.is_three() {
            let put = |to: &mut XdrWriter<'_>| new_file::put_set3(to, file, rights);
            self.server().call3(doing, procedure::SETATTR, put, new_file::get_status)?
        } else {
            let put = |to: &mut XdrWriter<'_>| new_file::put_set4(to, rights);
            self.on(doing, (file, &[op::SETATTR]), put, |_| Ok(Ok(())), 0)?
        };
        said.map_err(|status| self.error(status, doing))
    }
}
