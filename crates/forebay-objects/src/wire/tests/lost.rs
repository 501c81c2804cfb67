//! Connections that are lost, servers that are silent, and programs that fork or close all descriptors.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_error::ErrorKind;
use forebay_remote::stop::{patiently, stop_waiting};

use super::super::call::{Ask, Body, Method};
use super::server::{Places, answers, ask, get, network, pattern, reply, request, server, start};

/// Its end is a reset.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: the value lives through the call.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size,
        )
    };
    assert_eq!(done, 0);
}

#[test]
fn a_reply_that_is_cut_is_an_error_that_says_how_much_came() {
    let whole = reply(&pattern(3000));
    let head = whole.len() - 3000;
    for resets in [false, true] {
        for cut in [0, 1, head - 1, head, head + 1, head + 2999] {
            let part = whole[..cut].to_vec();
            let network = network(server(move |mut stream, _| {
                request(&mut stream).unwrap();
                stream.write_all(&part).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                if resets {
                    reset(&stream);
                }
            }));
            let (result, reply) = get(&network, "").end();
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
            assert_eq!(reply.body, pattern(cut.saturating_sub(head)));
            let text = error.to_string();
            match (resets, cut) {
                (false, cut) if cut >= head => {
                    let says = format!("(received={}, expected=3000, server=127.0.0.1:", cut - head);
                    assert!(text.contains(&says), "{text}");
                }
                (false, _) => assert!(text.contains("closed the connection before it answered"), "{text}"),
                _ => assert!(text.contains("reset by peer"), "{text}"),
            }
        }
    }
}

/// A connection that was used before may be closed when the next call is sent on it; a new one that is closed is an error.
#[test]
fn a_call_on_a_connection_that_just_ended_is_sent_again() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let network = network(server(move |stream, number| {
        counter.fetch_add(1, Relaxed);
        // The second request on a connection is read, and the connection is closed.
        answers(stream, |request, _| if request == 1 && number < 2 { Vec::new() } else { reply(b"body") });
    }));
    for _ in 0..5 {
        assert_eq!(get(&network, "").body(), b"body");
    }
    assert_eq!(made.load(Relaxed), 3);
}

#[test]
fn a_server_that_takes_no_connection_is_an_error_with_its_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut site = server(|_, _| {});
    site.port = listener.local_addr().unwrap().port();
    drop(listener);
    let address = format!("127.0.0.1:{}", site.port);
    let error = get(&network(site.clone()), "").error();
    assert!(error.to_string().contains(&address), "{error:?}");
    assert!(error.is_caused_by::<forebay_remote::endpoint::ServerUnreachable>());
    site.host = "no-such-host.invalid".to_owned();
    let error = get(&network(site), "").error();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.to_string().contains("no-such-host.invalid"));
}

