//! Connections.

use std::io::{BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::call::Call;
use crate::reply::Reply;
use crate::request::{Body, Request};
use crate::send::Sending;
use crate::{Asked, Fault, Seen, Shared, lock};

/// What requests come from and replies go to: TCP, or TLS over it.
pub(crate) trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

pub(crate) fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().flatten() {
        if shared.is_over() {
            return;
        }
        let connection = shared.opened(&stream);
        let shared = shared.clone();
        std::thread::spawn(move || {
            let _ = serve(stream, &shared, connection);
            shared.closed(connection);
        });
    }
}

fn serve(stream: TcpStream, shared: &Shared, connection: u64) -> Result<()> {
    stream.set_nodelay(true)?;
    let wire: Box<dyn Wire> = match &shared.tls {
        None => Box::new(stream),
        Some(config) => crate::tls::accept(stream, config)?,
    };
    let mut from = BufReader::with_capacity(64 << 10, wire);
    while let Some(request) = Request::read(&mut from)? {
        let is_under_way = shared.began(&request);
        let goes_on = one(&mut from, shared, connection, &request);
        drop(is_under_way);
        if !goes_on? {
            break;
        }
    }
    from.get_mut().flush()
}

/// Carries one request out. Returns whether the connection goes on.
fn one(
    from: &mut BufReader<Box<dyn Wire>>,
    shared: &Shared,
    connection: u64,
    request: &Request,
) -> Result<bool> {
    if request.method == "CONNECT" {
        // A proxy in front of this server itself.
        from.get_mut().write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        return Ok(true);
    }
    let asked = request.asked();
    let seen = Seen {
        asked,
        before: 0,
        connection,
        bucket: request.bucket.clone(),
        key: request.key.clone(),
        range: request.header("range").map(str::to_owned),
        part: request.parameter("partNumber").and_then(|number| number.parse().ok()),
    };
    let fault = shared.fault(seen);
    let fault = fault.as_ref();
    let (keeps, closes) = {
        let settings = lock(&shared.settings);
        (settings.keeps_bodies || !matches!(asked, Asked::Put | Asked::Part), settings.closes)
    };
    let fault = if closes && fault.is_none() { Some(&Fault::Close) } else { fault };
    let reply = if let Some(Fault::EarlyError(status, code)) = fault {
        Reply::error(*status, code, "The request was refused before its body.")
    } else {
        let pace =
            if let Some(Fault::SlowRequest(bytes, time)) = fault { Some((*bytes, *time)) } else { None };
        let Body { bytes, sums, .. } = request.body(from, keeps, pace)?;
        Call { shared, request, asked, fault, body: &bytes, summed: sums.end() }.answer()
    };
    let is_head = request.method == "HEAD";
    let mut sending = Sending { to: &mut **from.get_mut(), shared, connection, is_head, fault, sent: 0 };
    let goes_on = sending.send(reply);
    let sent = sending.sent;
    shared.count_bytes(sent);
    Ok(goes_on? && !request.header("connection").is_some_and(|what| what.eq_ignore_ascii_case("close")))
}
