//! Looking at the further addresses of a server: when a file is opened, and after they were left out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::resolve;
use forebay_sys::threads;

use crate::lock;
use crate::network::addresses::{FurtherAddress, LookReason, MOST_FURTHER, UnshownReason};
use crate::network::server::{NfsServer, TriesRdma};
use crate::protocol::handle::{FileAttributes, NfsHandle};

/// How often, while calls are made, a check runs whether an address is due again.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl NfsServer {
    /// A file was opened: looks whether it is the same at all addresses, in versions that cannot identify the server;
    /// and checks addresses that are not known yet. Ends when all have answered, or were left out.
    pub(crate) fn opened(
        self: &Arc<Self>,
        handle: &NfsHandle,
        facts: &FileAttributes,
        tries_rdma: TriesRdma,
    ) {
        if self.further.is_empty() {
            return;
        }
        self.tries_rdma.get_or_init(|| tries_rdma);
        let file = lock(&self.further.files).opened((*handle, *facts));
        self.look(LookReason::Opened(file));
        self.look_again();
    }

    /// Addresses that were left out may be back. Nobody waits for them; called for each request.
    #[inline]
    pub(crate) fn look_again(self: &Arc<Self>) {
        if !self.further.is_empty() {
            self.look_now_and_then();
        }
    }

    fn look_now_and_then(self: &Arc<Self>) {
        {
            let mut looked = lock(&self.further.looked);
            let every = LOOK_INTERVAL.min(self.options.left_out);
            if looked.is_some_and(|looked| looked.elapsed() < every) {
                return;
            }
            *looked = Some(Instant::now());
        }
        self.look(LookReason::Due);
    }

    fn look(self: &Arc<Self>, looks: LookReason) {
        let is_waited_for = looks != LookReason::Due;
        let forbidden = self.options.check_network().err();
        if forbidden.is_some() && !is_waited_for {
            return;
        }
        // In versions with sessions a file proves nothing.
        let is_looked_at = |address: &FurtherAddress| {
            address.is_due(looks, self.options.left_out)
                && !(self.version.has_session() && address.is_shown())
        };
        let (tell, told) = channel::<()>();
        for index in (0..self.further.all.len()).filter(|index| is_looked_at(&self.further.all[*index])) {
            if let Some(error) = &forbidden {
                self.further.leave_out(index, error);
                continue;
            }
            let (server, tell) = (self.clone(), tell.clone());
            let look = move || {
                server.look_at(index, looks);
                drop(tell);
            };
            // Without a thread it is looked at later, and not used until then.
            if let Err(error) = threads::spawn("forebay-address", look)
                && is_waited_for
            {
                self.further.leave_out(index, &Error::from_io(&error, "cannot start a thread"));
            }
        }
        drop(tell);
        if is_waited_for {
            // Ends with the last of them.
            let _ = told.recv();
        }
    }

    /// Checks an address, and notes the result.
    fn look_at(&self, index: usize, looks: LookReason) {
        let address = &self.further.all[index];
        let was_shown = address.is_shown();
        let left = address.left.load(Ordering::SeqCst);
        if let Err(error) = self.find_socket(address) {
            return self.further.leave_out(index, &error);
        }
        // One that is in use has shown the others.
        let mut from = match looks {
            LookReason::Opened(file) if was_shown => file,
            _ => 0,
        };
        loop {
            let (files, count) = lock(&self.further.files).since(from);
            let mut found = address.connection(self, &files, 0).map(drop);
            if found.is_ok() && self.options.rdma.is_some() && !was_shown {
                found = self.try_by_rdma(index);
            }
            match found {
                // Nothing more is needed of one in use.
                Ok(()) if was_shown => return,
                Ok(()) => {
                    let files = (!self.version.has_session()).then_some(count);
                    if self.further.show(index, left, files) {
                        return;
                    }
                    from = count;
                }
                Err(UnshownReason::Unclear) if was_shown => {
                    let error = Error::new(ErrorKind::Io, "no file was compared there yet");
                    return self.further.leave_out(index, &error);
                }
                Err(why) => return self.further.unshown(index, &why),
            }
        }
    }

    /// Looks up the name of an address that had none.
    fn find_socket(&self, address: &FurtherAddress) -> Result<()> {
        if address.socket().is_some() {
            return Ok(());
        }
        let port = self.addresses.first().map_or(0, SocketAddr::port);
        let others = || {
            self.further.all.iter().filter_map(FurtherAddress::socket).chain(self.addresses.first().copied())
        };
        let is_new = |socket: &SocketAddr| others().all(|other| other != *socket);
        if others().count() > MOST_FURTHER {
            return Err(Error::new(ErrorKind::InvalidInput, "a server has at most 16 addresses"));
        }
        let found = resolve(&address.name, port)?.into_iter().find(is_new);
        let nothing = || Error::new(ErrorKind::InvalidInput, "all addresses of the name are in use");
        let _ = address.socket.set(found.ok_or_else(nothing)?);
        Ok(())
    }
}