#[test]
fn a_silent_server_is_given_up() {
    let networks = [0, 10, 50].map(|part| {
        network(server(move |mut stream, _| {
            request(&mut stream).unwrap();
            stream.write_all(&reply(&pattern(3000))[..part]).unwrap();
            std::thread::sleep(Duration::from_secs(30));
        }))
    });
    let began = Instant::now();
    let calls = networks.each_ref().map(|network| get(network, ""));
    for call in calls {
        let error = call.error();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        assert!((2..6).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}

/// Copies, and the ends of uploads: the server has the request, and is silent until it is done.
#[test]
fn a_server_that_works_is_waited_for_longer() {
    let works = |seconds| {
        network(server(move |mut stream, _| {
            request(&mut stream).unwrap();
            std::thread::sleep(Duration::from_secs(seconds));
            stream.write_all(&reply(b"done")).unwrap();
        }))
    };
    let mut copy = ask(Method::Put, "");
    copy.headers.push(("x-amz-copy-source".to_owned(), "bucket/key".to_owned()));
    let mut end = ask(Method::Post, "");
    end.query.push(("uploadId".to_owned(), "1".to_owned()));
    let (slow, stuck) = (works(4), works(30));
    let began = Instant::now();
    let call = |network, ask: &Ask| start(network, ask.clone(), Body::None, Places::default());
    let (good, late) = ([call(&slow, &copy), call(&slow, &end)], call(&stuck, &copy));
    for call in good {
        assert_eq!(call.body(), b"done");
    }
    assert_eq!(late.error().kind(), ErrorKind::Timeout);
    assert!((6..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

/// Runs a test in a process of its own.
fn alone(name: &str) -> bool {
    if std::env::args().any(|word| word == "--exact") {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    assert!(command.args(["--exact", &format!("wire::tests::lost::{name}")]).status().unwrap().success());
    false
}

#[test]
fn calls_end_when_waiting_is_to_stop() {
    if !alone("calls_end_when_waiting_is_to_stop") {
        return;
    }
    let network = network(server(|stream, _| {
        answers(stream, |_, head| {
            if head.contains("slow") {
                std::thread::sleep(Duration::from_secs(30));
            }
            reply(b"body")
        });
    }));
    // More than there are connections.
    let slow: Vec<_> = (0..20).map(|_| get(&network, "slow")).collect();
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    stop_waiting(true);
    assert!(slow.iter().all(|call| call.error().kind() == ErrorKind::Cancelled));
    assert_eq!(get(&network, "").error().kind(), ErrorKind::Cancelled);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // What cleans up goes on.
    let patience = Duration::from_secs(5);
    assert_eq!(patiently(patience, || get(&network, "")).body(), b"body");
    stop_waiting(false);
    assert_eq!(get(&network, "").body(), b"body");
}

#[test]
fn a_forked_child_makes_no_calls_and_leaves_the_parents_connections() {
    let network = network(server(|stream, number| {
        assert_eq!(number, 0, "another connection");
        answers(stream, |_, _| reply(b"body"));
    }));
    assert_eq!(get(&network, "").body(), b"body");
    // SAFETY: the child makes one call, which ends at once, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let is_refused = get(&network, "").error().kind() == ErrorKind::Unsupported;
            drop(network);
            // SAFETY: it ends the child, and runs no handlers of the parent's.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: the child was made above; the status is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    assert_eq!(get(&network, "").body(), b"body");
}

#[test]
fn a_program_that_closes_all_descriptors_loses_calls_and_no_more() {
    if !alone("a_program_that_closes_all_descriptors_loses_calls_and_no_more") {
        return;
    }
    // The server is another process.
    let mut pipe = [0; 2];
    // SAFETY: two places; the child serves until it is killed.
    let child = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        libc::fork()
    };
    if child == 0 {
        let site = server(|stream, _| {
            answers(stream, |_, head| {
                if head.contains("slow") {
                    std::thread::sleep(Duration::from_secs(30));
                }
                reply(b"body")
            });
        });
        // SAFETY: two bytes.
        unsafe { libc::write(pipe[1], site.port.to_ne_bytes().as_ptr().cast(), 2) };
        std::thread::sleep(Duration::from_mins(1));
    }
    let mut port = [0; 2];
    // SAFETY: two bytes.
    assert_eq!(unsafe { libc::read(pipe[0], port.as_mut_ptr().cast(), 2) }, 2);
    let mut site = server(|_, _| {});
    site.port = u16::from_ne_bytes(port);
    let network = network(site);
    assert_eq!(get(&network, "").body(), b"body");
    let slow = get(&network, "slow");
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: no pointers; the other threads of the test need none of them.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    // The program opens files under their numbers.
    let paths: Vec<_> = (0..600).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    assert_eq!(slow.error().errno(), libc::EBADF);
    assert_eq!(get(&network, "").body(), b"body");
    for file in &paths {
        assert!(
            std::os::fd::AsFd::as_fd(file).try_clone_to_owned().is_ok(),
            "a file of the program's was closed"
        );
    }
    // SAFETY: the child was made above.
    unsafe { libc::kill(child, libc::SIGKILL) };
}
