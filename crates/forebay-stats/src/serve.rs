//! A small HTTP server of one page: the counters of all processes, for Prometheus.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest request head, in bytes. Prometheus sends about 300.
const HEAD: usize = 8 << 10;
/// A client has this long to send its request, and as long again to take the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Requests at a time; further ones are answered with 503.
const MOST: usize = 16;
/// Time between two looks at `is_over`.
const LOOK: Duration = Duration::from_millis(100);

/// Answers `GET /metrics` with `page()` until `is_over()`, which is asked ten times a second. Requests that have come by then
/// are answered first. Each request has a thread, 16 at most; its head may have 8 KiB and take five seconds.
pub fn serve(
    listener: &TcpListener,
    page: &(dyn Fn() -> String + Sync),
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<()> {
    // A client may leave between `poll` and `accept`.
    listener.set_nonblocking(true).map_err(|error| Error::from_io(&error, "cannot take connections"))?;
    let busy = AtomicUsize::new(0);
    let busy = &busy;
    thread::scope(|scope| {
        while !is_over() {
            let Some(mut stream) = next(listener) else { continue };
            if busy.load(Ordering::Relaxed) >= MOST {
                let _ = stream.set_write_timeout(Some(LOOK));
                let _ = stream.write_all(&Answer::BUSY.bytes(false));
                continue;
            }
            busy.fetch_add(1, Ordering::Relaxed);
            let work = move || {
                answer(stream, page, is_over);
                busy.fetch_sub(1, Ordering::Relaxed);
            };
            let thread = thread::Builder::new().name("forebay-metrics".to_owned());
            if thread.spawn_scoped(scope, work).is_err() {
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
    Ok(())
}

/// The next connection; `None` if there is none for a tenth of a second.
fn next(listener: &TcpListener) -> Option<TcpStream> {
    let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    if poll(&mut ready, Some(&wait)).ok()? == 0 {
        return None;
    }
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // Out of descriptors: the connection is still there, and `poll` would not wait for it.
            if error.kind() != IoKind::WouldBlock {
                thread::sleep(LOOK);
            }
            None
        }
    }
}

/// Reads a request and answers it. A client that is gone needs no answer.
fn answer(mut stream: TcpStream, page: &dyn Fn() -> String, is_over: &dyn Fn() -> bool) {
    let _ = stream.set_nonblocking(false);
    let (answer, is_head) = match read_head(&mut stream, is_over) {
        Ok(head) => (Answer::to(&head, page), head.starts_with(b"HEAD ")),
        Err(Some(refusal)) => (refusal, false),
        Err(None) => return,
    };
    if put(&mut stream, &answer.bytes(is_head)).is_none() {
        return;
    }
    // What a client still sends must be read: else closing resets the connection, and the client loses the answer.
    let _ = stream.shutdown(Shutdown::Write);
    let mut rest = [0; HEAD];
    for _ in 0..8 {
        if !matches!(stream.read(&mut rest), Ok(count) if count > 0) {
            break;
        }
    }
}

/// The head of a request; else what to answer, where there is still a client.
fn read_head(
    stream: &mut TcpStream,
    is_over: &dyn Fn() -> bool,
) -> std::result::Result<Vec<u8>, Option<Answer>> {
    let end = Instant::now() + LIMIT;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    stream.set_read_timeout(Some(LOOK)).map_err(|_| None)?;
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Err(None),
            Ok(count) => head.extend_from_slice(&part[..count]),
            Err(error)
                if matches!(error.kind(), IoKind::WouldBlock | IoKind::TimedOut | IoKind::Interrupted) => {}
            Err(_) => return Err(None),
        }
        if head.windows(4).any(|window| window == b"\r\n\r\n") {
            return Ok(head);
        }
        if head.len() > HEAD {
            return Err(Some(Answer::error(
                "431 Request Header Fields Too Large",
                "the request is too long\n",
            )));
        }
        if Instant::now() >= end || is_over() {
            return Err(Some(Answer::error("408 Request Timeout", "the request is not whole\n")));
        }
    }
}

/// Sends the answer within the time that a client has.
fn put(stream: &mut TcpStream, mut bytes: &[u8]) -> Option<()> {
    let end = Instant::now() + LIMIT;
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        // Zero would be no limit.
        stream.set_write_timeout(Some(left).filter(|left| !left.is_zero())).ok()?;
        if left.is_zero() {
            return None;
        }
        match stream.write(bytes) {
            Ok(count) if count > 0 => bytes = &bytes[count..],
            Err(error) if error.kind() == IoKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(())
}

struct Answer {
    status: &'static str,
    kind: &'static str,
    text: std::borrow::Cow<'static, str>,
}

impl Answer {
    const BUSY: Self = Self::error("503 Service Unavailable", "too many requests at a time\n");

    const fn error(status: &'static str, text: &'static str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", text: std::borrow::Cow::Borrowed(text) }
    }

    /// The answer to a whole head.
    fn to(head: &[u8], page: &dyn Fn() -> String) -> Self {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [method, target, version] = words[..] else {
            return Self::error("400 Bad Request", "not a request\n");
        };
        if !version.starts_with(b"HTTP/1.") {
            return Self::error("505 HTTP Version Not Supported", "HTTP/1.0 or HTTP/1.1\n");
        }
        if method != b"GET" && method != b"HEAD" {
            return Self::error("405 Method Not Allowed", "GET or HEAD\n");
        }
        if target.split(|byte| *byte == b'?').next() != Some(b"/metrics") {
            return Self::error("404 Not Found", "the metrics are at /metrics\n");
        }
        Self { status: "200 OK", kind: "text/plain; version=0.0.4; charset=utf-8", text: page().into() }
    }

    /// As it is sent; the answer to HEAD has no text.
    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let allow = if self.status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            self.status,
            self.kind,
            self.text.len()
        )
        .into_bytes();
        if !is_head {
            bytes.extend_from_slice(self.text.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Serves `page`, asks each question on a connection of its own, and gives the answers.
    fn asked(page: &str, questions: &[&[u8]]) -> Vec<String> {
        with_server(page, |address| {
            questions
                .iter()
                .map(|question| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    // One that is refused before its end may not take all of it.
                    let _ = stream.write_all(question);
                    let mut text = String::new();
                    stream.read_to_string(&mut text).unwrap();
                    text
                })
                .collect()
        })
    }

    fn with_server<T>(page: &str, ask: impl FnOnce(std::net::SocketAddr) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                serve(&listener, &|| page.to_owned(), &|| is_over.load(Ordering::Relaxed)).unwrap();
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(address)));
            is_over.store(true, Ordering::Relaxed);
            server.join().unwrap();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[test]
    fn the_page_is_at_metrics_and_all_else_is_refused() {
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.resize(3 * HEAD, b'x');
        let answers = asked(
            "up 1\n",
            &[
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET /metrics?a=b HTTP/1.0\r\n\r\n",
                b"HEAD /metrics HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n\r\n",
                b"POST /metrics HTTP/1.1\r\n\r\n",
                b"GET /metrics HTTP/2\r\n\r\n",
                b"nonsense\r\n\r\n",
                &long,
            ],
        );
        for (answer, status) in
            answers.iter().zip(["200 OK", "200 OK", "200 OK", "404 ", "405 ", "505 ", "400 ", "431 "])
        {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
        }
        assert!(
            answers[0].contains("Content-Type: text/plain; version=0.0.4")
                && answers[0].ends_with("\r\n\r\nup 1\n")
        );
        assert!(answers[2].contains("Content-Length: 5\r\n") && answers[2].ends_with("\r\n\r\n"));
        assert!(answers[4].contains("Allow: GET, HEAD\r\n"));
    }

    #[test]
    fn silent_clients_stop_neither_others_nor_the_end() {
        let begun = Instant::now();
        let answers = with_server("up 1\n", |address| {
            let silent: Vec<_> = (0..MOST - 1).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            // Each of these waits for a request; more than that are refused.
            let more: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut refused = String::new();
            let mut last = more.into_iter().next_back().unwrap();
            let _ = last.read_to_string(&mut refused);
            drop(silent);
            (text, refused)
        });
        assert!(answers.0.ends_with("up 1\n"), "{answers:?}");
        assert!(answers.1.starts_with("HTTP/1.1 503 "), "{answers:?}");
        assert!(begun.elapsed() < LIMIT, "the end waits for silent clients");
    }

    #[test]
    fn a_request_in_parts_is_read_and_one_that_never_ends_is_not_waited_for() {
        let (whole, late) = with_server("up 1\n", |address| {
            let ask = |parts: &[&[u8]]| {
                let mut stream = TcpStream::connect(address).unwrap();
                for part in parts {
                    stream.write_all(part).unwrap();
                    thread::sleep(Duration::from_millis(30));
                }
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                text
            };
            (ask(&[b"GET /met", b"rics HTTP/1.1\r\n", b"\r\n"]), ask(&[b"GET /metrics HTTP/1.1\r\n"]))
        });
        assert!(whole.ends_with("up 1\n"), "{whole}");
        assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
    }
}
