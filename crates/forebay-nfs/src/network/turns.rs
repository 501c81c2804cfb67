//! Connections for bytes: they go to all addresses of a server in turn.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::Result;
use forebay_remote::silence::SilenceClock;
use forebay_remote::stop::{is_stopped, stopped};
use forebay_verbs::Why;

use crate::lock;
use crate::network::addresses::{CHECK_TIME, FurtherAddress, UnshownReason, WireDestination};
use crate::network::connect::{connect_from, end_unsent};
use crate::network::exchange::Exchange;
use crate::network::opened::FileSample;
use crate::network::options::NfsOptions;
use crate::network::same::{same_files, same_server};
use crate::network::server::NfsServer;

impl FurtherAddress {
    /// A connection on which the server was shown to be the same. `files`: to compare in versions without a server's
    /// identity.
    pub(crate) fn connection(
        &self,
        server: &NfsServer,
        files: &[FileSample],
        port: u16,
    ) -> Result<TcpStream, UnshownReason> {
        let Some(socket) = self.socket() else { return Err(UnshownReason::Unclear) };
        let options = &server.options;
        options.check_network()?;
        let options = NfsOptions {
            connect: options.connect.min(CHECK_TIME),
            first_answer: options.silence.min(CHECK_TIME),
            silence: options.silence.min(CHECK_TIME),
            deadline: Duration::ZERO,
            ..options.clone()
        };
        let stream = connect_from(port, &[socket], &options, &server.clock)?;
        // A connection that only compares servers frees its port at once: there are few below 1024.
        end_unsent(&stream);
        // What another server says, or does not, is nothing of this one's.
        let clock = SilenceClock::new(server.name.clone());
        let mut exchange = Exchange::on(stream, socket, options, clock);
        if server.version.has_session() {
            same_server(server, &mut exchange)?;
        } else {
            same_files(server, &mut exchange, files)?;
        }
        exchange.into_stream().ok_or(UnshownReason::Unclear)
    }
}

impl NfsServer {
    /// A connection for bytes, and where it leads. Wires go to all addresses in turn. `port`: of this side, if it is free; 0: any.
    pub(crate) fn connect(self: &Arc<Self>, wire: usize, port: u16) -> Result<(TcpStream, WireDestination)> {
        if let Some((_, stream, destination)) = self.shown_in_turn(wire, port)? {
            return Ok((stream, destination));
        }
        let destination = self.first_destination();
        let stream = connect_from(port, &self.addresses, &self.options, &self.clock)?;
        Ok((stream, destination))
    }

    fn first_destination(&self) -> WireDestination {
        WireDestination { further: None, returns: self.further.returns.load(Ordering::SeqCst) }
    }

    /// The same over RDMA, by a function that takes the address; `None`: the first. The server shows over TCP who it is.
    pub(crate) fn connect_by<T>(
        self: &Arc<Self>,
        wire: usize,
        connect: impl Fn(Option<usize>) -> Result<T>,
    ) -> Result<(T, WireDestination)> {
        while let Some((index, _, destination)) = self.shown_in_turn(wire, 0)? {
            match connect(Some(index)) {
                // That is of this machine, and no other address helps.
                Err(error) if Why::of(&error) == Some(Why::Memlock) => return Err(error),
                Err(_) if is_stopped() => return Err(stopped()),
                Err(error) => self.further.leave_out(index, &error),
                Ok(connected) => return Ok((connected, destination)),
            }
        }
        self.check_first()?;
        let destination = self.first_destination();
        connect(None).map(|connected| (connected, destination))
    }

    /// A further address with a connection on which it was just shown to be the server's, if a wire's turn is at one.
    fn shown_in_turn(
        self: &Arc<Self>,
        wire: usize,
        port: u16,
    ) -> Result<Option<(usize, TcpStream, WireDestination)>> {
        if self.further.is_empty() {
            return Ok(None);
        }
        self.look_again();
        let returns = self.further.returns.load(Ordering::SeqCst);
        while let Some(index) = self.in_turn(wire) {
            let address = &self.further.all[index];
            let Some(left) = address.shown_since() else { continue };
            let files: Vec<_> = lock(&self.further.files).last().into_iter().collect();
            let found = address.connection(self, &files, port);
            if is_stopped() {
                return Err(stopped());
            }
            match found {
                Ok(stream) => {
                    let further = Some((index, left, address.left.clone()));
                    let destination = WireDestination { further, returns };
                    if !destination.is_left() {
                        return Ok(Some((index, stream, destination)));
                    }
                }
                Err(UnshownReason::Unclear) => break,
                Err(why) => self.further.unshown(index, &why),
            }
        }
        Ok(None)
    }

    /// The address for a connection; `None`: the first.
    fn in_turn(&self, wire: usize) -> Option<usize> {
        let (shown, first) = (self.further.shown(), usize::from(self.uses_first()));
        let turn = wire % (first + shown.len()).max(1);
        shown.get(turn.checked_sub(first)?).copied()
    }

    /// Whether a connection that has nothing to do is to end, since an address returned and the wire's turn is at another one.
    pub(crate) fn is_surplus(&self, wire: usize, destination: &mut WireDestination) -> bool {
        let returns = self.further.returns.load(Ordering::SeqCst);
        if std::mem::replace(&mut destination.returns, returns) == returns {
            return false;
        }
        self.in_turn(wire) != destination.further.as_ref().map(|(index, ..)| *index)
    }

    /// How many addresses are in use.
    pub(crate) fn addresses_in_use(&self) -> usize {
        usize::from(self.uses_first()) + self.further.shown().len()
    }

    /// Whether writes are durable at once, piece by piece: what one address has taken, a COMMIT at another need not make durable, and its
    /// verifier may be another. A session is of one server.
    pub(crate) fn writes_durably(&self) -> bool {
        !self.further.is_empty() && !self.version.has_session()
    }
}
