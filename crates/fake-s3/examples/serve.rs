//! A server for other processes, until standard input ends:
//!
//! `serve [tls] [forget] [BUCKET/KEY=BYTES …]` prints its variables; objects are patterns of that many bytes, `forget` keeps no
//! bodies of PUTs, `bucket/` makes a bucket.
#![allow(clippy::print_stdout, reason = "an example")]

use std::io::Read;

use fake_s3::FakeS3;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_tls = arguments.iter().any(|one| one == "tls");
    let server = if is_tls { FakeS3::start_tls() } else { FakeS3::start() };
    for argument in arguments.iter().filter(|one| *one != "tls") {
        let (name, bytes) = argument.split_once('=').unwrap_or((argument, ""));
        match name.split_once('/') {
            None if name == "forget" => server.forget_bodies(),
            None | Some((_, "")) => server.make_bucket(name.trim_end_matches('/')),
            Some((bucket, key)) => {
                let bytes = bytes.parse().map_err(std::io::Error::other)?;
                server.put_pattern(bucket, key, bytes);
            }
        }
    }
    for (name, value) in server.environment() {
        println!("{name}={value}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{} requests, {} bytes sent", server.all_requests(), server.bytes_sent());
    Ok(())
}
