//! A fault of one connection affects no other.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Server};
use forebay_nfs::{Direction, NfsFile, NfsOptions, NfsUrl, open};
use forebay_source::HostRange;

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const SOON: Duration = Duration::from_secs(8);

/// A file of 8192 bytes, over connections of one call each.
fn opened(version: &str, connections: usize) -> (Server, NfsFile) {
    let server = Server::start();
    server.put("/export/file", vec![7; 8192]);
    let deadline = Duration::from_secs(15);
    let options =
        NfsOptions { connections, depth: 1, silence: deadline / 2, deadline, ..NfsOptions::default() };
    let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
    (server, file)
}

/// Good replies on the other connection do not excuse this one's.
#[test]
fn a_connection_that_answers_badly_is_given_up_beside_one_that_answers_well() {
    for version in VERSIONS {
        let (server, file) = opened(version, 2);
        server.faults(|seen| {
            (seen.asked == Asked::Read && seen.offset == 0).then(|| Fault::Record(vec![0xFF; 64]))
        });
        std::thread::scope(|scope| {
            let began = Instant::now();
            let bad = scope.spawn(|| file.read_at(&mut [0; 100], 0));
            while !bad.is_finished() {
                assert_eq!(file.read_at(&mut [0; 100], 4096).unwrap(), 100, "{version}");
            }
            let error = bad.join().unwrap().unwrap_err();
            assert!(error.to_string().starts_with("cannot read the server's reply"), "{version} {error}");
            assert!(began.elapsed() < SOON, "{version} {:?}", began.elapsed());
        });
    }
}

/// The thread that calls it has the calls of others, too.
#[test]
fn an_answer_that_panics_holds_up_no_other_request() {
    for version in VERSIONS {
        let (_server, file) = opened(version, 1);
        let mut places = [[0u8; 100]; 3];
        let (tell, told) = sync_channel(2);
        for (index, place) in places.iter_mut().enumerate() {
            let tell = tell.clone();
            let answer = Box::new(move |result| {
                assert!(index > 0, "asked for");
                tell.send(result).unwrap();
            });
            // SAFETY: the places stay until the last answer, and nobody else uses them.
            unsafe { file.start(Direction::Read, 0, HostRange::of_mut(place), answer) };
        }
        for _ in 1..places.len() {
            assert_eq!(told.recv_timeout(SOON).unwrap().unwrap(), 100, "{version}");
        }
        assert!(places.iter().all(|place| *place == [7; 100]), "{version}");
    }
}
