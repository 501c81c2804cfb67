//! The names in a directory of a server.

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;

use crate::client::open::{UrlTarget, find};
use crate::client::url::NfsUrl;
use crate::network::options::NfsOptions;
use crate::network::server::NfsServer;
use crate::protocol::handle::{NfsHandle, NfsVersion};
pub use crate::protocol::read_dir::DirEntry;
use crate::protocol::read_dir::{self, DirPart, DirPlace, ReadDirForm};
use crate::protocol::status::NfsStatus;
use crate::protocol::xdr::Malformed;

/// The request, for errors.
const DOING: &str = "cannot list the directory";
/// Bytes of a reply that are asked for: what the connection for calls takes, with room for what stands around them.
const REPLY_BYTES: u32 = 24 << 10;
/// More names than this come from a server that does not end.
const MOST_NAMES: usize = 10_000_000;
/// Parts without a name in a listing at most: there are two, where `.` and `..` come alone.
const MOST_EMPTY: usize = 16;
/// Times that a listing begins anew because the server's cookies do not hold any more.
const RESTARTS: u32 = 3;

/// The names in a directory, in the server's order, without `.` and `..`. Names that come or go meanwhile may be among them or not.
pub fn list(url: &NfsUrl, options: &NfsOptions) -> Result<Vec<DirEntry>> {
    let UrlTarget { client, handle, .. } = find(url, options)?;
    list_at(client.server_of(), &handle).map_err(|error| error.with("url", url))
}

fn list_at(server: &NfsServer, handle: &NfsHandle) -> Result<Vec<DirEntry>> {
    let mut form = if server.version == NfsVersion::V3 { ReadDirForm::V3Plus } else { ReadDirForm::V4 };
    let mut restarts = 0;
    loop {
        let status = match all(server, handle, form)? {
            Ok(entries) => return Ok(entries),
            Err(status) => status,
        };
        // A server need not have READDIRPLUS, and an entry has less room in it.
        if form == ReadDirForm::V3Plus
            && (status == NfsStatus::NOT_SUPPORTED || status == NfsStatus::TOO_SMALL)
        {
            form = ReadDirForm::V3;
        } else if status.is_cookie_lost() && restarts < RESTARTS {
            restarts += 1;
        } else {
            return Err(server.error(status, DOING));
        }
    }
}

/// All entries, from the first on.
fn all(
    server: &NfsServer,
    handle: &NfsHandle,
    form: ReadDirForm,
) -> Result<Result<Vec<DirEntry>, NfsStatus>> {
    let (mut entries, mut place) = (Vec::new(), DirPlace::default());
    let (mut begins, mut empty) = (HashSet::new(), 0);
    loop {
        if stop::is_stopped() {
            return Err(stop::stopped());
        }
        if !begins.insert(place.cookie) || empty > MOST_EMPTY {
            return Err(Error::from(Malformed("the names of a directory do not end")).with("doing", DOING));
        }
        let part = match part(server, handle, form, place)? {
            Ok(part) => part,
            Err(status) => return Ok(Err(status)),
        };
        empty += usize::from(part.entries.is_empty());
        entries.extend(part.entries);
        if part.is_last {
            return Ok(Ok(entries));
        }
        if entries.len() > MOST_NAMES {
            return Err(Error::new(ErrorKind::Io, format!("{DOING}: it has more than {MOST_NAMES} names"))
                .hint("name its files, or an index of them"));
        }
        place = part.next;
    }
}

fn part(
    server: &NfsServer,
    handle: &NfsHandle,
    form: ReadDirForm,
    place: DirPlace,
) -> Result<Result<DirPart, NfsStatus>> {
    let most = REPLY_BYTES.min(server.session().limits().read);
    if form == ReadDirForm::V4 {
        return server.compound(
            DOING,
            2,
            |to| read_dir::put(to, form, handle, place, most),
            |from| read_dir::get(from, form, place),
        );
    }
    server.call3(
        DOING,
        form.number(),
        |to| read_dir::put(to, form, handle, place, most),
        |from| read_dir::get(from, form, place),
    )
}
