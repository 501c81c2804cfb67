//! Proofs that the same server is at the other end of a connection. In version 4.1 and later the server says who it is,
//! and must know this client and its session (RFC 8881 §2.10.5); in other versions all that can be seen is that the
//! handles of opened files are known there, and that the files are the same.

use forebay_error::{Error, ErrorKind, Result};

use crate::network::addresses::UnshownReason;
use crate::network::exchange::Exchange;
use crate::network::identity::ServerIdentity;
use crate::network::opened::FileSample;
use crate::network::server::NfsServer;
use crate::network::session::{get_look, put_look};
use crate::protocol::handle::{FileAttributes, NfsHandle, NfsVersion};
use crate::protocol::status::NfsStatus;
use crate::protocol::v3;
use crate::protocol::v4::{self, GrantedSession};

/// How often a file is looked at that may just be changing.
const LOOKS: u32 = 3;

/// The work of checking an address.
const LOOKING: &str = "cannot look at the address";

/// Whether the server at the other end says that it is the same, and knows the session. What it says no to may be over meanwhile: a
/// restarted server knows nobody. The session is looked at by the first address, and made anew where it is lost; then it is asked again.
pub(crate) fn same_server(server: &NfsServer, exchange: &mut Exchange) -> Result<(), UnshownReason> {
    for _ in 0..2 {
        let (session, identity) = server.session_and_identity();
        let (Some(known), Some(granted)) = (identity, session.granted) else {
            return Err(UnshownReason::Unclear);
        };
        let Err(no) = knows(server, exchange, &known, &granted)? else { return Ok(()) };
        if server.check_session(LOOKING).is_err() {
            return Err(UnshownReason::Unclear);
        }
        if server.session().epoch == session.epoch {
            return Err(UnshownReason::Not(no));
        }
    }
    Err(UnshownReason::Unclear)
}

/// The same for one session; the inner error is what speaks against it.
fn knows(
    server: &NfsServer,
    exchange: &mut Exchange,
    known: &ServerIdentity,
    granted: &GrantedSession,
) -> Result<Result<()>> {
    let told = server.compound_on(
        exchange,
        LOOKING,
        1,
        |to| v4::put_exchange_id(to, known.verifier, &known.owner),
        |from| {
            Ok(v4::get_exchange_id(from)?.map(|told| ServerIdentity::new(known.verifier, &known.owner, told)))
        },
    )?;
    let told = match told {
        Ok(told) => told,
        Err(status) => return Ok(Err(refused(server, status))),
    };
    if (&told.major, &told.scope) != (&known.major, &known.scope) {
        return Ok(Err(other("another server answers there")));
    }
    if told.minor != known.minor {
        return Ok(Err(unshared(
            "another node of the server answers there, which shares no session with the first",
        )));
    }
    let bound = server.compound_on(
        exchange,
        LOOKING,
        1,
        |to| v4::put_bind(to, &granted.session),
        |from| v4::get_bind(from, &granted.session),
    )?;
    Ok(match bound {
        _ if told.client != known.client => Err(unshared("the server does not know this client there")),
        // Without it a connection is known by its first call in a slot.
        Ok(()) | Err(NfsStatus::NOT_SUPPORTED) => Ok(()),
        Err(status) if status.is_session_lost() => {
            Err(unshared("the server does not know the session there"))
        }
        Err(status) => Err(refused(server, status)),
    })
}

fn other(text: &str) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}

/// Its addresses share no session: they are nodes, or the server knows a client anew at each.
fn unshared(text: &str) -> Error {
    let hint = "version 3 needs no session: ?version=3 in the URL, or vers=3 for the mount";
    Error::new(ErrorKind::Unsupported, text).hint(hint)
}

fn refused(server: &NfsServer, status: NfsStatus) -> Error {
    status.error(LOOKING, server.who.uid())
}

/// Whether files are the same at the other end as by the first address. Those that are gone at both show nothing.
pub(crate) fn same_files(
    server: &NfsServer,
    exchange: &mut Exchange,
    samples: &[FileSample],
) -> Result<(), UnshownReason> {
    let mut is_shown = false;
    for sample in samples {
        is_shown |= same_file(server, exchange, sample)?;
    }
    if is_shown { Ok(()) } else { Err(UnshownReason::Unclear) }
}

/// The same for one file, which may change meanwhile; false: it is gone at both.
fn same_file(
    server: &NfsServer,
    exchange: &mut Exchange,
    sample: &FileSample,
) -> Result<bool, UnshownReason> {
    let (handle, mut here) = (&sample.0, Ok(sample.1));
    for _ in 0..LOOKS {
        let there = facts(server, exchange, handle)?;
        if there == here {
            return Ok(here.is_ok());
        }
        // Nothing is known of the address while the first one does not answer.
        let Ok(said) = server.said_of(handle) else { return Err(UnshownReason::Unclear) };
        here = said.map(|(now, _)| now);
        match (there, here) {
            (Ok(there), Ok(here)) if there == here => return Ok(true),
            (Ok(there), Ok(here))
                if (there.file_system, there.file_id) != (here.file_system, here.file_id) =>
            {
                return Err(UnshownReason::Not(other(
                    "the file is another one there: another server answers",
                )));
            }
            (Err(status), Ok(_)) => return Err(UnshownReason::Not(refused(server, status))),
            (Err(_), Err(_)) => return Ok(false),
            // It is being written, or was just removed.
            (Ok(_), _) => {}
        }
    }
    Err(UnshownReason::Not(other(
        "the file is in another state there: another server answers, or another program writes the file",
    )))
}

fn facts(
    server: &NfsServer,
    exchange: &mut Exchange,
    handle: &NfsHandle,
) -> Result<Result<FileAttributes, NfsStatus>> {
    if server.version == NfsVersion::V3 {
        let procedure = (v3::PROGRAM, v3::GETATTR);
        let put = |to: &mut crate::protocol::xdr::XdrWriter<'_>| v3::put_handle(to, handle);
        return exchange.call(LOOKING, procedure, Some(&server.who), put, v3::get_attributes);
    }
    let said = server.compound_on(exchange, LOOKING, 2, |to| put_look(to, handle), get_look)?;
    Ok(said.map(|(attributes, _)| attributes))
}
