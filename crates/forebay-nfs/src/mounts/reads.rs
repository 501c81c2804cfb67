//! Reads of a mounted file over TCP, by connections of forebay's own: beside the kernel, which reads what the server does not give.
//!
//! A piece counts when its copy has ended, and is not taken back. So each is looked at before its copy: the server's reply to each READ
//! tells the file's state behind it, which must be the one in which the file was found. A piece has bytes of one state, as with the
//! kernel's own calls, and the server is asked nothing before.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Answer, BesideReads, Facts, Fill, Request, Requests, Source};

use super::lookups::{leave_alone, unreached};
use super::mounted_file::{MountTransport, MountedFile, is_of_server};
use super::open::OTHER_FACTS;
use crate::NfsFile;
use crate::source::{left_out, up_to};

/// Reads of one transfer.
pub(super) struct ServerReads {
    server: Arc<NfsFile>,
    address: SocketAddr,
    mounted: MountedFile,
}

impl ServerReads {
    pub(super) fn new(server: Arc<NfsFile>, mounted: MountedFile) -> Result<Self> {
        let address = server.client().addresses().first().copied();
        let address =
            address.ok_or_else(|| Error::new(ErrorKind::Internal, "a server without an address"))?;
        Ok(Self { server, address, mounted })
    }
}

impl BesideReads for ServerReads {
    fn server(&self) -> Weak<dyn Any + Send + Sync> {
        self.server.client().as_any()
    }

    fn begin(&self, file: &dyn Source, is_mixed: bool) -> Result<()> {
        file.sync()?;
        // The kernel asks the server anew, and drops what is older.
        if is_mixed
            && let Fill::Descriptor(fd) = file.fill()
            && !self.mounted.facts().seen(fd)?.agrees(self.server.opened())
        {
            return Err(Error::new(ErrorKind::Busy, format!("{OTHER_FACTS}: it has just changed")));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        unreached(self.address, MountTransport::Tcp).map_or(Ok(()), Err)
    }

    /// A server that cannot be reached is left alone for a while; other errors are of one file.
    fn give_up(&self, error: &Error) {
        if is_of_server(error, MountTransport::Tcp) {
            leave_alone(self.address, MountTransport::Tcp, error);
            self.server.client().fail_waiting(error);
        } else {
            self.mounted.forget(MountTransport::Tcp);
        }
    }

    fn facts(&self) -> Facts {
        let client = self.server.client();
        let way = format!(
            "NFS {} over {}, by forebay's own client beside the kernel's mount: server {}, {}",
            client.version(),
            client.transport(),
            client.server(),
            up_to(client)
        );
        Facts { way: Some(way), left_out: left_out(client), ..Facts::default() }
    }
}

impl fmt::Debug for ServerReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MountReads({:?})", self.server)
    }
}

impl Requests for ServerReads {
    fn start(&self, request: Request, done: Answer) {
        let (client, begun) = (self.server.client().clone(), Instant::now());
        let done: Answer = Box::new(move |result| {
            if result.is_ok() {
                client.record_duration(begun.elapsed());
            }
            done(result);
        });
        let state = self.server.opened().state();
        // SAFETY: the lane keeps the buffer valid and untouched until the answer.
        unsafe { self.server.start_in(state, request.offset, request.memory, done) };
    }
}
